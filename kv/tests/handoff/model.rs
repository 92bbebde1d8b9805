//! Every order of events of one offer and one take: calls, messages, moments at which bytes land, ends of transfers, a
//! retract, blocks that leave a window, the lease, the deadline and the loss of the session. The state tables of the
//! handoff's page are held against all states that two machines can reach, where `storm` draws some of many more machines.
//!
//! The two machines are clones at each step, and a state that was seen is not looked at again. Above 500 lines: the steps,
//! what they do and what must hold are one model.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry::status::Error;
use ferry::types::{Op, PeerId};
use ferry::Status;
use ferry_kv::handoff::{
    Action, Blocks, End, Event, HandoffId, HandoffState, Machine, Mode, OfferSpec, Owner, PostId, TakeSpec,
};
use ferry_kv::layout::{GroupKind, Layout};
use ferry_kv::plan::Strided;

use crate::caches::{cells, layouts, Cell, Shape};

/// The tokens of the take.
const TOKENS: u64 = 8;
/// When the lease and the deadline are over.
const LATE: u64 = 10;
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
/// The other producer of a take that has two.
const SILENT: PeerId = PeerId::from_raw(9);
/// The tokens of a block, and of the window.
const BLOCK: u32 = 4;
/// `Step::Free` frees the window's blocks before this token. They have the tokens that the take needs.
const FREED: u64 = 8;

fn id() -> HandoffId {
    HandoffId::from_bytes([1; 16])
}

fn list(first_token: u64, ids: &[u32]) -> Blocks {
    Blocks { first_token, ids: ids.into() }
}

/// A step that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next call of the producer: chunks, the last one layer by layer, and the seal.
    Produce,
    Abort,
    Retract,
    /// The blocks of the window that have only tokens before `FREED`.
    Free,
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
    /// The session is fenced: nothing lands any more, and both are told. Transfers become final before or after.
    Lose,
}

/// A transfer that is not final.
#[derive(Clone, Debug)]
struct Posted {
    of: usize,
    post: PostId,
    op: Op,
    moves: Vec<Strided>,
    has_landed: bool,
    is_cancelled: bool,
}

#[derive(Clone)]
struct World {
    machines: [Machine; 2],
    /// By the side that they go to.
    wires: [VecDeque<(Vec<u8>, Option<Owner>)>; 2],
    posted: Vec<Posted>,
    ends: [Option<(End, u64)>; 2],
    layers_told: u32,
    /// How many calls of the producer were made.
    produced: usize,
    is_taken: bool,
    /// The numbers of the retract of tokens and of the window's that are under way, and whether tokens are computed
    /// again, in other blocks.
    retracting: Option<u64>,
    freeing: Option<u64>,
    is_again: bool,
    /// The producer's blocks that are offered, and those of the window that are being freed.
    given: Vec<Blocks>,
    freed: Blocks,
    /// Once each: abort, cancel, late at both sides, lost, a transfer that fails.
    has_aborted: bool,
    has_retracted: bool,
    has_freed: bool,
    has_cancelled: bool,
    is_late: [bool; 2],
    is_lost: bool,
    has_failed: bool,
    /// Tokens of each layer that the producer has computed.
    ready: [u64; 3],
    /// The consumer's bytes that have landed, and whether they were computed again.
    landed: BTreeMap<u64, bool>,
}

struct Model {
    layouts: [Arc<Layout>; 2],
    /// The consumer's blocks, and every byte of them.
    taking: Vec<Blocks>,
    taken: Vec<Cell>,
    wanted: BTreeMap<u64, u8>,
    /// The readies of the producer in their order, and the first of them that comes again after a retract.
    readies: &'static [(Range<u32>, u64)],
    again: usize,
    /// The tokens of the offer, and where a retract begins.
    tokens: u64,
    from: u64,
    /// Where a window that was freed is offered again, once its tokens were taken back.
    resumes: u64,
    /// The take has another producer, which says nothing: it goes on when it has all of this one.
    is_half: bool,
    mode: Mode,
    /// Which of the events there are, besides those that are always.
    scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The session is lost, a transfer fails, and layers are told.
    Faults,
    /// A retract. The lease and the deadline are not over.
    Retracts,
    /// A retract and blocks of a window that are freed, and a take that needs those. Nobody gives up.
    Windows,
    /// All.
    Whole,
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

