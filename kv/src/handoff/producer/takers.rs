//! The peers' messages about offers: they take, read to the end, or cancel.

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::flow::{Address, Flow};
use crate::handoff::lists;
use crate::handoff::machine::{told, Machine};
use crate::handoff::progress::Progress;
use crate::handoff::remote::Handoff;
use crate::handoff::types::Other;
use crate::handoff::waiting::Ended;
use crate::handoff::wire::{self, Key, Message};

use super::retract::no_window;
use super::{too_many, OfferPart};

impl Machine {
    /// A peer takes.
    pub(in crate::handoff) fn taken(&mut self, peer: PeerId, take: wire::Take) {
        let key = take.key;
        if let Err(error) = self.accept(peer, take) {
            let (status, why) = told(&error);
            self.answer(peer, &Message::Ended { key, status, why });
        }
        self.pump_offer(key.id);
    }

    /// A peer took before the offer came, and has ended its take. The offer counts the taker as one that failed.
    pub(super) fn taken_in_vain(&mut self, ended: Ended) {
        let (peer, key) = (ended.peer, ended.take.key);
        // A take that the offer cannot serve has failed, too.
        let _ = self.accept(peer, ended.take);
        if let Some(part) = self.taker_of(peer, key).filter(|part| part.over.is_none()) {
            part.over = Some(ended.status);
            let by = part.other();
            let cause = self.ended_by(Handoff::Offer(key.id), by, ended.status, &ended.why);
            self.taker_of(peer, key).into_iter().for_each(|part| part.struck = Some(cause.clone()));
        }
        self.settle_offer(key.id);
    }

    /// Takes a take into its offer, or lets it wait for the offer. A take that the offer cannot serve ends its taker: the
    /// blocks do not wait for it until the lease is over.
    pub(super) fn accept(&mut self, peer: PeerId, take: wire::Take) -> Result<()> {
        let (id, group, rank) = (take.key.id, take.group, take.rank);
        self.check_taker(peer, &take)?;
        if !self.offers.contains_key(&id) {
            return self.waiting.add(peer, take);
        }
        let refused = self.add_part(peer, take).inspect_err(|error| {
            let by = Other { peer, rank };
            let cause = self.failed_with(Handoff::Offer(id), by, error.status, &error.message);
            let Some(offer) = self.offers.get_mut(&id) else { return };
            let group = offer.groups.entry(group).or_default();
            // Not for another take of a rank that is being served.
            if !group.parts.contains_key(&rank) {
                group.refused.get_or_insert(cause);
            }
        });
        self.note_lease(id);
        refused
    }

    /// Refuses a peer that cannot take at all, for which no offer need wait.
    fn check_taker(&mut self, peer: PeerId, take: &wire::Take) -> Result<()> {
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
        let Some(offer) = self.offers.get(&id) else { return Ok(()) };
        if let Some(struck) = &offer.struck {
            return Err(Error::new(struck.cause.status, struck.cause.told()));
        }
        if !offer.spec.only.is_empty() && !offer.spec.only.contains(&peer) {
            return Err(Error::new(Status::Refused, "the offer is for other peers"));
        }
        let takers = offer.spec.takers as usize;
        if !offer.groups.contains_key(&take.group) && offer.groups.len() >= takers {
            let text = format!("the offer has its {takers} takers already");
            return Err(Error::new(Status::Limit, text));
        }
        Ok(())
    }

