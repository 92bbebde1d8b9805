//! The same-host path to one peer. The submitter copies a small transfer in the submit call. Larger transfers are cut
//! into pieces, which copy threads and waiting threads copy.

use super::copier::Copier;
use super::copy_threads::CopyThreads;
use super::far::{Broken, Far};
use crate::complete::{Fence, Transfer};
use crate::peer::outbox::{Class, PullLimits, Pulled};
use crate::peer::{After, Kept, Path, Peer, SameHost};
use crate::region::gate::Gate;
use crate::region::grants::Use;
use crate::region::RemoteMap;
use crate::status::Result;
use crate::sys::clock;
use crate::sys::moment;
use crate::sys::once::OnceLock;
use crate::sys::pause;
use crate::sys::proven::Proven;
use crate::sys::thread::JoinHandle;
use crate::types::{Monotonic, Op, Range, RegionId, Slice, Transport};
use std::sync::{Arc, Weak};

/// Bytes of one piece: small enough that two threads end together, large enough that taking a piece costs little beside
/// copying it.
pub const PIECE_BYTES: u32 = 256 << 10;
const ALL: PullLimits = PullLimits::data(PIECE_BYTES);

/// The thread that copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// It has no other work, and may wait for pages.
    CopyThread,
    /// It submitted a transfer at this time and is still in that call.
    Submitter(Monotonic),
    Waiter,
}

/// Called when the path turns out to be broken.
pub type OnBroken = Box<dyn Fn() + Send + Sync>;

pub struct LocalPath<F = Copier> {
    peer: Arc<Peer>,
    copier: F,
    copy_threads: CopyThreads,
    /// The work of a copy thread when it is called. Set once, when the path is made.
    work: OnceLock<Arc<dyn Fn() + Send + Sync>>,
    spin_ns: u64,
    /// Shut when the path has ended. Entered to pull and copy a piece.
    pub(super) gate: Gate,
    on_broken: OnBroken,
}

impl<F: Far> LocalPath<F> {
    pub fn new(
        peer: Arc<Peer>,
        copier: F,
        threads: usize,
        spin_ns: u64,
        on_broken: OnBroken,
    ) -> Arc<LocalPath<F>> {
        let path = Arc::new(LocalPath {
            peer,
            copier,
            copy_threads: CopyThreads::new(threads),
            work: OnceLock::new(),
            // If only one thread may copy, as on a single CPU, a spinning thread would take its CPU.
            spin_ns: if threads > 1 { spin_ns } else { 0 },
            gate: Gate::new(),
            on_broken,
        });
        let weak: Weak<LocalPath<F>> = Arc::downgrade(&path);
        let _ = path.work.set(Arc::new(move || {
            if let Some(path) = weak.upgrade() {
                path.work();
            }
        }));
        path
    }

    pub fn copier(&self) -> &F {
        &self.copier
    }

    /// Notes that the memory that the path reaches has changed, so that transfers are routed anew.
    pub fn note_change(&self) {
        self.peer.note_change();
    }

    /// Begins no piece from here on; pieces in progress are finished and settled. Returns the copy threads for a caller
    /// that may block to join them.
    pub fn close(&self) -> Vec<JoinHandle<()>> {
        self.gate.revoke();
        self.copy_threads.close()
    }

    /// Returns whether, after `close`, a thread of this process still copies.
    pub fn is_copying(&self) -> bool {
        self.gate.users() > 0
    }

    /// Pulls one piece and copies it. False if none waits, or if this thread leaves it to copy threads.
    fn step(&self, express: bool, by: By, after: &mut After) -> bool {
        if !self.gate.enter() {
            return false;
        }
        let copied = self.copy_next(express, by, after);
        self.gate.leave();
        copied
    }

    fn copy_next(&self, express: bool, by: By, after: &mut After) -> bool {
        let Some(Pulled::Slices { transfer, range, .. }) = self.peer.pull(Transport::Local, express, ALL)
        else {
            return false;
        };
        // A transfer of another submit may have waited for its turn, for an event, or for this path. The process lived
        // at that submit, but may have ended since.
        let is_own = by == By::Submitter(transfer.spec.submitted_ns);
        let now_ns = if is_own { transfer.spec.submitted_ns } else { clock::monotonic_ns() };
        let slices = range.of(&transfer.spec.slices);
        // A program knows the memory that it names.
        let is_known = is_own || transfer.is_ours;
        if by != By::CopyThread && !self.copier.finds(&self.peer, slices, is_known, now_ns) {
            // A page may never come, and this thread has its own work. One thread may wait for the page, and another
            // one does the rest.
            self.peer.release_run(&transfer, range, false, Fence::Confirmed, after);
            if !self.call(2) {
                self.work();
            }
            return false;
        }
        transfer.mark_started_at(|| now_ns);
        moment::reached_if("a strike between pull and launch", || !transfer.is_pending());
        match self.copier.run(&self.peer, &transfer, range, now_ns, after) {
            Ok(()) => self.copier.note(&self.peer, slices, is_known, now_ns),
            // A path that was closed is not reported: the report would meet the path of the next session.
            Err(Broken) if self.gate.is_revoked() => {}
            Err(Broken) => {
                self.gate.revoke();
                (self.on_broken)();
            }
        }
        true
    }

