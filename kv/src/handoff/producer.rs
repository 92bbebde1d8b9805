//! The offers of a cache: the producer's side of `machine`.
//!
//! An offer has groups of takers, and a group has ranks; a rank is a `Part`. A part is over when nothing of it touches
//! the blocks any more:
//!
//! ```text
//! push:  Active ── all is written ──▶ over(OK)         Active ── struck ──▶ writes are final ──▶ ENDED, over(why)
//! pull:  Active ── FINAL(OK) ──▶ over(OK)              Active ── struck, ENDED ──▶ FINAL ──▶ over(why)
//! both:  the peer is lost, after its fence, and this side's writes are final ──▶ over(PEER_LOST)
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId};
use ferry::Status;

use crate::layout::Layout;
use crate::plan::{BlockList, Exchange, GroupBlocks, Plan};

use super::id::HandoffId;
use super::limits::{
    IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX, OFFERS_MAX, TAKERS_MAX, UNSENT_MAX, WAITING_MAX,
    WAITING_OF_PEER_MAX,
};
use super::lists;
use super::machine::{data_of, end_of, told, Machine};
use super::progress::{Progress, Work};
use super::remote::{Owner, Post};
use super::types::{Blocks, End, Event, OfferSpec, State};
use super::wire::{self, Key, Message};

pub struct Offer {
    spec: OfferSpec,
    /// Tokens that are computed, by layer of the layout.
    ready: Vec<u64>,
    sealed: Option<u64>,
    /// Set by the seal.
    lease_until: Option<u64>,
    groups: BTreeMap<u64, Group>,
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
struct Group {
    plan: Arc<Plan>,
    parts: BTreeMap<u32, Part>,
}

/// A rank of a consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    group: u64,
    rank: u32,
}

struct Part {
    peer: PeerId,
    take: wire::Take,
    exchange: Exchange,
    target: Arc<Layout>,
    /// Of a push: what was written.
    progress: Progress,
    in_flight: u32,
    /// Of a pull: the peer knows these blocks of each group, and these tokens of each layer.
    told_blocks: Vec<usize>,
    told_ready: Vec<u64>,
    struck: Option<(Status, String)>,
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

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.groups.values().flat_map(|group| group.parts.values())
    }

    fn part_mut(&mut self, spot: Spot) -> Option<&mut Part> {
        self.groups.get_mut(&spot.group)?.parts.get_mut(&spot.rank)
    }

    /// Returns the spots of the parts of which `picks` is true.
    fn spots(&self, picks: impl Fn(&Part) -> bool) -> Vec<Spot> {
        self.parts().filter(|part| picks(part)).map(Part::spot).collect()
    }

    fn blocks(&self) -> usize {
        self.spec.blocks.iter().map(|list| list.ids.len()).sum()
    }

    /// Returns how many groups have ended, and whether all of these have the offer.
    fn ended_groups(&self, rank: u32) -> (usize, bool) {
        let ended: Vec<bool> = self.groups.values().filter_map(|group| group.result(rank)).collect();
        (ended.len(), ended.iter().all(|has_it| *has_it))
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
        let all = self.plan.targets_of(rank).iter().copied();
        all.filter(|target| !self.parts.contains_key(target)).collect()
    }

    /// None while the group has not ended; else whether all of its ranks have the offer. A failure of one rank ends the
    /// group when those that came are over.
    fn result(&self, rank: u32) -> Option<bool> {
        let over: Option<Vec<Status>> = self.parts.values().map(|part| part.over).collect();
        let has_it = over?.iter().all(|status| *status == Status::Ok);
        (!has_it || self.missing(rank).is_empty()).then_some(has_it)
    }
}

