//! The offers of a cache: the producer's side of `machine`.
//!
//! An offer has groups of takers, and a group has ranks; a rank is an `OfferPart`. A part is over when nothing of it
//! touches the blocks any more:
//!
//! ```text
//! both:  Active ── FINAL ──▶ over: OK if the take has everything, of all ranks of the producer
//! push:  Active ── struck ──▶ writes are final ──▶ ENDED, over(why)
//! pull:  Active ── struck, ENDED ──▶ FINAL ──▶ over(why)
//! both:  the peer is lost, after its fence, and this side's writes are final ──▶ over(PEER_LOST)
//! ```

mod calls;
mod counting;
mod ending;
mod leases;
mod pending;
mod retract;
mod takers;
mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry::types::PeerId;
use ferry::Status;

use crate::plan::Plan;

use super::cause::Cause;
use super::flow::{Address, Flow, Mover};
use super::id::HandoffId;
use super::machine::Machine;
use super::remote::Handoff;
use super::silence::Stake;
use super::types::{Blocks, End, HandoffState, OfferSpec, Other};
use super::wire;
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
    cause: Cause,
}

/// A consumer group: its ranks that took.
#[derive(Clone, Debug, Default)]
struct Group {
    /// None before one of its takes was accepted.
    plan: Option<Arc<Plan>>,
    parts: BTreeMap<u32, OfferPart>,
    /// Why the offer cannot serve one of its ranks.
    refused: Option<Cause>,
}

/// A rank of a consumer group.
#[derive(Clone, Debug)]
pub(super) struct OfferPart {
    pub peer: PeerId,
    take: wire::Take,
    /// Moves in a push only.
    pub flow: Flow,
    /// In a pull: for this epoch the peer knows the blocks of each group up to this token of this rank, and these
    /// tokens of each layer.
    told_ends: Vec<u64>,
    told_ready: Vec<u64>,
    /// In a pull: the consumer has all of this rank. It reads nothing more, unless tokens are taken back.
    has_read: bool,
    /// The retract that this part has been told last, and of that what is not answered.
    epoch: u64,
    pub recall: Option<Recall>,
    /// It had begun with blocks of a window when they were freed, and nothing that it was told since may touch them.
    is_awaited: bool,
    struck: Option<Cause>,
    struck_ns: u64,
    /// Nothing of this part touches the blocks any more.
    over: Option<Status>,
}

impl Offer {
    pub fn state(&self) -> HandoffState {
        match self.struck {
            Some(_) => HandoffState::Ending,
            None => HandoffState::Offered { sealed: self.sealed.is_some(), takers: self.groups.len() as u32 },
        }
    }

    /// The blocks of the offer, and those that were taken back and are not the caller's yet.
    pub fn lists(&self) -> impl Iterator<Item = &[Blocks]> {
        let retired = self.retract.as_ref().map(|retract| retract.retired.as_slice());
        std::iter::once(self.spec.blocks.as_slice()).chain(retired)
    }

    fn parts(&self) -> impl Iterator<Item = &OfferPart> {
        self.groups.values().flat_map(|group| group.parts.values())
    }

    fn part(&self, at: Address) -> Option<&OfferPart> {
        self.groups.get(&at.group)?.parts.get(&at.rank)
    }

    fn part_mut(&mut self, at: Address) -> Option<&mut OfferPart> {
        self.groups.get_mut(&at.group)?.parts.get_mut(&at.rank)
    }

    /// The part, if this side may WRITE for it now.
    pub(super) fn mover(&mut self, at: Address) -> Option<Mover<'_>> {
        let part = self.groups.get_mut(&at.group)?.parts.get_mut(&at.rank)?;
        let OfferPart { peer, epoch, take, flow, .. } =
            Some(part).filter(|part| part.take.is_push && part.is_open())?;
        let (source, target) = (&self.spec.blocks, &take.blocks);
        Some(Mover { flow, peer: *peer, epoch: *epoch, ready: &self.ready, source, target })
    }

    /// Returns the addresses of the parts of which `picks` is true.
    fn addresses(&self, picks: impl Fn(&OfferPart) -> bool) -> Vec<Address> {
        self.parts().filter(|part| picks(part)).map(OfferPart::address).collect()
    }

    fn blocks(&self) -> usize {
        self.lists().flatten().map(|list| list.ids.len()).sum()
    }

    /// When the lease ends of an offer that nobody has taken, and the blocks that it holds.
    fn lease(&self) -> Option<(u64, usize)> {
        self.lease_until.filter(|_| self.parts().next().is_none()).map(|until| (until, self.blocks()))
    }
}

impl OfferPart {
    fn address(&self) -> Address {
        Address { of: Handoff::Offer(self.take.key.id), group: self.take.group, rank: self.take.rank }
    }

    /// Whether what is ready may go to it now.
    fn is_open(&self) -> bool {
        self.over.is_none() && self.struck.is_none() && self.recall.is_none()
    }

    /// Whether the peer's READs may touch the blocks. Nobody reads of a rank that sends nothing.
    fn is_read(&self) -> bool {
        !self.take.is_push && !self.has_read && !self.flow.exchange.layers.is_empty()
    }

    fn other(&self) -> Other {
        Other { peer: self.peer, rank: self.take.rank }
    }
}

impl Group {
    /// The ranks that get something of this rank and have not taken.
    fn missing(&self, rank: u32) -> Vec<u32> {
        let all = self.plan.iter().flat_map(|plan| plan.targets_of(rank)).copied();
        all.filter(|target| !self.parts.contains_key(target)).collect()
    }
}

impl Machine {
    /// Returns what this side expects of a peer in an offer.
    pub(super) fn stake_of_offer(&self, id: HandoffId, peer: PeerId) -> Stake {
        let parts = self.offers.get(&id).into_iter().flat_map(Offer::parts).filter(|part| part.peer == peer);
        let stake = |part: &OfferPart| match part.over {
            None if part.is_read() => Stake::Theirs,
            None => Stake::Own,
            Some(_) => Stake::Nothing,
        };
        parts.map(stake).max().unwrap_or(Stake::Nothing)
    }

    /// When the peer was first asked to end READs of an offer, which it has not said to have ended.
    pub(super) fn reads_end_since(&self, id: HandoffId, peer: PeerId) -> Option<u64> {
        let parts = self.offers.get(&id).into_iter().flat_map(Offer::parts);
        let reads = parts.filter(|part| part.peer == peer && part.over.is_none() && part.is_read());
        let since = |part: &OfferPart| {
            let struck = part.struck.as_ref().map(|_| part.struck_ns);
            struck.into_iter().chain(part.recall.as_ref().map(|recall| recall.since)).min()
        };
        reads.filter_map(since).min()
    }

    /// Notes whether an offer is sealed and not taken, and what it holds.
    fn note_lease(&mut self, id: HandoffId) {
        self.leases.set(id, self.offers.get(&id).and_then(Offer::lease));
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
