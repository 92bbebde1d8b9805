//! Decides which path carries a transfer. `obstacle` has one rule per line: the reason that keeps a path from carrying
//! the transfer. The first path in `ORDER` without an obstacle carries the transfer; the obstacles of the others are
//! the reasons that callers read. `NotificationPaths` decides for a notification that is posted apart from its data.

use super::facts::{Asked, Facts, PathState};
use super::why::Why;
use crate::limits::RDMA_NOTIFY_BYTES_MAX;
use crate::status::Status;
use crate::types::{MemoryKind, Transport};

/// Best first. Exactly one of the last two is left when nothing is faster: a transfer of device memory is staged,
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
    /// `Transport::None`: no path can carry the transfer, not even a path that is being made.
    pub path: Transport,
    /// The path does not stand yet, and the transfer waits for it.
    pub waits: bool,
    /// Mask of `Transport::bit`: idle paths that would have been better. The caller wakes them.
    pub wake: u64,
}

/// Decides which path carries a transfer.
pub fn decide(facts: &Facts) -> Decision {
    let mut wake = 0;
    for &path in ORDER {
        match obstacle(facts, path) {
            None => return Decision { path, waits: facts.state(path) != PathState::Open, wake },
            Some(Why::Idle) => wake |= path.bit(),
            Some(_) => {}
        }
    }
    // No path is left that stands or is sure to come, so the transfer waits for a faster path that is being made or
    // made again. A transfer of device memory does not wait: such a path may turn out not to reach the memory.
    let may_come = |transport: &Transport| {
        let state = matches!(obstacle(facts, *transport), Some(Why::Pending | Why::Broken | Why::Idle));
        state && !facts.is_lost && !facts.memory.has_device()
    };
    let path = FASTER.iter().copied().find(may_come);
    Decision { path: path.unwrap_or(Transport::None), waits: path.is_some(), wake }
}

/// Returns why a path was chosen or not. For a chosen path that does not stand yet: why the transfer waits.
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

/// Returns the reason that keeps a path from carrying the transfer; None if nothing does.
fn obstacle(facts: &Facts, transport: Transport) -> Option<Why> {
    let Facts { asked, memory, .. } = facts;
    let device = memory.has_device() && !memory.is_part;
    let one_host = asked.allows(Transport::Local) && facts.state(Transport::Local) == PathState::Open;
    match transport {
        // Contract 10: a replay goes over TCP whatever the transfer allows, because the target of a TCP lane recognises
        // the notification's number.
        Transport::Tcp if facts.is_replay => {}
        _ if facts.is_replay => return Some(Why::Replay),
        // The path of each part is decided when staging submits the part. With no allowed transport, no part has a
        // path.
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
        // TCP and staging are waited for whatever the other paths do, because these two are sure to come.
        PathState::Pending if matches!(transport, Transport::Tcp | Transport::Staged) => None,
        PathState::Pending => Some(Why::Pending),
        PathState::Idle => Some(Why::Idle),
        PathState::Broken => Some(Why::Broken),
    }
}

/// Returns the path that the caller must ask next for its state and whether it reaches the ranges, because the decision
/// depends on the answer. None if it depends on no further answer.
pub fn asks(facts: &Facts) -> Option<Transport> {
    let path = decide(facts).path;
    let is_open = || facts.state(path) == PathState::Open;
    (FASTER.contains(&path) && is_open() && facts.reaches(path).is_none()).then_some(path)
}

/// True if the calling thread may copy a small piece of host memory itself, without the queue, while the same-host path
/// is open. `decide` chooses that path for the same transfer.
#[inline]
pub fn copies_at_once(asked: &Asked) -> bool {
    let is_bare = !asked.notify && !asked.ordered && !asked.checksum && !asked.held;
    is_bare && asked.allows(Transport::Local)
}

/// True if slices that the target refused with this status over a path for host memory are staged instead: the memory
/// may be a device's that was not announced here (`has_unknown`).
pub fn stages_refused(has_unknown: bool, status: Status) -> bool {
    has_unknown && matches!(status, Status::Unsupported | Status::Access)
}

/// The transports that carry notifications which are posted apart from their data. Each posts the notifications that
/// `NotificationPaths` leaves to it.
pub const NOTIFIERS: &[Transport] = &[Transport::Tcp, Transport::Rdma];

/// The paths that may carry a notification which is posted apart from its data, whatever the path of the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationPaths {
    /// RDMA while its path is open, and TCP otherwise.
    RdmaOrTcp,
    TcpOnly,
}

impl NotificationPaths {
    /// A skip is shorter than any notification, and no transfer restricts its paths.
    pub const OF_SKIPS: NotificationPaths = NotificationPaths::RdmaOrTcp;

    /// Decides the paths of a notification of this length. `allowed`: as in `Asked`, of its transfer. TCP carries
    /// notifications whatever is allowed.
    pub fn of(allowed: u64, bytes: usize) -> NotificationPaths {
        if allowed & Transport::Rdma.bit() != 0 && bytes <= RDMA_NOTIFY_BYTES_MAX {
            NotificationPaths::RdmaOrTcp
        } else {
            NotificationPaths::TcpOnly
        }
    }

    /// Decides which transport posts the notification now. `open`: mask of `Transport::bit`, the open paths.
    pub fn now(self, open: u64) -> Transport {
        match self {
            NotificationPaths::RdmaOrTcp if open & Transport::Rdma.bit() != 0 => Transport::Rdma,
            _ => Transport::Tcp,
        }
    }
}

/// How staged slices move between the memory of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Through host memory at both ends.
    Hosts,
    /// A device copies directly, over mapped memory.
    Mapped,
    /// Between the devices, which reach each other across hosts.
    Bridged,
}

/// Decides how slices move between devices of these kinds. Also returns the reason if they move through the hosts.
/// `crosses`: devices of this kind reach devices of other hosts.
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
        _ if here != there || here == MemoryKind::File => (Between::Hosts, Some(Why::OtherDevices)),
        _ if same_host => (Between::Mapped, None),
        _ if crosses => (Between::Bridged, None),
        _ => (Between::Hosts, Some(Why::OtherHost)),
    }
}
