//! One machine, and what it wanted so far. Messages of the machine reach their peers at once unless the test holds them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ferry::status::Error;
use ferry::types::{Op, PeerId};
use ferry::Status;
use ferry_kv::handoff::limits::UNSENT_MAX;
use ferry_kv::handoff::wire::{Key, Message, Take};
use ferry_kv::handoff::{
    Action, BlockList, End, Event, HandoffId, Machine, Mode, OfferSpec, Other, PostId, TakeSpec, Work,
};
use ferry_kv::layout::{GroupKind, Layout};
use ferry_kv::messages::parts;
use ferry_kv::plan::{Plan, Strided};

use crate::caches::{layouts, Shape};

pub const INCARNATION: u64 = 100;
pub const LEASE: u64 = 1_000_000_000;
pub const SILENCE: u64 = 4_000_000_000;
/// The tokens of the offers and takes here: four blocks of four.
pub const TOKENS: u64 = 16;

pub struct Posted {
    pub post: PostId,
    pub peer: PeerId,
    pub op: Op,
    pub moves: Vec<Strided>,
}

pub struct Rig {
    pub machine: Machine,
    pub now: u64,
    pub sent: Vec<(PeerId, Message)>,
    pub posts: Vec<Posted>,
    pub cancels: Vec<PostId>,
    pub fences: Vec<PeerId>,
    pub probes: Vec<PeerId>,
    pub events: Vec<Event>,
    pub holds_messages: bool,
}

pub fn id(number: u8) -> HandoffId {
    HandoffId::from_bytes([number; 16])
}

pub fn peer(number: u64) -> PeerId {
    PeerId::from_raw(number)
}

pub fn key(number: u8, take: u64) -> Key {
    Key { id: id(number), take }
}

pub fn tp(ranks: u32) -> Vec<Layout> {
    layouts(Shape::plain(ranks, 1, 4), 0)
}

pub fn one() -> Layout {
    tp(1).remove(0)
}

/// As `one`, with blocks for a hundred takes.
pub fn spacious() -> Layout {
    let mut layout = one();
    for (at, memory) in (1..).zip(layout.layers.iter_mut().flat_map(|layer| &mut layer.memory)) {
        (memory.address, memory.blocks) = (at << 32, 1_024);
        memory.strides.pair = memory.blocks * memory.strides.block;
    }
    layout
}

/// The ranks of a producer that has more than it needs for a consumer of one rank, and those that send nothing.
pub fn with_idle() -> (Vec<Layout>, Vec<u32>) {
    let ranks = tp(16);
    let plan = Plan::between(&ranks[0], &one()).unwrap();
    let idle = (0..16).filter(|rank| plan.targets_of(*rank).is_empty()).collect();
    (ranks, idle)
}

/// One rank with a window between two layers of the first group.
pub fn mixed() -> Layout {
    let shape = Shape { middle: Some(GroupKind::Window { tokens: 6 }), ..Shape::plain(1, 1, 4) };
    layouts(shape, 0).remove(0)
}

pub fn blocks(ids: Range<u32>) -> Vec<BlockList> {
    vec![BlockList { first_token: 0, ids: ids.collect() }]
}

/// A TAKE of the first rank of group 0.
pub fn take(number: u8, take: u64, is_push: bool) -> Take {
    let blocks = if is_push { blocks(0..4) } else { Vec::new() };
    let (key, incarnation) = (key(number, take), INCARNATION);
    let wanted = u64::MAX;
    Take { key, incarnation, group: 0, rank: 0, is_push, skip: 0, tokens: TOKENS, wanted, blocks }
}

pub fn offer_spec(number: u8, takers: u32) -> OfferSpec {
    let lease = Duration::from_nanos(LEASE);
    OfferSpec { id: id(number), blocks: blocks(0..4), takers, only: Vec::new(), lease }
}

/// A take into blocks of its own.
pub fn take_spec(number: u8, producers: u64, mode: Mode) -> TakeSpec {
    let first = 4 * u32::from(number.saturating_sub(1));
    TakeSpec {
        id: id(number),
        producers: (1..=producers).map(peer).collect(),
        taker: 0,
        blocks: blocks(first..first + 4),
        skip_tokens: 0,
        tokens: TOKENS,
        mode,
        deadline: None,
        tell_layers: false,
    }
}

pub fn work(layers: Range<u32>, tokens: Range<u64>) -> Work {
    Work { layers, tokens }
}

pub fn done(key: Key) -> Message {
    done_in(0, key)
}

pub fn done_in(epoch: u64, key: Key) -> Message {
    Message::Final { key, epoch, status: Status::Ok, why: String::new() }
}

