//! The tokens that a producer takes back: the epochs of a part.
//!
//! A part knows one epoch of its producer's rank at a time. RETRACT begins the next one: what has arrived from its
//! token on is dropped, nothing is granted any more, and the answer goes back when no READ is under way. `hearing`
//! has what is granted, `flow` the end of a READ.

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::machine::Machine;
use crate::handoff::remote::Handoff;
use crate::handoff::types::{Blocks, End, Other};
use crate::handoff::wire::{Key, Message};

use super::{Asked, Stage, Taking};

const TOLD_LAYERS: &str = "it took back tokens of layers that were told as complete";

impl Asked {
    /// Drops the tokens from `from` on, and all that was granted: what may be read after the answer is told anew.
    fn recall(&mut self, from: u64) {
        self.is_recalled = true;
        self.flow.progress.recall(from);
        self.ready.fill(0);
        self.blocks.fill(Blocks::default());
    }
}

impl Taking {
    /// Whether layers were told that have one of the tokens from `from` on.
    fn has_told(&self, from: u64) -> bool {
        self.spec.tell_layers && self.told_layers > 0 && from < self.spec.tokens
    }
}

impl Machine {
    /// The producer takes back the tokens from `from` on. A take that told of layers that have them fails.
    pub(in crate::handoff) fn retract(
        &mut self,
        peer: PeerId,
        key: Key,
        epoch: u64,
        from: u64,
    ) -> Result<()> {
        let ended = self.take_has_ended(key, epoch);
        let take = self.takes.get_mut(&key.id).filter(|take| take.number == key.take);
        let Some(take) = take else {
            self.answer(peer, &ended);
            return Ok(());
        };
        let (struck, has_told) = (take.struck.clone(), take.has_told(from));
        let mut parts = take.parts.iter_mut().flatten();
        let part = parts.find(|(_, part)| part.peer == peer);
        let asked = part.and_then(|(rank, part)| match &mut part.stage {
            Stage::Asked(asked) => Some((*rank, asked, &mut part.is_over)),
            Stage::Greeting => None,
        });
        if let (None, Some((_, cause))) = (&asked, &struck) {
            // The producer was told of the take and of its end at once.
            let (status, why) = (cause.status, cause.told());
            self.answer(peer, &Message::Final { key, epoch, status, why });
            return Ok(());
        }
        let in_order = asked.filter(|(_, asked, _)| asked.epoch.is_none_or(|known| known < epoch));
        let Some((rank, asked, is_over)) = in_order else {
            return Err(Error::new(Status::Corrupt, "the producer began an epoch out of order"));
        };
        asked.epoch = Some(epoch);
        asked.recall(from);
        if let Some((_, cause)) = struck {
            // A part that is not over reports its end later.
            if *is_over {
                let (status, why) = (cause.status, cause.told());
                self.answer(peer, &Message::Final { key, epoch, status, why });
            }
            return Ok(());
        }
        *is_over = false;
        take.asked_whole = None;
        if has_told {
            let by = Other { peer, rank };
            let cause = self.failed_with(Handoff::Take(key.id), by, Status::Stale, TOLD_LAYERS);
            self.strike_take(key.id, End::Failed, cause);
            return Ok(());
        }
        self.cancel_posts_from(Address::of_take(key.id, rank), from);
        self.answer_retract(key.id, rank);
        self.settle_take(key.id);
        Ok(())
    }

    /// Tells the producer that nothing of what it took back is read any more, once that is so.
    pub(in crate::handoff) fn answer_retract(&mut self, id: HandoffId, rank: u32) {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.struck.is_none()) else { return };
        let key = take.key();
        let Some(part) = take.parts.as_mut().and_then(|parts| parts.get_mut(&rank)) else { return };
        let peer = part.peer;
        let asked = part.asked_mut().filter(|asked| asked.is_recalled && asked.flow.in_flight == 0);
        let Some(asked) = asked else { return };
        asked.is_recalled = false;
        asked.flow.progress.resume();
        let epoch = asked.epoch.unwrap_or(0);
        self.answer(peer, &Message::Retracted { key, epoch });
    }

    /// The answer to a retract of a take that is gone. If it was forgotten, the producer had FINAL or CANCEL long before.
    fn take_has_ended(&self, key: Key, epoch: u64) -> Message {
        let (status, why) = match self.tombs.get(key.id) {
            Some(tomb) => (tomb.status, tomb.why.clone()),
            None => (Status::Ok, String::new()),
        };
        Message::Final { key, epoch, status, why }
    }
}
