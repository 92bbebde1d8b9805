//! Taking back what was offered: the tokens of a sequence that is computed again, or the blocks that have left a
//! window.
//!
//! The offer lets go of the blocks in the call (`retired`); they are the caller's when no part may touch them any more:
//!
//! ```text
//! tokens, push:  WRITEs of them cancelled ──▶ all WRITEs final ──▶ RETRACT ──▶ RETRACTED ──▶ the part goes on
//! tokens, pull:  RETRACT ──▶ (the consumer's READs of them are final) ──▶ RETRACTED ──▶ the part goes on
//! a window:      a part that needs the blocks and has not begun with them fails; one that has is awaited
//! ```
//! A part that had everything is asked too, until FINAL: its take may go on with other ranks. FINAL is also the answer of
//! a take that has ended.

use std::collections::BTreeMap;

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::cause::Cause;
use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::limits::UNSENT_MAX;
use crate::handoff::lists;
use crate::handoff::machine::{Due, Machine};
use crate::handoff::remote::Handoff;
use crate::handoff::types::Blocks;
use crate::handoff::wire::{Key, Message};
use crate::layout::{GroupKind, Layout};
use crate::plan::held;

use super::{Offer, OfferPart};

/// The part of an offer that is being taken back.
#[derive(Clone, Debug)]
pub struct Retract {
    /// The last call's number. An offer counts its retracts; the numbers are its epochs.
    pub number: u64,
    /// The tokens from here on; None for windows alone.
    from: Option<u64>,
    /// By group: the rank's own tokens before this one.
    windows: BTreeMap<u32, u64>,
    /// By group: blocks that are not the caller's yet.
    pub retired: Vec<Blocks>,
}

/// The tokens of a part that are taken back, until the consumer has answered.
#[derive(Clone, Debug)]
pub struct Recall {
    from: u64,
    /// RETRACT is on its way.
    pub is_told: bool,
    pub since: u64,
}

impl Retract {
    fn new(groups: usize) -> Retract {
        Retract { number: 0, from: None, windows: BTreeMap::new(), retired: vec![Blocks::default(); groups] }
    }
}

impl Offer {
    /// BUSY while tokens are being taken back.
    pub fn check_retracted(&self, id: HandoffId) -> Result<()> {
        match self.retract.as_ref().and_then(|retract| retract.from) {
            None => Ok(()),
            Some(from) => {
                let text = format!("id: the tokens of {id} from {from} on are being taken back");
                Err(Error::new(Status::Busy, text))
            }
        }
    }

    /// The window of which a taker needs blocks that it cannot have.
    pub(super) fn lacks_window(&self, layout: &Layout, part: &OfferPart) -> Option<u32> {
        let mut begins = self.begins.iter();
        begins.find(|(group, begin)| part.needs(layout, **group, **begin)).map(|(group, _)| *group)
    }

    /// Notes where the lists of windows begin that have blocks. Returns the groups of which takers can have less now.
    pub(super) fn note_begins(&mut self, layout: &Layout) -> Vec<u32> {
        let is_window = |group: u32| {
            let found = layout.groups.get(group as usize);
            matches!(found.map(|group| group.kind), Some(GroupKind::Window { .. }))
        };
        let lists =
            (0..).zip(&self.spec.blocks).filter(|(group, list)| is_window(*group) && !list.ids.is_empty());
        let mut later = Vec::new();
        for (group, list) in lists {
            let begin = self.begins.entry(group).or_default();
            if list.first_token > *begin {
                *begin = list.first_token;
                later.push(group);
            }
        }
        later
    }

    /// Begins a retract, or adds to the one that is under way.
    fn retracting(&mut self, groups: usize) -> &mut Retract {
        self.epoch += 1;
        let retract = self.retract.get_or_insert_with(|| Retract::new(groups));
        retract.number = self.epoch;
        retract
    }

    /// Ends a retract of which nothing is touched any more.
    pub fn finish_retract(&mut self, layout: &Layout) {
        let Some(retract) = &self.retract else { return };
        let touches = |part: &OfferPart| {
            let in_window = |(group, before): (&u32, &u64)| {
                part.needs(layout, *group, *before) && !part.has_begun(layout, *group).1
            };
            let is_in_windows = part.is_awaited && retract.windows.iter().any(in_window);
            part.struck.is_some() || part.recall.is_some() || is_in_windows
        };
        if !self.parts().any(|part| part.over.is_none() && touches(part)) {
            self.finished = retract.number;
            self.retract = None;
        }
    }
}

impl OfferPart {
    /// Whether the part has to be told that tokens are taken back.
    pub(super) fn is_recalled(&self) -> bool {
        self.over.is_none() && self.struck.is_none() && !self.flow.exchange.layers.is_empty()
    }

    /// The RETRACT that can be sent now: nothing of a push is in flight, and its message is behind its last WRITE.
    pub fn tell_recall(&mut self) -> Option<Message> {
        let is_quiet = !self.take.is_push || self.flow.in_flight == 0;
        let (key, epoch) = (self.take.key, self.epoch);
        let recall = self.recall.as_mut().filter(|recall| is_quiet && !recall.is_told)?;
        recall.is_told = true;
        let from = recall.from;
        self.flow.progress.resume();
        Some(Message::Retract { key, epoch, from })
    }

