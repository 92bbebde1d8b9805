//! The engine's own memory as the far end of its transfers to itself, and the notifications that it sends itself. No
//! right is asked for: the memory is the engine's own. `api::own` makes the path.

use super::copier::copy_mapped;
use super::far::{Far, Outcome};
use crate::limits::NOTIFY_BYTES_MAX;
use crate::peer::outbox::{PullLimits, Pulled};
use crate::peer::{After, Kept, Path, Peer};
use crate::region::gate::Gate;
use crate::region::grants::Use;
use crate::region::{enter_all, Registry, RemoteMap};
use crate::status::{Error, Result, Status};
use crate::sys::atomic::Ordering;
use crate::sys::copy::Piece;
use crate::sys::guarded;
use crate::sys::pages::Pages;
use crate::sys::proven::Proven;
use crate::types::{self, Monotonic, Op, RegionId, Slice, Transport};
use std::ops::Range;
use std::sync::{Arc, Weak};

pub struct OwnMemory {
    pub registry: Arc<Registry>,
    pub pages: Arc<Pages>,
    /// This process, for devices that map memory which it exports. None: the kernel gives no descriptor of it.
    pub process: Option<Arc<Proven>>,
    /// Entered while a thread copies; shut when the engine is broken.
    pub copies: Gate,
}

impl OwnMemory {
    /// Memory of staging, and memory that the program has from ferry, is there while it is registered.
    fn is_ours(&self, slice: &Slice) -> bool {
        let map = self.registry.snapshot();
        map.find(slice.remote, slice.length.into()).is_some_and(|region| region.is_ours())
    }
}

impl Far for OwnMemory {
    const MAY_DETOUR: bool = false;

    fn copy(&self, op: Op, region: RegionId, run: &[Slice], is_ours: bool, _now_ns: Monotonic) -> Outcome {
        let map = self.registry.snapshot();
        let Some(region) = map.get(region) else { return Outcome::Failed(0, Status::Stale, 0) };
        if region.is_device() {
            return Outcome::Failed(0, Status::Unsupported, 0);
        }
        let within = |slice: &&Slice| region.contains(slice.remote, slice.length.into());
        let valid = run.iter().take_while(within).count();
        if valid == 0 {
            return Outcome::Failed(0, Status::Invalid, 0);
        }
        let Ok(_inside) = enter_all(std::slice::from_ref(region)) else {
            return Outcome::Failed(0, Status::Stale, 0);
        };
        if !self.copies.enter() {
            return Outcome::Broken(0);
        }
        let _copying = Copying(&self.copies);
        let run_in = &run[..valid];
        // A plain copy of ranges that overlap is undefined for more than their bytes.
        let outcome = if is_ours && region.is_ours() && !run_in.iter().any(overlaps) {
            copy_mapped(op, |slice| Some(slice.remote as *mut u8), run_in)
        } else {
            copy_guarded(op, run_in)
        };
        match outcome {
            Outcome::Copied if valid < run.len() => Outcome::Failed(valid, Status::Invalid, 0),
            outcome => outcome,
        }
    }

    fn find(&self, address: u64, length: u64) -> Option<(RegionId, Range<u64>)> {
        let map = self.registry.snapshot();
        map.find(address, length).map(|region| (region.id, region.address..region.address + region.length))
    }

    fn has_pages(&self, slice: &Slice, now_ns: Monotonic, looks: &mut u32) -> bool {
        self.is_ours(slice) || self.pages.has(slice.remote, slice.length.into(), now_ns, looks)
    }

    fn note_pages(&self, slice: &Slice, now_ns: Monotonic) {
        self.pages.note(slice.remote, slice.length.into(), now_ns);
    }

    /// No other path has this memory at its end.
    fn carries(&self, _ranges: &[types::Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }

    fn keep_registered(&self, region: RegionId, _use: Use) -> Result<Kept> {
        let stale = || Error::new(Status::Stale, format!("region {region:#x} is not registered any more"));
        let region = self.registry.snapshot().get(region).cloned().ok_or_else(stale)?;
        Ok(Box::new(enter_all([region]).map_err(|_| stale())?))
    }

    fn process(&self) -> Option<Arc<Proven>> {
        self.process.clone()
    }
}

/// A thread that copies, also while it unwinds.
struct Copying<'a>(&'a Gate);

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn overlaps(slice: &Slice) -> bool {
    slice.local.abs_diff(slice.remote) < u64::from(slice.length)
}

/// The program may have unmapped this memory, so the kernel copies.
fn copy_guarded(op: Op, run: &[Slice]) -> Outcome {
    let piece = |slice: &Slice| {
        let (here, there) = (slice.local as *mut u8, slice.remote as *mut u8);
        let (from, to) = if op == Op::Write { (here, there) } else { (there, here) };
        Piece { from, to, length: slice.length as usize }
    };
    // SAFETY: both ends lie in regions that are entered, to which Rust holds no reference. The kernel checks both.
    match unsafe { guarded::copy_all(run.iter().map(piece)) } {
        Ok(()) => Outcome::Copied,
        Err(at) => Outcome::Failed(at, Status::System, libc::EFAULT),
    }
}

/// Delivers the notifications that the engine sends itself, on the thread that posts them. It stands where TCP's path
/// stands for a peer, and carries no data.
pub struct OwnNotifier(pub Weak<Peer>);

impl Path for OwnNotifier {
    fn carries(&self, _ranges: &[types::Range], _known: &RemoteMap, _alone: bool) -> bool {
        false
    }

    fn nudge(&self, after: &mut After) {
        let limits = PullLimits { notification_bytes_max: Some(NOTIFY_BYTES_MAX), ..PullLimits::data(0) };
        let Some(peer) = self.0.upgrade() else { return };
        while let Some(pulled) = peer.pull(Transport::Tcp, true, limits) {
            match pulled {
                Pulled::Notify(transfer) => {
                    let bytes = transfer.spec.notify.clone().unwrap_or_default();
                    peer.deliver(transfer.notify_sequence.load(Ordering::Relaxed), Some(bytes));
                    peer.confirm_notification(&transfer, after);
                }
                Pulled::Skip(sequence) => {
                    peer.deliver(sequence, None);
                }
                // No slices are routed here.
                Pulled::Slices { .. } => {}
            }
        }
    }
}
