//! How transfers are stopped: one that somebody cancels, and the many that one event ends: the loss of their peer,
//! a deadline that they share, an ORDERED transfer that failed, a transport that went away. The many the
//! control loop sweeps in turns, so that other peers never wait for all of them.

use super::{After, Peer};
use crate::command::Command;
use crate::complete::position::Place;
use crate::complete::transfer::Strike;
use crate::complete::{Fence, Transfer};
use crate::types::Monotonic;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Transfers struck and runs moved in one turn, before other peers have theirs.
pub const SWEEP_TURN: usize = 64;

impl Peer {
    /// Stops a transfer: what is unposted is dropped, what is posted drains. True if it was pending.
    pub fn strike(&self, transfer: &Arc<Transfer>, strike: Strike) -> bool {
        self.stop(transfer, strike, &mut self.after())
    }

    fn stop(&self, transfer: &Arc<Transfer>, strike: Strike, after: &mut After) -> bool {
        if !transfer.strike(strike, after.wakers()) {
            return false;
        }
        let (dropped, word, doomed) = {
            let mut outbox = self.outbox.lock();
            if transfer.position.place() == Place::New {
                // `submit` comes to that and sees the strike.
                return true;
            }
            (outbox.drop_unposted(transfer), outbox.drop_word(transfer), outbox.has_doomed())
        };
        let skips = word || (transfer.spec.notify.is_some() && transfer.take_notification());
        if skips {
            self.give_up_notification(transfer, after);
        }
        self.abandon(transfer, dropped, Fence::Confirmed, after);
        self.attend(transfer);
        if !transfer.is_final() {
            self.around.commands.push(Command::Drain { peer: self.handle, transfer: transfer.clone() });
        }
        if doomed {
            self.sweep_soon();
        }
        true
    }

    /// Has the control loop sweep this peer. To be called after what is to be swept was put into the outbox.
    pub(super) fn sweep_soon(&self) {
        if !self.sweeping.swap(true, Ordering::AcqRel) {
            self.around.commands.push(Command::Sweep { peer: self.handle });
        }
    }

    /// Strikes what is to be struck and has moved what has to go another way, one turn of it. Whether there is more.
    /// By the control loop alone, which looks at what is due for its deadline without being asked.
    pub fn sweep(&self, now_ns: Monotonic) -> bool {
        let os_error = || self.last_loss.lock().as_ref().map_or(0, |loss| loss.os_error);
        let lost = self.lost().map(|status| Strike { status, os_error: os_error() });
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
        // Who asks from here on is heard; who asked before put it there before.
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

    /// Whether none of its transfers is pending: each is struck or final.
    pub fn is_swept(&self) -> bool {
        self.outbox.lock().next_deadline_ns().is_none()
    }

    /// Has the control loop look at deadlines and lanes of this peer at `at_ns` or sooner. Cheap when it will.
    pub fn look_at(&self, at_ns: Monotonic) {
        let later = |planned: u64| planned > at_ns.ns();
        if later(self.look_ns.load(Ordering::Acquire))
            && later(self.look_ns.fetch_min(at_ns.ns(), Ordering::AcqRel))
        {
            self.around.commands.push(Command::Look { peer: self.handle, at_ns });
        }
    }

    /// The control loop looks at this peer now. The next deadline of what is pending, u64::MAX where none has one;
    /// None when nothing is.
    pub fn begin_look(&self) -> Option<Monotonic> {
        // Reset first: a submit that the outbox doesn't show yet lowers it again.
        self.look_ns.store(u64::MAX, Ordering::Release);
        self.outbox.lock().next_deadline_ns()
    }
}
