//! Work of an outbox that the control loop sweeps: transfers to strike, and runs of transports that carry nothing any
//! more. Each call does a bounded part of it, for `Peer::sweep`.

use super::{Outbox, Spot};
use crate::complete::position::Place;
use crate::complete::transfer::{Awaited, Strike};
use crate::complete::Transfer;
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::types::{Monotonic, Transport};
use std::ops::Bound;
use std::sync::Arc;

/// The position of `relocate`: one queue of a lineup, and the last spot in it that was visited.
#[derive(Clone, Copy, Default)]
pub struct Stray {
    class: usize,
    side: usize,
    after: Option<Spot>,
}

impl Outbox {
    /// Visits at most `count` runs of transports that carry nothing any more, and moves each to another path if that is
    /// allowed. Returns whether no run is left to visit.
    pub fn relocate(&mut self, mut count: usize) -> bool {
        for transport in 0..Transport::COUNT {
            while let Some(stray) = self.lineups[transport].strays {
                if count == 0 {
                    return false;
                }
                count -= 1;
                self.lineups[transport].strays = self.relocate_one(transport, stray);
            }
        }
        true
    }

    /// Visits the run after this spot. Returns where to continue.
    fn relocate_one(&mut self, transport: usize, at: Stray) -> Option<Stray> {
        let queue = &self.lineups[transport].runs[at.class][at.side];
        let after = at.after.map_or(Bound::Unbounded, Bound::Excluded);
        let Some((&spot, run)) = queue.range((after, Bound::Unbounded)).next() else {
            return match (at.class, at.side) {
                (class, 0) => Some(Stray { class, side: 1, after: None }),
                (2, _) => None,
                (class, _) => Some(Stray { class: class + 1, side: 0, after: None }),
            };
        };
        let (transfer, is_replay) = (run.transfer.clone(), run.is_replay);
        let to = self.lineup_of(&transfer, is_replay) as usize;
        if to != transport {
            if let Some(run) = self.lineups[transport].runs[at.class][at.side].remove(&spot) {
                self.lineups[to].runs[at.class][at.side].insert(spot, run);
            }
        }
        Some(Stray { after: Some(spot), ..at })
    }

    /// Returns what a transfer waits for besides its path.
    pub fn awaited(&self, transfer: &Transfer) -> Option<Awaited> {
        let number = transfer.notify_sequence.load(Ordering::Relaxed);
        match transfer.position.place() {
            Place::Behind => Some(Awaited::Turn),
            Place::Out if transfer.awaits_notification() && !self.notifications.is_granted(number) => {
                Some(Awaited::Credit)
            }
            _ => None,
        }
    }

    /// Returns whether transfers have no path that may carry them.
    pub fn has_stranded(&self) -> bool {
        !self.stranded.is_empty()
    }

    /// Returns whether runs wait for a transport that carries nothing any more, and may move.
    pub fn has_strays(&self) -> bool {
        self.lineups.iter().any(|lineup| lineup.strays.is_some())
    }

    /// Returns whether `next_end` or `relocate` has work. `lost`: the peer is lost.
    pub fn has_ends(&self, lost: bool, now_ns: Monotonic) -> bool {
        self.ordered.has_doomed()
            || self.has_stranded()
            || self.has_strays()
            || self.live.next_ns().is_some_and(|at_ns| lost || at_ns <= now_ns)
    }

    /// Returns the next transfer to strike, with the reason: an earlier ORDERED transfer failed, no path may carry it,
    /// the peer is lost (`lost` is the strike), or its deadline is past.
    pub fn next_end(&mut self, lost: Option<Strike>, now_ns: Monotonic) -> Option<(Arc<Transfer>, Strike)> {
        let strike = |status| Strike { status, os_error: 0 };
        if let Some(transfer) = self.ordered.next_doomed() {
            return Some((transfer, strike(Status::Cancelled)));
        }
        if let Some(transfer) = self.stranded.pop_front() {
            return Some((transfer, lost.unwrap_or(strike(Status::Unavailable))));
        }
        if let Some(strike) = lost {
            return self.live.pop().map(|transfer| (transfer, strike));
        }
        self.live.next_ns().filter(|at_ns| *at_ns <= now_ns)?;
        let transfer = self.live.pop()?;
        Some((transfer, Strike { status: Status::Timeout, os_error: libc::ETIMEDOUT }))
    }

    /// See `Live::next_ns`.
    pub fn next_deadline_ns(&self) -> Option<Monotonic> {
        self.live.next_ns()
    }
}
