//! One machine of handoffs, between an application that calls in any order and peers that say anything: well-formed
//! messages with any contents, and any bytes. Each handoff has blocks of its own, so a transfer tells whose it is.
//!
//! Whatever comes, a handoff that was accepted ends once, nothing of it is under way then or begins later, the bounds
//! hold, and everything ends when the engine does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use ferry::status::Error;
use ferry::types::{Op, PeerId};
use ferry::Status;
use ferry_kv::handoff::limits::{IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX};
use ferry_kv::handoff::wire::{Key, Message, Take};
use ferry_kv::handoff::{
    Action, BlockList, End, Event, HandoffId, HandoffState, Machine, Mode, OfferSpec, Owner, PostId,
    TakeSpec, Work,
};
use ferry_kv::layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};
use ferry_kv::messages::parts;

const PEERS: u8 = 3;
/// Handoffs, and the blocks of each.
const IDS: u8 = 8;
const BLOCKS: u32 = 8;
const LAYERS: u32 = 3;
const INCARNATION: u64 = 9;

const STEPS_MAX: usize = 300;

#[derive(Arbitrary, Debug)]
enum Step {
    Offer { id: u8, lists: [List; 2], takers: u8, only: u8, lease: u16 },
    Extend { id: u8, lists: [List; 2] },
    Ready { id: u8, layers: (u8, u8), tokens: Number },
    Seal { id: u8, tokens: Number },
    Abort { id: u8 },
    Take { id: u8, lists: [List; 2], producers: [u8; 2], mode: u8, range: (Number, Number), deadline: u8 },
    CancelTake { id: u8 },
    Say { from: u8, words: Words },
    Bytes { from: u8, bytes: Vec<u8> },
    Part { from: u8, bytes: Vec<u8> },
    Moved { which: u8, status: u8 },
    Sent { to: u8 },
    Lost { peer: u8, are_final: bool },
    NotFenced { peer: u8 },
    Here { peer: u8, is_here: bool },
    Tick { after: u32 },
    Reclaim { blocks: u8 },
    Close,
    Retract { id: u8, from: Number },
    RetractWindow { id: u8, group: u8, before: Number },
    LeasedBlocksMax { blocks: u8 },
}

#[derive(Arbitrary, Debug)]
enum Words {
    Hello {
        layout: u8,
        incarnation: u8,
    },
    Take {
        key: MadeKey,
        stale: bool,
        group: u8,
        rank: u8,
        is_push: bool,
        range: (Number, Number),
        wanted: u8,
        lists: [List; 2],
    },
    Update {
        key: MadeKey,
        epoch: u8,
        ready: [Number; 3],
        layers: u8,
        lists: [List; 2],
    },
    Data {
        key: MadeKey,
        epoch: u8,
        layers: (u8, u8),
        range: (Number, Number),
    },
    Final {
        key: MadeKey,
        epoch: u8,
        status: u8,
    },
    Cancel {
        key: MadeKey,
        status: u8,
    },
    Ended {
        key: MadeKey,
        status: u8,
    },
    Ping(u8),
    Pong(u8),
    Retract {
        key: MadeKey,
        epoch: u8,
        from: Number,
    },
    Retracted {
        key: MadeKey,
        epoch: u8,
    },
    Goodbye,
    Read {
        key: MadeKey,
        epoch: u8,
    },
}

/// The key of this side's take of the id, or one with any number.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct MadeKey {
    id: u8,
    number: Option<u8>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Any(u64),
}

impl Number {
    fn get(self) -> u64 {
        match self {
            Number::Small(number) => u64::from(number % 40),
            Number::Any(number) => number,
        }
    }
}

/// A list of the handoff's own blocks, or of any.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum List {
    Own { count: u8 },
    Any { first_token: Number, first: u32, count: u8 },
}

impl List {
    fn blocks(self, id: u8) -> BlockList {
        let own = u32::from(id % IDS) * BLOCKS;
        match self {
            List::Own { count } => {
                BlockList { first_token: 0, ids: (own..own + u32::from(count) % (BLOCKS + 1)).collect() }
            }
            List::Any { first_token, first, count } => BlockList {
                first_token: first_token.get(),
                ids: (first..first.saturating_add(count.into())).collect(),
            },
        }
    }
}

