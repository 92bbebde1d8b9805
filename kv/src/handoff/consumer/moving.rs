//! The middle and the end of a take: reads, counts what is written, and ends parts and takes that are over.

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId};
use ferry::Status;

use crate::handoff::id::HandoffId;
use crate::handoff::limits::{IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX};
use crate::handoff::lists;
use crate::handoff::machine::{end_of, told, Due, Machine};
use crate::handoff::producer::pairs;
use crate::handoff::progress::Work;
use crate::handoff::remote::{Handoff, Owner, Post};
use crate::handoff::types::{Blocks, End, Event};
use crate::handoff::wire::{Key, Message};

use super::{Part, Taking};

impl Machine {
    /// The part of a key that a peer may speak of.
    pub(super) fn part_of(&mut self, peer: PeerId, key: Key) -> Option<(u32, &mut Part)> {
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
            return self.strike_take(key.id, End::Failed, Status::Corrupt, text);
        }
        while self.read_next(key.id, rank) {}
        self.settle_take(key.id);
    }

    /// Posts the next READ of a part. Returns false if there is none, or no room.
    pub(super) fn read_next(&mut self, id: HandoffId, rank: u32) -> bool {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.struck.is_none()) else { return false };
        let wanted = &take.spec.blocks;
        let Some(part) = take.parts.as_mut().and_then(|parts| parts.get_mut(&rank)) else { return false };
        let peer = part.peer;
        let asked = part.asked_mut().filter(|asked| !asked.is_push && !asked.is_recalled);
        let Some(asked) = asked else { return false };
        let room = self.remotes.get(&peer).is_some_and(|remote| remote.in_flight < IN_FLIGHT_OF_PEER_MAX);
        if !room || asked.in_flight >= IN_FLIGHT_OF_PART_MAX {
            return false;
        }
        let ready = &asked.ready;
        let Some(work) = asked.progress.next(|layer| ready.get(layer as usize).copied().unwrap_or(0)) else {
            return false;
        };
        let lists = pairs(&asked.source, &self.layout, &asked.exchange, &asked.blocks, wanted);
        let (tokens, layers) = (work.tokens.clone(), work.layers.clone());
        match asked.exchange.lower(&asked.source, &self.layout, &lists, tokens, layers) {
            Ok(moves) if moves.is_empty() => {
                asked.progress.arrived(&work);
            }
            Ok(moves) => {
                asked.in_flight += 1;
                let owner = Owner::Take { id, rank };
                self.post(Post { peer, owner, epoch: 0, work }, Op::Read, moves);
            }
            Err(error) => {
                self.refuse(id, &error);
                return false;
            }
        }
        true
    }

    /// A READ is final.
    pub(in crate::handoff) fn read(&mut self, id: HandoffId, rank: u32, work: &Work, result: Result<()>) {
        let Some(asked) = self.takes.get_mut(&id).and_then(|take| take.asked(rank)) else { return };
        asked.in_flight = asked.in_flight.saturating_sub(1);
        match result {
            Ok(()) => {
                asked.progress.arrived(work);
            }
            // Cancelled for a retract; what of it is wanted still is read again.
            Err(error) if error.status == Status::Cancelled && asked.is_recalled => {}
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_take(id, end_of(status), status, &why);
            }
        }
        self.answer_retract(id, rank);
        while self.read_next(id, rank) {}
        self.settle_take(id);
    }

    /// A WRITE of the producer has landed. CORRUPT if the producer says so of what it was not asked for.
    /// Data of an epoch that has ended does not count.
    pub(in crate::handoff) fn data(&mut self, peer: PeerId, key: Key, epoch: u64, work: &Work) -> Result<()> {
        let Some((_, part)) = self.part_of(peer, key) else { return Ok(()) };
        let asked = part.asked_mut().filter(|asked| asked.is_push);
        if asked.as_ref().is_some_and(|asked| asked.epoch.is_some_and(|known| epoch < known)) {
            return Ok(());
        }
        let is_known = asked.is_some_and(|asked| asked.enter(epoch) && asked.progress.arrived(work));
        if !is_known {
            let text = format!("the producer wrote what handoff {} did not ask for", key.id);
            return Err(Error::new(Status::Corrupt, text));
        }
        self.count_data(peer, key, work);
        self.settle_take(key.id);
        Ok(())
    }

    /// The producer writes nothing any more, and grants nothing any more.
    pub(in crate::handoff) fn ended(&mut self, peer: PeerId, key: Key, status: Status, why: &str) {
        let Some((_, part)) = self.part_of(peer, key) else { return };
        let Some(asked) = part.asked_mut() else { return };
        let has_nothing_more = status == Status::Ok && asked.exchange.layers.is_empty();
        if asked.is_push || has_nothing_more {
            part.is_over = true;
        }
        if !has_nothing_more {
            // The data that has arrived came from harmed memory.
            let harmed = self.takes.get_mut(&key.id).filter(|_| status == Status::Corrupt);
            if let Some(take) = harmed {
                take.doubt(take.spec.skip_tokens);
            }
            let (status, why) = match status {
                Status::Ok => (Status::Corrupt, "the producer ended a take that is not complete"),
                status => (status, why),
            };
            self.strike_take(key.id, end_of(status), status, why);
        }
        self.settle_take(key.id);
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
            self.cancel_posts(Owner::Take { id, rank });
        }
        for peer in writes {
            self.send(peer, &Message::Cancel { key });
        }
        self.settle_take(id);
    }

    /// Ends the parts that can end, then the take if it has.
    pub(super) fn settle_take(&mut self, id: HandoffId) {
        let layers = self.layout.layers.len() as u32;
        let Some(take) = self.takes.get_mut(&id) else { return };
        let (key, struck) = (take.key(), take.struck.clone());
        let (mut finals, mut last) = (Vec::new(), Vec::new());
        for (rank, part) in take.parts.iter_mut().flatten().filter(|(_, part)| !part.is_over) {
            let peer = part.peer;
            let Some(asked) = part.asked() else { continue };
            let is_complete = asked.progress.is_complete() && !asked.exchange.layers.is_empty();
            let is_over = match (asked.is_push, &struck) {
                (true, _) => is_complete,
                (false, None) => is_complete && asked.is_granted,
                (false, Some(_)) => asked.in_flight == 0,
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
        for (peer, message) in finals {
            // A lost peer is not told.
            if self.remotes.contains_key(&peer) {
                self.send(peer, &message);
            }
        }
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

    pub(in crate::handoff) fn pump_take(&mut self, id: HandoffId, peer: PeerId) {
        let parts = self.takes.get(&id).into_iter().flat_map(Taking::parts);
        let ranks: Vec<u32> =
            parts.filter(|(_, part)| part.peer == peer && !part.is_over).map(|(rank, _)| *rank).collect();
        for rank in ranks {
            while self.read_next(id, rank) {}
        }
        self.settle_take(id);
    }
}
