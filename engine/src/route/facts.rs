//! The facts from which a path is chosen: a small copy of the state at one version, taken without allocation and
//! without a lock. `Peer::facts` begins the facts; `api/paths.rs` adds whether each path reaches the ranges.

use super::decide::FASTER;
use crate::types::Transport;

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PathState {
    /// The path does not stand now; it is being made, or made again.
    #[default]
    Pending = 0,
    /// The path carries the slices that are queued for it.
    Open = 1,
    /// The path does not exist and is not being made.
    Shut = 2,
    /// Given up because it was idle. Made again when a transfer wakes it.
    Idle = 3,
    /// The path has failed, and its replacement or end has not been reported yet.
    Broken = 4,
}

/// The part of a transfer's options that bears on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Mask of `Transport::bit`: what the engine and the transfer allow.
    pub allowed: u64,
    pub checksum: bool,
    pub ordered: bool,
    pub notify: bool,
    /// The transfer waits for its start event.
    pub held: bool,
}

impl Asked {
    /// Returns the options of a transfer that sets none.
    pub fn plain(allowed: u64) -> Asked {
        Asked { allowed, checksum: false, ordered: false, notify: false, held: false }
    }

    pub fn allows(&self, transport: Transport) -> bool {
        self.allowed & transport.bit() != 0
    }
}

/// The memory that a transfer touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Memory {
    /// Some of the memory is a device's, here or (as far as known) at the peer.
    pub device_here: bool,
    pub device_there: bool,
    /// The NICs of this host reach the local device memory directly.
    pub nics_here: bool,
    /// The transfer is a part of a staged transfer.
    pub is_part: bool,
}

impl Memory {
    pub fn has_device(&self) -> bool {
        self.device_here || self.device_there
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The version of the state that the facts copy: the peer's paths, its loss, and the regions at both ends. Facts of
    /// the same version give the same decision for the same transfer.
    pub version: u64,
    pub asked: Asked,
    pub memory: Memory,
    /// The whole transfer went in one frame with its notification and may have been applied. The frame is sent again
    /// over TCP, whose target recognises the notification's number.
    pub is_replay: bool,
    pub is_lost: bool,
    states: [PathState; Transport::COUNT],
    /// True if the path reaches all ranges; None before the path was asked.
    reaches: [Option<bool>; Transport::COUNT],
}

impl Facts {
    /// Returns facts with the states of the paths only, indexed by the transports' numbers.
    pub fn new(version: u64, states: [PathState; Transport::COUNT], asked: Asked) -> Facts {
        Facts {
            version,
            asked,
            memory: Memory::default(),
            is_replay: false,
            is_lost: false,
            states,
            reaches: [None; Transport::COUNT],
        }
    }

    pub fn state(&self, transport: Transport) -> PathState {
        self.states[transport as usize]
    }

    pub fn set_state(&mut self, transport: Transport, state: PathState) {
        self.states[transport as usize] = state;
    }

    pub fn reaches(&self, transport: Transport) -> Option<bool> {
        self.reaches[transport as usize]
    }

    pub fn set_reaches(&mut self, transport: Transport, reaches: bool) {
        self.reaches[transport as usize] = Some(reaches);
    }

    /// True if no other path for host memory is allowed. The path may then try remote memory that is not known here:
    /// its target says which request is wrong.
    pub fn is_alone(&self, transport: Transport) -> bool {
        let hosts = FASTER.iter().fold(Transport::Tcp.bit(), |mask, faster| mask | faster.bit());
        !self.memory.has_device() && self.asked.allowed & hosts & !transport.bit() == 0
    }
}
