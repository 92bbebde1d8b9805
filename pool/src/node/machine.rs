//! A node of the pool, without I/O and without a clock: takes calls of the program, messages, ends of transfers, sums,
//! lost peers and the time; gives messages, transfers, sums to take, fences and ends of calls.
//!
//! ```text
//! calls ─▶ calls (asks owners, index members) ─▶ messages ─▶ owner (serves) ─▶ store
//!                └ nodes: who is there            └ telling: what the index is to know ─▶ index::Table of the members
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId, RegionId, Request};

use crate::index::Part;
use crate::limits::{AGAIN_NS, SILENCE_NS};
use crate::store::Store;
use crate::wire::{Hello, Message, Told};

use super::call::{Ask, Call, KeyEnd};
use super::calls::Asked;
use super::counts::Counts;
use super::drain::Drain;
use super::hints::Hints;
use super::nodes::Nodes;
use super::owner::{Asker, Effect, Owner};
use super::telling::Telling;
use super::tier::Tier;

/// What the machine wants done.
#[derive(Debug)]
pub enum Action {
    Send {
        peer: PeerId,
        message: Vec<u8>,
    },
    /// Move bytes between this node's memory and the memory of a peer, or of this process; then call `moved`.
    Move {
        number: u64,
        peer: Asker,
        op: Op,
        requests: Vec<Request>,
        notify: Option<Vec<u8>>,
        /// A file at the far end has the bytes for good when `moved` is called.
        durable: bool,
    },
    /// Write these pages (address, bytes) of a region of this node's file, durably; then call `moved`.
    Write {
        number: u64,
        region: RegionId,
        pages: Vec<(u64, Vec<u8>)>,
    },
    /// Sum these ranges (address, bytes), value by value; then call `summed`.
    Sum {
        of: SumOf,
        values: Vec<Vec<(u64, u64)>>,
    },
    /// Nothing of the peer may land in this process any more; then call `lost` or `not_fenced`.
    Fence(PeerId),
    /// The peer cannot be a node of this cluster.
    Refused {
        peer: PeerId,
        why: Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOf {
    /// Objects of this node.
    Objects(u64),
    /// Values that came for a call.
    Came(u64),
}

/// A call has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub call: u64,
    pub keys: Vec<KeyEnd>,
}

#[derive(Debug)]
pub struct Machine {
    pub(super) nodes: Nodes,
    pub(super) owner: Owner,
    pub(super) telling: Telling,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) asked: BTreeMap<u64, Asked>,
    /// Answers whose values are being summed.
    pub(super) came: BTreeMap<u64, (Asked, Vec<KeyEnd>)>,
    pub(super) hints: Hints,
    pub(super) next: u64,
    pub(super) actions: Vec<Action>,
    ends: VecDeque<End>,
    /// Where the node's memory begins.
    base: u64,
    /// Bytes that eviction keeps free, and when it begins.
    pub(super) free_kept: u64,
    /// Nodes that ought to be there and are not: a key that the others do not have may be with them.
    pub(super) missing: usize,
    pub(super) counts: Counts,
    /// Peers that could not be fenced, and when it is tried again.
    unfenced: BTreeMap<PeerId, u64>,
    /// For a node that closes: peers that have not answered since they heard it, and until when they may.
    parting: BTreeSet<PeerId>,
    parting_until: u64,
    /// The free bytes that the others know of, and since when.
    pub(super) told_free: u64,
    pub(super) told_ns: u64,
    /// Nodes whose names another connected node has: they are greeted when that one is gone.
    pub(super) namesakes: BTreeMap<PeerId, Hello>,
    /// This node closes: whom it meets is told.
    has_left: bool,
    pub(super) drain: Drain,
    /// Nodes that were asked about themselves, and their answers, by the numbers of the questions.
    pub(super) questions: BTreeMap<u64, (PeerId, Option<Told>)>,
}

impl Machine {
    /// A node whose memory begins at `base`. INVALID for a name that is empty or too long.
    pub fn new(me: Hello, store: Store, base: u64) -> Result<Machine> {
        let capacity = store.capacity();
        let free_kept = capacity / 20;
        let nodes = Nodes::new(me)?;
        let telling = Telling::new(&nodes)?;
        let mut machine = Machine {
            nodes,
            owner: Owner::new(store, base),
            telling,
            calls: BTreeMap::new(),
            asked: BTreeMap::new(),
            came: BTreeMap::new(),
            hints: Hints::default(),
            next: 0,
            actions: Vec::new(),
            ends: VecDeque::new(),
            base,
            free_kept,
            missing: 0,
            counts: Counts::default(),
            unfenced: BTreeMap::new(),
            parting: BTreeSet::new(),
            parting_until: 0,
            told_free: capacity,
            told_ns: 0,
            namesakes: BTreeMap::new(),
            has_left: false,
            drain: Drain::default(),
            questions: BTreeMap::new(),
        };
        machine.view_changed(0);
        Ok(machine)
    }