fn peer(number: u8) -> PeerId {
    PeerId::from_raw(1 + u64::from(number % PEERS))
}

fn id(number: u8) -> HandoffId {
    HandoffId::from_bytes([number % IDS; 16])
}

fn status(number: u8) -> Status {
    Status::ALL[usize::from(number) % Status::ALL.len()]
}

/// Shapes of one model that fit each other, and one of another model.
fn layout(number: u8) -> Layout {
    let (tp_rank, tp_size, block) =
        [(0, 1, 4), (0, 2, 4), (1, 2, 4), (0, 1, 8), (2, 4, 2), (0, 1, 4)][usize::from(number % 6)];
    let shard = Shard {
        tp_rank,
        tp_size,
        pp_rank: 0,
        pp_size: 1,
        pcp_rank: 0,
        pcp_size: 1,
        dcp_size: 1,
        turn_tokens: 1,
    };
    let model = if number % 6 == 5 { "another" } else { "model" }.to_string();
    let key = ModelKey { model, revision: "1".into(), cache: "u8".into(), rope: "none".into() };
    let group = |kind| Group { kind, block_tokens: block };
    let groups = vec![group(GroupKind::Full), group(GroupKind::Window { tokens: 6 })];
    let layers = (0..LAYERS).map(|index| {
        let mut layer = Layer {
            name: format!("layer.{index}"),
            group: index / 2,
            stage: 0,
            heads: 2,
            pairs: 2,
            elements: 2,
            element_bytes: 1,
            memory: None,
        };
        let blocks = u64::from(u32::from(IDS) * BLOCKS);
        let heads = layer.heads_of(&shard).len() as u32;
        let sizes = Sizes { blocks, pairs: 2, heads, tokens: block, elements: 2, element_bytes: 1 };
        let strides = Strides::of(Arrangement::PairBlockTokenHead, sizes);
        layer.memory = Some(LayerMemory { address: (1 + u64::from(index)) << 20, blocks, strides });
        layer
    });
    Layout { key, shard, groups, layers: layers.collect() }
}

struct Posted {
    post: PostId,
    peer: PeerId,
    id: u8,
    is_write: bool,
    /// Begun before its peer was lost.
    is_old: bool,
}

struct Open {
    /// A take's own fields.
    tokens: Option<u64>,
    layers: u32,
}

struct World {
    machine: Machine,
    now: u64,
    open: BTreeMap<u8, Open>,
    posts: Vec<Posted>,
    /// Messages that have not reached their peers.
    unsent: VecDeque<(PeerId, Option<Owner>)>,
    takes: BTreeMap<u8, u64>,
    fencing: BTreeSet<PeerId>,
    /// Retracts of all tokens that are not over.
    retracts: BTreeMap<u8, u64>,
}

pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok((own, greets)) = <(u8, bool)>::arbitrary(&mut input) else { return };
    let mut world = World {
        machine: Machine::new(Arc::new(layout(own % 5)), INCARNATION, Vec::new(), Duration::from_millis(10)),
        now: 0,
        open: BTreeMap::new(),
        posts: Vec::new(),
        unsent: VecDeque::new(),
        takes: BTreeMap::new(),
        fencing: BTreeSet::new(),
        retracts: BTreeMap::new(),
    };
    if greets {
        for (from, layout) in [(0, 0), (1, 1), (2, 2)] {
            world.say(from, Words::Hello { layout, incarnation: 1 });
        }
    }
    for _ in 0..STEPS_MAX {
        let Some(step) = Step::arbitrary(&mut input).ok().filter(|_| !input.is_empty()) else { break };
        world.step(step);
        world.settle();
    }
    world.machine.engine_closed(world.now);
    world.posts.clear();
    world.settle();
    assert!(world.open.is_empty(), "everything ends with the engine");
    assert!(world.machine.close(world.now));
}

