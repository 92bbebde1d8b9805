//! Every order of events of one offer and one take: calls, messages, moments at which bytes land, ends of transfers, the
//! lease, the deadline and the loss of the session. The state tables of the handoff's page are held against all states
//! that two machines can reach, where `storm` draws some of many more machines.
//!
//! The two machines are clones at each step, and a state that was seen is not looked at again.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry::status::Error;
use ferry::types::{Op, PeerId};
use ferry::Status;
use ferry_kv::handoff::{
    Action, Blocks, End, Event, HandoffId, Machine, Mode, OfferSpec, PostId, State, TakeSpec,
};
use ferry_kv::layout::Layout;
use ferry_kv::plan::Strided;

use crate::caches::{cells, layouts, Cell, Shape};

const TOKENS: u64 = 8;
/// When the lease and the deadline are over.
const LATE: u64 = 10;
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
/// Their first blocks.
const FIRST: [u32; 2] = [0, 4];

fn id() -> HandoffId {
    HandoffId::from_bytes([1; 16])
}

fn lists(first: u32) -> Vec<Blocks> {
    vec![Blocks { first_token: 0, ids: vec![first, first + 1] }]
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next call of the producer: two chunks, the second one layer by layer, and the seal.
    Produce,
    Abort,
    Take,
    Cancel,
    /// A message reaches this side.
    Deliver(usize),
    /// The bytes of a transfer land.
    Land(usize),
    /// A transfer becomes final: DONE if its bytes have landed, CANCELLED if it was cancelled, else PARTIAL.
    Finish(usize),
    /// The lease, or the deadline.
    Late(usize),
    /// The session is fenced: what is under way is over, and both are told.
    Lose,
}

/// A transfer that is not final.
#[derive(Clone, Debug)]
struct Posted {
    of: usize,
    post: PostId,
    op: Op,
    moves: Vec<Strided>,
    notify: Option<Vec<u8>>,
    has_landed: bool,
    is_cancelled: bool,
}

#[derive(Clone)]
struct World {
    machines: [Machine; 2],
    /// By the side that they go to.
    wires: [VecDeque<Vec<u8>>; 2],
    posted: Vec<Posted>,
    ends: [Option<(End, u64)>; 2],
    layers_told: u32,
    /// How many calls of the producer were made.
    produced: usize,
    is_taken: bool,
    /// Once each: abort, cancel, late at both sides, lost, a transfer that fails.
    has_aborted: bool,
    has_cancelled: bool,
    is_late: [bool; 2],
    is_lost: bool,
    has_failed: bool,
    /// Tokens of each layer that the producer has computed, and the consumer's bytes that have landed.
    ready: [u64; 3],
    landed: BTreeSet<u64>,
}

struct Model {
    layouts: [Arc<Layout>; 2],
    /// Every byte of the sequence, at each side.
    cells: [Vec<Cell>; 2],
    mode: Mode,
}

fn other(side: usize) -> usize {
    1 - side
}

fn peer(side: usize) -> PeerId {
    PeerId::from_raw(side as u64 + 1)
}

impl World {
    fn now(&self, side: usize) -> u64 {
        if self.is_late[side] {
            LATE
        } else {
            0
        }
    }