impl Machine {
    /// Offers blocks. INVALID for wrong blocks, and an id that is in use or has ended; LIMIT.
    pub fn offer(&mut self, spec: OfferSpec, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        self.check_new(spec.id)?;
        lists::check(&self.layout, &spec.blocks)?;
        if !(1..=TAKERS_MAX as u32).contains(&spec.takers) {
            return Err(Error::invalid(format!("takers: {} is not 1 to {TAKERS_MAX}", spec.takers)));
        }
        if self.offers.len() >= OFFERS_MAX {
            return Err(Error::new(Status::Limit, format!("{OFFERS_MAX} offers have not ended")));
        }
        let (id, layers) = (spec.id, self.layout.layers.len());
        let (ready, groups) = (vec![0; layers], BTreeMap::new());
        let offer = Offer { spec, ready, sealed: None, lease_until: None, groups, struck: None };
        self.offers.insert(id, offer);
        for (peer, take) in self.waiting.remove(&id).unwrap_or_default() {
            self.uncount_waiting(peer, 1);
            self.taken(peer, take);
        }
        Ok(())
    }

    /// Adds blocks to the groups of an offer, as they are allocated.
    pub fn offer_extend(&mut self, id: HandoffId, blocks: &[Blocks], now: u64) -> Result<()> {
        self.now = self.now.max(now);
        let layout = self.layout.clone();
        let offer = self.open_offer(id)?;
        if offer.sealed.is_some() {
            return Err(Error::invalid(format!("id: {id} is sealed")));
        }
        let mut all = offer.spec.blocks.clone();
        if blocks.len() != all.len() {
            let (lists, groups) = (blocks.len(), all.len());
            return Err(Error::invalid(format!("blocks: {lists} lists, and the layout has {groups} groups")));
        }
        for (list, added) in all.iter_mut().zip(blocks) {
            list.ids.extend(&added.ids);
        }
        lists::check(&layout, &all)?;
        offer.spec.blocks = all;
        self.pump_offer(id);
        Ok(())
    }

    /// Says that the first `tokens` tokens of these layers are computed. INVALID for a layer that is ready up to there
    /// already, that comes before the layers below it, or whose blocks are not offered.
    pub fn offer_ready(&mut self, id: HandoffId, layers: Range<u32>, tokens: u64, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        let layout = self.layout.clone();
        let offer = self.open_offer(id)?;
        if layers.is_empty() || layers.end as usize > layout.layers.len() {
            let (start, end) = (layers.start, layers.end);
            let text = format!("layers: {start} to {end} is no range of the {} layers", layout.layers.len());
            return Err(Error::invalid(text));
        }
        if let Some(sealed) = offer.sealed.filter(|sealed| tokens > *sealed) {
            return Err(Error::invalid(format!("tokens: {tokens} are above the {sealed} of the seal")));
        }
        let own =
            |index: &u32| layout.layers.get(*index as usize).is_some_and(|layer| layer.memory.is_some());
        let ready = |index: u32| offer.ready.get(index as usize).copied().unwrap_or(0);
        for index in layers.clone().filter(own) {
            if ready(index) >= tokens {
                let text = format!("layers: layer {index} is ready up to token {} already", ready(index));
                return Err(Error::invalid(text));
            }
            let group = layout.layers[index as usize].group as usize;
            if let Some(list) = offer.spec.blocks.get(group).filter(|list| !list.ids.is_empty()) {
                lists::covers(&layout, group, list, &(0..tokens), "tokens")?;
            }
        }
        if let Some(before) = (0..layers.start).rev().find(own).filter(|before| ready(*before) < tokens) {
            let text = format!("layers: layer {before} is ready up to token {} only", ready(before));
            return Err(Error::invalid(text));
        }
        for index in layers {
            if let Some(ready) = offer.ready.get_mut(index as usize) {
                *ready = tokens;
            }
        }
        self.pump_offer(id);
        Ok(())
    }

