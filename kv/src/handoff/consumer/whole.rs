//! The end of a take from several ranks: whether its parts belong together.
//!
//! A part that is complete waits for the others, and its producer may take tokens back meanwhile. RETRACT says so, unless
//! the session is lost first, or the producer has given this cache up. So when the last part is complete, the producers
//! of the earlier ones are asked: a PONG comes behind whatever they have said before. At the time of the last part's last
//! word, no producer had taken anything back.

use ferry::types::PeerId;

use crate::handoff::id::HandoffId;
use crate::handoff::machine::Machine;
use crate::handoff::remote::Handoff;

use super::{TakePart, Taking};

impl TakePart {
    /// Whether the producer may take back what this part has.
    pub(super) fn may_be_recalled(&self) -> bool {
        !self.is_kept && self.asked().is_some_and(|asked| !asked.flow.exchange.layers.is_empty())
    }
}

impl Machine {
    /// Asks the producers of the parts that were complete before the last ones, once. Returns whether all have answered.
    pub(super) fn ask_whole(&mut self, id: HandoffId, last: &[u32]) -> bool {
        let Some(take) = self.takes.get(&id) else { return false };
        if take.asked_whole.is_none() {
            let earlier = take.parts().filter(|(rank, part)| !last.contains(rank) && part.may_be_recalled());
            let earlier: Vec<(u32, PeerId)> = earlier.map(|(rank, part)| (*rank, part.peer)).collect();
            let asked = earlier.into_iter().map(|(rank, peer)| (rank, self.ping(peer))).collect();
            self.takes.entry(id).and_modify(|take| take.asked_whole = Some(asked));
        }
        let Some(take) = self.takes.get(&id) else { return false };
        !take.parts().any(|(rank, part)| self.awaits_pong(take, *rank, part))
    }

    pub(super) fn awaits_pong(&self, take: &Taking, rank: u32, part: &TakePart) -> bool {
        let number = take.asked_whole.as_ref().and_then(|asked| asked.get(&rank));
        let pongs = self.remotes.get(&part.peer).map_or(0, |remote| remote.pongs);
        !part.is_kept && number.is_some_and(|number| pongs < *number)
    }

    /// The peer has answered a PING. Answers to none cost nothing, however many come.
    pub(in crate::handoff) fn ponged(&mut self, peer: PeerId, number: u64) {
        let remote = self.remote(peer);
        if number > remote.pongs && number <= remote.pings {
            remote.pongs = number;
            self.settle_takes_with(peer);
        }
    }

    /// The peer's cache is closed: what its parts have, they keep.
    pub(in crate::handoff) fn keep_from(&mut self, peer: PeerId) {
        let parts = self.takes.values_mut().flat_map(|take| take.parts.iter_mut().flatten());
        parts.filter(|(_, part)| part.peer == peer && part.is_over).for_each(|(_, part)| part.is_kept = true);
        self.settle_takes_with(peer);
    }

    fn settle_takes_with(&mut self, peer: PeerId) {
        for handoff in self.handoffs_with(peer) {
            if let Handoff::Take(id) = handoff {
                self.settle_take(id);
            }
        }
    }
}