    /// Whether the taker needs tokens of a window before the producer's own token `before`.
    fn needs(&self, layout: &Layout, group: u32, before: u64) -> bool {
        let take = &self.take;
        self.flow.exchange.layers.iter().filter(|piece| is_in(layout, group, piece.source_layer)).any(
            |piece| {
                let to =
                    self.flow.target.layers.get(piece.target_layer as usize).map_or(0, |layer| layer.group);
                let kept = match self.flow.target.groups.get(to as usize).map(|group| group.kind) {
                    Some(GroupKind::Window { tokens }) => tokens.into(),
                    _ => u64::MAX,
                };
                let oldest = take.skip.max(take.tokens.saturating_sub(kept));
                take.wants(to) && held(&layout.shard, oldest) < before.min(held(&layout.shard, take.tokens))
            },
        )
    }

    /// Whether all layers of a group may be on their way to the taker, and whether they are there.
    fn has_begun(&self, layout: &Layout, group: u32) -> (bool, bool) {
        if self.take.is_push {
            return self.flow.progress.has_all(|layer| is_in(layout, group, layer));
        }
        let mut layers = self.flow.exchange.layers.iter().map(|piece| piece.source_layer);
        let is_told =
            |layer: u32| self.told_ready.get(layer as usize).is_some_and(|told| *told >= self.take.tokens);
        (self.has_read || layers.all(|layer| !is_in(layout, group, layer) || is_told(layer)), self.has_read)
    }
}

pub fn no_window(group: u32) -> String {
    format!("the offer lacks blocks of the window of group {group} that the take needs")
}

/// Whether a layer of the producer is in this group.
fn is_in(layout: &Layout, group: u32, layer: u32) -> bool {
    layout.layers.get(layer as usize).is_some_and(|layer| layer.group == group)
}

impl Machine {
    /// Takes back the tokens from `from_token` on, in all groups, and the seal. The call counts its retracts:
    /// `is_retracted` says when the blocks that hold none of the other tokens are the caller's, and the tokens may be
    /// computed again.
    pub fn offer_retract(&mut self, id: HandoffId, from_token: u64, now: u64) -> Result<u64> {
        self.now = self.now.max(now);
        let layout = self.layout.clone();
        let offer = self.open_offer(id)?;
        if let Some(retract) = &offer.retract {
            match retract.from {
                Some(from) if from == from_token => return Ok(retract.number),
                Some(from) if from < from_token => {
                    return Err(Error::invalid(format!(
                        "from_token: {from_token}, and the tokens from {from} on are being taken back already"
                    )))
                }
                _ => {}
            }
        }
        let retract = offer.retracting(layout.groups.len());
        retract.from = Some(from_token);
        let number = retract.number;
        offer.sealed = None;
        let lease = offer.lease_until.take();
        offer.take_back(&layout, from_token);
        let all = offer.addresses(OfferPart::is_recalled);
        self.take_back_pending(id, from_token);
        if let Some(until) = lease {
            self.due.remove(&(until, Due::Lease(id)));
        }
        for at in all {
            self.recall_part(at, from_token);
        }
        self.note_lease(id);
        self.settle_offer(id);
        Ok(number)
    }

    /// Frees the blocks of a window that have only tokens before `before_token`. Takers that need them and that have
    /// not begun with them fail.
    pub fn offer_retract_window(
        &mut self,
        id: HandoffId,
        group: u32,
        before_token: u64,
        now: u64,
    ) -> Result<u64> {
        self.now = self.now.max(now);
        let layout = self.layout.clone();
        let offer = self.open_offer(id)?;
        let Some(GroupKind::Window { .. }) = layout.groups.get(group as usize).map(|group| group.kind) else {
            return Err(Error::invalid(format!("group: {group} is no window of the layout")));
        };
        let step = lists::steps(&layout).nth(group as usize).unwrap_or(1);
        let Some(list) = offer.spec.blocks.get_mut(group as usize) else { return Ok(offer.finished) };
        let gone = lists::cut_front(list, step, held(&layout.shard, before_token));
        let before = list.first_token;
        // After a retract the list may begin before what no taker can have.
        let begin = offer.begins.entry(group).or_default();
        *begin = before.max(*begin);
        if gone.is_empty() {
            return Ok(offer.retract.as_ref().map_or(offer.finished, |retract| retract.number));
        }
        let retract = offer.retracting(layout.groups.len());
        let number = retract.number;
        retract.windows.insert(group, before);
        if let Some(retired) = retract.retired.get_mut(group as usize) {
            retired.ids.extend(gone);
        }
        self.strike_needy(id, group);
        self.settle_offer(id);
        self.note_lease(id);
        Ok(number)
    }