    /// Of all that tells two states apart.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let posted = self.posted.iter().map(|it| (it.of, it.post, it.has_landed, it.is_cancelled));
        let once = [self.has_aborted, self.has_cancelled, self.is_taken, self.is_lost, self.has_failed];
        (posted.collect::<Vec<_>>(), self.produced, self.layers_told, self.is_late, once).hash(&mut hasher);
        (&self.wires, &self.landed).hash(&mut hasher);
        format!("{:?} {:?}", self.machines, self.ends).hash(&mut hasher);
        hasher.finish()
    }

    /// Does what the machines want.
    fn settle(&mut self) {
        for side in [PRODUCER, CONSUMER] {
            while let actions @ [_, ..] = &self.machines[side].take_actions()[..] {
                for action in actions {
                    self.act(side, action.clone());
                }
            }
            while let Some(event) = self.machines[side].take_event() {
                match event {
                    Event::Layers { layers, .. } => {
                        assert!(layers > self.layers_told, "layers are told once");
                        self.layers_told = layers;
                    }
                    Event::Ended { end, valid_tokens, .. } => {
                        assert!(self.ends[side].is_none(), "one terminal event");
                        self.ends[side] = Some((end, valid_tokens));
                    }
                }
            }
        }
    }

    fn act(&mut self, side: usize, action: Action) {
        match action {
            Action::Send { message, .. } => {
                self.wires[other(side)].push_back(message);
                self.machines[side].sent(peer(other(side)), 0);
            }
            Action::Post { post, op, moves, notify, .. } => {
                let (has_landed, is_cancelled) = (false, false);
                self.posted.push(Posted { of: side, post, op, moves, notify, has_landed, is_cancelled });
            }
            Action::Cancel { post } => {
                let mut own = self.posted.iter_mut().filter(|it| it.of == side && it.post == post);
                own.by_ref().for_each(|it| it.is_cancelled = true);
            }
            Action::Fence { .. } => panic!("nobody is silent or says nonsense"),
        }
    }
}

impl Model {
    fn start(&self) -> World {
        let silence = Duration::from_secs(3_600);
        let machine =
            |side: usize| Machine::new(self.layouts[side].clone(), 100 + side as u64, Vec::new(), silence);
        World {
            machines: [machine(PRODUCER), machine(CONSUMER)],
            wires: Default::default(),
            posted: Vec::new(),
            ends: [None; 2],
            layers_told: 0,
            produced: 0,
            is_taken: false,
            has_aborted: false,
            has_cancelled: false,
            is_late: [false; 2],
            is_lost: false,
            has_failed: false,
            ready: [0; 3],
            landed: BTreeSet::new(),
        }
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let is_open = |side: usize| world.ends[side].is_none();
        let is_offered = world.produced > 0 && is_open(PRODUCER);
        let is_taking = world.is_taken && is_open(CONSUMER);
        let stops = matches!(world.machines[PRODUCER].status(id()), State::Ending);
        let mut steps = Vec::new();
        let mut may = |is_so: bool, step: Step| steps.extend(is_so.then_some(step));
        may(world.produced < 5 && is_open(PRODUCER) && !stops, Step::Produce);
        may(is_offered && !world.has_aborted && !stops, Step::Abort);
        may(!world.is_taken && !world.is_lost, Step::Take);
        may(is_taking && !world.has_cancelled, Step::Cancel);
        for side in [PRODUCER, CONSUMER] {
            may(!world.wires[side].is_empty(), Step::Deliver(side));
        }
        // The lease begins with the seal.
        may(is_offered && world.produced == 5 && !world.is_late[PRODUCER], Step::Late(PRODUCER));
        may(is_taking && !world.is_late[CONSUMER], Step::Late(CONSUMER));
        may(!world.is_lost && world.is_taken, Step::Lose);
        for (at, it) in world.posted.iter().enumerate() {
            may(!it.has_landed, Step::Land(at));
            let fails = !world.has_failed;
            may(it.has_landed || it.is_cancelled || fails, Step::Finish(at));
        }
        steps
    }

