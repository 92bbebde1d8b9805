//! A path: what one transport is to one peer. `transport` has the half that an engine has once.

use super::outbox::Class;
use super::After;
use crate::complete::Transfer;
use crate::region::grants::Use;
use crate::region::RemoteMap;
use crate::status::Result;
use crate::sys::proven::Proven;
use crate::types::{MemoryKind, Monotonic, Op, Range, Slice};
use std::sync::Arc;

/// Posts what `Peer::pull` hands out, and settles it by `Peer::confirm`. Implemented by each transport; called from
/// any thread, under no lock. Nothing here blocks but `drive`. What follows from an outcome is noted in `after`, which
/// the caller flushes.
pub trait Path: Send + Sync {
    /// Whether the path reaches these ranges; `known` are the peer's regions. `alone`: no other path is left, so
    /// ranges in no known region may be tried. Has no effect on the path.
    fn carries(&self, ranges: &[Range], known: &RemoteMap, alone: bool) -> bool;
    /// Posts what is queued of this class: EXPRESS on the calling thread, other classes by a worker. `submitted_ns`
    /// (CLOCK_MONOTONIC): the calling thread has submitted the transfer at that moment.
    fn post(&self, _class: Class, _submitted_ns: Option<Monotonic>, after: &mut After) {
        self.nudge(after);
    }
    /// Has a worker post whatever is queued.
    fn nudge(&self, after: &mut After);
    /// Works on the path from the calling thread until the transfer is final or `deadline_ns` (CLOCK_MONOTONIC) has
    /// passed. May return earlier.
    fn drive(&self, _transfer: &Transfer, _deadline_ns: Monotonic) {}
    /// Takes in what has completed.
    fn poll(&self) {}
    /// A thread is about to sleep until an attended transfer is final: completions must be reported from now on.
    fn attend(&self, _after: &mut After) {}
    /// Wakes a thread that sleeps in `drive`.
    fn wake(&self) {}
    fn condition(&self) -> Condition {
        Condition::Works
    }
    /// Has a resting path made again.
    fn rouse(&self) {}
    /// Lanes in use, for the statistics.
    fn lanes(&self) -> usize {
        0
    }
    /// What a path to a process of the same host offers beside transfers.
    fn same_host(&self) -> Option<&dyn SameHost> {
        None
    }
    /// What the path of device memory knows of devices.
    fn devices(&self) -> Option<&dyn Devices> {
        None
    }
}

/// Whether a path can carry anything at this moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Works,
    /// Given up for lack of use. `Path::rouse` has the path made again.
    Resting,
    /// Failed; its replacement or its end has not been reported yet.
    Broken,
}

/// The same-host path: the peer's process is proven, and its regions can be entered from here.
pub trait SameHost {
    /// Copies one small piece before it returns. False: nothing, or not all of it, was copied; a transfer submitted
    /// for the piece says why, or succeeds. The caller has entered the local region. `now_ns`: CLOCK_MONOTONIC.
    fn copy_now(&self, op: Op, slice: &Slice, now_ns: Monotonic) -> bool;
    /// Keeps a region of the peer's registered until the returned guard is dropped.
    fn keep_registered(&self, region: u64, use_: Use) -> Result<Kept>;
    /// The peer's process, where it is proven.
    fn process(&self) -> Option<Arc<Proven>>;
}

/// See `SameHost::keep_registered`.
pub type Kept = Box<dyn Send + Sync>;

/// The path of device memory.
pub trait Devices {
    /// Why memory of devices of this kind could not be mapped, when that was last tried.
    fn obstacle(&self, kind: MemoryKind) -> Option<String>;
    /// Whether devices of this kind reach those of other hosts without the hosts' memory.
    fn crosses(&self, kind: MemoryKind) -> bool;
}

/// How a transport's path to the peer stands.
#[derive(Clone)]
pub enum PathStatus {
    /// With what makes it fast or slow.
    Open(Arc<dyn Path>, String),
    /// There is none at this moment, with the reason: it is being made, or made again.
    Pending(String),
    /// With the reason.
    Shut(String),
}
