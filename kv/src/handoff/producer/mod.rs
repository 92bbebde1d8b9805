//! The offers of a cache: the producer's side of `machine`.
//!
//! An offer has groups of takers, and a group has ranks; a rank is a `Part`. A part is over when nothing of it touches
//! the blocks any more:
//!
//! ```text
//! push:  Active ── all is written, and told ──▶ over(OK)    Active ── struck ──▶ writes are final ──▶ ENDED, over(why)
//! pull:  Active ── FINAL(OK) ──▶ over(OK)              Active ── struck, ENDED ──▶ FINAL ──▶ over(why)
//! both:  the peer is lost, after its fence, and this side's writes are final ──▶ over(PEER_LOST)
//! ```

mod calls;
mod counting;
mod leases;
mod moving;
mod pending;
mod retract;
mod takers;

use std::collections::BTreeMap;

use std::sync::Arc;

use ferry::types::PeerId;
use ferry::Status;

use crate::layout::Layout;
use crate::plan::{BlockList, Exchange, GroupBlocks, Plan};

use super::id::HandoffId;

use super::machine::{end_of, Machine};
use super::progress::Progress;
use super::silence::Stake;

use super::types::{Blocks, End, OfferSpec, State};
use super::wire::{self, Key, Message};
use retract::{Recall, Retract};

pub use leases::Leases;
pub(super) use pending::Pending;

#[derive(Clone, Debug)]
pub struct Offer {
    spec: OfferSpec,
    /// Tokens that are computed, by layer of the layout.
    ready: Vec<u64>,
    sealed: Option<u64>,
    /// Set by the seal.
    lease_until: Option<u64>,
    groups: BTreeMap<u64, Group>,
    /// Retracts that were begun, and those that are over.
    epoch: u64,
    finished: u64,
    retract: Option<Retract>,
    /// By window group: no taker can have the rank's own tokens before this one. The list began there, or they were freed.
    begins: BTreeMap<u32, u64>,
    /// Why the offer as a whole ends before its takers have it.
    struck: Option<Struck>,
}

#[derive(Clone, Debug)]
struct Struck {
    end: End,
    status: Status,
    why: String,
}

/// A consumer group: its ranks that took.
#[derive(Clone, Debug, Default)]
struct Group {
    /// None before one of its takes was accepted.
    plan: Option<Arc<Plan>>,
    parts: BTreeMap<u32, Part>,
    /// Why the offer cannot serve one of its ranks.
    refused: Option<(Status, String)>,
}

/// A rank of a consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    group: u64,
    rank: u32,
}

#[derive(Clone, Debug)]
struct Part {
    peer: PeerId,
    take: wire::Take,
    exchange: Exchange,
    target: Arc<Layout>,
    /// In a push: the data that was written.
    progress: Progress,
    in_flight: u32,
    /// In a push: WRITEs that the consumer has not been told of yet.
    untold: u32,
    /// In a pull: for this epoch the peer knows the blocks of each group up to this token of this rank, and these
    /// tokens of each layer.
    told_ends: Vec<u64>,
    told_ready: Vec<u64>,
    /// The retract that this part has been told last, and of that what is not answered.
    epoch: u64,
    recall: Option<Recall>,
    /// It had begun with blocks of a window when they were freed, and nothing that it was told since may touch them.
    is_awaited: bool,
    /// The take has ended, as it answered to a retract.
    is_gone: bool,
    struck: Option<(Status, String)>,
    struck_ns: u64,
    /// Nothing of this part touches the blocks any more.
    over: Option<Status>,
}

impl Offer {
    pub fn state(&self) -> State {
        match self.struck {
            Some(_) => State::Ending,
            None => State::Offered { sealed: self.sealed.is_some(), takers: self.groups.len() as u32 },
        }
    }

    /// The blocks of the offer, and those that were taken back and are not the caller's yet.
    pub fn lists(&self) -> impl Iterator<Item = &[Blocks]> {
        let retired = self.retract.as_ref().map(|retract| retract.retired.as_slice());
        std::iter::once(self.spec.blocks.as_slice()).chain(retired)
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.groups.values().flat_map(|group| group.parts.values())
    }

    fn part(&self, spot: Spot) -> Option<&Part> {
        self.groups.get(&spot.group)?.parts.get(&spot.rank)
    }

