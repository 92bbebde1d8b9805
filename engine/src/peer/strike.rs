//! How transfers are stopped: a single transfer by a cancel, and many by one event: the loss of their peer, a shared
//! deadline, a failed ORDERED transfer, a lost transport. The control loop sweeps the many in turns, so that other
//! peers never wait for all of them.

use super::{After, Peer};
use crate::command::Command;
use crate::complete::position::Place;
use crate::complete::transfer::Strike;
use crate::complete::{Fence, Transfer};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::types::Monotonic;
use std::sync::Arc;

/// Transfers struck, and runs moved, in one turn of a peer's sweep.
pub const SWEEP_TURN: usize = 64;

impl Peer {
    /// Stops a transfer: drops its unposted slices and lets posted frames drain. Returns true if it was pending.
    pub fn strike(&self, transfer: &Arc<Transfer>, strike: Strike) -> bool {
        self.stop(transfer, strike, &mut self.after())
    }

    /// As `strike`, for a thread that holds a lock of a lane: what follows is left to `after`.
    pub fn stop(&self, transfer: &Arc<Transfer>, strike: Strike, after: &mut After) -> bool {
        if !transfer.strike(strike, after.wakers()) {
            return false;
        }
        let (dropped, notification, doomed) = {
            let mut outbox = self.outbox.lock();
            if transfer.position.place() == Place::New {
                // `submit` has not queued the transfer yet. It will see the strike.
                return true;
            }
            if let Some(awaited) = outbox.awaited(transfer).filter(|_| strike.status == Status::Timeout) {
                transfer.note_awaited(awaited);
            }
            (outbox.drop_unposted(transfer), outbox.drop_notification(transfer), outbox.has_doomed())
        };
        let skips = notification || (transfer.spec.notify.is_some() && transfer.take_notification());
        if skips {
            self.give_up_notification(transfer, after);
        }
        self.abandon(transfer, dropped, Fence::Confirmed, after);
        self.attend(transfer);
        if !transfer.is_final() {
            self.engine.commands.push(Command::Drain { peer: self.handle, transfer: transfer.clone() });
        }
        if doomed {
            self.sweep_soon();
        }
        true
    }

    /// Strikes a transfer of a lost peer before the sweep comes to it. Contract 1: without a strike, a transfer whose
    /// last unit is given up would end DONE.
    pub(super) fn strike_if_lost(&self, transfer: &Arc<Transfer>, after: &mut After) {
        if let Some(strike) = self.strike_of_loss() {
            self.stop(transfer, strike, after);
        }
    }

    /// Returns the strike for each transfer of a lost peer; None if the peer is not lost.
    fn strike_of_loss(&self) -> Option<Strike> {
        let os_error = || self.last_loss.lock().as_ref().map_or(0, |loss| loss.os_error);
        self.lost().map(|status| Strike { status, os_error: os_error() })
    }

    /// Requests a sweep of this peer. Call it after the work to sweep was put into the outbox.
    pub(super) fn sweep_soon(&self) {
        if !self.sweeping.swap(true, Ordering::AcqRel) {
            self.engine.commands.push(Command::Sweep { peer: self.handle });
        }
    }

    /// Strikes due transfers and moves runs of shut transports, at most one turn of each. Returns whether work is left.
    /// Only the control loop calls; it finds transfers whose deadline is due without a request.
    pub fn sweep(&self, now_ns: Monotonic) -> bool {
        let lost = self.strike_of_loss();
        let mut after = self.after();
        for _ in 0..SWEEP_TURN {
            let next = self.outbox.lock().next_end(lost, now_ns);
            let Some((transfer, strike)) = next else { break };
            self.stop(&transfer, strike, &mut after);
        }
        let strays = {
            let mut outbox = self.outbox.lock();
            let strays = outbox.has_strays();
            outbox.relocate(SWEEP_TURN);
            strays
        };
        drop(after);
        if strays {
            self.post_all();
        }
        if self.has_ends(now_ns) {
            return true;
        }
        // A request from here on is not lost; the work of an earlier request was queued before this check.
        self.sweeping.store(false, Ordering::Release);
        let again = self.has_ends(now_ns);
        if again {
            self.sweeping.store(true, Ordering::Release);
        }
        again
    }

    fn has_ends(&self, now_ns: Monotonic) -> bool {
        self.outbox.lock().has_ends(self.lost().is_some(), now_ns)
    }

    /// Returns whether no transfer of the peer is pending: each is struck or final.
    pub fn is_swept(&self) -> bool {
        self.outbox.lock().next_deadline_ns().is_none()
    }

    /// Requests a check of this peer's deadlines and lanes at `at_ns` at the latest. Cheap if one is planned.
    pub fn check_at(&self, at_ns: Monotonic) {
        let later = |planned: u64| planned > at_ns.ns();
        if later(self.check_ns.load(Ordering::Acquire))
            && later(self.check_ns.fetch_min(at_ns.ns(), Ordering::AcqRel))
        {
            self.engine.commands.push(Command::Check { peer: self.handle, at_ns });
        }
    }

    /// Begins a check. Returns the next deadline of the pending transfers, u64::MAX if none has a deadline, None if no
    /// transfer is pending.
    pub fn begin_check(&self) -> Option<Monotonic> {
        // Reset first: a concurrent submit that the outbox does not show yet lowers the value again.
        self.check_ns.store(u64::MAX, Ordering::Release);
        self.outbox.lock().next_deadline_ns()
    }
}