    fn go(&self, world: &World, step: Step) -> World {
        let mut world = world.clone();
        match step {
            Step::Produce => self.produce(&mut world),
            Step::Abort => {
                world.has_aborted = true;
                world.machines[PRODUCER].offer_abort(id(), 0).expect("is open");
            }
            Step::Take => {
                world.is_taken = true;
                let spec = TakeSpec {
                    id: id(),
                    producers: vec![peer(PRODUCER)],
                    group: 0,
                    blocks: lists(FIRST[CONSUMER]),
                    skip_tokens: 0,
                    tokens: TOKENS,
                    mode: self.mode,
                    deadline: Some(Duration::from_nanos(LATE)),
                    tell_layers: true,
                };
                world.machines[CONSUMER].take(spec, 0).expect("a take");
            }
            Step::Cancel => {
                world.has_cancelled = true;
                world.machines[CONSUMER].take_cancel(id(), world.now(CONSUMER)).expect("is open");
            }
            Step::Deliver(side) => {
                let message = world.wires[side].pop_front().expect("a message");
                let now = world.now(side);
                let part = [&[0], &message[..]].concat();
                world.machines[side].notification(peer(other(side)), &part, now);
            }
            Step::Land(at) => self.land(&mut world, at),
            Step::Finish(at) => {
                let it = world.posted.remove(at);
                let result = match (it.has_landed, it.is_cancelled) {
                    (true, _) => Ok(()),
                    (false, true) => Err(Error::new(Status::Cancelled, "cancelled")),
                    (false, false) => Err(Error::new(Status::Partial, "broken")),
                };
                world.has_failed |= !it.has_landed && !it.is_cancelled;
                if let Some(message) = it.notify.filter(|_| result.is_ok()) {
                    world.wires[other(it.of)].push_back(message);
                }
                let now = world.now(it.of);
                world.machines[it.of].moved(it.post, result, now);
            }
            Step::Late(side) => {
                world.is_late[side] = true;
                world.machines[side].tick(LATE);
            }
            Step::Lose => {
                world.is_lost = true;
                world.wires = Default::default();
                for it in std::mem::take(&mut world.posted) {
                    let lost = Err(Error::new(Status::PeerLost, "fenced"));
                    world.machines[it.of].moved(it.post, lost, 0);
                }
                for side in [PRODUCER, CONSUMER] {
                    world.machines[side].peer_lost(peer(other(side)), "fenced", 0);
                }
            }
        }
        world.settle();
        self.check(&world);
        world
    }

    fn produce(&self, world: &mut World) {
        let now = world.now(PRODUCER);
        let machine = &mut world.machines[PRODUCER];
        let ready = match world.produced {
            0 => {
                let lease = Duration::from_nanos(LATE);
                let spec = OfferSpec {
                    id: id(),
                    blocks: lists(FIRST[PRODUCER]),
                    takers: 1,
                    only: Vec::new(),
                    lease,
                };
                machine.offer(spec, now).expect("an offer");
                0..0
            }
            1 => 0..3,
            2 => 0..1,
            3 => 1..3,
            _ => {
                machine.offer_seal(id(), TOKENS, now).expect("is open");
                0..0
            }
        };
        if !ready.is_empty() {
            let tokens = if world.produced == 1 { TOKENS / 2 } else { TOKENS };
            machine.offer_ready(id(), ready.clone(), tokens, now).expect("is open");
            ready.for_each(|layer| world.ready[layer as usize] = tokens);
        }
        world.produced += 1;
    }

    /// Bytes land: they were computed, and both sides' blocks are still in use.
    fn land(&self, world: &mut World, at: usize) {
        let (op, pieces) = {
            let it = &mut world.posted[at];
            it.has_landed = true;
            (it.op, it.moves.iter().flat_map(Strided::requests).collect::<Vec<_>>())
        };
        assert_eq!(op == Op::Read, self.mode == Mode::Pull);
        for side in [PRODUCER, CONSUMER] {
            let may = world.ends[side].is_none();
            assert!(may, "bytes are read or land after the terminal event of side {side}: {:?}", world.ends);
        }
        let computed: BTreeSet<u64> = self.cells[PRODUCER]
            .iter()
            .filter(|cell| cell.token < world.ready[cell.layer as usize])
            .map(|cell| cell.address)
            .collect();
        for piece in pieces {
            assert!((piece.source..piece.source + piece.bytes).all(|byte| computed.contains(&byte)));
            for byte in piece.target..piece.target + piece.bytes {
                assert!(world.landed.insert(byte), "{byte:#x} lands twice");
            }
        }
    }

