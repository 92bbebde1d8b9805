//! What a path is chosen from: a small copy of how things are at one version, taken without allocation and without
//! a lock. `Peer::facts` begins it, `api/paths.rs` adds what each link says of the ranges.

use super::decide::FASTER;
use crate::types::Transport;

/// How a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PathState {
    /// There is none at this moment: it is being made, or made again.
    #[default]
    Pending = 0,
    /// It carries what is queued for it.
    Open = 1,
    /// There is none, and none is being made.
    Shut = 2,
    /// Given up because nobody used it. It is made again for whoever wakes it.
    Resting = 3,
    /// It has failed, and nobody has said yet what becomes of it.
    Broken = 4,
}

/// What the caller of a transfer asked for, as far as it bears on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Mask of `Transport::bit`: what the engine and the transfer allow.
    pub allowed: u64,
    pub checksum: bool,
    pub ordered: bool,
    pub notify: bool,
    /// It waits for an event before it starts.
    pub held: bool,
}

impl Asked {
    /// Of a transfer without options.
    pub fn plain(allowed: u64) -> Asked {
        Asked { allowed, checksum: false, ordered: false, notify: false, held: false }
    }

    pub fn allows(&self, transport: Transport) -> bool {
        self.allowed & transport.bit() != 0
    }
}

/// What memory a transfer touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Memory {
    /// Some of it is a device's: here, and at the peer as far as that is known.
    pub device_here: bool,
    pub device_there: bool,
    /// Our NICs reach by themselves what is a device's here.
    pub nics_here: bool,
    /// It is a part of a transfer that is being staged.
    pub is_part: bool,
}

impl Memory {
    pub fn has_device(&self) -> bool {
        self.device_here || self.device_there
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Of what the facts were taken from: the peer's paths, its loss, and the regions at both ends. Two of the same
    /// version say the same of the same transfer.
    pub version: u64,
    pub asked: Asked,
    pub memory: Memory,
    /// All of it went in one frame with its notification and may have been taken in: it goes again by TCP, whose
    /// target knows the number.
    pub is_replay: bool,
    pub is_lost: bool,
    states: [PathState; Transport::COUNT],
    /// Whether the path's link reaches all ranges; None as long as it was not asked.
    reaches: [Option<bool>; Transport::COUNT],
}

impl Facts {
    /// Nothing but how the paths stand, by the transports' numbers.
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

    /// Whether there is no other path for host memory than this one. It may then try memory that nobody here knows:
    /// who is left with it says of each request what is wrong.
    pub fn is_alone(&self, transport: Transport) -> bool {
        let hosts = FASTER.iter().fold(Transport::Tcp.bit(), |mask, faster| mask | faster.bit());
        !self.memory.has_device() && self.asked.allowed & hosts & !transport.bit() == 0
    }
}
