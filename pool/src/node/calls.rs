//! Carries the calls of the program on: which nodes are asked for which keys, and what follows from their answers.
//!
//! ```text
//! get      here? ─▶ index: this node's or a member's ─▶ owner by owner, until one has it
//!          the index does not know ─▶ the other member ─▶ all nodes
//! exists   the same, without the owners
//! put      this node, the preferred one, or by rendezvous ─▶ when one is full or lost, the next
//! remove   all nodes
//! ```

use std::collections::BTreeMap;

use ferry::types::PeerId;

use crate::index::NodeId;
use crate::key::Digest;
use crate::limits::{BYTES_OF_REQUEST_MAX, KEYS_OF_REQUEST_MAX, SEGMENTS_OF_REQUEST_MAX};
use crate::outcome::Outcome;
use crate::wire::{Answer, Message, Wanted, FOUND_NO, FOUND_OWNER, FOUND_UNKNOWN};

use super::call::{KeyEnd, Kind};
use super::machine::{Action, Machine, SumOf};
use super::owner::Asker;

/// A request that a node has not answered.
#[derive(Debug)]
pub struct Asked {
    pub call: u64,
    /// Places of the keys in the call.
    pub keys: Vec<usize>,
    pub to: Asker,
    pub what: What,
    /// A node was missing when this was asked: the answer says nothing of what that node has.
    pub is_partial: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Find,
    Have,
    Get,
    Put,
    Remove,
}

impl Machine {
    pub(super) fn start(&mut self, id: u64, now: u64) {
        let Some(call) = self.calls.get(&id) else { return };
        let (kind, all) = (call.kind, (0..call.keys.len()).collect::<Vec<usize>>());
        match kind {
            _ if all.is_empty() => self.end_empty(id),
            Kind::Get | Kind::Exists { .. } => {
                let (here, elsewhere) = self.split_here(id, &all);
                if matches!(kind, Kind::Get) {
                    self.ask(id, here, None, What::Get, now);
                    self.take_hints(id, elsewhere, now);
                } else {
                    self.exist_here(id, &here);
                    self.look_up(id, elsewhere, now);
                }
            }
            Kind::Put { .. } => self.place(id, all, now),
            Kind::Remove => self.ask_all(id, all, What::Remove, now),
        }
    }

    /// A call without keys has ended.
    fn end_empty(&mut self, id: u64) {
        self.calls.remove(&id);
        self.push_end(id);
    }

    fn split_here(&self, id: u64, keys: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let Some(call) = self.calls.get(&id) else { return Default::default() };
        let is_here = |at: &&usize| self.owner.held(&call.keys[**at].wanted.digest).is_some();
        keys.iter().partition(is_here)
    }

    /// Keys that this node holds itself. A prefix is touched from its end on, so that its tail goes first.
    fn exist_here(&mut self, id: u64, keys: &[usize]) {
        let me = self.nodes.my_id();
        for at in keys.iter().rev() {
            let Some(digest) = self.calls.get(&id).map(|call| call.keys[*at].wanted.digest) else { return };
            let Some((bytes, _)) = self.owner.held(&digest) else { continue };
            self.owner.touch(digest.fingerprint());
            self.end_key(id, *at, KeyEnd { outcome: Outcome::Ok, bytes, node: Some(me) });
        }
    }

    /// Asks the owners that this node remembers, and looks the other keys up.
    fn take_hints(&mut self, id: u64, keys: Vec<usize>, now: u64) {
        let (mut hinted, mut unknown) = (Vec::new(), Vec::new());
        for at in keys {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let key = &mut call.keys[at];
            let owner = self.hints.get(key.wanted.digest.fingerprint());
            match owner.filter(|owner| self.nodes.peer_of(*owner).is_some()) {
                Some(owner) => {
                    (key.owners, key.is_hinted) = (vec![owner], true);
                    hinted.push(at);
                }
                None => unknown.push(at),
            }
        }
        self.ask_owners(id, hinted, now);
        self.look_up(id, unknown, now);
    }

