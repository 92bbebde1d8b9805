//! The takes' part of the metrics.

use ferry::types::PeerId;

use crate::handoff::machine::Machine;
use crate::handoff::progress::Work;
use crate::handoff::record::{Moved, What};
use crate::handoff::wire::Key;
use crate::plan::LayerPiece;

use super::Taking;

impl Machine {
    pub(in crate::handoff) fn open_parts_of_takes(&self) -> usize {
        self.takes.values().flat_map(Taking::parts).filter(|(_, part)| !part.is_over).count()
    }

    /// A WRITE of the producer has arrived, and this work is the take's.
    pub(super) fn count_data(&mut self, peer: PeerId, key: Key, work: &Work) {
        let layout = self.layout.clone();
        let lists: Vec<u64> = self
            .takes
            .get(&key.id)
            .map_or(Vec::new(), |take| take.lists().iter().map(|list| list.ids.len() as u64).collect());
        let blocks = |piece: &LayerPiece| {
            let group = layout.layers.get(piece.target_layer as usize).map(|layer| layer.group as usize);
            group.and_then(|group| lists.get(group)).copied().unwrap_or(0)
        };
        let asked = self.part_of(peer, key).and_then(|(_, part)| part.asked());
        let bytes = asked.map(|asked| asked.flow.exchange.bytes(&layout, &work.tokens, &work.layers, blocks));
        let bytes = bytes.unwrap_or(0);
        self.counts.received(bytes);
        self.note(key.id, || {
            let (layers, tokens) = (work.layers.clone(), work.tokens.clone());
            What::Arrived(Moved { transfer: 0, peer, layers, tokens, bytes })
        });
    }
}
