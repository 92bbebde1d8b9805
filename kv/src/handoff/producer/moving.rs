//! Moves what is ready to the takers, or tells them of it; ends parts and offers that are over.

use ferry::status::Result;
use ferry::types::Op;
use ferry::Status;

use crate::handoff::id::HandoffId;
use crate::handoff::limits::{IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX, UNSENT_MAX};
use crate::handoff::lists;
use crate::handoff::machine::{told, Due, Machine};
use crate::handoff::progress::Work;
use crate::handoff::remote::{Handoff, Owner, Post, Remote};
use crate::handoff::types::{Blocks, Event};
use crate::handoff::wire::Message;

use super::{pairs, Offer, Part, Spot};

impl Machine {
    /// A WRITE of a part is final. The consumer is told by a message of its own: attached to the WRITE, DATA would
    /// hold up all later messages to the peer until its bytes have moved, signs of life among them.
    pub(in crate::handoff) fn written(
        &mut self,
        id: HandoffId,
        of: (u64, u32),
        (epoch, work): (u64, Work),
        result: Result<()>,
    ) {
        let spot = Spot { group: of.0, rank: of.1 };
        let Some(part) = self.part_mut(id, spot) else { return };
        part.in_flight = part.in_flight.saturating_sub(1);
        match result {
            Ok(()) => {
                part.progress.arrived(&work);
                self.tell_data(id, spot, epoch, work);
            }
            // Cancelled for a retract; what of it is wanted still is written again.
            Err(error) if error.status == Status::Cancelled && part.recall.is_some() => {}
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_part(id, spot, status, &why);
            }
        }
        self.pump_offer(id);
    }

    /// Ends the parts that can end, then the offer if it has.
    pub(super) fn settle_offer(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        let mut told = self.tell_recalls(id);
        let Some(offer) = self.offers.get_mut(&id) else { return };
        for part in offer.groups.values_mut().flat_map(|group| group.parts.values_mut()) {
            if part.over.is_some() || !part.take.is_push || part.in_flight > 0 {
                continue;
            }
            match &part.struck {
                Some((status, why)) => {
                    part.over = Some(*status);
                    let (key, status, why) = (part.take.key, *status, why.clone());
                    told.push((part.peer, Message::Ended { key, status, why }));
                }
                None if part.progress.is_complete() && part.untold == 0 => part.over = Some(Status::Ok),
                None => {}
            }
        }
        offer.finish_retract(&self.layout);
        let end = offer.end(rank);
        for (peer, message) in told {
            // A lost peer is not told.
            if self.remotes.contains_key(&peer) {
                self.send(peer, &message);
            }
        }
        let Some((end, status, why)) = end else { return };
        let Some(offer) = self.offers.remove(&id) else { return };
        if let Some(until) = offer.lease_until {
            self.due.remove(&(until, Due::Lease(id)));
        }
        self.leases.set(id, None);
        let peers = offer.parts().map(|part| part.peer).collect();
        let event = Event::Ended { id, end, status, why, valid_tokens: 0, untrusted: Vec::new() };
        self.tell_end(Handoff::Offer(id), peers, event);
    }

    /// Posts what can be posted of an offer, and tells its pulls what is new.
    pub(in crate::handoff) fn pump_offer(&mut self, id: HandoffId) {
        let Some(offer) = self.offers.get(&id) else { return };
        let is_open = |part: &Part| part.over.is_none() && part.struck.is_none() && part.recall.is_none();
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
    pub(super) fn write_next(&mut self, id: HandoffId, spot: Spot) -> bool {
        let Some(Offer { ready, spec, groups, .. }) = self.offers.get_mut(&id) else { return false };
        let part = groups.get_mut(&spot.group).and_then(|group| group.parts.get_mut(&spot.rank));
        let Some(part) = part else { return false };
        let epoch = part.epoch;
        let has_room =
            |remote: &Remote| remote.in_flight < IN_FLIGHT_OF_PEER_MAX && remote.unsent < UNSENT_MAX;
        let room = self.remotes.get(&part.peer).is_some_and(has_room);
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
                // The two ranks have no token of it in common. The consumer counts it all the same.
                part.progress.arrived(&work);
                self.tell_data(id, spot, epoch, work);
            }
            Ok(moves) => {
                part.in_flight += 1;
                let (peer, Spot { group, rank }) = (part.peer, spot);
                let owner = Owner::Offer { id, group, rank };
                self.post(Post { peer, owner, epoch, work }, Op::Write, moves);
            }
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_part(id, spot, status, &why);
                return false;
            }
        }
        true
    }

    /// Tells a push what has landed.
    fn tell_data(&mut self, id: HandoffId, spot: Spot, epoch: u64, work: Work) {
        let Some(part) = self.part_mut(id, spot) else { return };
        part.untold += 1;
        let (peer, key, Spot { group, rank }) = (part.peer, part.take.key, spot);
        // A lost peer is not told.
        if self.remotes.contains_key(&peer) {
            let of = Some(Owner::Offer { id, group, rank });
            self.send_of(peer, &Message::Data { key, epoch, work }, of);
        }
    }

    /// The consumer's cache has a DATA. SENT waits for it: until then, the consumer may not know that it has everything.
    /// If it never will have the DATA, it does not have the offer, although all bytes may be there.
    pub(in crate::handoff) fn data_told(&mut self, id: HandoffId, of: (u64, u32), result: Result<()>) {
        let spot = Spot { group: of.0, rank: of.1 };
        let Some(part) = self.part_mut(id, spot) else { return };
        match result {
            Ok(()) => part.untold = part.untold.saturating_sub(1),
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_part(id, spot, status, &why);
            }
        }
        self.settle_offer(id);
    }

    /// Tells a pull the tokens that are new since it was told last, with the blocks that were added.
    pub(super) fn tell_pull(&mut self, id: HandoffId, spot: Spot) {
        let Some(Offer { ready, spec, groups, .. }) = self.offers.get_mut(&id) else { return };
        let part = groups.get_mut(&spot.group).and_then(|group| group.parts.get_mut(&spot.rank));
        let Some(part) = part else { return };
        let (key, epoch) = (part.take.key, part.epoch);
        let has_room = self.remotes.get(&part.peer).is_some_and(|remote| remote.unsent < UNSENT_MAX);
        if !has_room || part.told_ready == *ready {
            return;
        }
        let steps = lists::steps(&self.layout);
        let added = part.told_ends.iter_mut().zip(&spec.blocks).zip(steps).map(|((told, list), step)| {
            let first_token = list.first_token.max(*told);
            let from = (first_token - list.first_token) / step;
            *told = lists::end(list, step);
            Blocks { first_token, ids: list.ids.get(from as usize..).unwrap_or_default().to_vec() }
        });
        let added = added.collect();
        part.told_ready.clone_from(ready);
        let (peer, ready) = (part.peer, ready.clone());
        self.send(peer, &Message::Update { key, epoch, ready, added });
    }
}
