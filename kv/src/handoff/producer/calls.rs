//! The application's calls about its offers.

use std::collections::BTreeMap;
use std::ops::Range;

use ferry::status::{Error, Result};
use ferry::Status;

use crate::handoff::cause::Cause;
use crate::handoff::id::HandoffId;
use crate::handoff::limits::{OFFERS_MAX, TAKERS_MAX};
use crate::handoff::lists;
use crate::handoff::machine::{Due, Machine};
use crate::handoff::record::What;
use crate::handoff::types::{Blocks, End, OfferSpec};

use super::{too_many, Offer, Struck};

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
        let (id, layers, layout) = (spec.id, self.layout.layers.len(), self.layout.clone());
        let (ready, groups) = (vec![0; layers], BTreeMap::new());
        let mut offer = Offer {
            spec,
            ready,
            sealed: None,
            lease_until: None,
            groups,
            epoch: 0,
            finished: 0,
            retract: None,
            begins: BTreeMap::new(),
            struck: None,
        };
        offer.note_begins(&layout);
        self.offers.insert(id, offer);
        self.note(id, || What::Offered);
        for (peer, take) in self.waiting.come(id) {
            self.taken(peer, take);
        }
        for ended in self.waiting.come_ended(id) {
            self.taken_in_vain(ended);
        }
        Ok(())
    }

    /// Adds blocks to the groups of an offer, as they are allocated. A list without blocks begins where the first ones
    /// that are added do, if that is later.
    pub fn offer_extend(&mut self, id: HandoffId, blocks: &[Blocks], now: u64) -> Result<()> {
        self.now = self.now.max(now);
        let layout = self.layout.clone();
        let offer = self.open_offer(id)?;
        offer.check_retracted(id)?;
        if offer.sealed.is_some() {
            return Err(Error::invalid(format!("id: {id} is sealed")));
        }
        let mut all = offer.spec.blocks.clone();
        if blocks.len() != all.len() {
            let (lists, groups) = (blocks.len(), all.len());
            return Err(Error::invalid(format!("blocks: {lists} lists, and the layout has {groups} groups")));
        }
        for (list, added) in all.iter_mut().zip(blocks) {
            if list.ids.is_empty() && !added.ids.is_empty() {
                list.first_token = list.first_token.max(added.first_token);
            }
            list.ids.extend(&added.ids);
        }
        let mut held = all.clone();
        for (list, retired) in held.iter_mut().zip(offer.lists().skip(1).flatten()) {
            list.ids.extend(&retired.ids);
        }
        lists::check(&layout, &held)?;
        offer.spec.blocks = all;
        for group in offer.note_begins(&layout) {
            self.strike_needy(id, group);
        }
        self.pump_offer(id);
        Ok(())
    }

    /// Says that the first `tokens` tokens of these layers are computed. INVALID for a layer that is ready up to there
    /// already, that comes before the layers below it, or whose blocks are not offered.
    pub fn offer_ready(&mut self, id: HandoffId, layers: Range<u32>, tokens: u64, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        self.check_ready(id, &layers, tokens)?;
        if self.has_pending(id) {
            return self.wait_behind(id, layers, tokens, None);
        }
        self.apply_ready(id, layers, tokens);
        self.pump_offer(id);
        Ok(())
    }

    /// Layers are ready.
    pub(super) fn apply_ready(&mut self, id: HandoffId, layers: Range<u32>, tokens: u64) {
        let Some(offer) = self.offers.get_mut(&id) else { return };
        for index in layers.clone() {
            if let Some(ready) = offer.ready.get_mut(index as usize) {
                *ready = tokens;
            }
        }
        self.note(id, || What::Ready { layers, tokens });
    }

    /// Refuses wrong arguments of `offer_ready`.
    pub(super) fn check_ready(&mut self, id: HandoffId, layers: &Range<u32>, tokens: u64) -> Result<()> {
        let layout = self.layout.clone();
        self.open_offer(id)?;
        let Some(offer) = self.offers.get(&id) else { return Ok(()) };
        offer.check_retracted(id)?;
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
        let ready =
            |index: u32| self.ready_at_last(id, index, offer.ready.get(index as usize).copied().unwrap_or(0));
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
        Ok(())
    }

    /// Says that the offer is whole: it has `tokens` tokens. The lease begins.
    pub fn offer_seal(&mut self, id: HandoffId, tokens: u64, now: u64) -> Result<()> {
        let now = self.now.max(now);
        self.now = now;
        let waiting = self.most_pending(id);
        let offer = self.open_offer(id)?;
        offer.check_retracted(id)?;
        if offer.sealed.is_some() {
            return Err(Error::invalid(format!("id: {id} is sealed")));
        }
        if let Some(most) = offer.ready.iter().copied().chain([waiting]).max().filter(|most| *most > tokens) {
            return Err(Error::invalid(format!("tokens: {tokens} are less than the {most} that are ready")));
        }
        offer.sealed = Some(tokens);
        let lease = offer.spec.lease.as_nanos().min(u64::MAX.into()) as u64;
        let until = now.saturating_add(lease);
        offer.lease_until = Some(until);
        let beyond = offer.addresses(|part| part.over.is_none() && part.take.tokens > tokens);
        for at in beyond {
            self.strike_part(at, Cause::own(Status::Invalid, too_many(id, tokens)));
        }
        self.due.insert((until, Due::Lease(id)));
        self.counts.sealed(id, now);
        self.note(id, || What::Sealed { tokens });
        self.settle_offer(id);
        self.note_lease(id);
        if self.leased_blocks_max > 0 {
            self.reclaim_while("the cache leases more blocks than its leased_blocks_max", |machine, _| {
                machine.leases.blocks() > machine.leased_blocks_max
            });
        }
        Ok(())
    }

    /// Bounds the blocks of offers that are sealed and that nobody has taken; 0: no bound. A seal that exceeds it ends
    /// the oldest of them, its own last.
    pub fn set_leased_blocks_max(&mut self, blocks: usize) {
        self.leased_blocks_max = blocks;
    }

    /// Ends an offer; the blocks are the caller's with its terminal event.
    pub fn offer_cancel(&mut self, id: HandoffId, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        self.open_offer(id)?;
        let cause = Cause::own(Status::Cancelled, "the producer aborted the offer");
        self.strike_offer(id, Struck { end: End::Cancelled, cause });
        Ok(())
    }

    /// Returns an offer that was not struck.
    pub(super) fn open_offer(&mut self, id: HandoffId) -> Result<&mut Offer> {
        let ended = self.tombs.get(id).map(|tomb| tomb.end);
        match self.offers.get_mut(&id) {
            Some(offer) if offer.struck.is_none() => Ok(offer),
            Some(_) => Err(Error::new(Status::Stale, format!("id: {id} is ending"))),
            None if ended.is_some() => Err(Error::new(Status::Stale, format!("id: {id} has ended"))),
            None => Err(Error::invalid(format!("id: {id} is no offer"))),
        }
    }

    /// Ends the oldest offers that nobody took, until `blocks` blocks are free or none is left. Returns how many blocks
    /// are free now.
    pub fn reclaim(&mut self, blocks: usize, now: u64) -> usize {
        self.now = self.now.max(now);
        self.reclaim_while("the blocks of the offer were reclaimed", |_, free| free < blocks)
    }

    /// Ends the oldest offers that nobody took while `wants` wants more, told how many blocks are free now.
    fn reclaim_while(&mut self, why: &str, wants: impl Fn(&Machine, usize) -> bool) -> usize {
        let mut free = 0;
        while wants(self, free) {
            let Some((id, blocks)) = self.leases.oldest() else { break };
            free += blocks;
            let cause = Cause::own(Status::Limit, format!("{why} (PRESSURE)"));
            self.strike_offer(id, Struck { end: End::Expired, cause });
        }
        free
    }
}