    /// Asks the next index member of each key, or all nodes if the members do not know.
    fn look_up(&mut self, id: u64, keys: Vec<usize>, now: u64) {
        let me = self.nodes.my_id();
        let (mut mine, mut theirs, mut nobody) =
            (Vec::new(), BTreeMap::<PeerId, Vec<usize>>::new(), Vec::new());
        for at in keys {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let key = &mut call.keys[at];
            let homes = self.nodes.members().index().homes(key.wanted.digest.fingerprint());
            // This node is asked first if it is one of the two.
            let others = homes.ids().iter().filter(|home| **home != me);
            let homes = homes.ids().iter().filter(|home| **home == me).chain(others);
            let mut homes = homes.skip(key.homes_asked);
            loop {
                let Some(home) = homes.next() else { break nobody.push(at) };
                key.homes_asked += 1;
                if *home == me {
                    break mine.push(at);
                }
                if let Some(peer) = self.nodes.peer_of(*home) {
                    break theirs.entry(peer).or_default().push(at);
                }
            }
        }
        for (peer, keys) in theirs {
            self.ask(id, keys, Some(peer), What::Find, now);
        }
        if !mine.is_empty() {
            let fingerprints = self.fingerprints(id, &mine);
            let (owners, found) = self.find(self.nodes.view(), &fingerprints, now);
            let asked = Asked { call: id, keys: mine, to: None, what: What::Find, is_partial: false };
            self.take_found(asked, &owners, &found, now);
        }
        self.ask_all(id, nobody, What::Have, now);
    }

    fn fingerprints(&self, id: u64, keys: &[usize]) -> Vec<u64> {
        let Some(call) = self.calls.get(&id) else { return Vec::new() };
        keys.iter().map(|at| call.keys[*at].wanted.digest.fingerprint()).collect()
    }

    fn digests(&self, id: u64, keys: &[usize]) -> Vec<Digest> {
        let Some(call) = self.calls.get(&id) else { return Vec::new() };
        keys.iter().map(|at| call.keys[*at].wanted.digest).collect()
    }

    /// An index member's answer.
    pub(super) fn found(&mut self, request: u64, from: PeerId, owners: &[u64], found: &[u8], now: u64) {
        if self.asked.get(&request).is_some_and(|asked| asked.to == Some(from) && asked.what != What::Find) {
            // Bytes may be on their way for this request: only the fence says when they are not.
            return self.suspect(from, now);
        }
        let Some(asked) = self.take_asked(request, Some(from)) else { return };
        if found.len() != asked.keys.len() {
            return self.look_up(asked.call, asked.keys, now);
        }
        self.take_found(asked, owners, found, now);
    }

    fn take_found(&mut self, asked: Asked, owners: &[u64], found: &[u8], now: u64) {
        let (id, is_partial) = (asked.call, asked.is_partial || self.missing > 0);
        let answered = asked.to;
        let (mut again, mut with_owner) = (Vec::new(), Vec::new());
        let mut touched = BTreeMap::<NodeId, Vec<u64>>::new();
        for (at, found) in asked.keys.iter().zip(found) {
            let Some(call) = self.calls.get_mut(&id) else { return };
            match *found {
                FOUND_UNKNOWN => again.push(*at),
                // The index knows what those have who are there.
                FOUND_NO if is_partial => self.end_key(id, *at, KeyEnd::of(Outcome::Unknown)),
                FOUND_NO => self.end_key(id, *at, KeyEnd::of(Outcome::Absent)),
                number => {
                    let Some(owner) = owners.get(usize::from(number - FOUND_OWNER)) else { continue };
                    let owner = NodeId(*owner);
                    call.keys[*at].owners = vec![owner];
                    self.hints.add(call.keys[*at].wanted.digest.fingerprint(), owner);
                    if matches!(call.kind, Kind::Exists { .. }) {
                        touched.entry(owner).or_default().push(call.keys[*at].wanted.digest.fingerprint());
                        self.end_key(id, *at, KeyEnd { outcome: Outcome::Ok, bytes: 0, node: Some(owner) });
                    } else {
                        with_owner.push(*at);
                    }
                }
            }
        }
        for (owner, mut fingerprints) in touched {
            // The member that answers has touched what it has itself.
            if let Some(peer) = self.nodes.peer_of(owner).filter(|peer| Some(*peer) != answered) {
                fingerprints.reverse();
                self.send(peer, &Message::Touch(fingerprints));
            }
        }
        self.ask_owners(id, with_owner, now);
        self.look_up(id, again, now);
    }

