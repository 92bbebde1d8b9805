//! The takes of a cache: the consumer's side of `machine`.
//!
//! A take has a `Part` for each rank of the producer that sends it something. A part is over when nothing of it can touch
//! the blocks any more:
//!
//! ```text
//! Greeting ── HELLO ──▶ Asked ── all has arrived ──▶ over
//!     │                  ├ pull, struck ──▶ READs are final ──▶ FINAL ──▶ over
//!     └ struck ──▶ over  └ push, struck ──▶ CANCEL ──▶ ENDED, or the peer is lost ──▶ over
//! ```
//! The take ends when all of its parts are over. What has arrived is counted by this side (`Progress`), never told by
//! the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId};
use ferry::Status;

use crate::layout::Layout;
use crate::plan::Exchange;

use super::id::HandoffId;
use super::limits::{BLOCKS_MAX, IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX, TAKES_MAX};
use super::lists;
use super::machine::{end_of, told, Machine};
use super::producer::pairs;
use super::progress::{Progress, Work};
use super::remote::{Owner, Post};
use super::types::{Blocks, End, Event, Mode, State, TakeSpec};
use super::wire::{self, Key, Message};

pub struct Taking {
    spec: TakeSpec,
    /// Drawn for this take.
    number: u64,
    deadline_at: Option<u64>,
    /// By rank of the producer; None before the producer's shape is known.
    parts: Option<BTreeMap<u32, Part>>,
    /// Layers that were told as complete.
    told_layers: u32,
    struck: Option<(End, Status, String)>,
}

struct Part {
    peer: PeerId,
    stage: Stage,
    is_over: bool,
}

enum Stage {
    Greeting,
    Asked(Box<Asked>),
}

struct Asked {
    is_push: bool,
    source: Arc<Layout>,
    exchange: Exchange,
    progress: Progress,
    /// Of a pull: what the producer granted, and the tokens that it has computed by layer.
    blocks: Vec<Blocks>,
    ready: Vec<u64>,
    is_granted: bool,
    in_flight: u32,
}

impl Part {
    fn asked(&self) -> Option<&Asked> {
        match &self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Greeting => None,
        }
    }

    fn asked_mut(&mut self) -> Option<&mut Asked> {
        match &mut self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Greeting => None,
        }
    }
}

impl Taking {
    pub fn state(&self) -> State {
        match self.struck {
            Some(_) => State::Ending,
            None => State::Taking { valid_tokens: self.valid_tokens() },
        }
    }

    fn key(&self) -> Key {
        Key { id: self.spec.id, take: self.number }
    }

    fn parts(&self) -> impl Iterator<Item = (&u32, &Part)> {
        self.parts.iter().flatten()
    }

    fn asked(&mut self, rank: u32) -> Option<&mut Asked> {
        self.parts.as_mut()?.get_mut(&rank)?.asked_mut()
    }

    /// Returns the end of the tokens that are complete in all layers of all parts.
    fn valid_tokens(&self) -> u64 {
        let Some(parts) = &self.parts else { return self.spec.skip_tokens };
        let valid = |part: &Part| part.asked().map_or(self.spec.skip_tokens, |asked| asked.progress.valid());
        parts.values().map(valid).min().unwrap_or(self.spec.tokens)
    }

    /// Returns how many layers, from the first on, are complete.
    fn complete_layers(&self, layers: u32) -> u32 {
        let Some(parts) = &self.parts else { return 0 };
        let open = |part: &Part| match part.asked() {
            Some(asked) => asked.progress.first_open().unwrap_or(layers),
            None => 0,
        };
        parts.values().map(open).min().unwrap_or(layers)
    }
}