    fn part_mut(&mut self, spot: Spot) -> Option<&mut Part> {
        self.groups.get_mut(&spot.group)?.parts.get_mut(&spot.rank)
    }

    /// Returns the spots of the parts of which `picks` is true.
    fn spots(&self, picks: impl Fn(&Part) -> bool) -> Vec<Spot> {
        self.parts().filter(|part| picks(part)).map(Part::spot).collect()
    }

    fn blocks(&self) -> usize {
        self.lists().flatten().map(|list| list.ids.len()).sum()
    }

    /// When the lease ends of an offer that nobody has taken, and the blocks that it holds.
    fn lease(&self) -> Option<(u64, usize)> {
        self.lease_until.filter(|_| self.parts().next().is_none()).map(|until| (until, self.blocks()))
    }

    /// Returns how many groups have ended, and whether all of these have the offer.
    fn ended_groups(&self, rank: u32) -> (usize, bool) {
        let ended: Vec<bool> = self.groups.values().filter_map(|group| group.result(rank)).collect();
        (ended.len(), ended.iter().all(|has_it| *has_it))
    }

    /// Returns how the offer ends, if nothing of it is under way any more and it has a reason to.
    fn end(&self, rank: u32) -> Option<(End, Status, String)> {
        let (count, all_have_it) = self.ended_groups(rank);
        let all_over = self.parts().all(|part| part.over.is_some());
        match &self.struck {
            Some(struck) => all_over.then(|| (struck.end, struck.status, struck.why.clone())),
            None if count < self.spec.takers as usize => None,
            None if all_have_it => self.sealed.map(|_| (End::Sent, Status::Ok, String::new())),
            None => {
                let refused = || self.groups.values().find_map(|group| group.refused.clone());
                let struck = self.parts().find_map(|part| part.struck.clone()).or_else(refused);
                let (status, why) = struck.unwrap_or((Status::Partial, "a taker failed".into()));
                Some((end_of(status), status, why))
            }
        }
    }

    /// Whether a taker or one of its ranks has not come. A group that has failed waits for no rank.
    fn is_awaited(&self, rank: u32) -> bool {
        let missing = |group: &Group| group.result(rank).is_none() && !group.missing(rank).is_empty();
        self.groups.len() < self.spec.takers as usize || self.groups.values().any(missing)
    }
}

impl Part {
    fn spot(&self) -> Spot {
        Spot { group: self.take.group, rank: self.take.rank }
    }
}

impl Group {
    /// The ranks that get something of this rank and have not taken.
    fn missing(&self, rank: u32) -> Vec<u32> {
        let all = self.plan.iter().flat_map(|plan| plan.targets_of(rank)).copied();
        all.filter(|target| !self.parts.contains_key(target)).collect()
    }

    /// None while the group has not ended; else whether all of its ranks have the offer. A failure of one rank, or its
    /// refusal, ends the group when those that came are over.
    fn result(&self, rank: u32) -> Option<bool> {
        let over: Option<Vec<Status>> = self.parts.values().map(|part| part.over).collect();
        let has_it = over?.iter().all(|status| *status == Status::Ok) && self.refused.is_none();
        (!has_it || self.missing(rank).is_empty()).then_some(has_it)
    }
}

impl Machine {
    /// A peer is lost, or is not to be trusted any more: its parts of an offer end.
    pub(super) fn forsake_offer(
        &mut self,
        id: HandoffId,
        peer: PeerId,
        status: Status,
        why: &str,
        is_gone: bool,
    ) {
        let Some(offer) = self.offers.get_mut(&id) else { return };
        for spot in offer.spots(|part| is_gone && part.peer == peer && part.over.is_some()) {
            // The part keeps what it has received; a later session of the peer knows nothing of it.
            offer.part_mut(spot).into_iter().for_each(|part| (part.recall, part.is_gone) = (None, true));
        }
        let spots = offer.spots(|part| part.peer == peer && part.over.is_none());
        for spot in &spots {
            // Its READs cannot come any more; this side's own WRITEs become final by themselves.
            if let Some(part) = offer.part_mut(*spot).filter(|part| is_gone && !part.take.is_push) {
                let (status, _) = part.struck.get_or_insert((status, why.into()));
                part.over = Some(*status);
            }
        }
        for spot in spots {
            self.strike_part(id, spot, status, why);
        }
        self.settle_offer(id);
    }

