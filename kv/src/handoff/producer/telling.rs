//! Sends the takers what is ready: a push's data, and the news that it has landed; a pull's blocks and tokens.

use ferry::status::Error;

use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::limits::UNSENT_MAX;
use crate::handoff::lists;
use crate::handoff::machine::Machine;
use crate::handoff::progress::Work;
use crate::handoff::remote::{Handoff, Owner};
use crate::handoff::types::Blocks;
use crate::handoff::wire::Message;

use super::Offer;

impl Machine {
    /// Posts what can be posted of an offer, and tells its pulls what is new.
    pub(in crate::handoff) fn pump_offer(&mut self, id: HandoffId) {
        let Some(offer) = self.offers.get(&id) else { return };
        let (writes, pulls) = (
            offer.addresses(|part| part.is_open() && part.take.is_push),
            offer.addresses(|part| part.is_open() && !part.take.is_push),
        );
        writes.into_iter().for_each(|at| self.pump_part(at));
        pulls.into_iter().for_each(|at| self.tell_pull(at));
        self.settle_offer(id);
    }

    /// Tells a push what has landed; a take tells nobody what it has read. The message is not attached to the WRITE:
    /// it would hold up all later messages to the peer until its bytes have moved, signs of life among them.
    pub(in crate::handoff) fn tell_data(&mut self, at: Address, epoch: u64, work: Work) {
        let Some(part) = self.offer_part(at) else { return };
        let (peer, key) = (part.peer, part.take.key);
        // A lost peer is not told.
        if self.remotes.contains_key(&peer) {
            self.send_of(peer, &Message::Data { key, epoch, work }, Some(Owner::Part(at)));
        }
    }

    /// The consumer's cache will never have a DATA: so it will never have the offer, although all bytes may be there.
    pub(in crate::handoff) fn data_untold(&mut self, at: Address, error: &Error) {
        let Some(by) = self.offer_part(at).map(|part| part.other()) else { return };
        let cause = self.failed_with(at.of, by, error.status, &error.message);
        self.strike_part(at, cause);
        self.settle_offer(at.of.id());
    }

    /// Tells a pull the tokens that are new since it was told last, with the blocks that were added.
    pub(super) fn tell_pull(&mut self, at: Address) {
        let Handoff::Offer(id) = at.of else { return };
        let Some(Offer { ready, spec, groups, .. }) = self.offers.get_mut(&id) else { return };
        let part = groups.get_mut(&at.group).and_then(|group| group.parts.get_mut(&at.rank));
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