    /// Has the node keep a second tier, before anything else: tenants with a quota have the same share of it. Values that
    /// its memory is too small for are dropped.
    pub fn set_tier(&mut self, mut tier: Tier) {
        tier.store.share_as(&self.owner.store);
        tier.forget_longer(&self.owner.store);
        self.owner.tier = Some(tier);
    }

    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub fn take_end(&mut self) -> Option<End> {
        self.ends.pop_front()
    }

    /// Begins a call, which ends by an `End` with its number.
    pub fn call(&mut self, ask: Ask, now: u64) -> u64 {
        self.begin(Call::new(ask), now)
    }

    pub(super) fn begin(&mut self, call: Call, now: u64) -> u64 {
        self.next += 1;
        let id = self.next;
        self.calls.insert(id, call);
        self.start(id, now);
        self.settle(now);
        id
    }

    /// The peer is connected, or has greeted: it hears this node's HELLO.
    pub fn greet(&mut self, peer: PeerId) {
        let mut hello = self.nodes.me().clone();
        hello.load.free = self.owner.store.free_bytes();
        self.send(peer, &Message::Hello(hello));
        if self.has_left {
            self.send(peer, &Message::Leave);
        }
    }

    /// How many nodes ought to be there and are not.
    pub fn set_missing(&mut self, missing: usize) {
        self.missing = missing;
    }

    /// Handles a message.
    pub fn heard(&mut self, peer: PeerId, message: Message, now: u64) {
        if let Message::Hello(hello) = message {
            self.hello(peer, hello, now);
            return self.settle(now);
        }
        if let Message::Refused(why) = message {
            self.actions.push(Action::Refused { peer, why: Error::invalid(why) });
            // It may have refused one greeting and taken the next one. Then it serves what it is asked, into memory that
            // is the program's when the call ends: only a fence says when it does not. When it takes this node in, it
            // greets.
            match self.nodes.get(peer) {
                Some(node) if node.asked > 0 => self.suspect(peer, now),
                _ => self.forget(peer, now),
            }
            return self.settle(now);
        }
        // The messages of a node that was refused, or that is being fenced, count for nothing.
        let Some(node) = self.nodes.get_mut(peer).filter(|node| !node.is_suspect) else { return };
        (node.heard_ns, node.pinged_ns) = (now, None);
        let asker = Some(peer);
        match message {
            Message::Hello(_) | Message::Refused(_) => {}
            Message::Load(load) => node.hello.load = load,
            Message::Get { request, keys } => self.owner.get(asker, request, keys),
            Message::Put { request, keys } => self.owner.put(asker, request, keys),
            Message::Have { request, digests } => self.owner.have(asker, request, &digests),
            Message::Remove { request, removal, asked, mut digests } => {
                if request == 0 {
                    digests.retain(|digest| !self.telling.has_heard(digest, removal));
                }
                self.telling.bury(&digests, removal, now);
                self.pass_on(removal, asked, &digests);
                self.owner.remove(asker, request, &digests);
                self.remove_moved(&digests, now);
            }
            Message::Touch(fingerprints) => self.touch(&fingerprints),
            Message::Doubt(digests) => self.owner.doubt(&digests),
            Message::Answer { request, answers } => self.answered(request, asker, answers, now),
            Message::Find { request, view, fingerprints } => {
                let found = self.find(view, &fingerprints, now);
                self.send(peer, &Message::Found { request, owners: found.0, found: found.1 });
            }
            Message::Found { request, owners, found } => self.found(request, peer, &owners, &found, now),
            Message::Announce { number, came, went } => self.hear_announce(peer, number, &came, &went),
            Message::Announced { number } => self.hear_announced(peer, number),
            Message::Inventory { inventory, number, is_last: last, view: members, since, fingerprints } => {
                let fingerprints = &fingerprints[..];
                self.hear_inventory(
                    peer,
                    &Part { inventory, number, last, members, since, fingerprints },
                    now,
                );
            }
            Message::Again => self.hear_again(peer, now),
            Message::Ping => self.send(peer, &Message::Pong),
            Message::Pong => drop(self.parting.remove(&peer)),
            Message::Leave => {
                self.nodes.leave(peer);
                self.view_changed(now);
            }
            Message::Ask { request, question } => self.hear_ask(peer, request, question, now),
            Message::Told { request, told } => self.hear_told(peer, request, told),
        }
        self.settle(now);
    }