    /// Tells a silent peer that its complete parts are given up: a take that waits for other ranks would keep what is
    /// taken back from now on.
    pub(in crate::handoff) fn tell_complete_takers(&mut self, peer: PeerId, why: &str) {
        let parts = self.offers.values().flat_map(Offer::parts);
        let complete = parts.filter(|part| part.peer == peer && part.over.is_some() && part.is_recalled());
        let keys: Vec<Key> = complete.map(|part| part.take.key).collect();
        for key in keys {
            self.send(peer, &Message::Ended { key, status: Status::PeerLost, why: why.into() });
        }
    }

    /// Returns what this side expects of a peer in an offer. A complete part is asked whether it is there, because a
    /// retract opens it again.
    pub(super) fn stake_of_offer(&self, id: HandoffId, peer: PeerId) -> Stake {
        let parts = self.offers.get(&id).into_iter().flat_map(Offer::parts).filter(|part| part.peer == peer);
        let stake = |part: &Part| match part.over {
            None if part.take.is_push => Stake::Own,
            None => Stake::Theirs,
            Some(_) if part.is_recalled() => Stake::Own,
            Some(_) => Stake::Nothing,
        };
        parts.map(stake).max().unwrap_or(Stake::Nothing)
    }

    /// When the peer was first asked to end READs of an offer, which it has not said to have ended.
    pub(super) fn reads_end_since(&self, id: HandoffId, peer: PeerId) -> Option<u64> {
        let parts = self.offers.get(&id).into_iter().flat_map(Offer::parts);
        let reads = parts.filter(|part| part.peer == peer && part.over.is_none() && !part.take.is_push);
        let since = |part: &Part| {
            let struck = part.struck.as_ref().map(|_| part.struck_ns);
            struck.into_iter().chain(part.recall.as_ref().map(|recall| recall.since)).min()
        };
        reads.filter_map(since).min()
    }

    /// Notes whether an offer is sealed and not taken, and what it holds.
    fn note_lease(&mut self, id: HandoffId) {
        self.leases.set(id, self.offers.get(&id).and_then(Offer::lease));
    }

    /// Ends an offer whose lease is over while a taker is missing.
    pub(super) fn lease_is_over(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        if self.offers.get(&id).is_some_and(|offer| offer.is_awaited(rank)) {
            let (status, why) = (Status::Timeout, "the lease of the offer is over".to_string());
            self.strike_offer(id, Struck { end: End::Expired, status, why });
        }
    }

    /// Returns how many blocks are in an offer that this peer takes.
    pub(super) fn offered_to(&self, id: HandoffId, peer: PeerId) -> usize {
        let open = |offer: &&Offer| offer.parts().any(|part| part.peer == peer && part.over.is_none());
        self.offers.get(&id).filter(open).map_or(0, Offer::blocks)
    }
}

fn too_many(id: HandoffId, tokens: u64) -> String {
    format!("the take wants more tokens than the {tokens} of offer {id}")
}

/// The lists of both sides by group of the target. Groups are matched by the layers of the exchange.
pub(super) fn pairs<'a>(
    source: &Layout,
    target: &Layout,
    exchange: &Exchange,
    ours: &'a [Blocks],
    theirs: &'a [Blocks],
) -> Vec<GroupBlocks<'a>> {
    let mut pairs = vec![GroupBlocks::default(); target.groups.len()];
    for piece in &exchange.layers {
        let from = source.layers.get(piece.source_layer as usize).map(|layer| layer.group as usize);
        let to = target.layers.get(piece.target_layer as usize).map(|layer| layer.group as usize);
        let (Some(from), Some(to)) = (from, to) else { continue };
        if let Some(pair) = pairs.get_mut(to) {
            *pair = GroupBlocks { source: list(ours.get(from)), target: list(theirs.get(to)) };
        }
    }
    pairs
}

fn list(blocks: Option<&Blocks>) -> BlockList<'_> {
    blocks.map_or(BlockList::default(), |list| BlockList { ids: &list.ids, first_token: list.first_token })
}