impl Machine {
    /// Takes a handoff. INVALID for wrong blocks and tokens, and an id that is in use or has ended; LIMIT.
    pub fn take(&mut self, spec: TakeSpec, now: u64) -> Result<()> {
        let now = self.now.max(now);
        self.now = now;
        self.check_new(spec.id)?;
        lists::check(&self.layout, &spec.blocks)?;
        if spec.skip_tokens > spec.tokens {
            let (skip, tokens) = (spec.skip_tokens, spec.tokens);
            return Err(Error::invalid(format!(
                "skip_tokens: {skip} are more than the {tokens} of the take"
            )));
        }
        for (group, list) in spec.blocks.iter().enumerate().filter(|(_, list)| !list.ids.is_empty()) {
            lists::covers(&self.layout, group, list, &(spec.skip_tokens..spec.tokens), "tokens")?;
        }
        if spec.producers.is_empty() {
            return Err(Error::invalid("producers: the list is empty"));
        }
        if self.takes.len() >= TAKES_MAX {
            return Err(Error::new(Status::Limit, format!("{TAKES_MAX} takes have not ended")));
        }
        let number = self.draw();
        let deadline_at =
            spec.deadline.map(|after| now.saturating_add(after.as_nanos().min(u64::MAX.into()) as u64));
        let id = spec.id;
        let first = self.first_producer(&spec);
        let take = Taking { spec, number, deadline_at, parts: None, told_layers: 0, struck: None };
        self.takes.insert(id, take);
        self.greet(first);
        self.advance(id);
        Ok(())
    }

    /// The producer's rank that is asked for the producer's shape: another one for each rank of the consumer.
    fn first_producer(&self, spec: &TakeSpec) -> PeerId {
        let at = self.layout.shard.rank() as usize % spec.producers.len().max(1);
        spec.producers.get(at).copied().unwrap_or(PeerId::NONE)
    }

    /// Ends a take; the blocks are the caller's with its terminal event.
    pub fn take_cancel(&mut self, id: HandoffId, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        if !self.takes.contains_key(&id) {
            let has_ended = self.tombs.get(id).is_some();
            let status = if has_ended { Status::Stale } else { Status::Invalid };
            let what = if has_ended { "has ended" } else { "is no take" };
            return Err(Error::new(status, format!("id: {id} {what}")));
        }
        self.strike_take(id, End::Cancelled, Status::Cancelled, "the consumer cancelled the take");
        Ok(())
    }

    pub(super) fn advance_takes(&mut self) {
        let greeting = |take: &Taking| {
            take.parts.as_ref().is_none_or(|parts| {
                parts.values().any(|part| !part.is_over && matches!(part.stage, Stage::Greeting))
            })
        };
        let ids: Vec<HandoffId> =
            self.takes.iter().filter(|(_, take)| greeting(take)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.advance(id));
    }

    /// Takes the next step of a take's beginning: its parts, then the question to each.
    fn advance(&mut self, id: HandoffId) {
        let Some(take) = self.takes.get(&id).filter(|take| take.struck.is_none()) else { return };
        if take.parts.is_none() {
            match self.make_parts(take) {
                Ok(None) => return,
                Ok(Some(parts)) => {
                    let peers: Vec<PeerId> = parts.values().map(|part| part.peer).collect();
                    if let Some(take) = self.takes.get_mut(&id) {
                        take.parts = Some(parts);
                    }
                    peers.into_iter().for_each(|peer| self.greet(peer));
                }
                Err(error) => return self.refuse(id, &error),
            }
        }
        let greeting: Vec<u32> = self.takes.get(&id).map_or(Vec::new(), |take| {
            let parts = take.parts().filter(|(_, part)| matches!(part.stage, Stage::Greeting));
            parts.map(|(rank, _)| *rank).collect()
        });
        for rank in greeting {
            if let Err(error) = self.ask(id, rank) {
                return self.refuse(id, &error);
            }
        }
        self.settle_take(id);
    }

    fn refuse(&mut self, id: HandoffId, error: &Error) {
        let (status, why) = told(error);
        self.strike_take(id, End::Failed, status, &why);
    }

