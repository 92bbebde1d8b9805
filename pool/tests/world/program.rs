//! The programs of the nodes: keys and their values, calls and their memory, and what must be true when a call ends.

use std::collections::{BTreeMap, BTreeSet};

use ferry_pool::node::{Ask, End, KeyEnd};
use ferry_pool::store::{Piece, Store};
use ferry_pool::sum::Sum;
use ferry_pool::wire::{Message, Segment, Wanted};
use ferry_pool::{Digest, Outcome};

use crate::keys::{canary, digest, key_of, twin, value};
use crate::world::{base, Node, World};

const SLOTS: usize = 16;
const SLOT_BYTES: usize = 1024;
pub const CALLERS_BYTES: usize = SLOTS * SLOT_BYTES;
pub const KEYS_OF_CALL: usize = 6;
#[derive(Debug)]
pub struct Open {
    pub ask: Ask,
    /// The memory of each key: its slot of the program's memory, if it has one.
    slots: Vec<Option<usize>>,
    begun: usize,
    /// Sessions of the node that had been lost when it began.
    losses: usize,
    /// Each node was seen by its node, or by one that its node saw.
    sees_all: bool,
    /// It asks what is known to be true.
    is_audit: bool,
}

/// An object that a node holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    since: usize,
    /// When a put of it had ended, or the index was right.
    pub sure: Option<usize>,
    /// The world changed its bytes.
    pub is_bad: bool,
}

/// The calls of one node, and what it holds.
#[derive(Debug, Default)]
pub struct Calls {
    pub open: BTreeMap<u64, Open>,
    slots: [bool; SLOTS],
    pub held: BTreeMap<u64, Held>,
    /// When each key was held here last.
    last_held: BTreeMap<u64, usize>,
    /// When each key came here.
    came: BTreeMap<u64, Vec<usize>>,
    /// The keys and removals that the node heard of.
    removals: BTreeSet<(u64, u64)>,
    /// Keys whose removal is being handled.
    removing: BTreeSet<u64>,
    went: [u64; 2],
    /// Keys of values that a drain of the node has put elsewhere.
    pub drained: BTreeSet<u64>,
    /// When something was evicted here last.
    evicted: usize,
    pub losses: usize,
    pub ended: BTreeMap<&'static str, usize>,
}

/// What the programs did with a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Story {
    open_puts: usize,
    /// The last step at which a put of it may have been under way.
    put: usize,
    /// A put of it ended with its node or its session: the owner may store it later.
    lingers: bool,
    /// When the last removal that ended well began, if no put was under way, and how many nodes had died.
    removed: Option<(usize, usize)>,
    /// Who removed it, if that node was told UNKNOWN or another one was far: it has to meet those that it did not see.
    remover: Option<usize>,
    /// When it was removed somewhere last.
    removal: usize,
    /// Some copy was made bad.
    was_bad: bool,
}

impl Calls {
    /// The calls of the node's next life.
    pub fn restarted(self) -> Calls {
        let Calls { last_held, evicted, ended, .. } = self;
        Calls { last_held, evicted, ended, losses: self.losses + 1, ..Calls::default() }
    }
}

impl World {
    /// The program of a node begins a call.
    pub fn begin(&mut self, node: usize, keys: &[u64], what: usize) {
        let (mut wanted, mut slots) = (Vec::new(), Vec::new());
        let (is_get, is_put) = (what == 0, what == 1);
        for key in keys {
            let mut bytes = value(*key);
            if is_get && self.random.one_in(30) {
                bytes.push(0);
            }
            let slot = if is_get || is_put { self.take_slot(node) } else { None };
            if slot.is_none() && (is_get || is_put) {
                break;
            }
            let segments = slot.map(|slot| self.segments(node, slot, &bytes, is_put)).unwrap_or_default();
            let checksum = (is_put && !self.random.one_in(3)).then(|| Sum::of(&bytes));
            wanted.push(Wanted { digest: digest(*key), checksum, segments });
            slots.push(slot);
        }
        let digests = || keys.iter().map(|key| digest(*key)).collect();
        let ask = match what {
            0 => {
                let checked = vec![self.corrupts || !self.random.one_in(3); wanted.len()];
                Ask::Get { keys: wanted, checked }
            }
            1 => {
                let preferred = self.random.one_in(4).then(|| self.random.below(self.nodes.len()));
                let preferred = preferred.map(|node| self.id(node));
                Ask::Put { keys: wanted, replicas: 1 + self.random.below(3), preferred }
            }
            2 => Ask::Exists { digests: digests(), prefix: self.random.one_in(2) },
            _ => Ask::Remove { digests: digests() },
        };
        self.call(node, ask, slots, false);
    }