    /// Says that the offer is whole: it has `tokens` tokens. The lease begins.
    pub fn offer_seal(&mut self, id: HandoffId, tokens: u64, now: u64) -> Result<()> {
        let now = self.now.max(now);
        self.now = now;
        let offer = self.open_offer(id)?;
        if offer.sealed.is_some() {
            return Err(Error::invalid(format!("id: {id} is sealed")));
        }
        if let Some(most) = offer.ready.iter().max().filter(|most| **most > tokens) {
            return Err(Error::invalid(format!("tokens: {tokens} are less than the {most} that are ready")));
        }
        offer.sealed = Some(tokens);
        offer.lease_until = Some(now.saturating_add(offer.spec.lease.as_nanos().min(u64::MAX.into()) as u64));
        let beyond = offer.spots(|part| part.over.is_none() && part.take.tokens > tokens);
        for spot in beyond {
            self.strike_part(id, spot, Status::Invalid, &too_many(id, tokens));
        }
        self.settle_offer(id);
        Ok(())
    }

    /// Ends an offer; the blocks are the caller's with its terminal event.
    pub fn offer_abort(&mut self, id: HandoffId, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        self.open_offer(id)?;
        let why = "the producer aborted the offer".into();
        self.strike_offer(id, Struck { end: End::Cancelled, status: Status::Cancelled, why });
        Ok(())
    }

