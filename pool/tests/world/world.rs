//! Nodes of a pool in a world without engines: it carries out what the machines want, in an order that a seed draws.
//! The bytes are real, so what comes too early, too late or to the wrong place is seen.
//!
//! Messages of two nodes come in order, late, or not at all with their session. A transfer copies each request at its
//! own moment, in pieces, and nothing of it moves after its end was reported. Its notification comes behind all its
//! bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferry::types::{Op, PeerId, RegionId, Request};
use ferry_kv::messages::Joiner;
use ferry_pool::index::NodeId;
use ferry_pool::limits::MESSAGE_BYTES_MAX;
use ferry_pool::node::{Action, Machine, Prefetches, SumOf, Tier};
use ferry_pool::store::table::{Layout, PAGE};
use ferry_pool::store::Store;
use ferry_pool::sum::Sum;
use ferry_pool::wire::{Hello, Load, Message, Segment};
use ferry_pool::Digest;

use crate::keys::{canary, key_of, tenant, value};
use crate::program::{Calls, Story, CALLERS_BYTES};

pub const UNIT: u64 = 64;
const SCRATCH_BYTES: usize = 2048;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    /// Handles nothing until the world lets it go on.
    Stopped,
    Dead,
}

/// What a node has not handled yet, beside messages.
#[derive(Debug)]
pub enum Event {
    Moved(u64, Vec<usize>),
    Sum(SumOf, Vec<Vec<(u64, u64)>>),
    Lost(PeerId),
    Connected(PeerId),
    Fence(PeerId),
}

pub struct Node {
    pub machine: Machine,
    /// The memory that it lends, then its program's, then the scratch of its own work.
    pub memory: Vec<u8>,
    pub own_work: Prefetches,
    pub life: Life,
    pub name: String,
    pub lends: u64,
    /// Its clock is ahead by this.
    pub ahead_ns: u64,
    /// When the machine is to be called again.
    pub due_ns: Option<u64>,
    pub events: Vec<Event>,
    pub calls: Calls,
    /// Nodes that it fences now.
    pub fencing: BTreeSet<PeerId>,
    pub is_closing: bool,
}

/// A connection of two nodes. Each knows the other by a number of its own.
pub struct Session {
    pub ends: [usize; 2],
    pub peers: [PeerId; 2],
    pub is_open: bool,
    /// Messages to the second end, and to the first one.
    pub wires: [VecDeque<Vec<u8>>; 2],
}

/// A transfer that is under way. Some of its bytes may have moved.
pub struct Flight {
    pub node: usize,
    /// None: within the node.
    pub session: Option<usize>,
    pub number: u64,
    op: Op,
    /// What is left of each request, by its number in the transfer.
    left: Vec<(usize, Request)>,
    pub requests: usize,
    failed: Vec<usize>,
    notify: Option<Vec<u8>>,
}

pub struct World {
    pub nodes: Vec<Node>,
    /// The file of each node, which stays when the node dies; units of its data, or none. And pages on their way to it.
    pub files: Vec<Vec<u8>>,
    pub file_units: Vec<u32>,
    /// The first tenant may have a half of each node, and the second one a fourth.
    has_quotas: bool,
    pages: Vec<Vec<u8>>,
    pub sessions: Vec<Session>,
    /// Who is behind a peer number: the session, and the end that uses the number.
    pub peers: BTreeMap<PeerId, (usize, usize)>,
    pub flights: Vec<Flight>,
    pub now: u64,
    pub step: usize,
    pub random: Random,
    next_number: u64,
    /// Transfers fail, fences fail, sessions end.
    pub has_faults: bool,
    speaks: bool,
    /// No table of a file can be written.
    pub tables_fail: bool,
    /// The memory of a stopped node is reached.
    pub reaches_stopped: bool,
    pub had_faults: bool,
    pub corrupts: bool,
    /// Nodes connect again before they have handled the end of their last session.
    pub is_hasty: bool,
    /// A node that nobody connects to.
    pub absent: Option<usize>,
    pub fenced: usize,
    pub deaths: usize,
    pub stories: BTreeMap<u64, Story>,
    /// Since when two nodes have been in touch.
    pub greeted: BTreeMap<(usize, usize), usize>,
}