    /// Ends the parts that need a window's freed tokens and have not begun with them, and
    /// awaits the others.
    pub(super) fn strike_needy(&mut self, id: HandoffId, group: u32) {
        let layout = self.layout.clone();
        let Some(offer) = self.offers.get_mut(&id) else { return };
        let Some(begin) = offer.begins.get(&group).copied() else { return };
        let needy = offer.addresses(|part| part.over.is_none() && part.needs(&layout, group, begin));
        for at in needy {
            let Some(part) = self.offer_part(at) else { continue };
            part.is_awaited = part.has_begun(&layout, group).0;
            if !part.is_awaited {
                self.strike_part(at, Cause::own(Status::Stale, no_window(group)));
            }
        }
    }

    /// Whether the retract of this number is over, and its blocks are the caller's. STALE if the offer has ended or
    /// ends: then they are the caller's with its terminal event.
    pub fn is_retracted(&self, id: HandoffId, number: u64) -> Result<bool> {
        match self.offers.get(&id).filter(|offer| offer.struck.is_none()) {
            Some(offer) => Ok(offer.finished >= number),
            None => Err(Error::new(Status::Stale, format!("id: {id} has ended or is ending"))),
        }
    }

    fn recall_part(&mut self, at: Address, from: u64) {
        let Handoff::Offer(id) = at.of else { return };
        let Some(offer) = self.offers.get_mut(&id) else { return };
        let epoch = offer.epoch;
        let Some(part) = offer.part_mut(at).filter(|part| self.remotes.contains_key(&part.peer)) else {
            return;
        };
        let since = part.recall.as_ref().map_or(self.now, |before| before.since);
        (part.epoch, part.recall) = (epoch, Some(Recall { from, is_told: false, since }));
        part.has_read = false;
        part.flow.progress.recall(from);
        self.cancel_posts_from(at, from);
    }

    /// The consumer has dropped what was taken back. A take that goes on and needs blocks of a window that were freed when
    /// it had them cannot have them again.
    pub(in crate::handoff) fn retracted(&mut self, peer: PeerId, key: Key, epoch: u64) -> Result<()> {
        let Some(part) = self.taker_of(peer, key).filter(|part| part.over.is_none()) else { return Ok(()) };
        let recall = part.recall.take_if(|recall| recall.is_told && epoch == part.epoch);
        let Some(recall) = recall else {
            // The answer to a retract that another one has overtaken.
            let is_old = epoch < part.epoch;
            let error =
                || Error::new(Status::Corrupt, "the consumer answered a retract that it was not told");
            return if is_old { Ok(()) } else { Err(error()) };
        };
        // A pull has forgotten what it was told, and is told anew.
        part.told_ready.clear();
        part.told_ends.fill(0);
        part.is_awaited = false;
        let (at, is_dropped) = (part.address(), recall.from < part.take.tokens);
        let layout = self.layout.clone();
        let offer = self.offers.get_mut(&key.id).filter(|_| is_dropped);
        if let Some(group) = offer.and_then(|offer| offer.lacks_window(&layout, offer.part(at)?)) {
            self.strike_part(at, Cause::own(Status::Stale, no_window(group)));
        }
        self.pump_offer(key.id);
        Ok(())
    }

    /// Collects the RETRACTs that can be sent.
    pub(super) fn tell_recalls(&mut self, id: HandoffId) -> Vec<(PeerId, Message)> {
        let Some(offer) = self.offers.get_mut(&id) else { return Vec::new() };
        let parts = offer.groups.values_mut().flat_map(|group| group.parts.values_mut());
        let open = parts.filter(|part| part.over.is_none() && part.struck.is_none());
        let remotes = &self.remotes;
        let has_room = |peer: &PeerId| remotes.get(peer).is_some_and(|remote| remote.unsent < UNSENT_MAX);
        let open = open.filter(|part| has_room(&part.peer));
        open.filter_map(|part| Some((part.peer, part.tell_recall()?))).collect()
    }
}

impl Offer {
    /// Lets go of the tokens from `from` on: of what was ready, and of the blocks.
    fn take_back(&mut self, layout: &Layout, from: u64) {
        let own = held(&layout.shard, from);
        // The tokens freed behind it are computed again, in other blocks.
        self.begins.values_mut().for_each(|begin| *begin = (*begin).min(own));
        let mut gone = Vec::new();
        for (index, (list, step)) in self.spec.blocks.iter_mut().zip(lists::steps(layout)).enumerate() {
            let layers =
                || layout.layers.iter().enumerate().filter(|(_, layer)| layer.group as usize == index);
            let is_state = layout.groups.get(index).is_some_and(|group| group.kind == GroupKind::State);
            // A State is that of the last token: it goes with it, as a whole.
            let ready = |at: usize| self.ready.get(at).copied().unwrap_or(0);
            let keeps_state = is_state && layers().all(|(at, _)| ready(at) <= from);
            gone.push(if !is_state {
                lists::cut_back(list, step, own)
            } else if keeps_state {
                Vec::new()
            } else {
                std::mem::take(&mut list.ids)
            });
            let least = if is_state && !keeps_state { 0 } else { from };
            for (at, _) in layers() {
                if let Some(ready) = self.ready.get_mut(at) {
                    *ready = (*ready).min(least);
                }
            }
        }
        let Some(retract) = &mut self.retract else { return };
        for (retired, gone) in retract.retired.iter_mut().zip(gone) {
            retired.ids.extend(gone);
        }
    }
}