    /// Returns the parts of a take; None before the producer's layout has come.
    fn make_parts(&self, take: &Taking) -> Result<Option<BTreeMap<u32, Part>>> {
        let first = self.first_producer(&take.spec);
        let Some(hello) = self.remotes.get(&first).and_then(|remote| remote.hello.as_ref()) else {
            return Ok(None);
        };
        let plan = hello.to_us.clone()?;
        let (ranks, given) = (hello.layout.shard.ranks(), take.spec.producers.len());
        if ranks as usize != given {
            return Err(Error::invalid(format!(
                "producers: {given} peers, and the producer has {ranks} ranks"
            )));
        }
        let rank = self.layout.shard.rank();
        // One consumer tells those that send nothing to anybody that they are done.
        let idle = (0..ranks).filter(|source| rank == 0 && plan.targets_of(*source).is_empty());
        let all = plan.sources_of(rank).iter().copied().chain(idle);
        let part = |rank: u32| {
            let peer = take.spec.producers.get(rank as usize).copied().unwrap_or(PeerId::NONE);
            (rank, Part { peer, stage: Stage::Greeting, is_over: false })
        };
        Ok(Some(all.map(part).collect()))
    }

    /// Sends the TAKE of one part, if the peer's layout has come.
    fn ask(&mut self, id: HandoffId, rank: u32) -> Result<()> {
        let first = self.takes.get(&id).map(|take| self.first_producer(&take.spec));
        let first = first.and_then(|peer| self.remotes.get(&peer)?.hello.as_ref());
        let planned = first.and_then(|hello| hello.to_us.clone().ok());
        let Some(take) = self.takes.get_mut(&id) else { return Ok(()) };
        let (key, spec) = (take.key(), &take.spec);
        let Some(part) = take.parts.as_mut().and_then(|parts| parts.get_mut(&rank)) else { return Ok(()) };
        let Some(remote) = self.remotes.get(&part.peer) else { return Ok(()) };
        let Some(hello) = &remote.hello else { return Ok(()) };
        let plan = hello.to_us.clone()?;
        let theirs = hello.layout.shard.rank();
        if theirs != rank {
            return Err(Error::invalid(format!("producers: the peer at place {rank} has rank {theirs}")));
        }
        let is_push = match spec.mode {
            Mode::Push => true,
            Mode::Pull => false,
            Mode::Auto => !remote.is_here,
        };
        let (source, own) = (hello.layout.clone(), self.layout.shard.rank());
        let exchange = plan.exchange(rank, own)?;
        // The parts were made by the first one's plan: together they cover the take.
        if planned.is_some_and(|planned| planned.exchange(rank, own).ok().as_ref() != Some(&exchange)) {
            return Err(Error::invalid(format!("producers: the peer at place {rank} has another shape")));
        }
        let range = spec.skip_tokens..spec.tokens;
        let progress = Progress::new(&exchange, &source, &self.layout, &spec.blocks, range);
        let message = Message::Take(wire::Take {
            key,
            incarnation: hello.incarnation,
            group: spec.group,
            rank: own,
            is_push,
            skip: spec.skip_tokens,
            tokens: spec.tokens,
            blocks: if is_push { spec.blocks.clone() } else { Vec::new() },
        });
        let blocks = vec![Blocks::default(); source.groups.len()];
        let ready = vec![0; source.layers.len()];
        part.stage = Stage::Asked(Box::new(Asked {
            is_push,
            source,
            exchange,
            progress,
            blocks,
            ready,
            is_granted: false,
            in_flight: 0,
        }));
        let peer = part.peer;
        self.remote(peer).takes.insert(id);
        self.send(peer, &message);
        Ok(())
    }

    /// The part of a key that a peer may speak of.
    fn part_of(&mut self, peer: PeerId, key: Key) -> Option<(u32, &mut Part)> {
        let take = self.takes.get_mut(&key.id).filter(|take| take.number == key.take)?;
        let parts = take.parts.as_mut()?.iter_mut();
        parts.map(|(rank, part)| (*rank, part)).find(|(_, part)| part.peer == peer)
    }

    /// The producer grants a pull, or says what is new.
    pub(super) fn granted(&mut self, peer: PeerId, key: Key, ready: Vec<u64>, added: Vec<Blocks>) {
        let Some((rank, part)) = self.part_of(peer, key) else { return };
        let Some(asked) = part.asked_mut().filter(|asked| !asked.is_push) else { return };
        if ready.len() != asked.ready.len() || added.len() != asked.blocks.len() {
            let text = "the producer told of other layers or groups than its layout has";
            return self.strike_take(key.id, End::Failed, Status::Corrupt, text);
        }
        let count = |lists: &[Blocks]| lists.iter().map(|list| list.ids.len()).sum::<usize>();
        if count(&asked.blocks) + count(&added) > BLOCKS_MAX {
            let text = "the producer granted more blocks than the limit";
            return self.strike_take(key.id, End::Failed, Status::Corrupt, text);
        }
        for (list, added) in asked.blocks.iter_mut().zip(added) {
            list.first_token = added.first_token;
            list.ids.extend(added.ids);
        }
        (asked.ready, asked.is_granted) = (ready, true);
        while self.read_next(key.id, rank) {}
        self.settle_take(key.id);
    }

