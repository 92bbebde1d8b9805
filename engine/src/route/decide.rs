//! The decision. `obstacle` has one rule per line: what keeps a path from carrying a transfer. The first path
//! without one carries it; what is told of the others is why they did not.

use super::facts::{Asked, Facts, PathState};
use super::why::Why;
use crate::status::Status;
use crate::types::{MemoryKind, Transport};

/// Best first. Exactly one of the last two is left when nothing is faster: what has memory of devices is staged,
/// the rest goes by TCP.
pub const ORDER: &[Transport] = &[
    Transport::Local,
    Transport::Rdma,
    #[cfg(test)]
    Transport::Loopback,
    Transport::Staged,
    Transport::Tcp,
];

/// Paths that are worth waiting for, and that are better than TCP: best first.
pub const FASTER: &[Transport] = ORDER.split_at(ORDER.len() - 2).0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// `Transport::None`: no path can carry it, nor will one that is being made.
    pub path: Transport,
    /// Nothing moves before the path is there.
    pub waits: bool,
    /// Mask of `Transport::bit`: resting paths that would have been better. The caller wakes them.
    pub wake: u64,
}

/// Which path carries a transfer.
pub fn decide(facts: &Facts) -> Decision {
    let mut wake = 0;
    for &path in ORDER {
        match obstacle(facts, path) {
            None => return Decision { path, waits: facts.state(path) != PathState::Open, wake },
            Some(Why::Resting) => wake |= path.bit(),
            Some(_) => {}
        }
    }
    // Nothing else is left: what is being made, or made again, is worth waiting for. Not for memory of devices,
    // which a path that stands may not reach after all.
    let may_come = |transport: &Transport| {
        let state = matches!(obstacle(facts, *transport), Some(Why::Pending | Why::Broken | Why::Resting));
        state && !facts.is_lost && !facts.memory.has_device()
    };
    let path = FASTER.iter().copied().find(may_come);
    Decision { path: path.unwrap_or(Transport::None), waits: path.is_some(), wake }
}

/// Why a path was chosen or not. Of the one that `decide` names and that has to be waited for, why it waits.
pub fn why(facts: &Facts, transport: Transport) -> Why {
    if let Some(obstacle) = obstacle(facts, transport) {
        return obstacle;
    }
    let path = decide(facts).path;
    match facts.state(transport) {
        PathState::Open if path == transport => Why::Best,
        PathState::Open => Why::Worse(path),
        _ => Why::Pending,
    }
}

/// What keeps a path from carrying it.
fn obstacle(facts: &Facts, transport: Transport) -> Option<Why> {
    let Facts { asked, memory, .. } = facts;
    let device = memory.has_device() && !memory.is_part;
    let one_host = asked.allows(Transport::Local) && facts.state(Transport::Local) == PathState::Open;
    match transport {
        // It went this way before, so it may.
        Transport::Tcp if facts.is_replay => {}
        _ if facts.is_replay => return Some(Why::Replay),
        // What carries the parts is asked of each part; where nothing is allowed, nothing carries one.
        Transport::Staged if !device => return Some(Why::HostMemory),
        Transport::Staged if asked.allowed == 0 => return Some(Why::NotAllowed),
        Transport::Staged => {}
        _ if !asked.allows(transport) => return Some(Why::NotAllowed),
        Transport::Tcp if device => return Some(Why::DeviceMemory),
        Transport::Tcp => {}
        _ if asked.checksum => return Some(Why::Checksum),
        Transport::Local if memory.has_device() => return Some(Why::DeviceMemory),
        Transport::Rdma if memory.has_device() && one_host => return Some(Why::OneHost),
        Transport::Rdma if memory.device_here && !memory.nics_here => return Some(Why::NicsHere),
        #[cfg(test)]
        Transport::Loopback if memory.has_device() => return Some(Why::DeviceMemory),
        _ if !FASTER.contains(&transport) => return Some(Why::HostMemory),
        _ => {}
    }
    if facts.reaches(transport) == Some(false) {
        return Some(Why::Unreached);
    }
    match facts.state(transport) {
        PathState::Open => None,
        PathState::Shut => Some(Why::Shut),
        // The last resorts are waited for, whatever else may come: these are sure to.
        PathState::Pending if matches!(transport, Transport::Tcp | Transport::Staged) => None,
        PathState::Pending => Some(Why::Pending),
        PathState::Resting => Some(Why::Resting),
        PathState::Broken => Some(Why::Broken),
    }
}

/// The link that is to be asked next whether it reaches the ranges, and how it stands: the decision hangs on it.
/// None: it hangs on none any more.
pub fn asks(facts: &Facts) -> Option<Transport> {
    let path = decide(facts).path;
    let is_open = || facts.state(path) == PathState::Open;
    (FASTER.contains(&path) && is_open() && facts.reaches(path).is_none()).then_some(path)
}

/// Whether one small piece of host memory may be copied by the calling thread, past the queue, where the same-host
/// path is open. What `decide` names for it is that path.
#[inline]
pub fn copies_at_once(asked: &Asked) -> bool {
    let is_bare = !asked.notify && !asked.ordered && !asked.checksum && !asked.held;
    is_bare && asked.allows(Transport::Local)
}

/// Whether slices are staged that the target has refused with this status, by a path that moves host memory only:
/// with `has_unknown` it may be memory of a device that was not announced here.
pub fn stages_refused(has_unknown: bool, status: Status) -> bool {
    has_unknown && matches!(status, Status::Unsupported | Status::Access)
}

/// How staged slices go between memory of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Through host memory at both ends.
    Hosts,
    /// A device copies by itself, over memory that is mapped.
    Mapped,
    /// Through memory of the devices, which reach each other.
    Bridged,
}

/// Decides that for devices of these kinds; `crosses`: those of this kind reach the ones of other hosts. What keeps
/// them from moving it by themselves, if something does.
pub fn between_devices(
    asked: &Asked,
    (here, there): (MemoryKind, MemoryKind),
    same_host: bool,
    crosses: bool,
) -> (Between, Option<Why>) {
    let transport = Transport::of_devices(here);
    match () {
        _ if !asked.allows(transport) => (Between::Hosts, Some(Why::NotAllowed)),
        _ if asked.checksum => (Between::Hosts, Some(Why::Checksum)),
        _ if here != there => (Between::Hosts, Some(Why::OtherDevices)),
        _ if same_host => (Between::Mapped, None),
        _ if crosses => (Between::Bridged, None),
        _ => (Between::Hosts, Some(Why::OtherHost)),
    }
}