    /// Ends all offers, and refuses the takes that wait for offers.
    pub(super) fn close_offers(&mut self) {
        let why = "the producer's cache was closed";
        for (peer, take) in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.uncount_waiting(peer, 1);
            self.send(peer, &Message::Ended { key: take.key, status: Status::Closed, why: why.into() });
        }
        let offers: Vec<HandoffId> = self.offers.keys().copied().collect();
        for id in offers {
            self.strike_offer(id, Struck { end: End::Cancelled, status: Status::Closed, why: why.into() });
        }
    }

    /// Returns an offer that was not struck.
    fn open_offer(&mut self, id: HandoffId) -> Result<&mut Offer> {
        let ended = self.tombs.get(id).map(|tomb| tomb.end);
        match self.offers.get_mut(&id) {
            Some(offer) if offer.struck.is_none() => Ok(offer),
            Some(_) => Err(Error::new(Status::Stale, format!("id: {id} is ending"))),
            None if ended.is_some() => Err(Error::new(Status::Stale, format!("id: {id} has ended"))),
            None => Err(Error::invalid(format!("id: {id} is no offer"))),
        }
    }

    /// A peer takes.
    pub(super) fn taken(&mut self, peer: PeerId, take: wire::Take) {
        let key = take.key;
        if let Err(error) = self.accept(peer, take) {
            let (status, why) = told(&error);
            self.send(peer, &Message::Ended { key, status, why });
        }
        self.pump_offer(key.id);
        self.settle_offer(key.id);
    }

    fn accept(&mut self, peer: PeerId, take: wire::Take) -> Result<()> {
        let id = take.key.id;
        if take.incarnation != self.incarnation {
            self.greet(peer);
            let text = "the producer's cache was opened anew since the take was made";
            return Err(Error::new(Status::Stale, text));
        }
        if let Some(tomb) = self.tombs.get(id) {
            let text =
                format!("the handoff has ended: {}", if tomb.why.is_empty() { "SENT" } else { &tomb.why });
            return Err(Error::new(Status::Stale, text));
        }
        let Some(offer) = self.offers.get_mut(&id) else { return self.await_offer(peer, take) };
        if let Some(struck) = &offer.struck {
            return Err(Error::new(struck.status, struck.why.clone()));
        }
        if !offer.spec.only.is_empty() && !offer.spec.only.contains(&peer) {
            return Err(Error::new(Status::Refused, "the offer is for other peers"));
        }
        if let Some(sealed) = offer.sealed.filter(|sealed| *sealed < take.tokens) {
            return Err(Error::invalid(too_many(id, sealed)));
        }
        let hello = self.remotes.get(&peer).and_then(|remote| remote.hello.as_ref());
        let hello = hello.ok_or_else(|| Error::invalid("a take came before the peer's layout"))?;
        let plan = hello.from_us.clone()?;
        let target = hello.layout.clone();
        if take.rank != target.shard.rank() || take.skip > take.tokens {
            return Err(Error::invalid("a take is not of its peer's layout"));
        }
        if take.is_push {
            lists::check(&target, &take.blocks)?;
        }
        let takers = offer.spec.takers as usize;
        if !offer.groups.contains_key(&take.group) && offer.groups.len() >= takers {
            let text = format!("the offer has its {takers} takers already");
            return Err(Error::new(Status::Limit, text));
        }
        let exchange = plan.exchange(self.layout.shard.rank(), take.rank)?;
        let group = offer.groups.entry(take.group).or_insert_with(|| Group { plan, parts: BTreeMap::new() });
        if let Some(part) = group.parts.get(&take.rank) {
            return match part.take.key == take.key && part.peer == peer {
                true => Ok(()),
                false => Err(Error::invalid(format!("rank {} of the group has taken already", take.rank))),
            };
        }
        let progress = Progress::new(&exchange, &self.layout, &target, &take.blocks, take.skip..take.tokens);
        let sends_nothing = exchange.layers.is_empty();
        let (key, rank) = (take.key, take.rank);
        let part = Part {
            peer,
            take,
            exchange,
            target,
            progress,
            in_flight: 0,
            told_blocks: vec![0; self.layout.groups.len()],
            told_ready: Vec::new(),
            struck: None,
            over: sends_nothing.then_some(Status::Ok),
        };
        group.parts.insert(rank, part);
        self.remote(peer).offers.insert(id);
        if sends_nothing {
            self.send(peer, &Message::Ended { key, status: Status::Ok, why: String::new() });
        }
        Ok(())
    }

    /// Keeps a take until its offer comes.
    fn await_offer(&mut self, peer: PeerId, take: wire::Take) -> Result<()> {
        if self.remote(peer).waiting >= WAITING_OF_PEER_MAX {
            let text = format!("{WAITING_OF_PEER_MAX} takes of the peer wait for their offers");
            return Err(Error::new(Status::Limit, text));
        }
        if self.waiting_count >= WAITING_MAX {
            return Err(Error::new(Status::Limit, format!("{WAITING_MAX} takes wait for their offers")));
        }
        let waiting = self.waiting.entry(take.key.id).or_default();
        if !waiting.iter().any(|(of, same)| *of == peer && same.key == take.key) {
            waiting.push((peer, take));
            self.waiting_count += 1;
            self.remote(peer).waiting += 1;
        }
        Ok(())
    }

    /// Removes a take of a peer that waits for its offer.
    fn forget_waiting(&mut self, peer: PeerId, key: Key) {
        let Some(waiting) = self.waiting.get_mut(&key.id) else { return };
        let before = waiting.len();
        waiting.retain(|(of, take)| *of != peer || take.key != key);
        let gone = before - waiting.len();
        if waiting.is_empty() {
            self.waiting.remove(&key.id);
        }
        self.uncount_waiting(peer, gone);
    }

    fn uncount_waiting(&mut self, peer: PeerId, gone: usize) {
        self.waiting_count -= gone.min(self.waiting_count);
        let remote = self.remote(peer);
        remote.waiting -= gone.min(remote.waiting);
    }

    fn part_mut(&mut self, id: HandoffId, spot: Spot) -> Option<&mut Part> {
        self.offers.get_mut(&id)?.part_mut(spot)
    }

    /// The part of a peer's take. The numbers of takes are the peers' own, so a key alone does not tell.
    fn taker_of(&mut self, peer: PeerId, key: Key) -> Option<&mut Part> {
        let groups = self.offers.get_mut(&key.id)?.groups.values_mut();
        let mut parts = groups.flat_map(|group| group.parts.values_mut());
        parts.find(|part| part.peer == peer && part.take.key == key)
    }

    /// The consumer reads nothing of this take any more.
    pub(super) fn read_final(&mut self, peer: PeerId, key: Key, status: Status, why: &str) {
        self.forget_waiting(peer, key);
        let Some(part) = self.taker_of(peer, key).filter(|part| !part.take.is_push) else { return };
        if part.over.is_none() {
            if status != Status::Ok {
                part.struck.get_or_insert((status, why.into()));
            }
            part.over = Some(part.struck.as_ref().map_or(status, |(status, _)| *status));
        }
        self.settle_offer(key.id);
    }

    /// The consumer wants nothing to be written any more. The answer always comes, and behind the last write.
    pub(super) fn cancelled(&mut self, peer: PeerId, key: Key) {
        self.forget_waiting(peer, key);
        let open = self.taker_of(peer, key).filter(|part| part.take.is_push && part.over.is_none());
        match open.map(|part| part.spot()) {
            Some(spot) => {
                self.strike_part(key.id, spot, Status::Cancelled, "the consumer cancelled the take");
                self.settle_offer(key.id);
            }
            None => self.send(peer, &Message::Ended { key, status: Status::Cancelled, why: String::new() }),
        }
    }

    /// Begins the end of one part.
    fn strike_part(&mut self, id: HandoffId, spot: Spot, status: Status, why: &str) {
        let part = self.part_mut(id, spot).filter(|part| part.over.is_none() && part.struck.is_none());
        let Some(part) = part else { return };
        part.struck = Some((status, why.into()));
        let (peer, key, Spot { group, rank }) = (part.peer, part.take.key, spot);
        if part.take.is_push {
            self.cancel_posts(Owner::Offer { id, group, rank });
        } else {
            self.send(peer, &Message::Ended { key, status, why: why.into() });
        }
    }

    fn strike_offer(&mut self, id: HandoffId, struck: Struck) {
        let Some(offer) = self.offers.get_mut(&id).filter(|offer| offer.struck.is_none()) else { return };
        let (status, why) = (struck.status, struck.why.clone());
        offer.struck = Some(struck);
        for spot in offer.spots(|_| true) {
            self.strike_part(id, spot, status, &why);
        }
        self.settle_offer(id);
    }

    /// A WRITE of a part is final.
    pub(super) fn written(&mut self, id: HandoffId, of: (u64, u32), work: &Work, result: Result<()>) {
        let spot = Spot { group: of.0, rank: of.1 };
        let Some(part) = self.part_mut(id, spot) else { return };
        part.in_flight = part.in_flight.saturating_sub(1);
        match result {
            Ok(()) => {
                part.progress.arrived(work);
            }
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_part(id, spot, status, &why);
            }
        }
        self.pump_offer(id);
    }

    /// Ends the parts that can end, then the offer if it has.
    fn settle_offer(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        let Some(offer) = self.offers.get_mut(&id) else { return };
        let mut ended = Vec::new();
        for part in offer.groups.values_mut().flat_map(|group| group.parts.values_mut()) {
            if part.over.is_some() || !part.take.is_push || part.in_flight > 0 {
                continue;
            }
            match &part.struck {
                Some((status, why)) => {
                    part.over = Some(*status);
                    ended.push((part.peer, part.take.key, *status, why.clone()));
                }
                None if part.progress.is_complete() => part.over = Some(Status::Ok),
                None => {}
            }
        }
        let (count, all_have_it) = offer.ended_groups(rank);
        let all_over = offer.parts().all(|part| part.over.is_some());
        let (takers, sealed) = (offer.spec.takers as usize, offer.sealed.is_some());
        let end = match &offer.struck {
            Some(struck) if all_over => Some((struck.end, struck.status, struck.why.clone())),
            Some(_) => None,
            None if count < takers => None,
            None if all_have_it => sealed.then(|| (End::Sent, Status::Ok, String::new())),
            None => {
                let struck = offer.parts().find_map(|part| part.struck.clone());
                let (status, why) = struck.unwrap_or((Status::Partial, "a taker failed".into()));
                Some((end_of(status), status, why))
            }
        };
        for (peer, key, status, why) in ended {
            // A lost peer is not told.
            if self.remotes.contains_key(&peer) {
                self.send(peer, &Message::Ended { key, status, why });
            }
        }
        if let Some((end, status, why)) = end {
            self.offers.remove(&id);
            let (valid_tokens, untrusted) = (0, Vec::new());
            self.tell_end(id, Event::Ended { id, end, status, why, valid_tokens, untrusted });
        }
    }

    /// Posts what can be posted of an offer, and tells its pulls what is new.
    fn pump_offer(&mut self, id: HandoffId) {
        let Some(offer) = self.offers.get(&id) else { return };
        let is_open = |part: &Part| part.over.is_none() && part.struck.is_none();
        let (writes, pulls) = (
            offer.spots(|part| is_open(part) && part.take.is_push),
            offer.spots(|part| is_open(part) && !part.take.is_push),
        );
        for spot in writes {
            while self.write_next(id, spot) {}
        }
        for spot in pulls {
            self.tell_pull(id, spot);
        }
        self.settle_offer(id);
    }

    /// Posts the next WRITE of a part. Returns false if there is none, or no room.
    fn write_next(&mut self, id: HandoffId, spot: Spot) -> bool {
        let Some(Offer { ready, spec, groups, .. }) = self.offers.get_mut(&id) else { return false };
        let part = groups.get_mut(&spot.group).and_then(|group| group.parts.get_mut(&spot.rank));
        let Some(part) = part.filter(|part| part.struck.is_none()) else { return false };
        let key = part.take.key;
        let room =
            self.remotes.get(&part.peer).is_some_and(|remote| remote.in_flight < IN_FLIGHT_OF_PEER_MAX);
        if !room || part.in_flight >= IN_FLIGHT_OF_PART_MAX {
            return false;
        }
        let Some(work) = part.progress.next(|layer| ready.get(layer as usize).copied().unwrap_or(0)) else {
            return false;
        };
        let lists = pairs(&self.layout, &part.target, &part.exchange, &spec.blocks, &part.take.blocks);
        let lowered =
            part.exchange.lower(&self.layout, &part.target, &lists, work.tokens.clone(), work.layers.clone());
        match lowered {
            Ok(moves) if moves.is_empty() => {
                part.progress.arrived(&work);
            }
            Ok(moves) => {
                part.in_flight += 1;
                let (peer, Spot { group, rank }) = (part.peer, spot);
                let owner = Owner::Offer { id, group, rank };
                self.post(Post { peer, owner, work: work.clone() }, Op::Write, moves, data_of(key, &work));
            }
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_part(id, spot, status, &why);
                return false;
            }
        }
        true
    }

    /// Tells a pull the tokens that are new since it was told last, with the blocks that were added.
    fn tell_pull(&mut self, id: HandoffId, spot: Spot) {
        let Some(Offer { ready, spec, groups, .. }) = self.offers.get_mut(&id) else { return };
        let part = groups.get_mut(&spot.group).and_then(|group| group.parts.get_mut(&spot.rank));
        let Some(part) = part else { return };
        let (key, blocks) = (part.take.key, &spec.blocks);
        let has_room = self.remotes.get(&part.peer).is_some_and(|remote| remote.unsent < UNSENT_MAX);
        if !has_room || part.told_ready == *ready {
            return;
        }
        let added = part.told_blocks.iter_mut().zip(blocks).map(|(told, list)| {
            let ids = list.ids.get(*told..).unwrap_or_default().to_vec();
            *told = list.ids.len();
            Blocks { first_token: list.first_token, ids }
        });
        let added = added.collect();
        part.told_ready.clone_from(ready);
        let (peer, ready) = (part.peer, ready.clone());
        self.send(peer, &Message::Update { key, ready, added });
    }

    pub(super) fn pump_offers(&mut self, peer: PeerId) {
        let of_peer = |offer: &Offer| offer.parts().any(|part| part.peer == peer && part.over.is_none());
        let known = self.remotes.get(&peer).map(|remote| remote.offers.clone()).unwrap_or_default();
        for id in known {
            if self.offers.get(&id).is_some_and(of_peer) {
                self.pump_offer(id);
            } else {
                self.remote(peer).offers.remove(&id);
            }
        }
    }

    /// A peer is lost, or is not to be trusted any more: its takes end.
    pub(super) fn forsake_offers(&mut self, peer: PeerId, status: Status, why: &str, is_gone: bool) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|(of, _)| *of != peer);
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
        self.waiting_count = self.waiting.values().map(Vec::len).sum();
        if let Some(remote) = self.remotes.get_mut(&peer) {
            remote.waiting = 0;
        }
        let mut touched = Vec::new();
        for (id, offer) in &mut self.offers {
            let parts = offer.groups.values_mut().flat_map(|group| group.parts.values_mut());
            for part in parts.filter(|part| part.peer == peer && part.over.is_none()) {
                touched.push((*id, part.spot()));
                if is_gone && !part.take.is_push {
                    let (status, _) = part.struck.get_or_insert((status, why.into()));
                    part.over = Some(*status);
                }
            }
        }
        for (id, spot) in touched {
            self.strike_part(id, spot, status, why);
            self.settle_offer(id);
        }
    }

    /// Ends the offers whose lease is over while a taker is missing. Returns when the next one is.
    pub(super) fn expire_offers(&mut self) -> Option<u64> {
        let (now, rank) = (self.now, self.layout.shard.rank());
        let awaited =
            self.offers.iter().filter(|(_, offer)| offer.struck.is_none() && offer.is_awaited(rank));
        let leases: Vec<(HandoffId, u64)> =
            awaited.filter_map(|(id, offer)| Some((*id, offer.lease_until?))).collect();
        for (id, _) in leases.iter().filter(|(_, until)| *until <= now) {
            let (status, why) = (Status::Timeout, "the lease of the offer is over".to_string());
            self.strike_offer(*id, Struck { end: End::Expired, status, why });
        }
        leases.into_iter().map(|(_, until)| until).filter(|until| *until > now).min()
    }

    /// Ends the oldest offers that nobody took, until `blocks` blocks are free or none is left. Returns how many blocks
    /// are free now.
    pub fn reclaim(&mut self, blocks: usize, now: u64) -> usize {
        self.now = self.now.max(now);
        let untaken =
            self.offers.iter().filter(|(_, offer)| offer.sealed.is_some() && offer.groups.is_empty());
        let mut oldest: Vec<(Option<u64>, HandoffId, usize)> =
            untaken.map(|(id, offer)| (offer.lease_until, *id, offer.blocks())).collect();
        oldest.sort_unstable();
        let mut free = 0;
        for (_, id, count) in oldest {
            if free >= blocks {
                break;
            }
            free += count;
            let (status, why) =
                (Status::Limit, "the blocks of the offer were reclaimed (PRESSURE)".to_string());
            self.strike_offer(id, Struck { end: End::Expired, status, why });
        }
        free
    }

    /// Returns how many blocks are in offers that this peer takes.
    pub(super) fn offered_to(&self, peer: PeerId) -> usize {
        let has = |offer: &&Offer| offer.parts().any(|part| part.peer == peer && part.over.is_none());
        self.offers.values().filter(has).map(Offer::blocks).sum()
    }

    /// The peers of which something is expected: pulls that are under way, and pushes.
    pub(super) fn peers_of_offers(&self) -> Vec<PeerId> {
        let parts = self.offers.values().flat_map(Offer::parts);
        parts.filter(|part| part.over.is_none()).map(|part| part.peer).collect()
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