    /// Posts the next READ of a part. Returns false if there is none, or no room.
    fn read_next(&mut self, id: HandoffId, rank: u32) -> bool {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.struck.is_none()) else { return false };
        let wanted = &take.spec.blocks;
        let Some(part) = take.parts.as_mut().and_then(|parts| parts.get_mut(&rank)) else { return false };
        let peer = part.peer;
        let Some(asked) = part.asked_mut().filter(|asked| !asked.is_push) else { return false };
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
                self.post(Post { peer, owner, work }, Op::Read, moves, None);
            }
            Err(error) => {
                self.refuse(id, &error);
                return false;
            }
        }
        true
    }

    /// A READ is final.
    pub(super) fn read(&mut self, id: HandoffId, rank: u32, work: &Work, result: Result<()>) {
        let Some(asked) = self.takes.get_mut(&id).and_then(|take| take.asked(rank)) else { return };
        asked.in_flight = asked.in_flight.saturating_sub(1);
        match result {
            Ok(()) => {
                asked.progress.arrived(work);
            }
            Err(error) => {
                let (status, why) = told(&error);
                self.strike_take(id, end_of(status), status, &why);
            }
        }
        while self.read_next(id, rank) {}
        self.settle_take(id);
    }

    /// A WRITE of the producer has landed. CORRUPT if the producer says so of what it was not asked for.
    pub(super) fn data(&mut self, peer: PeerId, key: Key, work: &Work) -> Result<()> {
        let Some((_, part)) = self.part_of(peer, key) else { return Ok(()) };
        let asked = part.asked_mut().filter(|asked| asked.is_push);
        let is_known = asked.is_some_and(|asked| asked.progress.arrived(work));
        if !is_known {
            let text = format!("the producer wrote what handoff {} did not ask for", key.id);
            return Err(Error::new(Status::Corrupt, text));
        }
        self.settle_take(key.id);
        Ok(())
    }

    /// The producer writes nothing any more, and grants nothing any more.
    pub(super) fn ended(&mut self, peer: PeerId, key: Key, status: Status, why: &str) {
        let Some((_, part)) = self.part_of(peer, key) else { return };
        let Some(asked) = part.asked_mut() else { return };
        let has_nothing_more = status == Status::Ok && asked.exchange.layers.is_empty();
        if asked.is_push || has_nothing_more {
            part.is_over = true;
        }
        if !has_nothing_more {
            let (status, why) = match status {
                Status::Ok => (Status::Corrupt, "the producer ended a take that is not complete"),
                status => (status, why),
            };
            self.strike_take(key.id, end_of(status), status, why);
        }
        self.settle_take(key.id);
    }

    /// Begins the end of a take.
    pub(super) fn strike_take(&mut self, id: HandoffId, end: End, status: Status, why: &str) {
        let Some(take) = self.takes.get_mut(&id).filter(|take| take.struck.is_none()) else { return };
        take.struck = Some((end, status, why.into()));
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
    fn settle_take(&mut self, id: HandoffId) {
        let layers = self.layout.layers.len() as u32;
        let Some(take) = self.takes.get_mut(&id) else { return };
        let (key, struck) = (take.key(), take.struck.clone());
        let mut finals = Vec::new();
        for part in take.parts.iter_mut().flatten().map(|(_, part)| part).filter(|part| !part.is_over) {
            let peer = part.peer;
            let Some(asked) = part.asked() else { continue };
            let is_complete = asked.progress.is_complete() && !asked.exchange.layers.is_empty();
            part.is_over = match (asked.is_push, &struck) {
                (true, _) => is_complete,
                (false, None) => is_complete && asked.is_granted,
                (false, Some(_)) => asked.in_flight == 0,
            };
            if part.is_over && !part.asked().is_some_and(|asked| asked.is_push) {
                let (status, why) = match &struck {
                    None => (Status::Ok, String::new()),
                    Some((_, status, why)) => (*status, why.clone()),
                };
                finals.push((peer, Message::Final { key, status, why }));
            }
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
        if is_over {
            self.finish_take(id);
        }
    }

    fn finish_take(&mut self, id: HandoffId) {
        let Some(take) = self.takes.remove(&id) else { return };
        let received = (End::Received, Status::Ok, String::new());
        let valid_tokens = take.valid_tokens();
        let (end, status, why) = take.struck.unwrap_or(received);
        let untrusted = match end {
            End::Received => Vec::new(),
            _ => lists::beyond(&self.layout, &take.spec.blocks, valid_tokens),
        };
        self.tell_end(id, Event::Ended { id, end, status, why, valid_tokens, untrusted });
    }

    pub(super) fn pump_takes(&mut self, peer: PeerId) {
        let of_peer = |part: &Part| part.peer == peer && !part.is_over;
        let known = self.remotes.get(&peer).map(|remote| remote.takes.clone()).unwrap_or_default();
        for id in known {
            let parts = self.takes.get(&id).into_iter().flat_map(Taking::parts);
            let ranks: Vec<u32> = parts.filter(|(_, part)| of_peer(part)).map(|(rank, _)| *rank).collect();
            if ranks.is_empty() {
                self.remote(peer).takes.remove(&id);
            }
            for rank in ranks {
                while self.read_next(id, rank) {}
            }
            self.settle_take(id);
        }
    }

    /// A peer is lost, or is not to be trusted any more: its takes end.
    pub(super) fn forsake_takes(&mut self, peer: PeerId, status: Status, why: &str, is_gone: bool) {
        let mut touched = Vec::new();
        let own = self.layout.shard.rank() as usize;
        for (id, take) in &mut self.takes {
            let first = take.spec.producers.get(own % take.spec.producers.len().max(1));
            let mut is_touched = take.parts.is_none() && first == Some(&peer);
            for (_, part) in
                take.parts.iter_mut().flatten().filter(|(_, part)| part.peer == peer && !part.is_over)
            {
                is_touched = true;
                // Its own READs become final by themselves.
                let is_push = part.asked().is_none_or(|asked| asked.is_push);
                part.is_over = is_gone && is_push;
            }
            if is_touched {
                touched.push(*id);
            }
        }
        for id in touched {
            self.strike_take(id, end_of(status), status, why);
            self.settle_take(id);
        }
    }

    /// Ends the takes whose deadline has passed. Returns the next deadline.
    pub(super) fn expire_takes(&mut self) -> Option<u64> {
        let now = self.now;
        let open = self.takes.iter().filter(|(_, take)| take.struck.is_none());
        let deadlines: Vec<(HandoffId, u64)> =
            open.filter_map(|(id, take)| Some((*id, take.deadline_at?))).collect();
        for (id, _) in deadlines.iter().filter(|(_, at)| *at <= now) {
            self.strike_take(*id, End::Failed, Status::Timeout, "the deadline of the take has passed");
        }
        deadlines.into_iter().map(|(_, at)| at).filter(|at| *at > now).min()
    }

    /// Returns how many blocks are in takes from this peer.
    pub(super) fn taken_from(&self, peer: PeerId) -> usize {
        let has = |take: &&Taking| take.parts().any(|(_, part)| part.peer == peer && !part.is_over);
        let blocks = |take: &Taking| take.spec.blocks.iter().map(|list| list.ids.len()).sum::<usize>();
        self.takes.values().filter(has).map(blocks).sum()
    }

    /// The peers of which something is expected.
    pub(super) fn peers_of_takes(&self) -> Vec<PeerId> {
        let mut peers = Vec::new();
        for take in self.takes.values() {
            match &take.parts {
                Some(parts) => {
                    peers.extend(parts.values().filter(|part| !part.is_over).map(|part| part.peer))
                }
                None => peers.push(self.first_producer(&take.spec)),
            }
        }
        peers
    }
}