    /// What holds in every state.
    fn check(&self, world: &World) {
        let has = |layers: u32, tokens: u64| {
            let mut wanted = self.cells[CONSUMER].iter();
            wanted.all(|it| it.layer >= layers || it.token >= tokens || world.landed.contains(&it.address))
        };
        assert!(has(world.layers_told, TOKENS), "layers are told when they are complete");
        if let Some((end, valid)) = world.ends[CONSUMER] {
            assert!(has(3, valid), "{valid} tokens are valid");
            assert_eq!(end == End::Received, valid == TOKENS && end == End::Received);
        }
        match (self.mode, world.ends) {
            (_, [Some((End::Sent, _)), _]) => assert!(has(3, TOKENS), "SENT says that all has arrived"),
            (_, [_, Some((End::Received, valid))]) => assert_eq!(valid, TOKENS),
            _ => {}
        }
        if let (Mode::Pull, [Some((End::Sent, _)), end]) = (self.mode, world.ends) {
            assert_eq!(
                end.map(|(end, _)| end),
                Some(End::Received),
                "a pull is SENT when its reader has said so"
            );
        }
        let is_quiet = world.wires.iter().all(VecDeque::is_empty) && world.posted.is_empty();
        if is_quiet && (world.is_late[CONSUMER] || world.has_cancelled || world.is_lost) && world.is_taken {
            assert!(world.ends[CONSUMER].is_some(), "the take has ended");
        }
        let take_is_over = !world.is_taken || world.ends[CONSUMER].is_some();
        let stopped = world.has_aborted || (world.produced == 5 && world.is_late[PRODUCER]);
        if is_quiet && take_is_over && stopped {
            assert!(world.ends[PRODUCER].is_some(), "the offer has ended");
        }
    }

    /// Goes to every state. Returns how many there are, and the pairs of ends that were reached.
    fn explore(&self) -> (usize, BTreeSet<[String; 2]>) {
        let mut seen = HashSet::new();
        let mut ends = BTreeSet::new();
        let mut open = vec![(self.start(), Vec::new())];
        while let Some((world, path)) = open.pop() {
            let steps = self.steps(&world);
            if steps.is_empty() {
                ends.insert(world.ends.map(|end| end.map_or("open".into(), |(end, _)| format!("{end:?}"))));
            }
            for step in steps {
                let path: Vec<Step> = path.iter().copied().chain([step]).collect();
                let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.go(&world, step)));
                let next = next.unwrap_or_else(|_| panic!("{:?}: {path:?}", self.mode));
                if seen.insert(next.digest()) {
                    open.push((next, path));
                }
            }
        }
        (seen.len(), ends)
    }
}

fn model(mode: Mode) -> Model {
    let layout = |side: usize| Arc::new(layouts(Shape::plain(1, 1, 4), side).remove(0));
    let layouts = [layout(PRODUCER), layout(CONSUMER)];
    let all = |side: usize| cells(&layouts[side], &lists(FIRST[side]), 0..TOKENS, 1);
    Model { cells: [all(PRODUCER), all(CONSUMER)], layouts, mode }
}

/// Goes to every state, and holds the pairs of ends that were reached against those that are known: the producer's, then
/// the consumer's.
fn ends_are(mode: Mode, expected: &[[&str; 2]]) {
    let started = Instant::now();
    let (states, ends) = model(mode).explore();
    println!("{mode:?}: {states} states in {:?}", started.elapsed());
    let expected = OF_BOTH.iter().chain(expected).map(|ends| ends.map(String::from));
    assert_eq!(ends, expected.collect());
}

const OF_BOTH: [[&str; 2]; 13] = [
    ["Sent", "Received"],
    ["Failed", "Failed"],
    // One side gives up, and the other is told.
    ["Cancelled", "Failed"],
    ["Failed", "Cancelled"],
    ["Expired", "Failed"],
    // The session is lost.
    ["PeerLost", "PeerLost"],
    // Both, before either knows of the other.
    ["Cancelled", "Cancelled"],
    ["Expired", "Cancelled"],
    ["PeerLost", "Cancelled"],
    ["PeerLost", "Failed"],
    ["Cancelled", "PeerLost"],
    ["Expired", "PeerLost"],
    // All had arrived, and the producer did not know.
    ["Cancelled", "Received"],
];

#[test]
fn every_order_of_a_pull_ends_in_a_known_pair() {
    // All was read, and the producer did not know.
    ends_are(Mode::Pull, &[["PeerLost", "Received"]]);
}

#[test]
fn every_order_of_a_push_ends_in_a_known_pair() {
    // All was written, and the consumer did not know; and a WRITE that failed before the session was lost.
    let sent = [["Sent", "Cancelled"], ["Sent", "Failed"], ["Sent", "PeerLost"]];
    ends_are(Mode::Push, &[&sent[..], &[["Failed", "PeerLost"]]].concat());
}