pub fn final_with(key: Key, status: Status) -> Message {
    Message::Final { key, epoch: 0, status, why: "given up".into() }
}

pub fn cancelling(key: Key) -> Message {
    Message::Cancel { key, status: Status::Cancelled, why: "given up".into() }
}

pub fn ended(key: Key, status: Status) -> Message {
    Message::Ended { key, status, why: "told".into() }
}

pub fn update(key: Key, ready: u64) -> Message {
    Message::Update { key, epoch: 0, ready: vec![ready; 3], added: blocks(0..4) }
}

/// A machine of one rank that its peers have greeted, each with the next of these layouts.
pub fn greeted(peers: impl IntoIterator<Item = u64>, layouts: impl IntoIterator<Item = Layout>) -> Rig {
    let mut rig = Rig::new(one());
    for (number, layout) in peers.into_iter().zip(layouts) {
        rig.hello(peer(number), &layout);
    }
    rig.sent.clear();
    rig
}

/// A consumer that has asked peer 1, whose layout is the same, for a take.
pub fn asking(layout: Layout, spec: TakeSpec) -> (Rig, Key) {
    let mut rig = Rig::new(layout.clone());
    rig.hello(peer(1), &layout);
    rig.take(spec);
    let key = rig.asked(peer(1));
    (rig, key)
}

/// Delivers all messages, and those that they cause.
pub fn deliver(rigs: &mut [Rig]) {
    while let Some(from) = rigs.iter().position(|rig| !rig.sent.is_empty()) {
        for (to, message) in std::mem::take(&mut rigs[from].sent) {
            rigs[to.raw() as usize - 1].hear(peer(from as u64 + 1), message);
        }
    }
}

/// Ends the first transfer of a rig.
pub fn moved(rigs: &mut [Rig], at: usize, result: Result<(), Error>) {
    rigs[at].moved(result);
}

impl Rig {
    pub fn new(layout: Layout) -> Rig {
        let silence = Duration::from_nanos(SILENCE);
        Rig {
            machine: Machine::new(Arc::new(layout), INCARNATION, Vec::new(), silence),
            now: 0,
            sent: Vec::new(),
            posts: Vec::new(),
            cancels: Vec::new(),
            fences: Vec::new(),
            probes: Vec::new(),
            events: Vec::new(),
            holds_messages: false,
        }
    }