impl World {
    fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Offer { id: of, lists, takers, only, lease } => {
                let blocks = lists.map(|list| list.blocks(of)).to_vec();
                let only = if only % 4 == 0 { vec![peer(only / 4)] } else { Vec::new() };
                let (takers, lease) = (u32::from(takers % 4), Duration::from_micros(lease.into()));
                let is_new = self.is_own(of, &blocks);
                let spec = OfferSpec { id: id(of), blocks, takers, only, lease };
                if is_new && self.machine.offer(spec, now).is_ok() {
                    self.begin(of, None);
                }
            }
            Step::Extend { id: of, lists } => {
                let blocks = lists.map(|list| list.blocks(of));
                if self.is_own(of, &blocks) {
                    let _ = self.machine.offer_extend(id(of), &blocks, now);
                }
            }
            Step::Ready { id: of, layers, tokens } => {
                let layers = u32::from(layers.0 % 5)..u32::from(layers.1 % 5);
                let _ = self.machine.offer_ready(id(of), layers, tokens.get(), now);
            }
            Step::Seal { id: of, tokens } => {
                let _ = self.machine.offer_seal(id(of), tokens.get(), now);
            }
            Step::Abort { id: of } => {
                let _ = self.machine.offer_cancel(id(of), now);
            }
            Step::Take { id: of, lists, producers, mode, range, deadline } => {
                self.take(of, lists, producers, mode, (range.0.get(), range.1.get()), deadline);
            }
            Step::CancelTake { id: of } => {
                let _ = self.machine.take_cancel(id(of), now);
            }
            Step::Say { from, words } => self.say(from, words),
            Step::Bytes { from, bytes } => self.hear(from, &bytes),
            Step::Part { from, bytes } => self.machine.notification(peer(from), &bytes, now),
            Step::Moved { which, status: of } => self.moved(which, of),
            Step::Sent { to } => {
                let of = self.unsent.iter().position(|(of, _)| *of == peer(to));
                let of = of.and_then(|at| self.unsent.remove(at)).and_then(|(_, of)| of);
                self.machine.sent(peer(to), of, Ok(()), now);
            }
            Step::Lost { peer: of, are_final } => self.lost(peer(of), are_final),
            Step::NotFenced { peer: of } => {
                if self.fencing.remove(&peer(of)) {
                    self.machine.not_fenced(peer(of));
                }
            }
            Step::Here { peer: of, is_here } => self.machine.set_here(peer(of), is_here),
            Step::Tick { after } => {
                self.now += u64::from(after);
                let next = self.machine.tick(self.now);
                assert!(next.is_none_or(|next| next > self.now), "what is due is done");
            }
            Step::Reclaim { blocks } => {
                self.machine.reclaim(blocks.into(), now);
            }
            Step::Close => {
                self.machine.close(now);
            }
            Step::Retract { id: of, from } => {
                let number = self.machine.offer_retract(id(of), from.get(), now);
                if let Some(number) = number.ok().filter(|_| from.get() == 0) {
                    self.retracts.insert(of % IDS, number);
                }
            }
            Step::RetractWindow { id: of, group, before } => {
                let _ = self.machine.offer_retract_window(id(of), u32::from(group % 3), before.get(), now);
            }
            Step::LeasedBlocksMax { blocks } => self.machine.set_leased_blocks_max(blocks.into()),
        }
    }

    /// Only the id's own blocks: otherwise the application itself would share them.
    fn is_own(&self, of: u8, lists: &[BlockList]) -> bool {
        lists.iter().flat_map(|list| &list.ids).all(|block| block / BLOCKS == u32::from(of % IDS))
    }

    fn begin(&mut self, of: u8, tokens: Option<u64>) {
        assert!(self.open.insert(of % IDS, Open { tokens, layers: 0 }).is_none(), "an id in use is accepted");
    }

    fn take(&mut self, of: u8, lists: [List; 2], from: [u8; 2], mode: u8, range: (u64, u64), deadline: u8) {
        let blocks = lists.map(|list| list.blocks(of)).to_vec();
        if !self.is_own(of, &blocks) {
            return;
        }
        let count = usize::from(from[0] / 64 % 3);
        let spec = TakeSpec {
            id: id(of),
            producers: from.iter().take(count).map(|number| peer(*number)).collect(),
            taker: 0,
            blocks,
            skip_tokens: range.0,
            tokens: range.1,
            mode: [Mode::Auto, Mode::Pull, Mode::Push][usize::from(mode % 3)],
            deadline: (deadline > 0).then(|| Duration::from_micros(deadline.into())),
            tell_layers: mode & 4 == 0,
        };
        if self.machine.take(spec, self.now).is_ok() {
            self.begin(of, Some(range.1));
        }
    }

    fn hear(&mut self, from: u8, bytes: &[u8]) {
        for part in parts(bytes, 4_000) {
            self.machine.notification(peer(from), &part, self.now);
        }
    }

    fn key(&self, made: MadeKey) -> Key {
        let own = self.takes.get(&(made.id % IDS)).copied().unwrap_or(0);
        Key { id: id(made.id), take: made.number.map_or(own, u64::from) }
    }

    fn say(&mut self, from: u8, words: Words) {
        let why = String::from("any");
        let message = match words {
            Words::Hello { layout: of, incarnation } => {
                let layout = Box::new(layout(of));
                Message::Hello { incarnation: u64::from(incarnation % 4), regions: Vec::new(), layout }
            }
            Words::Take { key, stale, group, rank, is_push, range, wanted, lists } => Message::Take(Take {
                key: self.key(key),
                incarnation: INCARNATION + u64::from(stale),
                group: u64::from(group % 3),
                rank: u32::from(rank % 3),
                is_push,
                skip: range.0.get(),
                tokens: range.1.get(),
                wanted: wanted.into(),
                blocks: lists.map(|list| list.blocks(key.id)).to_vec(),
            }),
            Words::Update { key, epoch, ready, layers, lists } => {
                let ready: Vec<u64> = ready.iter().map(|number| number.get()).collect();
                let ready = if layers % 8 == 0 { ready[..2].to_vec() } else { ready };
                let added = lists.map(|list| list.blocks(key.id)).to_vec();
                Message::Update { key: self.key(key), epoch: u64::from(epoch % 4), ready, added }
            }
            Words::Data { key, epoch, layers, range } => Message::Data {
                key: self.key(key),
                epoch: u64::from(epoch % 4),
                work: Work {
                    layers: u32::from(layers.0 % 5)..u32::from(layers.1 % 5),
                    tokens: range.0.get()..range.1.get(),
                },
            },
            Words::Final { key, epoch, status: of } => {
                Message::Final { key: self.key(key), epoch: u64::from(epoch % 4), status: status(of), why }
            }
            Words::Cancel { key, status: of } => {
                Message::Cancel { key: self.key(key), status: status(of), why }
            }
            Words::Ended { key, status: of } => {
                Message::Ended { key: self.key(key), status: status(of), why }
            }
            Words::Ping(number) => Message::Ping(number.into()),
            Words::Pong(number) => Message::Pong(number.into()),
            Words::Goodbye => Message::Goodbye,
            Words::Retract { key, epoch, from } => {
                Message::Retract { key: self.key(key), epoch: u64::from(epoch % 4), from: from.get() }
            }
            Words::Retracted { key, epoch } => {
                Message::Retracted { key: self.key(key), epoch: u64::from(epoch % 4) }
            }
            Words::Read { key, epoch } => Message::Read { key: self.key(key), epoch: u64::from(epoch % 4) },
        };
        self.hear(from, &message.encode().expect("small"));
    }

    fn moved(&mut self, which: u8, of: u8) {
        if self.posts.is_empty() {
            return;
        }
        let posted = self.posts.swap_remove(usize::from(which) % self.posts.len());
        let result = match status(of / 2) {
            _ if of % 2 == 0 => Ok(()),
            Status::Ok => Ok(()),
            status => Err(Error::new(status, "any")),
        };
        self.machine.moved(posted.post, result, self.now);
    }

    fn lost(&mut self, peer: PeerId, are_final: bool) {
        if are_final {
            while let Some(at) = self.posts.iter().position(|posted| posted.peer == peer) {
                let posted = self.posts.swap_remove(at);
                let lost = Err(Error::new(Status::PeerLost, "gone"));
                self.machine.moved(posted.post, lost, self.now);
                self.settle();
            }
        }
        self.machine.peer_lost(peer, "gone", self.now);
        self.fencing.remove(&peer);
        self.posts.iter_mut().filter(|posted| posted.peer == peer).for_each(|posted| posted.is_old = true);
    }

    /// Takes actions and events, and looks at them.
    fn settle(&mut self) {
        for action in self.machine.take_actions() {
            match action {
                Action::Send { peer, message, of } => {
                    self.unsent.push_back((peer, of));
                    if let Message::Take(take) = Message::decode(&message).expect("a message") {
                        self.takes.insert(take.key.id.bytes()[0], take.key.take);
                    }
                }
                Action::Post { post, peer, op, moves } => {
                    let is_write = op == Op::Write;
                    let ids = moves.iter().flat_map(|moves| {
                        let side = if is_write { &moves.pairs.source } else { &moves.pairs.target };
                        side.iter()
                    });
                    let ids: BTreeSet<u32> = ids.map(|block| block / BLOCKS).collect();
                    assert_eq!(ids.len(), 1, "a transfer is of one handoff: {ids:?}");
                    let id = ids.first().map_or(0, |id| *id as u8);
                    assert!(self.machine.state(self::id(id)) != HandoffState::Unknown);
                    assert!(self.open.contains_key(&id), "{op:?} of {id} after its end");
                    self.posts.push(Posted { post, peer, id, is_write, is_old: false });
                    self.check_bounds(peer, id, is_write);
                }
                Action::Cancel { post } => {
                    assert!(self.posts.iter().any(|posted| posted.post == post), "a transfer that is final");
                }
                // Half of the engines answer, and the others are gone.
                Action::Probe { peer } if peer.raw() % 2 == 0 => self.machine.engine_answered(peer, self.now),
                Action::Probe { .. } => {}
                Action::Fence { peer } => assert!(self.fencing.insert(peer), "a fence is under way"),
            }
        }
        while let Some(event) = self.machine.take_event() {
            self.look(event);
        }
        let (machine, posts) = (&self.machine, &self.posts);
        self.retracts.retain(|of, number| {
            let is_over = machine.is_retracted(id(*of), *number);
            let is_written = |posted: &Posted| posted.id == *of && posted.is_write;
            assert!(
                !matches!(is_over, Ok(true)) || !posts.iter().any(is_written),
                "a WRITE of what was taken back"
            );
            matches!(is_over, Ok(false))
        });
    }

    fn check_bounds(&self, peer: PeerId, id: u8, is_write: bool) {
        let of_peer = self.posts.iter().filter(|posted| posted.peer == peer && !posted.is_old);
        assert!(of_peer.clone().count() <= IN_FLIGHT_OF_PEER_MAX as usize);
        // A take has one part of each peer; an offer may have several.
        let of_part = of_peer.filter(|posted| posted.id == id && !posted.is_write);
        assert!(is_write || of_part.count() <= IN_FLIGHT_OF_PART_MAX as usize);
    }

    fn look(&mut self, event: Event) {
        match event {
            Event::Layers { id, layers } => {
                let open = self.open.get_mut(&id.bytes()[0]).expect("layers of a take that has not ended");
                assert!(open.tokens.is_some() && layers > open.layers && layers <= LAYERS);
                open.layers = layers;
            }
            Event::Ended { id, end, status, why, valid_tokens, untrusted, by } => {
                let number = id.bytes()[0];
                let open = self.open.remove(&number).expect("one terminal event");
                assert!(
                    self.posts.iter().all(|posted| posted.id != number),
                    "{end:?}, and a transfer goes on"
                );
                let has_it = [End::Sent, End::Received].contains(&end);
                assert!(!has_it || (status == Status::Ok && why.is_empty() && untrusted.is_empty()));
                assert!(
                    by.is_none_or(|by| !has_it && !why.is_empty() && by.peer != PeerId::NONE),
                    "{by:?}: {why}"
                );
                assert_eq!(
                    open.tokens.is_none(),
                    end == End::Sent || (end != End::Received && open.tokens.is_none())
                );
                assert!(valid_tokens <= open.tokens.unwrap_or(0), "{valid_tokens} tokens are valid");
                assert!(end != End::Received || Some(valid_tokens) == open.tokens);
                assert_eq!(self.machine.state(id), HandoffState::Ended(end));
            }
        }
    }
}
