//! A path: one transport to one peer. `transport` has the half that exists once in an engine.

use super::outbox::Class;
use super::After;
use crate::complete::{Transfer, TransferFlags};
use crate::region::grants::Use;
use crate::region::RemoteMap;
use crate::status::Result;
use crate::sys::proven::Proven;
use crate::types::{MemoryKind, Monotonic, Op, Range, RegionId, Slice};
use std::sync::Arc;

/// Posts the frames that `Peer::pull` returns, and settles them by `Peer::confirm`. Implemented by each transport. Any
/// thread may call, holding no lock. Only `drive` blocks. Work that follows from an outcome is added to `after`, which
/// the caller flushes.
pub trait Path: Send + Sync {
    /// Returns whether the path reaches these ranges; `known` are the peer's announced regions. `alone`: no other path
    /// is left, so ranges in no known region may be tried. Has no side effects.
    fn carries(&self, ranges: &[Range], known: &RemoteMap, alone: bool) -> bool;
    /// Posts queued work of this class: EXPRESS on the calling thread, other classes on a worker. `submitted_ns`
    /// by the engine's clock: when the calling thread submitted the transfer, if it is still in that call and serves no
    /// other peer.
    fn post(&self, _class: Class, _submitted_ns: Option<Monotonic>, after: &mut After) {
        self.nudge(after);
    }
    /// Wakes a worker to post all queued work.
    fn nudge(&self, after: &mut After);
    /// Drives the path from the calling thread until the transfer is final or `deadline_ns` has
    /// passed. May return earlier.
    fn drive(&self, _transfer: &Transfer, _deadline_ns: Monotonic) {}
    /// Receives small messages of the peer on the calling thread, until `is_over` or for the engine's `spin_us`.
    /// Returns whether it spun: it does nothing if another thread receives, or if the peer runs on the same CPU.
    fn listen(&self, _is_over: &dyn Fn() -> bool) -> bool {
        false
    }
    /// Reaps completions.
    fn poll(&self) {}
    /// Announces that a thread will sleep until an attended transfer is final: from now on completions must be
    /// reported.
    fn attend(&self, _after: &mut After) {}
    /// Wakes a thread that sleeps in `drive`.
    fn wake(&self) {}
    fn condition(&self) -> Condition {
        Condition::Works
    }
    /// Restores an idle path.
    fn rouse(&self) {}
    /// Returns the number of lanes in use, for the statistics.
    fn lanes(&self) -> usize {
        0
    }
    /// Returns the interface of a same-host path beyond transfers.
    fn same_host(&self) -> Option<&dyn SameHost> {
        None
    }
    /// Returns the interface of a device memory path.
    fn devices(&self) -> Option<&dyn Devices> {
        None
    }
}

/// Returns what the thread that submits a transfer passes to `Path::post`. Staging submits the parts of all peers.
pub(super) fn submitted_ns(transfer: &Transfer) -> Option<Monotonic> {
    (!transfer.spec.flags.has(TransferFlags::PART)).then_some(transfer.spec.submitted_ns)
}

/// Whether a path can carry anything at this moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Works,
    /// Closed because it was unused. `Path::rouse` restores it.
    Idle,
    /// Failed, and neither its replacement nor its shutdown has been reported.
    Broken,
}

/// The same-host path: the peer's process is proven, and its regions can be entered from this process.
pub trait SameHost {
    /// Copies one small slice before it returns. False: not all of it was copied; a transfer submitted for the slice
    /// then succeeds or reports the reason. The caller has entered the local region. `is_ours`: ferry allocated it.
    /// `now_ns`: the time.
    fn copy_now(&self, op: Op, slice: &Slice, is_ours: bool, now_ns: Monotonic) -> bool;
    /// Keeps a region of the peer's registered until the returned guard is dropped.
    fn keep_registered(&self, region: RegionId, use_: Use) -> Result<Kept>;
    /// Returns the peer's process if its identity is proven.
    fn process(&self) -> Option<Arc<Proven>>;
}

/// See `SameHost::keep_registered`.
pub type Kept = Box<dyn Send + Sync>;

/// The device memory path.
pub trait Devices {
    /// Returns why the last attempt to map memory of this kind of device failed.
    fn obstacle(&self, kind: MemoryKind) -> Option<String>;
    /// Returns whether devices of this kind reach devices of other hosts without host memory.
    fn crosses(&self, kind: MemoryKind) -> bool;
}

/// The status of a transport's path to the peer.
#[derive(Clone)]
pub enum PathStatus {
    /// Usable. The text says what makes the path fast or slow.
    Open(Arc<dyn Path>, String),
    /// Not usable now, with the reason: the path is being established or restored.
    Pending(String),
    /// Not usable, with the reason.
    Shut(String),
}
