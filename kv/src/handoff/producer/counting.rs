//! The offers' part of the metrics.

use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::id::HandoffId;
use crate::handoff::machine::Machine;
use crate::handoff::wire::Key;
use crate::plan::LayerPiece;

use super::{Offer, OfferPart};

impl Machine {
    pub(in crate::handoff) fn blocks_offered(&self, id: HandoffId) -> usize {
        self.offers.get(&id).map_or(0, Offer::blocks)
    }

    pub(in crate::handoff) fn is_sealed(&self, id: HandoffId) -> bool {
        self.offers.get(&id).is_some_and(|offer| offer.sealed.is_some())
    }

    pub(in crate::handoff) fn open_parts_of_offers(&self) -> usize {
        self.offers.values().flat_map(Offer::parts).filter(|part| part.over.is_none()).count()
    }

    /// A consumer says FINAL. If it has read everything, that counts as sent, up to the tokens that it was told are
    /// ready: nobody else sees how much it read.
    pub(in crate::handoff) fn count_final(&mut self, peer: PeerId, key: Key, epoch: u64, status: Status) {
        let source = self.layout.clone();
        let lists: Vec<u64> = self
            .offers
            .get(&key.id)
            .map_or(Vec::new(), |offer| offer.spec.blocks.iter().map(|list| list.ids.len() as u64).collect());
        let ready = self.offers.get(&key.id).and_then(|offer| offer.ready.iter().copied().max()).unwrap_or(0);
        let is_read =
            |part: &&mut OfferPart| !part.take.is_push && part.over.is_none() && part.epoch == epoch;
        let Some(part) = self.taker_of(peer, key).filter(is_read) else { return };
        // Counting goes turn by turn, and what the peer wants may be any number.
        let told = part.told_ready.iter().copied().max().unwrap_or(ready);
        let tokens = part.take.skip..part.take.tokens.min(told);
        if status != Status::Ok || part.struck.is_some() || tokens.is_empty() {
            return;
        }
        let blocks = |piece: &LayerPiece| {
            let group = source.layers.get(piece.source_layer as usize).map(|layer| layer.group as usize);
            let target = part.flow.target.layers.get(piece.target_layer as usize);
            let is_wanted = target.is_some_and(|layer| part.take.wants(layer.group));
            group.and_then(|group| lists.get(group)).copied().filter(|_| is_wanted).unwrap_or(0)
        };
        let bytes = part.flow.exchange.bytes(&part.flow.target, &tokens, &(0..u32::MAX), blocks);
        self.counts.sent(bytes);
    }
}
