//! The end of an offer: why it or one of its parts is struck, when its parts are over, and its terminal event.

use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::machine::{end_of, Due, Machine};
use crate::handoff::remote::Handoff;
use crate::handoff::types::{End, Event};
use crate::handoff::wire::Message;

use super::{Group, Offer, Struck};

impl Offer {
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

impl Group {
    /// None while the group has not ended; else whether all of its ranks have the offer. A failure of one rank, or its
    /// refusal, ends the group when those that came are over.
    fn result(&self, rank: u32) -> Option<bool> {
        let over: Option<Vec<Status>> = self.parts.values().map(|part| part.over).collect();
        let has_it = over?.iter().all(|status| *status == Status::Ok) && self.refused.is_none();
        (!has_it || self.missing(rank).is_empty()).then_some(has_it)
    }
}

impl Machine {
    /// Ends an offer whose bytes are not to be trusted.
    pub(in crate::handoff) fn fail_offer(&mut self, id: HandoffId, status: Status, why: &str) {
        self.strike_offer(id, Struck { end: End::Failed, status, why: why.into() });
    }

    /// Ends all offers, and refuses the takes that wait for offers.
    pub(in crate::handoff) fn close_offers(&mut self) {
        let why = "the producer's cache was closed";
        for (peer, take) in self.waiting.drain() {
            self.send(peer, &Message::Ended { key: take.key, status: Status::Closed, why: why.into() });
        }
        let offers: Vec<HandoffId> = self.offers.keys().copied().collect();
        for id in offers {
            self.strike_offer(id, Struck { end: End::Cancelled, status: Status::Closed, why: why.into() });
        }
    }

    pub(super) fn strike_offer(&mut self, id: HandoffId, struck: Struck) {
        let Some(offer) = self.offers.get_mut(&id).filter(|offer| offer.struck.is_none()) else { return };
        let (status, why) = (struck.status, struck.why.clone());
        offer.struck = Some(struck);
        for at in offer.addresses(|_| true) {
            self.strike_part(at, status, &why);
        }
        self.settle_offer(id);
    }

    /// Begins the end of one part.
    pub(in crate::handoff) fn strike_part(&mut self, at: Address, status: Status, why: &str) {
        let now = self.now;
        let part = self.offer_part(at).filter(|part| part.over.is_none() && part.struck.is_none());
        let Some(part) = part else { return };
        (part.struck, part.struck_ns) = (Some((status, why.into())), now);
        let (peer, key) = (part.peer, part.take.key);
        if part.take.is_push {
            self.cancel_posts(at);
        } else {
            self.send(peer, &Message::Ended { key, status, why: why.into() });
        }
    }

    /// A peer is lost, or is not to be trusted any more: its parts of an offer end.
    pub(in crate::handoff) fn forsake_offer(
        &mut self,
        id: HandoffId,
        peer: PeerId,
        status: Status,
        why: &str,
        is_gone: bool,
    ) {
        let Some(offer) = self.offers.get_mut(&id) else { return };
        for at in offer.addresses(|part| is_gone && part.peer == peer && part.over.is_some()) {
            // The part keeps what it has received; a later session of the peer knows nothing of it.
            offer.part_mut(at).into_iter().for_each(|part| (part.recall, part.is_gone) = (None, true));
        }
        let all = offer.addresses(|part| part.peer == peer && part.over.is_none());
        for at in &all {
            // Its READs cannot come any more; this side's own WRITEs become final by themselves.
            if let Some(part) = offer.part_mut(*at).filter(|part| is_gone && !part.take.is_push) {
                let (status, _) = part.struck.get_or_insert((status, why.into()));
                part.over = Some(*status);
            }
        }
        for at in all {
            self.strike_part(at, status, why);
        }
        self.settle_offer(id);
    }

    /// Ends an offer whose lease is over while a taker is missing.
    pub(in crate::handoff) fn lease_is_over(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        if self.offers.get(&id).is_some_and(|offer| offer.is_awaited(rank)) {
            let (status, why) = (Status::Timeout, "the lease of the offer is over".to_string());
            self.strike_offer(id, Struck { end: End::Expired, status, why });
        }
    }

    /// Ends the parts that can end, then the offer if it has.
    pub(super) fn settle_offer(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        let mut told = self.tell_recalls(id);
        let Some(offer) = self.offers.get_mut(&id) else { return };
        for part in offer.groups.values_mut().flat_map(|group| group.parts.values_mut()) {
            if part.over.is_some() || !part.take.is_push || part.flow.in_flight > 0 {
                continue;
            }
            match &part.struck {
                Some((status, why)) => {
                    part.over = Some(*status);
                    let (key, status, why) = (part.take.key, *status, why.clone());
                    told.push((part.peer, Message::Ended { key, status, why }));
                }
                None if part.flow.progress.is_complete() && part.untold == 0 => part.over = Some(Status::Ok),
                None => {}
            }
        }
        offer.finish_retract(&self.layout);
        let end = offer.end(rank);
        self.send_to_known(told);
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
}
