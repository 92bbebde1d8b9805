//! The end of an offer: why it or one of its parts is struck, when its parts are over, and its terminal event.

use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::cause::Cause;
use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::machine::{end_of, Due, Machine};
use crate::handoff::remote::Handoff;
use crate::handoff::types::{End, Event, Other};
use crate::handoff::wire::Message;

use super::{Group, Offer, Struck};

impl Offer {
    /// Returns how many groups have ended, and whether all of these have the offer.
    fn ended_groups(&self, rank: u32) -> (usize, bool) {
        let ended: Vec<bool> = self.groups.values().filter_map(|group| group.result(rank)).collect();
        (ended.len(), ended.iter().all(|has_it| *has_it))
    }

    /// Returns how the offer ends, if nothing of it is under way any more and it has a reason to.
    fn end(&self, rank: u32) -> Option<(End, Cause)> {
        let (count, all_have_it) = self.ended_groups(rank);
        let all_over = self.parts().all(|part| part.over.is_some());
        match &self.struck {
            Some(struck) => all_over.then(|| (struck.end, struck.cause.clone())),
            None if count < self.spec.takers as usize => None,
            None if all_have_it => self.sealed.map(|_| (End::Sent, Cause::own(Status::Ok, ""))),
            None => {
                let refused = || self.groups.values().find_map(|group| group.refused.clone());
                let struck = self.parts().find_map(|part| part.struck.clone()).or_else(refused);
                let cause = struck.unwrap_or_else(|| Cause::own(Status::Partial, "a taker failed"));
                Some((end_of(cause.status), cause))
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
        self.strike_offer(id, Struck { end: End::Failed, cause: Cause::own(status, why) });
    }

    /// Ends all offers, and refuses the takes that wait for offers.
    pub(in crate::handoff) fn close_offers(&mut self) {
        let why = "the producer's cache was closed";
        for (peer, take) in self.waiting.drain() {
            self.send(peer, &Message::Ended { key: take.key, status: Status::Closed, why: why.into() });
        }
        let offers: Vec<HandoffId> = self.offers.keys().copied().collect();
        for id in offers {
            let cause = Cause::own(Status::Closed, why);
            self.strike_offer(id, Struck { end: End::Cancelled, cause });
        }
    }

    pub(super) fn strike_offer(&mut self, id: HandoffId, struck: Struck) {
        let Some(offer) = self.offers.get_mut(&id).filter(|offer| offer.struck.is_none()) else { return };
        let cause = struck.cause.clone();
        offer.struck = Some(struck);
        for at in offer.addresses(|_| true) {
            self.strike_part(at, cause.clone());
        }
        self.settle_offer(id);
    }

    /// Begins the end of one part.
    pub(in crate::handoff) fn strike_part(&mut self, at: Address, cause: Cause) {
        let now = self.now;
        let part = self.offer_part(at).filter(|part| part.over.is_none() && part.struck.is_none());
        let Some(part) = part else { return };
        let (peer, key, status, why) = (part.peer, part.take.key, cause.status, cause.told());
        (part.struck, part.struck_ns) = (Some(cause), now);
        if part.is_read() {
            self.send_to_known(vec![(peer, Message::Ended { key, status, why })]);
        } else {
            self.cancel_posts(at);
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
        for at in offer.addresses(|part| part.peer == peer && part.over.is_none()) {
            let by = Other { peer, rank: at.rank };
            let cause = self.failed_with(at.of, by, status, why);
            // Its READs cannot come any more; this side's own WRITEs become final by themselves.
            if let Some(part) = self.offer_part(at).filter(|part| is_gone && part.is_read()) {
                part.over = Some(part.struck.get_or_insert(cause.clone()).status);
            }
            self.strike_part(at, cause);
        }
        self.settle_offer(id);
    }

    /// Ends an offer whose lease is over while a taker is missing.
    pub(in crate::handoff) fn lease_is_over(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        if self.offers.get(&id).is_some_and(|offer| offer.is_awaited(rank)) {
            let cause = Cause::own(Status::Timeout, "the lease of the offer is over");
            self.strike_offer(id, Struck { end: End::Expired, cause });
        }
    }

    /// Ends the parts that can end, then the offer if it has.
    pub(super) fn settle_offer(&mut self, id: HandoffId) {
        let rank = self.layout.shard.rank();
        let mut told = self.tell_recalls(id);
        let Some(offer) = self.offers.get_mut(&id) else { return };
        for part in offer.groups.values_mut().flat_map(|group| group.parts.values_mut()) {
            if part.over.is_some() || part.is_read() || part.flow.in_flight > 0 {
                continue;
            }
            if let Some(cause) = &part.struck {
                part.over = Some(cause.status);
                let (key, status, why) = (part.take.key, cause.status, cause.told());
                told.push((part.peer, Message::Ended { key, status, why }));
            }
        }
        offer.finish_retract(&self.layout);
        let end = offer.end(rank);
        self.send_to_known(told);
        let Some((end, cause)) = end else { return };
        let (told, Cause { status, why, by, .. }) = (cause.told(), cause);
        let Some(offer) = self.offers.remove(&id) else { return };
        if let Some(until) = offer.lease_until {
            self.due.remove(&(until, Due::Lease(id)));
        }
        self.leases.set(id, None);
        let peers = offer.parts().map(|part| part.peer).collect();
        let event = Event::Ended { id, end, status, why, valid_tokens: 0, untrusted: Vec::new(), by };
        self.tell_end(Handoff::Offer(id), peers, event, told);
    }
}