pub fn base(node: usize) -> u64 {
    (node as u64 + 1) << 40
}

/// A node's file, and the pages on their way to it, have addresses from here on.
const FILE: u64 = 1 << 39;
const PAGES: u64 = 1 << 38;

fn node_at(address: u64) -> usize {
    (address >> 40) as usize - 1
}

fn layout(units: u32) -> Layout {
    Layout { unit_bytes: UNIT, units }
}

impl World {
    pub fn new(lends: &[u64], seed: u64) -> World {
        World::with_files(lends, &vec![0; lends.len()], seed)
    }

    /// Nodes that lend so many bytes, with files of so many units.
    pub fn with_files(lends: &[u64], units: &[u32], seed: u64) -> World {
        World::with_quotas(lends, units, false, seed)
    }

    pub fn with_quotas(lends: &[u64], units: &[u32], has_quotas: bool, seed: u64) -> World {
        let file = |units: &u32| vec![0; layout(*units).data() as usize + *units as usize * UNIT as usize];
        let mut world = World {
            nodes: Vec::new(),
            files: units.iter().map(file).collect(),
            file_units: units.to_vec(),
            has_quotas,
            pages: vec![Vec::new(); units.len()],
            sessions: Vec::new(),
            peers: BTreeMap::new(),
            flights: Vec::new(),
            now: 1,
            step: 0,
            random: Random(seed),
            next_number: 0,
            has_faults: true,
            speaks: std::env::var_os("FERRY_TEST_POOL_SPEAKS").is_some(),
            tables_fail: false,
            reaches_stopped: false,
            had_faults: true,
            corrupts: false,
            is_hasty: false,
            absent: None,
            fenced: 0,
            deaths: 0,
            stories: BTreeMap::new(),
            greeted: BTreeMap::new(),
        };
        for (number, lends) in lends.iter().enumerate() {
            let name = format!("node {number}");
            let node = world.new_node(number, name, *lends);
            world.nodes.push(node);
        }
        world.reaches_stopped = world.random.one_in(2);
        world
    }

    pub fn new_node(&mut self, number: usize, name: String, lends: u64) -> Node {
        self.next_number += 1;
        let load = Load { capacity: lends, free: lends, is_draining: false };
        let me = Hello {
            scheme: 1,
            incarnation: mix(self.next_number),
            is_member: lends > 0,
            load,
            cluster: "world".into(),
            name: name.clone(),
        };
        let callers = lends as usize + CALLERS_BYTES;
        let bytes = callers + SCRATCH_BYTES;
        let address = base(number) + callers as u64;
        let scratch = Segment { address, bytes: SCRATCH_BYTES as u64, region: 1 };
        let mut own_work = Prefetches::default();
        own_work.scratch = (lends > 0).then_some(scratch);
        let mut store = Store::new(lends, UNIT);
        if self.has_quotas {
            store.set_quotas(&[(tenant(0), lends / 2), (tenant(1), lends / 4)]);
        }
        let mut machine = Machine::new(me, store, base(number)).expect("a valid name");
        if self.file_units[number] > 0 {
            let layout = layout(self.file_units[number]);
            let mut store = Store::new(u64::from(layout.units) * UNIT, UNIT);
            let table = &mut self.files[number][layout.table() as usize..layout.data() as usize];
            for (bytes, page) in table.chunks_mut(PAGE).zip(0..) {
                store.restore_page(page, bytes).into_iter().for_each(|mended| bytes.copy_from_slice(&mended));
            }
            machine.set_tier(Tier::new(store, layout, RegionId::from_raw(2), base(number) + FILE));
        }
        Node {
            machine,
            own_work,
            memory: (0..bytes).map(|at| canary(number, at)).collect(),
            life: Life::Runs,
            name,
            lends,
            ahead_ns: 0,
            due_ns: Some(0),
            events: Vec::new(),
            calls: Calls::default(),
            fencing: BTreeSet::new(),
            is_closing: false,
        }
    }

