//! The mover of both sides: posts what is ready of a part, and counts what has arrived. A producer WRITEs for its
//! offers, a consumer READs for its takes. A consumer that is pushed has a `Flow` to know when it has everything; the
//! producer of a pull hears that by FINAL.
//!
//! ```text
//! pump_part ─▶ Mover (of an offer, or of a take) ─▶ Flow::next ─▶ post ─▶ flow_moved ─▶ the next one
//! ```

use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId};
use ferry::Status;

use crate::layout::Layout;
use crate::plan::{BlockList, Exchange, GroupBlocks, Strided};

use super::id::HandoffId;
use super::limits::{IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX, UNSENT_MAX};
use super::machine::{end_of, Machine};
use super::progress::{Progress, Work};
use super::remote::{Handoff, Owner, Post, Remote};
use super::types::{Blocks, Other};

/// Names a part: of an offer by the rank of a consumer group that takes, of a take by the rank of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub of: Handoff,
    /// 0 in a take.
    pub group: u64,
    pub rank: u32,
}

impl Address {
    pub fn of_take(id: HandoffId, rank: u32) -> Address {
        Address { of: Handoff::Take(id), group: 0, rank }
    }
}

/// The data of one rank of the producer for one rank of the consumer, in one handoff.
#[derive(Clone, Debug)]
pub struct Flow {
    pub source: Arc<Layout>,
    pub target: Arc<Layout>,
    pub exchange: Exchange,
    pub progress: Progress,
    /// Transfers of this side that are not final.
    pub in_flight: u32,
}

/// A part that this side may post for now.
pub struct Mover<'a> {
    pub flow: &'a mut Flow,
    pub peer: PeerId,
    /// The epoch that a WRITE is of.
    pub epoch: u64,
    /// Tokens that are computed, by layer of the source.
    pub ready: &'a [u64],
    /// The blocks of both sides, by group.
    pub source: &'a [Blocks],
    pub target: &'a [Blocks],
}

impl Flow {
    /// Takes the next work that is ready, and its bytes: none if the two ranks have no token of it in common.
    fn next(
        &mut self,
        ready: &[u64],
        source: &[Blocks],
        target: &[Blocks],
    ) -> Option<(Work, Result<Vec<Strided>>)> {
        let work = self.progress.next(|layer| ready.get(layer as usize).copied().unwrap_or(0))?;
        let (tokens, layers) = (work.tokens.clone(), work.layers.clone());
        let moves =
            self.exchange.lower(&self.source, &self.target, &self.pairs(source, target), tokens, layers);
        Some((work, moves))
    }

    /// The lists of both sides by group of the target. Groups are matched by the layers of the exchange.
    fn pairs<'a>(&self, source: &'a [Blocks], target: &'a [Blocks]) -> Vec<GroupBlocks<'a>> {
        let mut pairs = vec![GroupBlocks::default(); self.target.groups.len()];
        let group = |layout: &Layout, layer: u32| Some(layout.layers.get(layer as usize)?.group as usize);
        for piece in &self.exchange.layers {
            let from = group(&self.source, piece.source_layer);
            let to = group(&self.target, piece.target_layer);
            let (Some(from), Some(to)) = (from, to) else { continue };
            if let Some(pair) = pairs.get_mut(to) {
                *pair = GroupBlocks { source: list(source.get(from)), target: list(target.get(to)) };
            }
        }
        pairs
    }
}

fn list(blocks: Option<&Blocks>) -> BlockList<'_> {
    blocks.map_or(BlockList::default(), |list| BlockList { ids: &list.ids, first_token: list.first_token })
}

impl Machine {
    /// Posts what can be posted of a part. The caller settles its handoff.
    pub(super) fn pump_part(&mut self, at: Address) {
        while self.post_next(at) {}
    }

    /// Posts the next transfer of a part. Returns false if there is none, or no room.
    fn post_next(&mut self, at: Address) -> bool {
        let (op, mover) = match at.of {
            Handoff::Offer(id) => (Op::Write, self.offers.get_mut(&id).and_then(|offer| offer.mover(at))),
            Handoff::Take(id) => (Op::Read, self.takes.get_mut(&id).and_then(|take| take.mover(at))),
        };
        let Some(Mover { flow, peer, epoch, ready, source, target }) = mover else { return false };
        // A WRITE is told by a message.
        let has_room = |remote: &Remote| {
            remote.in_flight < IN_FLIGHT_OF_PEER_MAX && (op == Op::Read || remote.unsent < UNSENT_MAX)
        };
        if flow.in_flight >= IN_FLIGHT_OF_PART_MAX || !self.remotes.get(&peer).is_some_and(has_room) {
            return false;
        }
        match flow.next(ready, source, target) {
            None => return false,
            Some((work, Ok(moves))) if moves.is_empty() => {
                // The consumer counts it all the same.
                flow.progress.arrived(&work);
                self.tell_data(at, epoch, work);
            }
            Some((work, Ok(moves))) => {
                flow.in_flight += 1;
                self.post(Post { peer, owner: Owner::Part(at), epoch, work }, op, moves);
            }
            Some((_, Err(error))) => {
                self.fail_part(at, &error);
                return false;
            }
        }
        true
    }

    /// A transfer of a part is final.
    pub(super) fn flow_moved(&mut self, at: Address, epoch: u64, work: Work, result: Result<()>) {
        let found = match at.of {
            Handoff::Offer(_) => self.offer_part(at).map(|part| (part.recall.is_some(), &mut part.flow)),
            Handoff::Take(id) => {
                let asked = self.takes.get_mut(&id).and_then(|take| take.asked(at.rank));
                asked.map(|asked| (asked.is_recalled, &mut asked.flow))
            }
        };
        let Some((is_recalled, flow)) = found else { return };
        flow.in_flight = flow.in_flight.saturating_sub(1);
        match result {
            Ok(()) => {
                flow.progress.arrived(&work);
                self.tell_data(at, epoch, work);
            }
            // Cancelled for a retract; what of it is wanted still is moved again.
            Err(error) if error.status == Status::Cancelled && is_recalled => {}
            Err(error) => self.fail_part(at, &error),
        }
        match at.of {
            Handoff::Offer(id) => self.pump_offer(id),
            Handoff::Take(id) => {
                self.answer_retract(id, at.rank);
                self.pump_part(at);
                self.settle_take(id);
            }
        }
    }

    fn fail_part(&mut self, at: Address, error: &Error) {
        let peer = match at.of {
            Handoff::Offer(_) => self.offer_part(at).map(|part| part.peer),
            Handoff::Take(id) => self.takes.get(&id).and_then(|take| take.peer_of(at.rank)),
        };
        let by = Other { peer: peer.unwrap_or(PeerId::NONE), rank: at.rank };
        let cause = self.failed_with(at.of, by, error.status, &error.message);
        match at.of {
            Handoff::Offer(_) => self.strike_part(at, cause),
            Handoff::Take(id) => self.strike_take(id, end_of(cause.status), cause),
        }
    }
}