    /// Runs a called copy thread: copies EXPRESS pieces, and bulk pieces if a place to copy is free.
    fn work(&self) {
        let mut after = self.peer.after();
        self.copy_express(By::CopyThread, || false, &mut after);
        self.copy_bulk(By::CopyThread, || false, &mut after);
    }

    /// Copies EXPRESS pieces until none is left or `enough` returns true.
    fn copy_express(&self, by: By, enough: impl Fn() -> bool, after: &mut After) {
        while !enough() && self.step(true, by, after) {
            after.flush();
        }
    }

    /// Copies bulk pieces until none is left or `enough` returns true. False if no place to copy is free.
    fn copy_bulk(&self, by: By, enough: impl Fn() -> bool, after: &mut After) -> bool {
        if !self.copy_threads.take_place() {
            return false;
        }
        while !enough() && self.step(false, by, after) {
            after.flush();
        }
        self.copy_threads.leave_place();
        if self.peer.has_work(Transport::Local, false) {
            // Threads that found no place meanwhile have left, and no other thread may be copying.
            self.call(1);
        }
        true
    }

    fn has_work(&self) -> bool {
        [true, false].iter().any(|express| self.peer.has_work(Transport::Local, *express))
    }

    /// Calls copy threads. Returns false if no thread exists and none could be started.
    fn call(&self, threads: usize) -> bool {
        let Some(work) = self.work.get().filter(|_| !self.gate.is_revoked()) else { return true };
        self.copy_threads.call(threads, work)
    }
}

impl<F: Far> Path for LocalPath<F> {
    fn carries(&self, ranges: &[Range], known: &RemoteMap, alone: bool) -> bool {
        self.copier.carries(ranges, known, alone)
    }

    fn post(&self, class: Class, submitted_ns: Option<Monotonic>, after: &mut After) {
        // A copy waits for the peer's pages. A thread that did not submit may serve other peers, so it copies nothing.
        if class == Class::Express && submitted_ns.is_some() {
            // The first copy takes time, so the submit time is valid for that piece only.
            let first = submitted_ns.map_or(By::Waiter, By::Submitter);
            let mut by = std::iter::once(first).chain(std::iter::repeat(By::Waiter));
            while by.next().is_some_and(|by| self.step(true, by, after)) {}
            return;
        }
        // Two threads for a MEDIUM transfer, all for a LARGE one; waiting threads help. If no thread can be started,
        // copy here.
        let threads = if class == Class::Large { usize::MAX } else { 2 };
        if !self.call(threads) {
            self.work();
        }
    }

    fn nudge(&self, _after: &mut After) {
        if self.has_work() {
            self.call(usize::MAX);
        }
    }

    fn drive(&self, transfer: &Transfer, deadline_ns: Monotonic) {
        let timed = deadline_ns != Monotonic::NEVER;
        let over = || transfer.is_final() || (timed && clock::monotonic_ns() >= deadline_ns);
        let mut after = self.peer.after();
        self.copy_express(By::Waiter, over, &mut after);
        let joined = self.copy_bulk(By::Waiter, over, &mut after);
        drop(after);
        if transfer.is_final() || !joined {
            return;
        }
        // Other threads copy the last pieces. They finish sooner than this thread could sleep and wake. A thread
        // without a place does not spin and leaves its CPU to those that copy.
        let spin_end_ns = clock::monotonic_ns().saturating_add(self.spin_ns).min(deadline_ns);
        while !transfer.is_final() && clock::monotonic_ns() < spin_end_ns {
            pause::spin();
        }
    }

    fn same_host(&self) -> Option<&dyn SameHost> {
        Some(self)
    }
}

impl<F: Far> SameHost for LocalPath<F> {
    fn copy_now(&self, op: Op, slice: &Slice, is_ours: bool, now_ns: Monotonic) -> bool {
        if !self.gate.enter() {
            return false;
        }
        let slices = std::slice::from_ref(slice);
        let copied = self.copier.finds(&self.peer, slices, true, now_ns)
            && self.copier.copy_one(&self.peer, op, slice, is_ours, now_ns);
        if copied {
            self.copier.note(&self.peer, slices, true, now_ns);
        }
        self.gate.leave();
        copied
    }

    fn keep_registered(&self, region: RegionId, use_: Use) -> Result<Kept> {
        self.copier.keep_registered(region, use_)
    }

    fn process(&self) -> Option<Arc<Proven>> {
        self.copier.process()
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
