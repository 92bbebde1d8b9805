//! The middle of a take: what its producers say is ready, written or over.

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::limits::BLOCKS_MAX;
use crate::handoff::lists;
use crate::handoff::machine::{end_of, Machine};
use crate::handoff::progress::Work;
use crate::handoff::remote::Handoff;
use crate::handoff::types::{Blocks, End, Other};
use crate::handoff::wire::Key;

use super::{Asked, TakePart, Taking};

impl Asked {
    /// Whether this side may READ for the part.
    pub(super) fn is_read(&self) -> bool {
        !self.is_push && !self.flow.exchange.layers.is_empty()
    }

    /// Whether the producer may speak of this epoch: the one that it told last, or the first that it tells.
    pub(super) fn enter(&mut self, epoch: u64) -> bool {
        *self.epoch.get_or_insert(epoch) == epoch
    }

    /// Notes what the producer grants. An error means that the message is malformed.
    pub(super) fn grant(
        &mut self,
        epoch: u64,
        ready: Vec<u64>,
        added: Vec<Blocks>,
    ) -> Result<(), &'static str> {
        if ready.len() != self.ready.len() || added.len() != self.blocks.len() {
            return Err("the producer told of other layers or groups than its layout has");
        }
        if !self.enter(epoch) || self.is_recalled {
            return Err("the producer granted tokens of another epoch than the one that it began");
        }
        if ready.iter().zip(&self.ready).any(|(new, old)| new < old) {
            return Err("the producer took tokens back without a retract");
        }
        let steps = lists::steps(&self.flow.source);
        for ((list, added), step) in self.blocks.iter_mut().zip(added).zip(steps) {
            if !lists::append(list, step, added) {
                return Err(
                    "the producer granted blocks that begin before the end of those that it had granted",
                );
            }
        }
        if self.blocks.iter().map(|list| list.ids.len()).sum::<usize>() > BLOCKS_MAX {
            return Err("the producer granted more blocks than the limit");
        }
        (self.ready, self.is_granted) = (ready, true);
        Ok(())
    }
}

impl Machine {
    /// The part of a key that a peer may speak of.
    pub(super) fn part_of(&mut self, peer: PeerId, key: Key) -> Option<(u32, &mut TakePart)> {
        let take = self.takes.get_mut(&key.id).filter(|take| take.number == key.take)?;
        let parts = take.parts.as_mut()?.iter_mut();
        parts.map(|(rank, part)| (*rank, part)).find(|(_, part)| part.peer == peer)
    }

    /// The producer grants a pull, or says what is new.
    pub(in crate::handoff) fn granted(
        &mut self,
        peer: PeerId,
        key: Key,
        epoch: u64,
        ready: Vec<u64>,
        added: Vec<Blocks>,
    ) {
        let Some((rank, part)) = self.part_of(peer, key) else { return };
        let Some(asked) = part.asked_mut().filter(|asked| !asked.is_push) else { return };
        if let Err(text) = asked.grant(epoch, ready, added) {
            let by = Other { peer, rank };
            let cause = self.failed_with(Handoff::Take(key.id), by, Status::Corrupt, text);
            return self.strike_take(key.id, End::Failed, cause);
        }
        self.pump_part(Address::of_take(key.id, rank));
        self.settle_take(key.id);
    }

    /// A WRITE of the producer has landed. CORRUPT if the take did not ask for that data. Data of an epoch that has ended
    /// does not count.
    pub(in crate::handoff) fn data(&mut self, peer: PeerId, key: Key, epoch: u64, work: &Work) -> Result<()> {
        let Some((_, part)) = self.part_of(peer, key) else { return Ok(()) };
        let asked = part.asked_mut().filter(|asked| asked.is_push);
        if asked.as_ref().is_some_and(|asked| asked.epoch.is_some_and(|known| epoch < known)) {
            return Ok(());
        }
        let is_known = asked.is_some_and(|asked| asked.enter(epoch) && asked.flow.progress.arrived(work));
        if !is_known {
            let text = format!("the producer wrote what handoff {} did not ask for", key.id);
            return Err(Error::new(Status::Corrupt, text));
        }
        self.count_data(peer, key, work);
        self.settle_take(key.id);
        Ok(())
    }

    /// The producer neither writes nor grants anything for this take any more.
    pub(in crate::handoff) fn ended(&mut self, peer: PeerId, key: Key, status: Status, why: &str) {
        let Some((rank, part)) = self.part_of(peer, key) else { return };
        let Some(asked) = part.asked() else { return };
        let (is_idle, is_read) = (asked.flow.exchange.layers.is_empty(), asked.is_read());
        let was_over = part.is_over;
        part.is_over |= !is_read;
        if status == Status::Ok && is_idle {
            return self.settle_take(key.id);
        }
        // Its part of the offer is over, unless this side may read.
        part.is_told |= !is_read;
        if status == Status::Closed && was_over {
            // It closes its cache, and takes nothing back: what the part has, it keeps.
            part.is_kept = true;
            return self.tell_end_of_part(key.id, rank, status);
        }
        // The data that has arrived came from harmed memory.
        let harmed = self.takes.get_mut(&key.id).filter(|_| status == Status::Corrupt);
        if let Some(take) = harmed {
            take.doubt(take.spec.skip_tokens);
        }
        let (handoff, by) = (Handoff::Take(key.id), Other { peer, rank });
        let cause = match status {
            Status::Ok => {
                let text = "it ended a take that is not complete";
                self.failed_with(handoff, by, Status::Corrupt, text)
            }
            status => self.ended_by(handoff, by, status, why),
        };
        self.strike_take(key.id, end_of(cause.status), cause);
        self.settle_take(key.id);
    }

    pub(in crate::handoff) fn pump_take(&mut self, id: HandoffId, peer: PeerId) {
        let parts = self.takes.get(&id).into_iter().flat_map(Taking::parts);
        let ranks: Vec<u32> =
            parts.filter(|(_, part)| part.peer == peer && !part.is_over).map(|(rank, _)| *rank).collect();
        for rank in ranks {
            self.pump_part(Address::of_take(id, rank));
        }
        self.settle_take(id);
    }
}
