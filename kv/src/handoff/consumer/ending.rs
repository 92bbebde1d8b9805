//! The end of a take: why it is struck, when its parts are over, and its terminal event.

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::cause::Cause;
use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::lists;
use crate::handoff::machine::{end_of, Due, Machine};
use crate::handoff::remote::Handoff;
use crate::handoff::types::{End, Event, Other};
use crate::handoff::wire::{Key, Message};

use super::{Asked, TakePart};

impl Asked {
    /// The FINAL that says how the take ends.
    fn end(&self, key: Key, status: Status, why: &str) -> Message {
        Message::Final { key, epoch: self.epoch.unwrap_or(0), status, why: why.into() }
    }
}

impl TakePart {
    /// The message is the take's last word to this producer; None if that was said.
    fn last_word(&mut self, message: Message) -> Option<(PeerId, Message)> {
        (!std::mem::replace(&mut self.is_told, true)).then_some((self.peer, message))
    }
}

impl Machine {
    /// Ends a take; the blocks are the caller's with its terminal event.
    pub fn take_cancel(&mut self, id: HandoffId, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        if !self.takes.contains_key(&id) {
            let has_ended = self.tombs.get(id).is_some();
            let status = if has_ended { Status::Stale } else { Status::Invalid };
            let what = if has_ended { "has ended" } else { "is no take" };
            return Err(Error::new(status, format!("id: {id:?} {what}")));
        }
        let cause = Cause::own(Status::Cancelled, "the consumer cancelled the take");
        self.strike_take(id, End::Cancelled, cause);
        Ok(())
    }

    pub(in crate::handoff) fn fail_take(&mut self, id: HandoffId, error: &Error) {
        self.strike_take(id, end_of(error.status), error.into());
    }

    /// Ends a take that has a harmed block. None of its data is valid, even if it is ending already.
    pub(in crate::handoff) fn harm_take(&mut self, id: HandoffId, status: Status, why: &str) {
        if let Some(take) = self.takes.get_mut(&id) {
            take.doubt(0);
        }
        self.strike_take(id, End::Failed, Cause::own(status, why));
    }

    /// A peer is lost, or is not to be trusted any more: a take from it ends.
    pub(in crate::handoff) fn forsake_take(
        &mut self,
        id: HandoffId,
        peer: PeerId,
        status: Status,
        why: &str,
        is_gone: bool,
    ) {
        let Some(take) = self.takes.get_mut(&id) else { return };
        let mut is_touched = take.parts.is_none();
        let place = take.spec.producers.iter().position(|producer| *producer == peer);
        let mut by = Other { peer, rank: place.map_or(0, |place| place as u32) };
        for (rank, part) in take.parts.iter_mut().flatten().filter(|(_, part)| part.peer == peer) {
            let is_part = !part.is_over || part.may_be_recalled();
            if is_part {
                (by.rank, is_touched) = (*rank, true);
            }
            if !part.is_over {
                // Its own READs become final by themselves.
                part.is_over = is_gone && part.asked().is_none_or(|asked| asked.is_push);
            }
        }
        if is_touched {
            let cause = self.failed_with(Handoff::Take(id), by, status, why);
            self.strike_take(id, end_of(status), cause);
            self.settle_take(id);
        }
    }

    pub(in crate::handoff) fn deadline_has_passed(&mut self, id: HandoffId) {
        let cause = Cause::own(Status::Timeout, "the deadline of the take has passed");
        self.strike_take(id, End::Failed, cause);
    }