    /// Asks the next owner of each key. If none of the owners that the index named has a key, all nodes are asked for
    /// it: a replica is no miss. A key that none of those has is at its end.
    fn ask_owners(&mut self, id: u64, keys: Vec<usize>, now: u64) {
        let me = self.nodes.my_id();
        let (mut by_owner, mut nobody) = (BTreeMap::<Asker, Vec<usize>>::new(), Vec::new());
        for at in keys {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let key = &mut call.keys[at];
            let next = loop {
                match key.owners.pop() {
                    None => break None,
                    Some(owner) if owner == me => break Some(None),
                    Some(owner) => match self.nodes.peer_of(owner) {
                        Some(peer) => break Some(Some(peer)),
                        None => key.reason = Outcome::OwnerLost,
                    },
                }
            };
            let (reason, all_asked) = (key.reason, key.all_asked);
            match next {
                Some(asker) => by_owner.entry(asker).or_default().push(at),
                None if !all_asked => nobody.push(at),
                None => self.end_key(id, at, KeyEnd::of(reason)),
            }
        }
        for (asker, keys) in by_owner {
            self.ask(id, keys, asker, What::Get, now);
        }
        self.ask_all(id, nobody, What::Have, now);
    }

    /// Asks all nodes that lend memory. Keys end when the last of them has answered.
    fn ask_all(&mut self, id: u64, keys: Vec<usize>, what: What, now: u64) {
        if keys.is_empty() {
            return;
        }
        let members: Vec<Asker> = {
            let me = self.nodes.me().is_member.then_some(None);
            me.into_iter().chain(self.nodes.members_here().map(|(peer, _)| Some(peer))).collect()
        };
        for at in &keys {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let key = &mut call.keys[*at];
            (key.awaited, key.all_asked) = (members.len(), true);
        }
        if members.is_empty() {
            return keys.into_iter().for_each(|at| self.end_key(id, at, KeyEnd::of(Outcome::Unknown)));
        }
        for member in members {
            self.ask(id, keys.clone(), member, what, now);
        }
    }

    /// Asks a node, or this one, in requests of bounded size.
    pub(super) fn ask(&mut self, id: u64, keys: Vec<usize>, to: Asker, what: What, now: u64) {
        for keys in self.cut(id, keys, what) {
            self.next += 1;
            let request = self.next;
            let wanted = || -> Vec<Wanted> {
                let call = self.calls.get(&id);
                keys.iter().filter_map(|at| Some(call?.keys[*at].wanted.clone())).collect()
            };
            let message = match what {
                What::Get => Message::Get { request, keys: wanted() },
                What::Put => Message::Put { request, keys: wanted() },
                What::Have => Message::Have { request, digests: self.digests(id, &keys) },
                What::Remove => {
                    let me = self.nodes.my_id();
                    let asked =
                        self.nodes.members_here().map(|(_, id)| id).chain([me]).map(|id| id.0).collect();
                    let removal = self.nodes.me().incarnation.wrapping_add(request);
                    Message::Remove { request, removal, asked, digests: self.digests(id, &keys) }
                }
                What::Find => Message::Find {
                    request,
                    view: self.nodes.view(),
                    fingerprints: self.fingerprints(id, &keys),
                },
            };
            self.asked.insert(request, Asked { call: id, keys, to, what, is_partial: self.missing > 0 });
            match (to, message) {
                (Some(peer), message) => {
                    self.nodes.await_answer(peer, now);
                    self.send(peer, &message);
                }
                (None, Message::Get { keys, .. }) => self.owner.get(None, request, keys),
                (None, Message::Put { keys, .. }) => self.owner.put(None, request, keys),
                (None, Message::Have { digests, .. }) => self.owner.have(None, request, &digests),
                (None, Message::Remove { removal, digests, .. }) => {
                    self.telling.bury(&digests, removal, now);
                    self.owner.remove(None, request, &digests);
                }
                (None, _) => {}
            }
        }
    }