    /// A transfer has ended. `failed` are its requests that did.
    pub fn moved(&mut self, number: u64, failed: &[usize], now: u64) {
        if let Some(peer) = self.owner.asker_of(number) {
            self.nodes.answered(peer);
        }
        self.owner.moved(number, failed);
        self.settle(now);
    }

    /// Sums are taken. None: the memory could not be read.
    pub fn summed(&mut self, of: SumOf, sums: &[Option<u64>], now: u64) {
        match of {
            SumOf::Objects(number) => self.owner.summed(number, sums),
            SumOf::Came(number) => self.came_summed(number, sums, now),
        }
        self.settle(now);
    }

    /// Nothing of a peer lands in this process any more: it is lost, or fenced.
    pub fn lost(&mut self, peer: PeerId, now: u64) {
        self.forget(peer, now);
        self.settle(now);
    }

    /// A silent peer could not be fenced. It is tried again after a pause.
    pub fn not_fenced(&mut self, peer: PeerId, now: u64) {
        self.unfenced.insert(peer, now.saturating_add(AGAIN_NS));
    }

    /// Does what is due. Returns when to call again; 0: at once.
    pub fn tick(&mut self, now: u64) -> Option<u64> {
        let (to_ping, silent, mut due) = self.nodes.silent(now);
        for peer in to_ping {
            self.ping(peer, now);
            due = Some(now.saturating_add(SILENCE_NS / 2));
        }
        for peer in silent {
            self.counts.silent += 1;
            self.nodes.suspect(peer);
            self.actions.push(Action::Fence(peer));
            self.view_changed(now);
        }
        let again: Vec<PeerId> =
            self.unfenced.iter().filter(|(_, at)| **at <= now).map(|(peer, _)| *peer).collect();
        for peer in again {
            self.unfenced.remove(&peer);
            self.actions.push(Action::Fence(peer));
        }
        let fence_at = self.unfenced.values().copied().min();
        let mut has_more = self.tell_on(now);
        if self.owner.store.free_bytes() < self.free_kept / 2 {
            has_more |= self.owner.make_room(self.free_kept);
        }
        let load_at = self.tell_load(now);
        let tier_at = self.owner.tier.as_mut().and_then(|tier| tier.retry(now));
        self.settle(now);
        if has_more {
            return Some(0);
        }
        due.into_iter().chain(self.tell_at(now)).chain(load_at).chain(tier_at).chain(fence_at).min()
    }

    /// All calls end: CLOSED. The peers hear that this node is gone.
    pub fn leave(&mut self, now: u64) {
        self.has_left = true;
        self.parting_until = now.saturating_add(SILENCE_NS);
        for peer in self.tell_all(&Message::Leave) {
            // What it asked before it heard that comes before its answer.
            self.send(peer, &Message::Ping);
            self.parting.insert(peer);
        }
    }

    /// Whether nothing moves between this node and others any more.
    pub fn is_idle(&self, now: u64) -> bool {
        let is_heard = self.parting.is_empty() || now >= self.parting_until;
        let is_saved = self.owner.tier.as_ref().is_none_or(|tier| tier.busy() == 0);
        self.calls.is_empty() && self.owner.serving() == 0 && is_saved && is_heard
    }