    /// Does what the machine wants.
    pub fn settle(&mut self) {
        while let actions @ [_, ..] = &self.machine.take_actions()[..] {
            actions.iter().cloned().for_each(|action| self.act(action));
        }
        self.events.extend(std::iter::from_fn(|| self.machine.take_event()));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { peer, message, of } => {
                self.sent.push((peer, Message::decode(&message).expect("a message")));
                if !self.holds_messages {
                    self.machine.sent(peer, of, Ok(()), self.now);
                }
            }
            Action::Post { post, peer, op, moves } => {
                assert!(!moves.is_empty(), "a transfer moves something");
                self.posts.push(Posted { post, peer, op, moves });
            }
            Action::Cancel { post } => self.cancels.push(post),
            Action::Probe { peer } => self.probes.push(peer),
            Action::Fence { peer } => self.fences.push(peer),
        }
    }

    pub fn hear_bytes(&mut self, peer: PeerId, message: &[u8]) {
        for part in parts(message, 1_000) {
            self.machine.notification(peer, &part, self.now);
        }
        self.settle();
    }

    pub fn hear(&mut self, peer: PeerId, message: Message) {
        self.hear_bytes(peer, &message.encode().unwrap());
    }

    pub fn hello(&mut self, peer: PeerId, layout: &Layout) {
        let layout = Box::new(layout.clone());
        self.hear(peer, Message::Hello { incarnation: 7, regions: Vec::new(), layout });
    }

    /// Takes what was said to a peer since the last time.
    pub fn told(&mut self, peer: PeerId) -> Vec<Message> {
        let (told, others) = std::mem::take(&mut self.sent).into_iter().partition(|(to, _)| *to == peer);
        self.sent = others;
        let told: Vec<(PeerId, Message)> = told;
        told.into_iter().map(|(_, message)| message).collect()
    }

    /// The peers answer the PINGs that they were sent.
    pub fn pongs(&mut self) {
        for (from, message) in std::mem::take(&mut self.sent) {
            if let Message::Ping(number) = message {
                self.hear(from, Message::Pong(number));
            }
        }
    }

    /// The status and the sentence of the ENDED that a peer was told, and only one.
    pub fn told_end(&mut self, peer: PeerId) -> Option<(Status, String)> {
        let told = self.told(peer).into_iter().filter_map(|message| match message {
            Message::Ended { status, why, .. } => Some((status, why)),
            _ => None,
        });
        let told: Vec<(Status, String)> = told.collect();
        assert!(told.len() < 2, "{told:?}");
        told.into_iter().next()
    }

    pub fn told_status(&mut self, peer: PeerId) -> Option<Status> {
        self.told_end(peer).map(|(status, _)| status)
    }

    /// A peer's questions leave no room for other messages to it, as long as the rig holds messages.
    pub fn fill(&mut self, peer: PeerId) {
        (0..UNSENT_MAX).for_each(|_| self.hear(peer, Message::Ping(1)));
    }

    /// The number of the take that a peer was asked for.
    pub fn asked(&mut self, peer: PeerId) -> Key {
        let mut takes = self.told(peer).into_iter().filter_map(|message| match message {
            Message::Take(take) => Some(take.key),
            _ => None,
        });
        takes.next_back().expect("a TAKE was sent")
    }

    pub fn offer(&mut self, number: u8, takers: u32) {
        self.offer_as(offer_spec(number, takers));
    }

    pub fn offer_as(&mut self, spec: OfferSpec) {
        self.machine.offer(spec, self.now).unwrap();
        self.settle();
    }

    pub fn abort(&mut self, number: u8) {
        self.machine.offer_cancel(id(number), self.now).unwrap();
        self.settle();
    }

    /// All tokens are computed, and the offer is sealed.
    pub fn seal(&mut self, number: u8) {
        self.machine.offer_ready(id(number), 0..3, TOKENS, self.now).unwrap();
        self.seal_at(number, TOKENS);
    }

    /// Seals an offer without another word of what is computed.
    pub fn seal_at(&mut self, number: u8, tokens: u64) {
        self.machine.offer_seal(id(number), tokens, self.now).unwrap();
        self.settle();
    }

    pub fn ready(&mut self, number: u8, layers: Range<u32>, tokens: u64) {
        self.machine.offer_ready(id(number), layers, tokens, self.now).unwrap();
        self.settle();
    }

    /// Begins to take back the tokens from `from` on.
    pub fn retract(&mut self, number: u8, from: u64) -> u64 {
        let retract = self.machine.offer_retract(id(number), from, self.now).unwrap();
        self.settle();
        retract
    }

    pub fn take(&mut self, spec: TakeSpec) {
        self.machine.take(spec, self.now).unwrap();
        self.settle();
    }

    pub fn cancel(&mut self, number: u8) {
        self.machine.take_cancel(id(number), self.now).unwrap();
        self.settle();
    }

    pub fn tick(&mut self, now: u64) -> Option<u64> {
        self.now = now;
        let next = self.machine.tick(now);
        self.settle();
        next
    }

    /// The first transfer that is under way is final.
    pub fn moved(&mut self, result: Result<(), Error>) -> Posted {
        let posted = self.posts.remove(0);
        self.machine.moved(posted.post, result, self.now);
        self.settle();
        posted
    }

    pub fn all_moved(&mut self) {
        while !self.posts.is_empty() {
            self.moved(Ok(()));
        }
    }

    pub fn lost(&mut self, peer: PeerId) {
        self.machine.peer_lost(peer, "it is gone", self.now);
        self.settle();
    }

    pub fn end_of(&self, number: u8) -> Option<(End, Status)> {
        let ends = self.events.iter().filter_map(|event| match event {
            Event::Ended { id: of, end, status, .. } if *of == id(number) => Some((*end, *status)),
            _ => None,
        });
        let ends: Vec<(End, Status)> = ends.collect();
        assert!(ends.len() < 2, "one terminal event: {ends:?}");
        ends.first().copied()
    }

    /// Why a handoff has ended, and by whom.
    pub fn ended(&self, number: u8) -> (String, Option<Other>) {
        let ends = self.events.iter().find_map(|event| match event {
            Event::Ended { id: of, why, by, .. } if *of == id(number) => Some((why.clone(), *by)),
            _ => None,
        });
        ends.expect("has ended")
    }

    /// Returns the valid tokens of a take that has ended, and how many blocks are not to be trusted.
    pub fn valid(&self, number: u8) -> (u64, usize) {
        let ends = self.events.iter().find_map(|event| match event {
            Event::Ended { id: of, valid_tokens, untrusted, .. } if *of == id(number) => {
                Some((*valid_tokens, untrusted.len()))
            }
            _ => None,
        });
        ends.expect("has ended")
    }
}