    /// Cuts keys into requests: bounded, so that one is summed while the next one moves.
    fn cut(&self, id: u64, keys: Vec<usize>, what: What) -> Vec<Vec<usize>> {
        let Some(call) = self.calls.get(&id) else { return Vec::new() };
        if keys.is_empty() {
            return Vec::new();
        }
        let moves = matches!(what, What::Get | What::Put);
        let mut requests = vec![Vec::new()];
        let (mut bytes, mut segments) = (0, 0);
        for at in keys {
            let wanted = &call.keys[at].wanted;
            let last = requests.last().map_or(0, Vec::len);
            let is_full = last >= KEYS_OF_REQUEST_MAX
                || moves
                    && last > 0
                    && (bytes + wanted.bytes() > BYTES_OF_REQUEST_MAX
                        || segments + wanted.segments.len() > SEGMENTS_OF_REQUEST_MAX);
            if is_full {
                requests.push(Vec::new());
                (bytes, segments) = (0, 0);
            }
            (bytes, segments) = (bytes + wanted.bytes(), segments + wanted.segments.len());
            if let Some(last) = requests.last_mut() {
                last.push(at);
            }
        }
        requests
    }

    /// Takes out a request that this node has answered.
    fn take_asked(&mut self, request: u64, from: Asker) -> Option<Asked> {
        self.asked.get(&request).filter(|asked| asked.to == from)?;
        if let Some(peer) = from {
            self.nodes.answered(peer);
        }
        self.asked.remove(&request)
    }

    /// An owner's answer.
    pub(super) fn answered(&mut self, request: u64, from: Asker, answers: Vec<Answer>, now: u64) {
        let Some(asked) = self.take_asked(request, from) else { return };
        let node = match from {
            None => Some(self.nodes.my_id()),
            Some(peer) => self.nodes.get(peer).map(|node| node.id),
        };
        let failed = answers.len() != asked.keys.len();
        let end = |answer: &Answer| KeyEnd { outcome: answer.outcome, bytes: answer.length, node };
        let ends: Vec<KeyEnd> = if failed {
            vec![KeyEnd::of(Outcome::Failed); asked.keys.len()]
        } else {
            answers.iter().map(end).collect()
        };
        let is_checked = |(at, end): (&usize, &KeyEnd)| {
            let key = self.calls.get(&asked.call).map(|call| &call.keys[*at]);
            end.outcome == Outcome::Ok && key.is_some_and(|key| key.is_checked)
        };
        if asked.what == What::Get && !failed && asked.keys.iter().zip(&ends).any(is_checked) {
            return self.sum_what_came(asked, ends, &answers);
        }
        self.take_ends(asked, &ends, now);
    }

    /// The CPU looks at what came before the program does.
    fn sum_what_came(&mut self, mut asked: Asked, ends: Vec<KeyEnd>, answers: &[Answer]) {
        let Some(call) = self.calls.get_mut(&asked.call) else { return };
        let mut values = Vec::new();
        for ((at, end), answer) in asked.keys.iter().zip(&ends).zip(answers) {
            let key = &mut call.keys[*at];
            key.wanted.checksum = Some(answer.checksum);
            if end.outcome == Outcome::Ok && key.is_checked {
                values.push(
                    key.wanted.segments.iter().map(|segment| (segment.address, segment.bytes)).collect(),
                );
            }
        }
        self.next += 1;
        asked.what = What::Get;
        self.came.insert(self.next, (asked, ends));
        self.actions.push(Action::Sum { of: SumOf::Came(self.next), values });
    }

    pub(super) fn came_summed(&mut self, number: u64, sums: &[Option<u64>], now: u64) {
        let Some((asked, mut ends)) = self.came.remove(&number) else { return };
        let mut sums = sums.iter();
        let mut doubted = Vec::new();
        for (at, end) in asked.keys.iter().zip(&mut ends).filter(|(_, end)| end.outcome == Outcome::Ok) {
            let Some(call) = self.calls.get(&asked.call) else { return };
            let key = &call.keys[*at];
            if !key.is_checked {
                continue;
            }
            let wanted = &key.wanted;
            match sums.next() {
                Some(Some(sum)) if Some(*sum) == wanted.checksum => {}
                Some(Some(_)) => {
                    end.outcome = Outcome::Corrupt;
                    doubted.push(wanted.digest);
                }
                _ => end.outcome = Outcome::Failed,
            }
        }
        match asked.to {
            _ if doubted.is_empty() => {}
            Some(peer) => self.send(peer, &Message::Doubt(doubted)),
            None => self.owner.doubt(&doubted),
        }
        self.take_ends(asked, &ends, now);
    }