    /// The engine is over. Returns the calls that were open, and the number of their keys.
    pub fn give_up(&mut self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.calls).into_iter().map(|(id, call)| (id, call.keys.len())).collect()
    }

    /// A peer sent what is no message: it is asked nothing more, and is fenced.
    pub fn suspect(&mut self, peer: PeerId, now: u64) {
        if self.nodes.get(peer).is_some_and(|node| !node.is_suspect) {
            self.nodes.suspect(peer);
            self.actions.push(Action::Fence(peer));
            self.view_changed(now);
        }
    }

    pub(super) fn send(&mut self, peer: PeerId, message: &Message) {
        self.actions.push(Action::Send { peer, message: message.encode() });
    }

    /// Asks a node for a sign of life, unless it is asked already.
    pub(super) fn ping(&mut self, peer: PeerId, now: u64) {
        if let Some(node) = self.nodes.get_mut(peer).filter(|node| node.pinged_ns.is_none()) {
            node.pinged_ns = Some(now);
            self.send(peer, &Message::Ping);
        }
    }

    fn hello(&mut self, peer: PeerId, hello: Hello, now: u64) {
        match self.nodes.get(peer) {
            Some(node) if node.is_suspect || node.hello.incarnation == hello.incarnation => return,
            // The pool of this engine was closed and opened again. Which of the two heard the last requests is not
            // known.
            Some(node) if node.asked > 0 => return self.suspect(peer, now),
            Some(_) => self.forget(peer, now),
            None => {}
        }
        if let Some(former) = self.nodes.namesake(&hello) {
            // The node may have begun anew, and its former life is not known to be over: if it is silent, it will be.
            self.ping(former, now);
            self.namesakes.insert(peer, hello.clone());
        }
        match self.nodes.greet(peer, hello, now) {
            Ok(()) => {
                // A node that was greeted first has heard this already, and passes it over.
                self.greet(peer);
                self.view_changed(now);
            }
            Err(why) => {
                self.send(peer, &Message::Refused(why.message.clone()));
                self.actions.push(Action::Refused { peer, why });
            }
        }
    }

    fn forget(&mut self, peer: PeerId, now: u64) {
        self.namesakes.remove(&peer);
        self.unfenced.remove(&peer);
        self.parting.remove(&peer);
        self.questions_lost(peer);
        let Some(node) = self.nodes.remove(peer) else { return };
        // Until it is counted anew: calls that go on now do not say that no node has a key.
        self.missing += usize::from(node.hello.is_member);
        for commit in self.telling.forget(peer) {
            self.owner.told(commit);
        }
        self.view_changed(now);
        self.requests_lost(peer, now);
        // It was refused, and hears that before this: it greets again, and asks nothing that it took for lost.
        for (peer, _) in std::mem::take(&mut self.namesakes) {
            self.greet(peer);
        }
    }

    pub fn touch(&mut self, fingerprints: &[u64]) {
        fingerprints.iter().for_each(|fingerprint| self.owner.touch(*fingerprint));
    }

    /// Carries out what the owner wants, and takes out the calls that are over.
    pub(super) fn settle(&mut self, now: u64) {
        self.owner.go_on();
        while let Some(effect) = self.owner.next_effect() {
            match effect {
                Effect::Move { number, asker, op, requests, notify } => {
                    // An asker that is stopped holds the memory of its request no longer than others wait for it.
                    asker.into_iter().for_each(|peer| self.nodes.await_answer(peer, now));
                    let durable = false;
                    self.actions.push(Action::Move { number, peer: asker, op, requests, notify, durable });
                }
                Effect::Copy { number, op, requests } => {
                    let (notify, durable) = (None, op == Op::Write);
                    self.actions.push(Action::Move { number, peer: None, op, requests, notify, durable });
                }
                Effect::Table { number, region, pages } => {
                    self.actions.push(Action::Write { number, region, pages });
                }
                Effect::Sum { number, objects } => {
                    let base = self.base;
                    let range = |piece: crate::store::Piece| (base + piece.offset, piece.bytes);
                    let values = objects.into_iter().map(|pieces| pieces.into_iter().map(range).collect());
                    let (of, values) = (SumOf::Objects(number), values.collect());
                    self.actions.push(Action::Sum { of, values });
                }
                Effect::Tell { number, came } => self.tell_came(number, came, now),
                Effect::Gone(went) => self.tell_went(went),
                Effect::Answer { asker: Some(peer), request, answers } => {
                    if request != 0 {
                        self.send(peer, &Message::Answer { request, answers });
                    }
                }
                Effect::Answer { asker: None, request, answers } => {
                    self.answered(request, None, answers, now)
                }
            }
        }
        self.nodes.set_free(self.owner.store.free_bytes());
    }

    /// A key of a call has ended. The call ends with its last one.
    pub(super) fn end_key(&mut self, id: u64, at: usize, end: KeyEnd) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.end(at, end);
        if call.open > 0 {
            return;
        }
        if let Some(call) = self.calls.remove(&id) {
            let keys = call.ends();
            self.counts.add(&call, &keys, self.nodes.my_id());
            self.ends.push_back(End { call: id, keys });
        }
    }

    pub(super) fn push_end(&mut self, id: u64) {
        self.ends.push_back(End { call: id, keys: Vec::new() });
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