    /// Asks for keys when the world is calm: what is held must be found.
    pub fn audit(&mut self, node: usize, keys: &[u64], gets: bool) {
        let ask = if gets {
            let (mut wanted, mut slots) = (Vec::new(), Vec::new());
            for key in keys {
                let slot = self.take_slot(node).expect("no call is open");
                let segments = self.segments(node, slot, &value(*key), false);
                wanted.push(Wanted { digest: digest(*key), checksum: None, segments });
                slots.push(Some(slot));
            }
            return self.call(
                node,
                Ask::Get { checked: vec![true; wanted.len()], keys: wanted },
                slots,
                true,
            );
        } else {
            Ask::Exists { digests: keys.iter().map(|key| digest(*key)).collect(), prefix: false }
        };
        self.call(node, ask, Vec::new(), true);
    }

    fn call(&mut self, node: usize, ask: Ask, slots: Vec<Option<usize>>, is_audit: bool) {
        let step = self.step;
        match &ask {
            Ask::Put { keys, .. } => keys.iter().for_each(|wanted| {
                let story = self.stories.entry(key_of(&wanted.digest)).or_default();
                (story.open_puts, story.put) = (story.open_puts + 1, step);
            }),
            Ask::Remove { digests } => self.removing(node, digests),
            _ => {}
        }
        self.say(|| format!("{node}: {ask:?}"));
        let now = self.time(node);
        let id = self.nodes[node].machine.call(ask.clone(), now);
        let losses = self.nodes[node].calls.losses;
        let sees_all = self.sees_all(node);
        let open = Open { ask, slots, begun: step, losses, sees_all, is_audit };
        self.nodes[node].calls.open.insert(id, open);
        self.settle(node);
    }

    /// A node hears of a removal. If it is passed on, and the node has heard of it, then what the node holds came
    /// later.
    pub fn hears_removal(&mut self, node: usize, removal: u64, is_passed_on: bool, digests: &[Digest]) {
        let heard = &mut self.nodes[node].calls.removals;
        let is_news = |digest: &&Digest| heard.insert((key_of(digest), removal)) || !is_passed_on;
        let news: Vec<Digest> = digests.iter().filter(is_news).copied().collect();
        self.removing(node, &news);
    }

    /// A node is about to remove keys.
    pub fn removing(&mut self, node: usize, digests: &[Digest]) {
        for key in digests.iter().map(key_of) {
            self.nodes[node].calls.removing.insert(key);
            self.stories.entry(key).or_default().removal = self.step;
        }
    }

    fn take_slot(&mut self, node: usize) -> Option<usize> {
        let slot = self.nodes[node].calls.slots.iter().position(|is_used| !is_used)?;
        self.nodes[node].calls.slots[slot] = true;
        self.check_slot(node, slot, &[]);
        Some(slot)
    }