    /// Returns a digest of all that tells two states apart.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let posted = self.posted.iter().map(|it| (it.of, it.post, it.has_landed, it.is_cancelled));
        (self.retracting, self.is_again, self.has_retracted, self.freeing, self.has_freed).hash(&mut hasher);
        let once = [self.has_aborted, self.has_cancelled, self.is_taken, self.is_lost, self.has_failed];
        (posted.collect::<Vec<_>>(), self.produced, self.layers_told, self.is_late, once).hash(&mut hasher);
        (&self.wires, &self.landed).hash(&mut hasher);
        format!("{:?} {:?} {:?} {:?}", self.machines, self.ends, self.given, self.freed).hash(&mut hasher);
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
            // A lost peer is told nothing any more.
            Action::Send { .. } if self.is_lost => {}
            Action::Send { peer: to, .. } if to != peer(other(side)) => {}
            Action::Send { message, of, .. } => self.wires[other(side)].push_back((message, of)),
            Action::Post { post, op, moves, .. } => {
                let (has_landed, is_cancelled) = (false, false);
                self.posted.push(Posted { of: side, post, op, moves, has_landed, is_cancelled });
            }
            Action::Cancel { post } => {
                let mut own = self.posted.iter_mut().filter(|it| it.of == side && it.post == post);
                own.by_ref().for_each(|it| it.is_cancelled = true);
            }
            Action::Probe { .. } | Action::Fence { .. } => panic!("nobody is silent or says nonsense"),
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
            retracting: None,
            freeing: None,
            is_again: false,
            given: self.first_given(),
            freed: Blocks::default(),
            has_aborted: false,
            has_retracted: false,
            has_freed: false,
            has_cancelled: false,
            is_late: [false; 2],
            is_lost: false,
            has_failed: false,
            ready: [0; 3],
            landed: BTreeMap::new(),
        }
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let is_open = |side: usize| world.ends[side].is_none();
        let is_offered = world.produced > 0 && is_open(PRODUCER);
        let is_taking = world.is_taken && is_open(CONSUMER);
        let stops = matches!(world.machines[PRODUCER].status(id()), HandoffState::Ending);
        let mut steps = Vec::new();
        let mut may = |is_so: bool, step: Step| steps.extend(is_so.then_some(step));
        let (faults, retracts) =
            (matches!(self.scope, Scope::Faults | Scope::Whole), self.scope != Scope::Faults);
        let (windows, gives_up) = (self.scope == Scope::Windows, self.scope != Scope::Windows);
        let is_busy = world.retracting.is_some();
        may(world.produced < self.last() && is_open(PRODUCER) && !stops && !is_busy, Step::Produce);
        let is_early = world.has_retracted || world.produced < 2;
        may(retracts && is_offered && !stops && !is_early, Step::Retract);
        let has_all = world.given.last().is_some_and(|list| list.first_token < FREED);
        may(
            windows && is_offered && !stops && !is_busy && world.produced > 0 && !world.has_freed && has_all,
            Step::Free,
        );
        may(gives_up && is_offered && !world.has_aborted && !stops, Step::Abort);
        may(!world.is_taken && !world.is_lost, Step::Take);
        may(gives_up && is_taking && !world.has_cancelled, Step::Cancel);
        for side in [PRODUCER, CONSUMER] {
            may(!world.wires[side].is_empty(), Step::Deliver(side));
        }
        // The lease begins with the seal.
        let is_sealed = world.produced == self.last() && !is_busy;
        may(faults && is_offered && is_sealed && !world.is_late[PRODUCER], Step::Late(PRODUCER));
        may(faults && is_taking && !world.is_late[CONSUMER], Step::Late(CONSUMER));
        may(faults && !world.is_lost && world.is_taken, Step::Lose);
        for (at, it) in world.posted.iter().enumerate() {
            may(!it.has_landed && !world.is_lost, Step::Land(at));
            let fails = faults && !world.has_failed;
            may(it.has_landed || it.is_cancelled || fails || world.is_lost, Step::Finish(at));
        }
        steps
    }

    fn go(&self, world: &World, step: Step) -> World {
        let mut world = world.clone();
        match step {
            Step::Produce => self.produce(&mut world),
            Step::Abort => {
                world.has_aborted = true;
                world.machines[PRODUCER].offer_cancel(id(), 0).expect("is open");
            }
            Step::Retract => {
                world.has_retracted = true;
                let now = world.now(PRODUCER);
                let number = world.machines[PRODUCER].offer_retract(id(), self.from, now).expect("is open");
                world.retracting = Some(number);
            }
            Step::Free => self.free(&mut world),
            Step::Take => {
                world.is_taken = true;
                let spec = TakeSpec {
                    id: id(),
                    producers: [peer(PRODUCER), SILENT][..1 + usize::from(self.is_half)].to_vec(),
                    group: 0,
                    blocks: self.taking.clone(),
                    skip_tokens: 0,
                    tokens: TOKENS,
                    mode: self.mode,
                    deadline: Some(Duration::from_nanos(LATE)),
                    tell_layers: matches!(self.scope, Scope::Faults | Scope::Whole),
                };
                world.machines[CONSUMER].take(spec, 0).expect("a take");
            }
            Step::Cancel => {
                world.has_cancelled = true;
                world.machines[CONSUMER].take_cancel(id(), world.now(CONSUMER)).expect("is open");
            }
            Step::Deliver(side) => {
                let (message, of) = world.wires[side].pop_front().expect("a message");
                let part = [&[0], &message[..]].concat();
                let (now, then) = (world.now(side), world.now(other(side)));
                world.machines[side].notification(peer(other(side)), &part, now);
                world.machines[other(side)].sent(peer(side), of, Ok(()), then);
            }
            Step::Land(at) => self.land(&mut world, at),
            Step::Finish(at) => {
                let it = world.posted.remove(at);
                let failed = |status, why: &str| Err(Error::new(status, why));
                let result = match (it.has_landed, it.is_cancelled) {
                    _ if world.is_lost => failed(Status::PeerLost, "fenced"),
                    (true, _) => Ok(()),
                    (false, true) => failed(Status::Cancelled, "cancelled"),
                    (false, false) => failed(Status::Partial, "broken"),
                };
                world.has_failed |= !it.has_landed && !it.is_cancelled && !world.is_lost;
                let now = world.now(it.of);
                world.machines[it.of].moved(it.post, result, now);
            }
            Step::Late(side) => {
                world.is_late[side] = true;
                world.machines[side].tick(LATE);
            }
            Step::Lose => {
                world.is_lost = true;
                for (side, wire) in std::mem::take(&mut world.wires).into_iter().enumerate() {
                    for (_, of) in wire {
                        let lost = Err(Error::new(Status::PeerLost, "fenced"));
                        world.machines[other(side)].sent(peer(side), of, lost, 0);
                    }
                }
                for side in [PRODUCER, CONSUMER] {
                    world.machines[side].peer_lost(peer(other(side)), "fenced", 0);
                }
            }
        }
        world.settle();
        self.finish_retract(&mut world);
        self.check(&world);
        world
    }

    /// How many calls the producer makes.
    fn last(&self) -> usize {
        self.readies.len() + 2
    }

    /// The producer's blocks at first: of all groups alike.
    fn first_given(&self) -> Vec<Blocks> {
        let ids: Vec<u32> = (0..(self.tokens as u32).div_ceil(BLOCK)).collect();
        vec![list(0, &ids); self.layouts[PRODUCER].groups.len()]
    }

    fn free(&self, world: &mut World) {
        let now = world.now(PRODUCER);
        world.has_freed = true;
        world.freeing =
            Some(world.machines[PRODUCER].offer_retract_window(id(), 1, FREED, now).expect("is open"));
        let window = &mut world.given[1];
        let count = ((FREED - window.first_token) / u64::from(BLOCK)) as usize;
        let count = count.min(window.ids.len());
        world.freed = Blocks { first_token: window.first_token, ids: window.ids.drain(..count).collect() };
        window.first_token += count as u64 * u64::from(BLOCK);
    }

    /// When nothing touches what was taken back any more, its blocks belong to another sequence.
    fn finish_retract(&self, world: &mut World) {
        let is_over = |world: &World, number| match world.machines[PRODUCER].is_retracted(id(), number) {
            Ok(is_over) => is_over,
            // The offer ends, or has.
            Err(error) => {
                assert_eq!(error.status, Status::Stale);
                true
            }
        };
        if world.freeing.is_some_and(|number| is_over(world, number)) {
            (world.freeing, world.freed) = (None, Blocks::default());
        }
        if world.retracting.is_none_or(|number| !is_over(world, number)) {
            return;
        }
        world.retracting = None;
        if !matches!(world.machines[PRODUCER].status(id()), HandoffState::Offered { .. }) {
            return;
        }
        world.is_again = true;
        world.ready.iter_mut().for_each(|ready| *ready = (*ready).min(self.from));
        world.produced = self.again;
        let mut added = Vec::new();
        for (group, list) in world.given.iter_mut().enumerate() {
            let step = u64::from(BLOCK);
            let kept = (self.from.saturating_sub(list.first_token) / step) as usize;
            list.ids.truncate(kept);
            if list.ids.is_empty() {
                list.first_token = if group == 0 { self.from } else { self.resumes };
            }
            let first = list.first_token / step + list.ids.len() as u64;
            let more: Vec<u32> = (first..self.tokens / step).map(|at| at as u32 + 10).collect();
            list.ids.extend(&more);
            added.push(Blocks { first_token: list.first_token, ids: more });
        }
        let now = world.now(PRODUCER);
        world.machines[PRODUCER].offer_extend(id(), &added, now).expect("is open");
        world.settle();
    }

    fn produce(&self, world: &mut World) {
        let now = world.now(PRODUCER);
        let machine = &mut world.machines[PRODUCER];
        if world.produced == 0 {
            let (lease, blocks) = (Duration::from_nanos(LATE), world.given.clone());
            let spec = OfferSpec { id: id(), blocks, takers: 1, only: Vec::new(), lease };
            machine.offer(spec, now).expect("an offer");
        } else if let Some((layers, tokens)) = self.readies.get(world.produced - 1).cloned() {
            machine.offer_ready(id(), layers.clone(), tokens, now).expect("is open");
            layers.for_each(|layer| world.ready[layer as usize] = tokens);
        } else {
            machine.offer_seal(id(), self.tokens, now).expect("is open");
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
        let mut lists = world.given.clone();
        let mut computed = cells(&self.layouts[PRODUCER], &lists, 0..self.tokens, 1);
        if let [full, window] = &mut lists[..] {
            full.ids.clear();
            *window = world.freed.clone();
            computed.extend(cells(&self.layouts[PRODUCER], &lists, 0..self.tokens, 1));
        }
        let computed = computed.into_iter().filter(|cell| cell.token < world.ready[cell.layer as usize]);
        let computed: BTreeMap<u64, Cell> = computed.map(|cell| (cell.address, cell)).collect();
        for piece in pieces {
            for (from, to) in (piece.source..).zip(piece.target..piece.target + piece.bytes) {
                let cell = computed.get(&from);
                let cell = cell.unwrap_or_else(|| panic!("{from:#x} is moved, and is not computed"));
                assert_eq!(Some(&cell.value), self.wanted.get(&to), "{from:#x} is not {to:#x}");
                let before = world.landed.insert(to, world.is_again && cell.token >= self.from);
                assert!(before.is_none() || world.has_retracted, "{to:#x} lands twice");
            }
        }
    }

    /// Checks what holds in every state.
    fn check(&self, world: &World) {
        // All has landed, and what was taken back from one of the two blocks.
        let has = |layers: u32, tokens: u64| {
            let wanted = self.taken.iter().filter(|it| it.layer < layers && it.token < tokens);
            let second = wanted.clone().filter(|it| it.token >= self.from);
            let again: BTreeSet<_> = second.map(|it| world.landed.get(&it.address)).collect();
            again.len() < 2 && wanted.clone().all(|it| world.landed.contains_key(&it.address))
        };
        assert!(has(world.layers_told, TOKENS), "layers are told when they are complete");
        if let Some((end, valid)) = world.ends[CONSUMER] {
            assert!(has(3, valid), "{valid} tokens are valid");
            assert_eq!(end == End::Received, valid == TOKENS && end == End::Received);
        }
        match (self.mode, world.ends) {
            _ if self.is_half => {}
            (_, [Some((End::Sent, _)), _]) => assert!(has(3, TOKENS), "SENT says that all has arrived"),
            (_, [_, Some((End::Received, valid))]) => assert_eq!(valid, TOKENS),
            _ => {}
        }
        if let [Some((End::Sent, _)), end] = world.ends {
            assert_eq!(
                end.map(|(end, _)| end),
                Some(End::Received),
                "an offer is SENT when its taker has said so"
            );
        }
        let is_quiet = world.wires.iter().all(VecDeque::is_empty) && world.posted.is_empty();
        if is_quiet && (world.is_late[CONSUMER] || world.has_cancelled || world.is_lost) && world.is_taken {
            assert!(world.ends[CONSUMER].is_some(), "the take has ended");
        }
        let take_is_over = !world.is_taken || world.ends[CONSUMER].is_some();
        let is_sealed = world.produced == self.last() && world.retracting.is_none();
        let stopped = world.has_aborted || (is_sealed && world.is_late[PRODUCER]);
        if is_quiet && take_is_over && stopped {
            assert!(world.ends[PRODUCER].is_some(), "the offer has ended");
        }
        assert!(!is_quiet || world.retracting.is_none(), "the retract is over");
        assert!(!is_quiet || world.freeing.is_none(), "the window is free");
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

fn model(mode: Mode, scope: Scope, shape: Shape) -> Model {
    let layout = |side: usize| Arc::new(layouts(shape, side).remove(0));
    let layouts = [layout(PRODUCER), layout(CONSUMER)];
    let mut taking = vec![list(0, &[4, 5])];
    taking.extend(shape.middle.map(|_| list(4, &[6])));
    let taken = cells(&layouts[CONSUMER], &taking, 0..TOKENS, 1);
    let wanted = taken.iter().map(|cell| (cell.address, cell.value)).collect();
    let (tokens, from, resumes) = (TOKENS, 4, 4);
    let readies = &[(0..3, 4), (0..1, TOKENS), (1..3, TOKENS)];
    let is_half = false;
    Model { layouts, taking, taken, wanted, readies, again: 2, tokens, from, resumes, is_half, mode, scope }
}

/// The offer has twelve tokens, and its window the last four of them. The take is of eight, and needs four before.
fn windows(mode: Mode, from: u64, resumes: u64) -> Model {
    let middle = Some(GroupKind::Window { tokens: BLOCK });
    let plain = model(mode, Scope::Windows, Shape { middle, ..Shape::plain(1, 1, BLOCK) });
    Model { readies: &[(0..3, 12)], again: 1, tokens: 12, from, resumes, ..plain }
}

/// The same, by one of two ranks that have half of the heads each.
fn half_of_windows(mode: Mode, from: u64, resumes: u64) -> Model {
    let shape = Shape { middle: Some(GroupKind::Window { tokens: BLOCK }), ..Shape::plain(2, 1, BLOCK) };
    let mut half = windows(mode, from, resumes);
    half.layouts[PRODUCER] = Arc::new(layouts(shape, PRODUCER).remove(0));
    Model { is_half: true, ..half }
}

/// Goes to every state, and holds the pairs of ends that were reached against those that are known: the producer's, then
/// the consumer's.
fn ends_are(mode: Mode, scope: Scope, expected: &[&[[&str; 2]]]) {
    let ends = explored(model(mode, scope, Shape::plain(1, 1, BLOCK)));
    let expected = expected.iter().copied().flatten().map(|ends| ends.map(String::from));
    assert_eq!(ends, expected.collect());
}

fn explored(model: Model) -> BTreeSet<[String; 2]> {
    let started = Instant::now();
    let (states, ends) = model.explore();
    let Model { mode, scope, from, resumes, .. } = model;
    println!("{mode:?}, {scope:?}, {from}, {resumes}: {states} states in {:?}", started.elapsed());
    ends
}

const ALWAYS: [[&str; 2]; 5] = [
    ["Sent", "Received"],
    // One side gives up, and the other is told; or both do, before either knows of the other.
    ["Cancelled", "Failed"],
    ["Failed", "Cancelled"],
    ["Cancelled", "Cancelled"],
    // All had arrived, and the producer did not know.
    ["Cancelled", "Received"],
];
const WITH_FAULTS: [[&str; 2]; 8] = [
    ["Failed", "Failed"],
    ["Expired", "Failed"],
    ["Expired", "Cancelled"],
    // The session is lost.
    ["PeerLost", "PeerLost"],
    ["PeerLost", "Cancelled"],
    ["PeerLost", "Failed"],
    ["Cancelled", "PeerLost"],
    ["Expired", "PeerLost"],
];
/// All had arrived, and the producer did not know.
const WITH_LOSSES: [[&str; 2]; 1] = [["PeerLost", "Received"]];
/// A WRITE that failed before the session was lost.
const OF_PUSHES: [[&str; 2]; 1] = [["Failed", "PeerLost"]];

#[test]
fn every_order_of_a_pull_ends_in_a_known_pair() {
    ends_are(Mode::Pull, Scope::Faults, &[&ALWAYS, &WITH_FAULTS, &WITH_LOSSES]);
}

#[test]
fn every_order_of_a_push_ends_in_a_known_pair() {
    ends_are(Mode::Push, Scope::Faults, &[&ALWAYS, &WITH_FAULTS, &WITH_LOSSES, &OF_PUSHES]);
}

#[test]
fn every_order_of_a_pull_with_a_retract_ends_in_a_known_pair() {
    ends_are(Mode::Pull, Scope::Retracts, &[&ALWAYS]);
}

#[test]
fn every_order_of_a_push_with_a_retract_ends_in_a_known_pair() {
    ends_are(Mode::Push, Scope::Retracts, &[&ALWAYS]);
}

/// A retract and a window, wherever they begin. A take that needs blocks of a window that no taker can have fails; if it
/// comes after that, the offer may wait for another one.
fn windows_end_well(mode: Mode, cases: &[(u64, u64)]) {
    let may_be =
        [["Sent", "Received"], ["Failed", "Failed"], ["open", "Failed"]].map(|ends| ends.map(String::from));
    for &(from, resumes) in cases {
        let ends = explored(windows(mode, from, resumes));
        assert!(ends.iter().all(|ends| may_be.contains(ends)) && ends.contains(&may_be[0]), "{ends:?}");
        assert!(ends.len() > 1, "{ends:?}");
    }
}

#[test]
fn every_order_of_a_pull_with_a_retract_and_a_window_ends_in_a_known_pair() {
    windows_end_well(Mode::Pull, &[(4, 4), (8, 8)]);
}

/// Tokens READ before a retract are not READ again from blocks that are no longer offered.
#[test]
fn every_order_of_half_a_pull_with_a_retract_and_a_window_reads_what_is_offered() {
    let ends = explored(half_of_windows(Mode::Pull, 4, 8));
    assert!(ends.iter().all(|[_, end]| ["open", "Failed"].contains(&&end[..])), "{ends:?}");
}

#[test]
fn every_order_of_a_push_with_a_retract_and_a_window_ends_in_a_known_pair() {
    windows_end_well(Mode::Push, &[(4, 8), (8, 8)]);
}

/// Minutes: FERRY_TEST_KV_MODEL=1 runs it.
#[test]
fn every_order_of_all_of_these_ends_in_a_known_pair() {
    if std::env::var_os("FERRY_TEST_KV_MODEL").is_none() {
        return;
    }
    ends_are(Mode::Pull, Scope::Whole, &[&ALWAYS, &WITH_FAULTS, &WITH_LOSSES]);
    ends_are(Mode::Push, Scope::Whole, &[&ALWAYS, &WITH_FAULTS, &WITH_LOSSES, &OF_PUSHES]);
}
