//! The end of a take: why it is struck, when its parts are over, and its terminal event.

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::flow::Address;
use crate::handoff::id::HandoffId;
use crate::handoff::lists;
use crate::handoff::machine::{end_of, Due, Machine};
use crate::handoff::remote::Handoff;
use crate::handoff::types::{End, Event};
use crate::handoff::wire::Message;

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
        self.strike_take(id, End::Cancelled, Status::Cancelled, "the consumer cancelled the take");
        Ok(())
    }

    pub(in crate::handoff) fn fail_take(&mut self, id: HandoffId, error: &Error) {
        self.strike_take(id, end_of(error.status), error.status, &error.message);
    }

    /// Ends a take that has a harmed block. None of its data is valid, even if it is ending already.
    pub(in crate::handoff) fn harm_take(&mut self, id: HandoffId, status: Status, why: &str) {
        if let Some(take) = self.takes.get_mut(&id) {
            take.doubt(0);
        }
        self.strike_take(id, End::Failed, status, why);
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
        for part in take.parts.iter_mut().flatten().map(|(_, part)| part).filter(|part| part.peer == peer) {
            is_touched |= !part.is_over || part.may_be_recalled();
            if !part.is_over {
                // Its own READs become final by themselves.
                part.is_over = is_gone && part.asked().is_none_or(|asked| asked.is_push);
            }
        }
        if is_touched {
            self.strike_take(id, end_of(status), status, why);
            self.settle_take(id);
        }
    }

    pub(in crate::handoff) fn deadline_has_passed(&mut self, id: HandoffId) {
        self.strike_take(id, End::Failed, Status::Timeout, "the deadline of the take has passed");
    }

    /// Begins the end of a take.
    pub(in crate::handoff) fn strike_take(&mut self, id: HandoffId, end: End, status: Status, why: &str) {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.struck.is_none()) else { return };
        (take.struck, take.struck_ns) = (Some((end, status, why.into())), self.now);
        let key = take.key();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (rank, part) in take.parts.iter_mut().flatten().filter(|(_, part)| !part.is_over) {
            match part.asked().map(|asked| asked.is_push) {
                None => part.is_over = true,
                Some(true) => writes.push(part.peer),
                Some(false) => reads.push(*rank),
            }
        }
        for rank in reads {
            self.cancel_posts(Address::of_take(id, rank));
        }
        for peer in writes {
            self.send(peer, &Message::Cancel { key });
        }
        self.settle_take(id);
    }

    /// Ends the parts that can end, then the take if it has.
    pub(in crate::handoff) fn settle_take(&mut self, id: HandoffId) {
        let layers = self.layout.layers.len() as u32;
        let Some(take) = self.takes.get_mut(&id) else { return };
        let (key, struck) = (take.key(), take.struck.clone());
        let (mut finals, mut last) = (Vec::new(), Vec::new());
        for (rank, part) in take.parts.iter_mut().flatten().filter(|(_, part)| !part.is_over) {
            let peer = part.peer;
            let Some(asked) = part.asked() else { continue };
            let is_complete = asked.flow.progress.is_complete() && !asked.flow.exchange.layers.is_empty();
            let is_over = match (asked.is_push, &struck) {
                (true, _) => is_complete,
                (false, None) => is_complete && asked.is_granted,
                (false, Some(_)) => asked.flow.in_flight == 0,
            };
            if is_over && !asked.is_push {
                let epoch = asked.epoch.unwrap_or(0);
                let (status, why) = match &struck {
                    None => (Status::Ok, String::new()),
                    Some((_, status, why)) => (*status, why.clone()),
                };
                finals.push((peer, Message::Final { key, epoch, status, why }));
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
        if tells {
            self.tell_layers(id, complete);
        }
        if is_over && (struck.is_some() || self.ask_whole(id, &last)) {
            self.finish_take(id);
        }
    }

    pub(super) fn finish_take(&mut self, id: HandoffId) {
        let Some(take) = self.takes.remove(&id) else { return };
        for block in lists::beyond(&self.layout, &take.spec.blocks, take.spec.skip_tokens) {
            self.written.remove(&block);
        }
        let received = (End::Received, Status::Ok, String::new());
        let arrived = take.valid_tokens();
        let valid_tokens = take.trusted.map_or(arrived, |trusted| trusted.min(arrived));
        let (end, status, why) = take.struck.clone().unwrap_or(received);
        let untrusted = match end {
            End::Received => Vec::new(),
            _ => lists::beyond(&self.layout, &take.spec.blocks, valid_tokens),
        };
        if let Some(at) = take.deadline_at {
            self.due.remove(&(at, Due::Deadline(id)));
        }
        let mut peers = vec![self.first_producer(&take.spec)];
        peers.extend(take.parts.iter().flatten().map(|(_, part)| part.peer));
        let event = Event::Ended { id, end, status, why, valid_tokens, untrusted };
        self.tell_end(Handoff::Take(id), peers, event);
    }
}