    /// Cuts the memory of a value into segments in any order, with gaps.
    fn segments(&mut self, node: usize, slot: usize, bytes: &[u8], is_put: bool) -> Vec<Segment> {
        let count = 1 + self.random.below(4);
        let mut cuts: Vec<usize> = (1..count).map(|_| self.random.below(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let begin = self.nodes[node].lends as usize + slot * SLOT_BYTES;
        let mut places: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        if self.random.one_in(2) {
            places.reverse();
        }
        let (mut at, mut segments) = (begin + self.random.below(20), Vec::new());
        for (from, to) in places {
            if is_put {
                self.nodes[node].memory[at..at + to - from].copy_from_slice(&bytes[from..to]);
            }
            segments.push((
                from,
                Segment { address: base(node) + at as u64, bytes: (to - from) as u64, region: 1 },
            ));
            at += to - from + self.random.below(20);
        }
        assert!(at <= begin + SLOT_BYTES);
        segments.sort_by_key(|(from, _)| *from);
        segments.into_iter().map(|(_, segment)| segment).collect()
    }

    /// Nothing but these ranges of a slot was written.
    fn check_slot(&self, node: usize, slot: usize, but: &[Segment]) {
        let begin = self.nodes[node].lends as usize + slot * SLOT_BYTES;
        for at in begin..begin + SLOT_BYTES {
            let address = base(node) + at as u64;
            let is_free = !but.iter().any(|it| it.address <= address && address < it.address + it.bytes);
            let found = self.nodes[node].memory[at];
            assert!(!is_free || found == canary(node, at), "{node}: byte {at} of free memory was written");
        }
    }

    /// Checks that nothing was written into memory that belongs to no call.
    pub fn check_free_memory(&self) {
        for node in (0..self.nodes.len()).filter(|node| self.runs(*node)) {
            let free = (0..SLOTS).filter(|slot| !self.nodes[node].calls.slots[*slot]);
            free.for_each(|slot| self.check_slot(node, slot, &[]));
        }
    }

    /// Takes the ends of a node's calls, and looks at what it holds now.
    pub fn take_ends(&mut self, node: usize) {
        loop {
            self.look(node);
            let (now, Node { machine, own_work, is_closing, .. }) = (self.time(node), &mut self.nodes[node]);
            own_work.go_on(machine, *is_closing, now);
            let Some(end) = machine.take_end() else { break };
            if own_work.take(machine, end.call, &end.keys).is_none() {
                match self.nodes[node].calls.open.remove(&end.call) {
                    Some(open) => self.ended(node, open, end),
                    None => assert!(!self.nodes[node].calls.drained.is_empty(), "a call ends once"),
                }
            }
        }
        self.look(node);
    }

    /// A node that is drained puts values elsewhere. If it dies, and they were removed meanwhile, nobody removes them there.
    pub fn note_drained(&mut self, node: usize, message: &[u8]) {
        if self.nodes[node].machine.is_draining() && message[0] == 4 {
            let Ok(Message::Put { keys, .. }) = Message::decode(message) else { return };
            self.nodes[node].calls.drained.extend(keys.iter().map(|wanted| key_of(&wanted.digest)));
        }
    }

    /// Looks at what a node holds: an object goes by eviction, by its removal, or because it is bad.
    fn look(&mut self, node: usize) {
        let step = self.step;
        let machine = &self.nodes[node].machine;
        let now: BTreeSet<u64> = machine.held().iter().map(key_of).collect();
        let counts = machine.stats().owner;
        let moved = counts.drained + counts.drained_here;
        let evictions = counts.evicted + counts.tier_evicted + counts.tier_failed + moved;
        let has_file = machine.tier().is_some();
        let calls = &mut self.nodes[node].calls;
        let mut removing = std::mem::take(&mut calls.removing);
        for open in calls.open.values() {
            let Ask::Remove { digests } = &open.ask else { continue };
            for key in digests.iter().map(key_of) {
                removing.insert(key);
                self.stories.entry(key).or_default().removal = step;
            }
        }
        let gone: Vec<(u64, Held)> =
            calls.held.iter().filter(|(key, _)| !now.contains(key)).map(|(k, h)| (*k, *h)).collect();
        for (key, _) in &gone {
            calls.held.remove(key);
            // It was held when this step began.
            calls.last_held.insert(*key, step);
        }
        let others = gone.iter().filter(|(key, _)| !removing.contains(key));
        let bad = others.clone().filter(|(_, held)| held.is_bad).count() as u64;
        let [evicted, corrupt] = [evictions - calls.went[0], counts.corrupt - calls.went[1]];
        calls.went = [evictions, counts.corrupt];
        calls.evicted = if evicted > 0 { step } else { calls.evicted };
        let good = others.clone().count() as u64 - bad;
        let came: Vec<&u64> = now.iter().filter(|key| !calls.held.contains_key(*key)).collect();
        let news =
            (!gone.is_empty() || !came.is_empty()).then(|| format!("{node}: came {came:?}, went {gone:?}"));
        assert!(
            good <= evicted,
            "{node} lost {:?}: {evicted} evicted, {corrupt} bad",
            others.collect::<Vec<_>>()
        );
        // The bad one of two copies goes.
        let copies = calls.held.values().filter(|held| has_file && held.is_bad).count() as u64;
        assert!(corrupt <= bad + copies + removing.len() as u64, "{node} dropped good bytes");
        for key in now {
            calls.last_held.insert(key, step);
            calls.held.entry(key).or_insert_with(|| {
                calls.came.entry(key).or_default().push(step);
                // A value that rotted in the file is bad in its node's next life too.
                let is_bad = has_file && self.stories.get(&key).is_some_and(|story| story.was_bad);
                Held { since: step, sure: None, is_bad }
            });
        }
        news.into_iter().for_each(|news| self.say(|| news));
    }

    fn ended(&mut self, node: usize, open: Open, end: End) {
        let keys: Vec<u64> = match &open.ask {
            Ask::Get { keys, .. } | Ask::Put { keys, .. } => {
                keys.iter().map(|key| key_of(&key.digest)).collect()
            }
            Ask::Exists { digests, .. } | Ask::Remove { digests } => digests.iter().map(key_of).collect(),
        };
        assert_eq!(keys.len(), end.keys.len());
        self.say(|| format!("{node}: ended {keys:?} {:?}", end.keys));
        let is_prefix = matches!(open.ask, Ask::Exists { prefix: true, .. });
        for (at, (key, how)) in keys.iter().zip(&end.keys).enumerate() {
            *self.nodes[node].calls.ended.entry(how.outcome.name()).or_default() += 1;
            match &open.ask {
                Ask::Get { keys, .. } => self.end_get(node, &open, *key, &keys[at], how, open.slots[at]),
                Ask::Put { keys, .. } => {
                    self.end_put(node, &open, *key, how);
                    self.free_slot(node, open.slots[at], &keys[at].segments);
                }
                Ask::Exists { .. } => self.end_exists(node, &open, *key, how),
                Ask::Remove { .. } => self.end_remove(node, &open, *key, how),
            }
            if is_prefix && !how.outcome.is_ok() {
                break;
            }
        }
    }

    fn end_get(
        &mut self,
        node: usize,
        open: &Open,
        key: u64,
        wanted: &Wanted,
        how: &KeyEnd,
        slot: Option<usize>,
    ) {
        let expected = value(key);
        match how.outcome {
            Outcome::Ok => {
                let mut bytes = Vec::new();
                for segment in &wanted.segments {
                    let at = (segment.address - base(node)) as usize;
                    bytes.extend_from_slice(&self.nodes[node].memory[at..at + segment.bytes as usize]);
                }
                assert!(bytes == expected, "{node} got other bytes for key {key}: {how:?}");
            }
            Outcome::Length => assert_ne!(wanted.bytes(), expected.len() as u64, "key {key} has its length"),
            Outcome::Corrupt => {
                assert!(self.story(key).was_bad, "{node}: good bytes of key {key} are called bad")
            }
            Outcome::Failed => assert!(self.had_faults, "{node}: key {key} failed"),
            Outcome::Absent | Outcome::Unknown | Outcome::Evicted | Outcome::OwnerLost => {}
            other => panic!("{node}: a get of key {key} ended by {other}"),
        }
        self.check_miss(node, open, key, how.outcome, true);
        self.free_slot(node, slot, &wanted.segments);
    }

    fn end_exists(&mut self, node: usize, open: &Open, key: u64, how: &KeyEnd) {
        let known = [Outcome::Ok, Outcome::Absent, Outcome::Unknown];
        assert!(known.contains(&how.outcome), "{node}: exists of key {key} ended by {how:?}");
        self.check_miss(node, open, key, how.outcome, false);
        if open.is_audit
            && how.outcome == Outcome::Ok
            && ![Some(key), twin(key)].into_iter().flatten().any(|key| self.story(key).was_bad)
        {
            // A get from a file may make room meanwhile.
            let was_held = |calls: &Calls, key: u64| {
                calls.held.contains_key(&key) || calls.last_held.get(&key) >= Some(&open.begun)
            };
            let held = |key: u64| self.nodes.iter().any(|node| was_held(&node.calls, key));
            assert!(
                held(key) || twin(key).is_some_and(held),
                "{node}: key {key} exists, and nobody holds it"
            );
        }
    }

    /// A miss is no lie: no node that the caller reached all the time held the key all the time.
    fn check_miss(&mut self, node: usize, open: &Open, key: u64, outcome: Outcome, is_get: bool) {
        let denied = match outcome {
            Outcome::Absent => true,
            Outcome::Evicted | Outcome::OwnerLost => is_get,
            Outcome::Unknown => open.is_audit,
            _ => false,
        };
        for holder in (0..self.nodes.len()).filter(|_| denied) {
            let Some(held) = self.nodes[holder].calls.held.get(&key) else { continue };
            let sure = held.since <= open.begun && held.sure.is_some_and(|sure| sure < open.begun);
            let bad = held.is_bad && is_get;
            let reached = holder == node
                || self.greeted.get(&(node.min(holder), node.max(holder))).is_some_and(|at| *at < open.begun);
            // A node that closes has said so, and gives its memory back.
            let lives = (self.runs(holder) || outcome == Outcome::Absent) && !self.nodes[holder].is_closing;
            assert!(
                !(sure && reached && lives && !bad),
                "{node}: {outcome} for key {key}, which {holder} holds {held:?}, {open:?}"
            );
        }
    }

    fn end_put(&mut self, node: usize, open: &Open, key: u64, how: &KeyEnd) {
        let step = self.step;
        let is_lost = self.nodes[node].calls.losses != open.losses;
        let story = self.stories.entry(key).or_default();
        (story.open_puts, story.put) = (story.open_puts - 1, step);
        story.lingers |= is_lost;
        // An object that comes and goes within one step is not seen: what is held now may be of another put.
        let (removal, is_alone) = (story.removal, story.open_puts == 0);
        match how.outcome {
            Outcome::Ok | Outcome::Here => {
                let holder = (0..self.nodes.len()).find(|at| Some(self.id(*at)) == how.node).expect("a node");
                let calls = &mut self.nodes[holder].calls;
                let last = calls.last_held.get(&key).copied().max(Some(removal)).max(Some(calls.evicted));
                assert!(last >= Some(open.begun), "{node}: {how:?} for key {key}, last {last:?}");
                // An object that was here already, or that came anew, may still be on its way to the index.
                let came = calls
                    .came
                    .get(&key)
                    .map_or(0, |came| came.iter().filter(|at| **at >= open.begun).count());
                if let Some(held) = calls.held.get_mut(&key).filter(|_| {
                    came == usize::from(how.outcome == Outcome::Ok) && removal < open.begun && is_alone
                }) {
                    held.sure = held.sure.or(Some(step));
                }
            }
            Outcome::Failed => assert!(self.had_faults, "{node}: key {key} failed"),
            Outcome::Full | Outcome::TooLong | Outcome::OwnerLost => {}
            other => panic!("{node}: a put of key {key} ended by {other}"),
        }
    }

    fn end_remove(&mut self, node: usize, open: &Open, key: u64, how: &KeyEnd) {
        let (step, sees_all) = (self.step, open.sees_all && self.sees_all(node));
        let is_remembered_here = how.outcome == Outcome::Unknown || !self.far(node).is_empty();
        let story = self.stories.entry(key).or_default();
        story.removal = step;
        if matches!(how.outcome, Outcome::Ok | Outcome::Absent | Outcome::Unknown)
            && sees_all
            && story.open_puts == 0
            && story.put < open.begun
        {
            story.removed = Some((open.begun, self.deaths));
            // The node that is far hears it from the remover.
            story.remover = is_remembered_here.then_some(node);
        }
    }

    /// Memory is the program's again when its call has ended.
    fn free_slot(&mut self, node: usize, slot: Option<usize>, segments: &[Segment]) {
        let Some(slot) = slot else { return };
        self.check_slot(node, slot, segments);
        let begin = self.nodes[node].lends as usize + slot * SLOT_BYTES;
        (begin..begin + SLOT_BYTES).for_each(|at| self.nodes[node].memory[at] = canary(node, at));
        self.nodes[node].calls.slots[slot] = false;
    }

    fn story(&self, key: u64) -> Story {
        self.stories.get(&key).copied().unwrap_or_default()
    }

    /// The puts of a node that dies may still be carried out by others.
    pub fn forget_calls(&mut self, node: usize) {
        self.deaths += 1;
        for open in std::mem::take(&mut self.nodes[node].calls.open).into_values() {
            let Ask::Put { keys, .. } = open.ask else { continue };
            for key in keys {
                let story = self.stories.entry(key_of(&key.digest)).or_default();
                (story.open_puts, story.lingers) = (story.open_puts - 1, true);
            }
        }
        for key in std::mem::take(&mut self.nodes[node].calls.drained) {
            self.stories.entry(key).or_default().lingers = true;
        }
        self.nodes[node].calls.held.clear();
    }

    /// Flips a byte of some object.
    pub fn corrupt(&mut self, node: usize) {
        let keys: Vec<u64> =
            self.nodes[node].calls.held.keys().copied().filter(|key| !value(*key).is_empty()).collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.random.below(keys.len())];
        self.rot(node, key);
    }

    /// Flips a byte of an object that a node holds.
    pub fn rot(&mut self, node: usize, key: u64) {
        let machine = &self.nodes[node].machine;
        let find = |store: &Store, begin: u64| {
            let slot = store.find(&digest(key));
            let at = move |piece: Piece| (begin + piece.offset, piece.bytes);
            slot.into_iter().flat_map(|slot| store.pieces(slot)).map(at).collect::<Vec<_>>()
        };
        let mut pieces = find(machine.store(), base(node));
        let in_file = machine.tier().map(|tier| find(tier, self.file_data(node))).unwrap_or_default();
        if pieces.is_empty() || !in_file.is_empty() && self.random.one_in(2) {
            pieces = in_file;
        }
        let (address, bytes) = pieces[self.random.below(pieces.len())];
        let (at, bit) = (self.random.below(bytes as usize), self.random.below(8));
        self.bytes(address)[at] ^= 1 << bit;
        self.stories.entry(key).or_default().was_bad = true;
        self.nodes[node].calls.held.entry(key).and_modify(|held| held.is_bad = true);
    }

    /// Keys that were removed, and that no put brought back.
    pub fn check_removed(&self) {
        for (key, story) in &self.stories {
            // The memory of a removal is lost with the nodes that have it.
            let is_firm = |(begun, deaths)| story.put < begun && deaths == self.deaths;
            let has_met = story.remover.is_none_or(|remover| self.runs(remover));
            let is_removed = story.removed.is_some_and(is_firm) && !story.lingers && has_met;
            for node in (0..self.nodes.len()).filter(|node| is_removed && self.runs(*node)) {
                let held = self.nodes[node].calls.held.get(key);
                assert!(held.is_none(), "{node}: key {key} was removed, and is back: {held:?} {story:?}");
            }
        }
    }

    /// Each object that is held now must be found by every call that begins later.
    pub fn all_is_sure(&mut self) {
        let step = self.step;
        self.nodes
            .iter_mut()
            .flat_map(|node| node.calls.held.values_mut())
            .for_each(|held| held.sure = Some(step));
        self.step += 1;
    }
}