    pub fn id(&self, node: usize) -> NodeId {
        NodeId::of(&self.nodes[node].name)
    }

    pub fn time(&self, node: usize) -> u64 {
        self.now + self.nodes[node].ahead_ns
    }

    pub fn runs(&self, node: usize) -> bool {
        self.nodes[node].life == Life::Runs
    }
    /// The open session of two nodes, and the end that is the first one.
    pub fn session_of(&self, one: usize, other: usize) -> Option<(usize, usize)> {
        let open = self.sessions.iter().enumerate().filter(|(_, session)| session.is_open);
        let mut ours =
            open.filter(|(_, session)| session.ends.contains(&one) && session.ends.contains(&other));
        ours.next().map(|(at, session)| (at, usize::from(session.ends[0] != one)))
    }

    /// Says what happens, if the environment wants it.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.speaks {
            println!("{:>12} {:>5} {}", self.now, self.step, what());
        }
    }

    /// Whether two nodes have a session, and have greeted each other.
    pub fn is_greeted(&self, one: usize, other: usize) -> bool {
        let Some((session, _)) = self.session_of(one, other) else { return false };
        let Session { ends, peers, .. } = &self.sessions[session];
        let sees = |node: &Node, peer: &PeerId| node.machine.knows(*peer) && !node.fencing.contains(peer);
        (0..2).all(|end| sees(&self.nodes[ends[end]], &peers[end]))
    }

    /// Carries out what a machine wants. Each turn of a node ends with this.
    pub fn settle(&mut self, node: usize) {
        let lost = self.missing(node);
        self.nodes[node].machine.set_missing(lost);
        loop {
            for action in self.nodes[node].machine.take_actions() {
                self.act(node, action);
            }
            self.take_ends(node);
            if !self.nodes[node].machine.has_actions() {
                break;
            }
        }
        self.nodes[node].due_ns = Some(0);
        for number in (0..2).filter(|_| self.has_quotas) {
            let (quota, taken) = self.nodes[node].machine.store().quota_of(tenant(number));
            assert!(taken <= quota, "{node}: tenant {number} has {taken} bytes of {quota}");
        }
    }

    fn sees(&self, one: usize, other: usize) -> bool {
        one == other || self.is_greeted(one, other)
    }

    /// The nodes that lend memory and are in touch neither with this one nor with one that is.
    pub fn far(&self, node: usize) -> Vec<usize> {
        let lend = (0..self.nodes.len()).filter(|at| self.nodes[*at].lends > 0);
        let near: Vec<usize> = lend.clone().filter(|at| self.sees(node, *at)).collect();
        lend.filter(|at| !near.iter().any(|near| self.sees(*near, *at))).collect()
    }

    /// Whether no node is far, but for one that is alone.
    pub fn sees_all(&self, node: usize) -> bool {
        let lends = |at: &usize| self.nodes[*at].lends > 0;
        match self.far(node)[..] {
            [] => true,
            [at] => (0..self.nodes.len()).filter(lends).all(|other| other == at || !self.sees(other, at)),
            _ => false,
        }
    }

    /// Nodes of the list that this node does not know.
    fn missing(&self, node: usize) -> usize {
        let others = (0..self.nodes.len()).filter(|other| *other != node && self.nodes[*other].lends > 0);
        others.filter(|other| !self.is_known(node, *other)).count()
    }

    pub fn is_known(&self, node: usize, other: usize) -> bool {
        let session = self.session_of(node, other);
        session.is_some_and(|(at, end)| self.nodes[node].machine.knows(self.sessions[at].peers[end]))
    }

    fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Send { peer, message } => {
                let asks = matches!(message[0], 3 | 4 | 6 | 8 | 12 | 20);
                self.note_drained(node, &message);
                assert!(!asks || !self.nodes[node].fencing.contains(&peer), "{node} asks a suspect");
                let (session, end) = self.peers[&peer];
                if self.sessions[session].is_open {
                    self.sessions[session].wires[end].push_back(message);
                }
            }
            Action::Move { number, peer, op, requests, notify, .. } => {
                let session = peer.map(|peer| self.peers[&peer].0);
                let count = requests.len();
                if session.is_some_and(|session| !self.sessions[session].is_open) {
                    self.nodes[node].events.push(Event::Moved(number, (0..count).collect()));
                    return;
                }
                let left = requests.into_iter().enumerate().collect();
                let failed = Vec::new();
                self.flights.push(Flight {
                    node,
                    session,
                    number,
                    op,
                    left,
                    requests: count,
                    failed,
                    notify,
                });
            }
            Action::Write { number, .. } if self.tables_fail => {
                self.nodes[node].events.push(Event::Moved(number, vec![0]));
            }
            Action::Write { number, region, pages } => {
                let local = |at: usize| base(node) + PAGES + (at * PAGE) as u64;
                let request = |(at, (remote, page)): (usize, &(u64, Vec<u8>))| Request {
                    local: local(at),
                    remote: *remote,
                    length: page.len() as u64,
                    remote_region: region,
                };
                let requests: Vec<Request> = pages.iter().enumerate().map(request).collect();
                self.pages[node] = pages.into_iter().flat_map(|(_, page)| page).collect();
                let (op, durable) = (Op::Write, true);
                let action = Action::Move { number, peer: None, op, requests, notify: None, durable };
                self.act(node, action);
            }
            Action::Sum { of, values } => self.nodes[node].events.push(Event::Sum(of, values)),
            Action::Fence(peer) => {
                self.say(|| format!("{node} suspects {peer:?}"));
                self.nodes[node].fencing.insert(peer);
                self.nodes[node].events.push(Event::Fence(peer));
            }
            // The other life of a node is not known to be over.
            Action::Refused { why, .. } => assert!(self.is_hasty, "{node} is refused, or refuses: {why}"),
        }
    }

    /// Does one thing that is pending. Returns false if nothing is.
    pub fn advance(&mut self) -> bool {
        self.step += 1;
        self.now += self.random.below(2 * 10_000) as u64;
        let first = self.random.below(4);
        (0..4).any(|turn| match (first + turn) % 4 {
            0 => self.deliver(),
            1 => self.move_on(),
            2 => self.handle_event(),
            _ => self.tick(),
        })
    }

    fn deliver(&mut self) -> bool {
        let mut full = Vec::new();
        for (at, session) in self.sessions.iter().enumerate().filter(|(_, session)| session.is_open) {
            for end in 0..2 {
                if !session.wires[end].is_empty() && self.runs(session.ends[1 - end]) {
                    full.push((at, end));
                }
            }
        }
        if full.is_empty() {
            return false;
        }
        let (at, end) = full[self.random.below(full.len())];
        let Some(message) = self.sessions[at].wires[end].pop_front() else { return false };
        self.hear(at, 1 - end, &message);
        true
    }

    /// A node, which is an end of a session, handles a message.
    fn hear(&mut self, session: usize, end: usize, message: &[u8]) {
        let (node, peer) = (self.sessions[session].ends[end], self.sessions[session].peers[end]);
        let message = Message::decode(message).expect("machines send what can be read");
        let from = self.sessions[session].ends[1 - end];
        self.say(|| format!("{from} -> {node}: {message:?}"));
        let counts = self.nodes[node].machine.knows(peer) && !self.nodes[node].fencing.contains(&peer);
        if let (true, Message::Remove { request, removal, digests, .. }) = (counts, &message) {
            self.hears_removal(node, *removal, *request == 0, digests);
        }
        let now = self.time(node);
        self.nodes[node].machine.heard(peer, message, now);
        self.settle(node);
    }

    fn move_on(&mut self) -> bool {
        let open: Vec<usize> = (0..self.flights.len()).filter(|at| self.moves(&self.flights[*at])).collect();
        if open.is_empty() {
            return false;
        }
        let at = open[self.random.below(open.len())];
        if self.flights[at].left.is_empty() {
            self.finish(at);
        } else if self.has_faults && self.random.one_in(150) {
            let request = self.random.below(self.flights[at].left.len());
            let (number, _) = self.flights[at].left.swap_remove(request);
            self.flights[at].failed.push(number);
        } else {
            self.move_piece(at);
        }
        true
    }

    fn moves(&self, flight: &Flight) -> bool {
        let reached =
            |node: usize| self.runs(node) || self.reaches_stopped && self.nodes[node].life != Life::Dead;
        let ends = flight.session.map(|session| self.sessions[session].ends).unwrap_or([flight.node; 2]);
        self.runs(flight.node) && ends.iter().all(|node| reached(*node))
    }

    fn move_piece(&mut self, at: usize) {
        let nth = self.random.below(self.flights[at].left.len());
        let cut = self.random.one_in(3);
        let (op, request) = (self.flights[at].op, self.flights[at].left[nth].1);
        let bytes = if cut { 1 + self.random.below(request.length as usize) as u64 } else { request.length };
        let (from, to) = match op {
            Op::Write => (request.local, request.remote),
            Op::Read => (request.remote, request.local),
        };
        let piece = self.bytes(from)[..bytes as usize].to_vec();
        self.bytes(to)[..bytes as usize].copy_from_slice(&piece);
        let left = &mut self.flights[at].left[nth].1;
        (left.local, left.remote, left.length) =
            (left.local + bytes, left.remote + bytes, left.length - bytes);
        if left.length == 0 {
            self.flights[at].left.swap_remove(nth);
        }
    }

    /// The bytes from an address on.
    pub fn bytes(&mut self, address: u64) -> &mut [u8] {
        let (node, at) = (node_at(address), address - base(node_at(address)));
        let (all, from) = match () {
            _ if at >= FILE => (&mut self.files[node], FILE),
            _ if at >= PAGES => (&mut self.pages[node], PAGES),
            () => (&mut self.nodes[node].memory, 0),
        };
        &mut all[(at - from) as usize..]
    }

    /// Where the file of a node has the data of its objects.
    pub fn file_data(&self, node: usize) -> u64 {
        base(node) + FILE + layout(self.file_units[node]).data()
    }

    fn finish(&mut self, at: usize) {
        let Flight { node, session, number, mut failed, notify, .. } = self.flights.swap_remove(at);
        failed.sort_unstable();
        let is_good = failed.is_empty();
        self.nodes[node].events.push(Event::Moved(number, failed));
        if let (Some(notify), Some(session), true) = (notify, session, is_good) {
            let message = Joiner::default().add(&notify, MESSAGE_BYTES_MAX).expect("a part of a message");
            let end = usize::from(self.sessions[session].ends[0] != node);
            self.sessions[session].wires[end].push_back(message.expect("one part is the message"));
        }
    }

    fn handle_event(&mut self) -> bool {
        let some = |node: &usize| self.runs(*node) && !self.nodes[*node].events.is_empty();
        let nodes: Vec<usize> = (0..self.nodes.len()).filter(some).collect();
        if nodes.is_empty() {
            return false;
        }
        let node = nodes[self.random.below(nodes.len())];
        let at = self.random.below(self.nodes[node].events.len());
        let event = self.nodes[node].events.swap_remove(at);
        self.say(|| format!("{node}: {event:?}"));
        let now = self.time(node);
        match event {
            Event::Moved(number, failed) => self.nodes[node].machine.moved(number, &failed, now),
            Event::Sum(of, values) => {
                let sums: Vec<Option<u64>> = values.iter().map(|value| Some(self.sum(value))).collect();
                self.nodes[node].machine.summed(of, &sums, now);
            }
            Event::Connected(peer) => self.nodes[node].machine.greet(peer),
            Event::Lost(peer) => self.lose(node, peer),
            Event::Fence(peer) if self.has_faults && self.random.one_in(6) => {
                self.nodes[node].machine.not_fenced(peer, self.now);
                self.now += 50_000;
            }
            Event::Fence(peer) => {
                self.fenced += 1;
                self.part(self.peers[&peer].0);
                self.nodes[node].events.retain(|event| !matches!(event, Event::Lost(lost) if *lost == peer));
                self.lose(node, peer);
            }
        }
        self.settle(node);
        true
    }

    fn lose(&mut self, node: usize, peer: PeerId) {
        self.nodes[node].fencing.remove(&peer);
        self.nodes[node].events.retain(|event| !matches!(event, Event::Fence(of) if *of == peer));
        let now = self.time(node);
        self.nodes[node].machine.lost(peer, now);
    }

    fn sum(&self, value: &[(u64, u64)]) -> u64 {
        let mut bytes = Vec::new();
        for (address, length) in value {
            let node = node_at(*address);
            bytes.extend_from_slice(
                &self.nodes[node].memory[(address - base(node)) as usize..][..*length as usize],
            );
        }
        Sum::of(&bytes)
    }

    fn tick(&mut self) -> bool {
        let due = |node: &usize| {
            self.runs(*node) && self.nodes[*node].due_ns.is_some_and(|due| due <= self.time(*node))
        };
        let nodes: Vec<usize> = (0..self.nodes.len()).filter(due).collect();
        if nodes.is_empty() {
            return false;
        }
        let node = nodes[self.random.below(nodes.len())];
        let now = self.time(node);
        let due = self.nodes[node].machine.tick(now);
        self.settle(node);
        self.nodes[node].due_ns = due;
        true
    }

    /// When the next node is due.
    pub fn next_due(&self) -> Option<u64> {
        let of =
            |node: usize| self.nodes[node].due_ns.map(|due| due.saturating_sub(self.nodes[node].ahead_ns));
        (0..self.nodes.len()).filter(|node| self.runs(*node)).filter_map(of).min()
    }

    /// The space of a node is that of its objects.
    pub fn check_space(&self, node: usize) {
        let machine = &self.nodes[node].machine;
        let units = |digest: &Digest| (value(key_of(digest)).len() as u64).div_ceil(UNIT).max(1);
        for store in [Some(machine.store()), machine.tier()].into_iter().flatten() {
            let used: u64 = store.list(0, usize::MAX).0.iter().map(units).sum();
            let taken = store.capacity() - store.free_bytes();
            assert_eq!(taken, used * UNIT, "{node}: {store:?}: {taken} bytes for {used} units");
            for tag in (0..2).map(tenant).filter(|_| self.has_quotas) {
                let all = store.list(0, usize::MAX).0;
                let own: Vec<u64> = all.iter().filter(|digest| digest.tag() == tag).map(units).collect();
                let account = store.account_of(tag).expect("it has a quota");
                let has = (u64::from(account.units), account.objects);
                assert_eq!((own.iter().sum(), own.len() as u64), has, "{node}: {account:?}");
            }
        }
    }

    pub fn is_quiet(&self) -> bool {
        let wires = self.sessions.iter().filter(|session| session.is_open).all(|session| {
            (0..2).all(|end| session.wires[end].is_empty() || !self.runs(session.ends[1 - end]))
        });
        let events = (0..self.nodes.len()).all(|node| self.nodes[node].events.is_empty() || !self.runs(node));
        wires && events && !self.flights.iter().any(|flight| self.moves(flight))
    }
}
