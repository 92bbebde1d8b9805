//! What of an outbox somebody has to come back to: transfers that have to be struck, and runs whose transport
//! carries nothing any more. Each call does a bounded piece of it, for `Peer::sweep`.

use super::{Outbox, Spot};
use crate::complete::transfer::Strike;
use crate::complete::Transfer;
use crate::status::Status;
use crate::types::{Monotonic, Transport};
use std::ops::Bound;
use std::sync::Arc;

/// Where `relocate` is: one of a lineup's queues, and the last spot in it that was looked at.
#[derive(Clone, Copy, Default)]
pub struct Stray {
    class: usize,
    side: usize,
    after: Option<Spot>,
}

impl Outbox {
    /// Looks at runs of transports that carry nothing any more, `count` of them at most, and has them go another
    /// way if they may. Whether it came to the end.
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

    /// Looks at the run after this spot; returns where to go on.
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

    /// Whether something cannot go any way.
    pub fn has_stranded(&self) -> bool {
        !self.stranded.is_empty()
    }

    /// Whether something waits for a transport that carries nothing any more, and may go another way.
    pub fn has_strays(&self) -> bool {
        self.lineups.iter().any(|lineup| lineup.strays.is_some())
    }

    /// Whether `next_end` has something, or `relocate`. `lost`: the peer is.
    pub fn has_ends(&self, lost: bool, now_ns: Monotonic) -> bool {
        self.ordered.has_doomed()
            || self.has_stranded()
            || self.has_strays()
            || self.live.next_ns().is_some_and(|at_ns| lost || at_ns <= now_ns)
    }

    /// The next transfer that has to be struck, with the reason: an earlier ORDERED one failed, it has no way to
    /// go, the peer is lost (`lost` strikes it), or its deadline is past.
    pub fn next_end(&mut self, lost: Option<Strike>, now_ns: Monotonic) -> Option<(Arc<Transfer>, Strike)> {
        let strike = |status| Strike { status, os_error: 0 };
        if let Some(transfer) = self.ordered.pop_doomed() {
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