    /// What follows from how the keys of a request ended.
    fn take_ends(&mut self, asked: Asked, ends: &[KeyEnd], now: u64) {
        let Asked { call: id, keys, what, is_partial, .. } = asked;
        let is_missing = is_partial || self.missing > 0;
        let (mut next, mut unhinted) = (Vec::new(), Vec::new());
        for (at, end) in keys.iter().zip(ends) {
            let Some(key) = self.calls.get_mut(&id).map(|call| &mut call.keys[*at]) else { return };
            match (what, end.outcome) {
                (What::Get, Outcome::Ok | Outcome::Length | Outcome::Failed) => self.end_key(id, *at, *end),
                (What::Get, _) if std::mem::take(&mut key.is_hinted) => {
                    self.hints.remove(key.wanted.digest.fingerprint());
                    unhinted.push(*at);
                }
                (What::Get, outcome) => {
                    key.reason = match outcome {
                        Outcome::Absent => Outcome::Evicted,
                        outcome => outcome,
                    };
                    next.push(*at);
                }
                (What::Find, _) => next.push(*at),
                (What::Have | What::Put | What::Remove, _) => {
                    key.awaited -= 1;
                    key.note(*end, what == What::Remove);
                    if what == What::Remove && end.outcome == Outcome::OwnerLost {
                        key.reason = Outcome::OwnerLost;
                    }
                    if what == What::Have && end.outcome == Outcome::Ok {
                        key.owners.extend(end.node);
                    }
                    if let (What::Put, true, Some(node)) = (what, end.outcome.is_ok(), end.node) {
                        self.hints.add(key.wanted.digest.fingerprint(), node);
                    }
                    if key.awaited > 0 {
                        continue;
                    }
                    let (best, reason) = (key.best.unwrap_or(*end), key.reason);
                    if what == What::Remove && reason == Outcome::OwnerLost {
                        // The others may see the node that this one has lost.
                        key.reason = Outcome::Absent;
                        next.push(*at);
                        continue;
                    }
                    let is_exists = !matches!(self.calls.get(&id).map(|call| call.kind), Some(Kind::Get));
                    match (what, best.outcome) {
                        (What::Have, Outcome::Ok) if !is_exists => next.push(*at),
                        (What::Have, Outcome::Absent | Outcome::OwnerLost) => {
                            let is_known = best.outcome == Outcome::Absent && !is_missing;
                            let outcome = match reason {
                                Outcome::Absent if !is_known => Outcome::Unknown,
                                reason => reason,
                            };
                            self.end_key(id, *at, KeyEnd::of(outcome));
                        }
                        (What::Remove, Outcome::Absent) if is_missing => {
                            self.end_key(id, *at, KeyEnd::of(Outcome::Unknown))
                        }
                        (What::Put, outcome) if !outcome.is_ok() && outcome != Outcome::Failed => {
                            next.push(*at)
                        }
                        _ => self.end_key(id, *at, best),
                    }
                }
            }
        }
        self.look_up(id, unhinted, now);
        match what {
            _ if next.is_empty() => {}
            What::Get | What::Have => self.ask_owners(id, next, now),
            What::Find => self.look_up(id, next, now),
            What::Put => self.place(id, next, now),
            What::Remove => self.ask_all(id, next, what, now),
        }
    }

    /// The requests to a peer will not be answered.
    pub(super) fn requests_lost(&mut self, peer: PeerId, now: u64) {
        let lost: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.to == Some(peer))
            .map(|(request, _)| *request)
            .collect();
        for request in lost {
            let Some(asked) = self.asked.remove(&request) else { continue };
            let ends = vec![KeyEnd::of(Outcome::OwnerLost); asked.keys.len()];
            self.take_ends(asked, &ends, now);
        }
    }
}