    fn add_part(&mut self, peer: PeerId, mut take: wire::Take) -> Result<()> {
        let id = take.key.id;
        let Some(offer) = self.offers.get_mut(&id) else { return Ok(()) };
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
            take.wanted = lists::wanted(&take.blocks);
        }
        let exchange = plan.exchange(self.layout.shard.rank(), take.rank)?;
        if let Some(group) = offer.groups.get(&take.group) {
            let planned = group.plan.as_ref().map(|plan| plan.exchange(self.layout.shard.rank(), take.rank));
            if planned.transpose()?.is_some_and(|planned| planned != exchange) {
                return Err(Error::invalid(
                    "the ranks of the consumer group have layouts of different shapes",
                ));
            }
            if let Some(part) = group.parts.get(&take.rank) {
                return if part.take.key == take.key && part.peer == peer {
                    Ok(())
                } else {
                    Err(Error::invalid(format!("rank {} of the group has taken already", take.rank)))
                };
            }
        }
        let progress = Progress::new(&exchange, &self.layout, &target, &take.blocks, take.skip..take.tokens);
        let sends_nothing = exchange.layers.is_empty();
        let (key, rank) = (take.key, take.rank);
        let part = OfferPart {
            peer,
            take,
            flow: Flow { source: self.layout.clone(), target, exchange, progress, in_flight: 0 },
            told_ends: vec![0; self.layout.groups.len()],
            told_ready: Vec::new(),
            has_read: false,
            epoch: offer.epoch,
            recall: None,
            is_awaited: false,
            struck: None,
            struck_ns: 0,
            over: None,
        };
        if let Some(group) = offer.lacks_window(&self.layout, &part) {
            return Err(Error::new(Status::Stale, no_window(group)));
        }
        let group = offer.groups.entry(part.take.group).or_default();
        group.plan.get_or_insert(plan);
        group.parts.insert(rank, part);
        self.count_on(peer, Handoff::Offer(id));
        if sends_nothing {
            self.answer(peer, &Message::Ended { key, status: Status::Ok, why: String::new() });
        }
        Ok(())
    }

    pub(in crate::handoff) fn offer_part(&mut self, at: Address) -> Option<&mut OfferPart> {
        let Handoff::Offer(id) = at.of else { return None };
        self.offers.get_mut(&id)?.part_mut(at)
    }

    /// The part of a peer's take. The numbers of takes are the peers' own, so a key alone does not tell.
    pub(super) fn taker_of(&mut self, peer: PeerId, key: Key) -> Option<&mut OfferPart> {
        let groups = self.offers.get_mut(&key.id)?.groups.values_mut();
        let mut parts = groups.flat_map(|group| group.parts.values_mut());
        parts.find(|part| part.peer == peer && part.take.key == key)
    }

    /// A take has ended, and reads nothing any more. That it has everything does not count for an epoch that has ended.
    pub(in crate::handoff) fn read_final(
        &mut self,
        peer: PeerId,
        key: Key,
        epoch: u64,
        end: (Status, &str),
    ) -> Result<()> {
        let (status, why) = end;
        if self.waiting.end(peer, key, status, why) && status == Status::Ok {
            return Err(Error::new(Status::Corrupt, "the consumer has read a take that was not granted"));
        }
        let by = self.taker_of(peer, key).filter(|part| part.over.is_none()).map(|part| part.other());
        let Some(by) = by else { return Ok(()) };
        let cause = self.ended_by(Handoff::Offer(key.id), by, status, why);
        let Some(part) = self.taker_of(peer, key) else { return Ok(()) };
        if epoch > part.epoch {
            return Err(Error::new(
                Status::Corrupt,
                "the consumer ended a take of an epoch that has not begun",
            ));
        }
        let sends_nothing = part.flow.exchange.layers.is_empty();
        let is_before = epoch < part.epoch || part.recall.as_ref().is_some_and(|recall| !recall.is_told);
        if status == Status::Ok && is_before && part.struck.is_none() && !sends_nothing {
            // The take has ended, whatever its epoch: nothing reads here any more, and a strike needs no other word.
            part.has_read = true;
            return Ok(());
        }
        if part.flow.in_flight > 0 {
            if status == Status::Ok && part.struck.is_none() {
                return Err(Error::new(Status::Corrupt, "the consumer has received what is not written"));
            }
            // WRITEs are over when they are final.
            let at = part.address();
            self.strike_part(at, cause);
            return Ok(());
        }
        part.recall = None;
        if status != Status::Ok {
            part.struck.get_or_insert(cause);
        }
        part.over = Some(part.struck.as_ref().map_or(Status::Ok, |cause| cause.status));
        self.settle_offer(key.id);
        Ok(())
    }

    /// The consumer has read all of this rank, and its take goes on with others.
    pub(in crate::handoff) fn read_all(&mut self, peer: PeerId, key: Key, epoch: u64) {
        let part = self.taker_of(peer, key).filter(|part| part.over.is_none() && !part.take.is_push);
        if let Some(part) = part.filter(|part| part.epoch == epoch && part.recall.is_none()) {
            part.has_read = true;
            self.settle_offer(key.id);
        }
    }

    /// The consumer wants nothing to be written any more. The answer always comes, and behind the last write.
    pub(in crate::handoff) fn cancelled(&mut self, peer: PeerId, key: Key, status: Status, why: &str) {
        let status = if status == Status::Ok { Status::Cancelled } else { status };
        self.waiting.end(peer, key, status, why);
        let open = self.taker_of(peer, key).filter(|part| part.take.is_push && part.over.is_none());
        match open.map(|part| (part.address(), part.other())) {
            Some((at, by)) => {
                let cause = self.ended_by(at.of, by, status, why);
                self.strike_part(at, cause);
                self.settle_offer(key.id);
            }
            None => self.answer(peer, &Message::Ended { key, status: Status::Cancelled, why: String::new() }),
        }
    }
}