    /// Begins the end of a take.
    pub(in crate::handoff) fn strike_take(&mut self, id: HandoffId, end: End, cause: Cause) {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.struck.is_none()) else { return };
        let (status, why) = (cause.status, cause.told());
        (take.struck, take.struck_ns) = (Some((end, cause)), self.now);
        self.decline(id);
        let Some(take) = self.takes.get_mut(&id) else { return };
        let key = take.key();
        let (mut reads, mut told) = (Vec::new(), Vec::new());
        for (rank, part) in take.parts.iter_mut().flatten() {
            let is_over = part.is_over;
            match part.asked() {
                None => part.is_over = true,
                Some(asked) if is_over => told.extend(part.last_word(asked.end(key, status, &why))),
                Some(asked) if asked.is_push => {
                    let why = why.clone();
                    told.extend(part.last_word(Message::Cancel { key, status, why }));
                }
                Some(_) => reads.push(*rank),
            }
        }
        for rank in reads {
            self.cancel_posts(Address::of_take(id, rank));
        }
        self.send_to_known(told);
        self.settle_take(id);
    }

    /// Tells the producer of a part that is over how it ends, if it has not been told.
    pub(super) fn tell_end_of_part(&mut self, id: HandoffId, rank: u32, status: Status) {
        let Some(take) = self.takes.get_mut(&id) else { return };
        let key = take.key();
        let part = take.parts.as_mut().and_then(|parts| parts.get_mut(&rank));
        let told = part.and_then(|part| part.last_word(part.asked()?.end(key, status, "")));
        self.send_to_known(told.into_iter().collect());
        self.settle_take(id);
    }

    /// Ends the parts that can end, then the take if it has.
    pub(in crate::handoff) fn settle_take(&mut self, id: HandoffId) {
        let layers = self.layout.layers.len() as u32;
        let Some(take) = self.takes.get_mut(&id) else { return };
        let (key, struck) = (take.key(), take.struck.clone());
        let (mut finals, mut reads, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, part) in take.parts.iter_mut().flatten().filter(|(_, part)| !part.is_over) {
            let Some(asked) = part.asked() else { continue };
            let is_complete = asked.flow.progress.is_complete() && !asked.flow.exchange.layers.is_empty();
            let is_over = match (asked.is_push, &struck) {
                (true, _) => is_complete,
                (false, None) => is_complete && asked.is_granted,
                (false, Some(_)) => asked.flow.in_flight == 0,
            };
            let end = struck.as_ref().map(|(_, cause)| asked.end(key, cause.status, &cause.told()));
            if is_over && struck.is_none() && !asked.is_push {
                reads.push((part.peer, Message::Read { key, epoch: asked.epoch.unwrap_or(0) }));
            }
            if let Some(end) = end.filter(|_| is_over) {
                finals.extend(part.last_word(end));
            }
            part.is_over = is_over;
            last.extend(is_over.then_some(*rank));
        }
        let complete = take.complete_layers(layers);
        let tells = take.spec.tell_layers && struck.is_none() && complete > take.told_layers;
        take.told_layers = take.told_layers.max(complete);
        let is_over = match &take.parts {
            Some(parts) => parts.values().all(|part| part.is_over),
            None => struck.is_some(),
        };
        self.send_to_known(finals);
        let ends = is_over && (struck.is_some() || self.ask_whole(id, &last));
        if !ends {
            // At the end of the take, FINAL says the same.
            self.send_to_known(reads);
        }
        if tells {
            self.tell_layers(id, complete);
        }
        if ends {
            self.finish_take(id);
        }
    }

    pub(super) fn finish_take(&mut self, id: HandoffId) {
        let Some(mut take) = self.takes.remove(&id) else { return };
        let key = take.key();
        let parts = take.parts.iter_mut().flatten().map(|(_, part)| part);
        // A take that was struck has said its last words.
        let told = parts.filter_map(|part| part.last_word(part.asked()?.end(key, Status::Ok, ""))).collect();
        self.send_to_known(told);
        for block in lists::beyond(&self.layout, &take.spec.blocks, take.spec.skip_tokens) {
            self.written.remove(&block);
        }
        let arrived = take.valid_tokens();
        let valid_tokens = take.trusted.map_or(arrived, |trusted| trusted.min(arrived));
        let received = (End::Received, Cause::own(Status::Ok, ""));
        let (end, cause) = take.struck.clone().unwrap_or(received);
        let (told, Cause { status, why, by, .. }) = (cause.told(), cause);
        let untrusted = match end {
            End::Received => Vec::new(),
            _ => lists::beyond(&self.layout, &take.spec.blocks, valid_tokens),
        };
        if let Some(at) = take.deadline_at {
            self.due.remove(&(at, Due::Deadline(id)));
        }
        let mut peers = vec![self.first_producer(&take.spec)];
        peers.extend(take.parts.iter().flatten().map(|(_, part)| part.peer));
        let event = Event::Ended { id, end, status, why, valid_tokens, untrusted, by };
        self.tell_end(Handoff::Take(id), peers, event, told);
    }
}
