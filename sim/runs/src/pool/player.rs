//! The task of one node: opens its pool, late at times, makes calls, some of which wait on tasks of their own, learns
//! their ends, closes the pool and opens it again, and closes it or lets the engine do that when the process leaves.

use super::desk::{Kind, Made, Node, Opening, LABEL};
use super::keys::{digest, length, scribble, write, wrong};
use crate::draw::Draw;
use crate::ledger::{Book, LifeId};
use crate::plan::MS;
use crate::program::{persist, Program};
use ferry::status::Status;
use ferry::RegionOptions;
use ferry_pool::{Call, Ended, NodeId, Outcome, Pool, PoolOptions, PutOptions, Value};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::{arena, memory, moment, process, task, trace};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

pub const FAR: &str = "a pool brings a value of another node";
pub const EVICTED: &str = "a pool evicts";
pub const FULL: &str = "no node of a pool has room";
pub const CLOSED: &str = "a pool is closed with calls";
/// The stream of the seed's numbers for life 0; each further life has the next one.
const STREAM: u64 = 400_000;
/// Calls of a node that are open at a time, and their keys.
const PARTS: usize = 3;
pub const KEYS_MAX: u64 = 5;
/// The bytes between two pieces of a call's memory.
const GAP: u64 = 64;
/// The pause of a node between two steps, in microseconds.
const PAUSE_US: (u64, u64) = (200, 30_000);
/// How long a close may take, and the calls before it.
const CLOSE_NS: u64 = 90_000 * MS;

/// The number of a call, and its end; None: the call was refused.
type Came = (u64, Option<Ended>);

pub struct Player {
    pub program: Program,
    pub draw: Draw,
    pub pool: Option<Rc<Pool>>,
    pub open: Vec<Made>,
    /// The ends that tasks which waited have learned.
    came: Rc<RefCell<Vec<Came>>>,
    /// Tasks that wait.
    waiting: Rc<RefCell<usize>>,
    address: u64,
    part_bytes: u64,
    /// How the keys of calls ended since the audit last looked.
    pub outcomes: BTreeMap<u64, Outcome>,
    made: u64,
    opens_ns: u64,
}

/// Plays a node until its process leaves.
pub fn run(program: Program) {
    let (life, book) = (program.life, program.world.book.clone());
    let mut player = Player::new(program);
    while !player.program.is_leaving() {
        player.step();
        let (least, most) = PAUSE_US;
        task::sleep(Duration::from_micros(player.draw.log_uniform(least, most)));
    }
    let by_engine = player.draw.percent(15);
    if !by_engine {
        player.close();
    }
    book.with(|ledger| ledger.lives[life].threads_left -= 1);
    if by_engine {
        player.see_the_end();
    }
    book.with(|ledger| ledger.lives[life].has_rank = false);
}

impl Player {
    fn new(program: Program) -> Player {
        let mut draw = Draw::new(program.world.seed, STREAM + program.life as u64);
        let plan = program.world.plan.pool.as_ref().expect("a plan of a pool");
        let part_bytes = KEYS_MAX * (plan.bytes_max + 4 * GAP);
        let bytes = PARTS as u64 * part_bytes;
        let address = arena::allocate(bytes as usize).expect("the arena has room");
        let life = program.life;
        memory::register(process::current(), LABEL + life as u64, address, bytes);
        let options = RegionOptions::default();
        // SAFETY: memory of the arena, which stays until the run is over; nobody holds references to it across a point.
        persist(|| unsafe { program.engine.register(address as *mut u8, bytes as usize, &options) });
        program.world.book.with(|ledger| {
            let (open, held, leftovers) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
            let (opening, known, passed, lacks) = (None, 0, false, String::new());
            let node = Node { address, open, opening, known, held, leftovers, passed, lacks };
            ledger.pool.nodes.insert(life, node);
        });
        let opens_ns = virtual_ns() + if draw.percent(30) { draw.log_uniform(1, 1_000) * MS } else { 0 };
        let (came, waiting) = (Rc::default(), Rc::default());
        let (pool, open, outcomes, made) = (None, Vec::new(), BTreeMap::new(), 0);
        Player { program, draw, pool, open, came, waiting, address, part_bytes, outcomes, made, opens_ns }
    }

    pub fn book(&self) -> Book {
        self.program.world.book.clone()
    }

    fn life(&self) -> LifeId {
        self.program.life
    }

    fn step(&mut self) {
        let is_calm = self.book().with(|ledger| ledger.is_calm);
        if self.pool.is_none() && !self.open_pool(is_calm) {
            return;
        }
        self.hear();
        self.note_counts();
        self.check_due();
        if is_calm {
            self.audit();
        } else if self.draw.percent(1) && self.draw.percent(30) {
            if !self.open.is_empty() {
                moment::reached(CLOSED);
            }
            self.close();
            self.opens_ns = virtual_ns() + self.draw.log_uniform(1, 1_000) * MS;
        } else if self.open.len() < PARTS && self.draw.percent(70) {
            self.make_any();
        }
    }

    /// Opens the pool when its time has come. Returns whether it is open.
    fn open_pool(&mut self, is_calm: bool) -> bool {
        if virtual_ns() < self.opens_ns && !is_calm {
            return false;
        }
        let world = &self.program.world;
        let plan = world.plan.pool.as_ref().expect("a plan of a pool");
        let address = |slot: usize| {
            let engine = &world.plan.engines[slot];
            format!("{}:{}", world.hosts[engine.host].address(), engine.port)
        };
        let options = PoolOptions {
            nodes: (0..plan.lends.len()).map(address).collect(),
            memory_bytes: plan.lends[self.program.slot],
            unit_bytes: plan.unit_bytes,
            redial: Duration::from_millis(plan.redial_ms),
            ..PoolOptions::default()
        };
        let pool = match Pool::open(&self.program.engine, options) {
            Ok(pool) => Rc::new(pool),
            Err(error) => {
                world.book.with(|ledger| ledger.check_call("opening a pool", &error));
                return false;
            }
        };
        let (life, node) = (self.life(), NodeId::of(pool.name()));
        self.pool = Some(pool);
        world.book.with(|ledger| {
            ledger.pool.openings.push(Opening { life, node, is_open: true, drops: 0 });
            let opening = ledger.pool.openings.len() - 1;
            ledger.pool.nodes.get_mut(&life).expect("a node").opening = Some(opening);
        });
        true
    }

    /// Makes a call with random keys.
    fn make_any(&mut self) {
        let plan = self.program.world.plan.clone();
        let plan = plan.pool.as_ref().expect("a plan of a pool");
        let kind = match self.draw.below(20) {
            0..=6 => Kind::Put,
            7..=13 => Kind::Get,
            14..=17 => Kind::Exists { prefix: self.draw.percent(30) },
            _ => Kind::Remove,
        };
        let among = if kind == Kind::Remove { plan.removed } else { plan.keys };
        let count = self.draw.between(1, KEYS_MAX);
        let keys = (0..count).map(|_| self.draw.between(0, among - 1)).collect();
        self.make(kind, keys);
    }

    /// Makes a call for these keys, if a part of the memory is free.
    pub fn make(&mut self, kind: Kind, keys: Vec<u64>) {
        let Some(pool) = self.pool.clone() else { return };
        let Some(part) = (0..PARTS).find(|part| self.open.iter().all(|made| made.part != *part)) else {
            return;
        };
        let memory = self.place(part, kind, &keys);
        let salt = self.draw.between(0, 255) as u8;
        for (key, pieces) in keys.iter().zip(&memory) {
            match kind {
                Kind::Put => write(*key, pieces),
                _ => scribble(salt, pieces),
            }
        }
        self.made += 1;
        let (number, life) = (self.made, self.life());
        let made =
            self.book().with(|ledger| ledger.pool_call_begins(life, (number, kind, part), keys, memory));
        trace::event("call", &[life as u64, number], || format!("{kind:?} {number} of {:?}", made.keys));
        let values: Vec<Value> = made
            .keys
            .iter()
            .enumerate()
            .map(|(at, key)| Value {
                key: digest(*key),
                memory: made.memory.get(at).cloned().unwrap_or_default(),
            })
            .collect();
        self.open.push(made);
        let options = PutOptions { replicas: *self.draw.pick(&[0, 0, 1, 2]), preferred: None };
        let patience = self.draw.percent(70).then(|| Duration::from_millis(self.draw.log_uniform(1, 4_000)));
        let (came, waiting) = (self.came.clone(), self.waiting.clone());
        let waits = self.draw.percent(60);
        let act = move || {
            let keys: Vec<_> = values.iter().map(|value| value.key).collect();
            let call = match kind {
                Kind::Put => Call::Put(&values, &options),
                Kind::Get => Call::Get(&values),
                Kind::Exists { prefix } => Call::Exists { keys: &keys, prefix },
                Kind::Remove => Call::Remove(&keys),
            };
            if waits {
                pool.run(&call, number, patience).map(|keys| Some(Ended { user_data: number, keys }))
            } else {
                pool.submit(&call, number).map(|()| None)
            }
        };
        if !waits {
            let submitted = act();
            return self.learn_refusal(number, submitted.err());
        }
        *waiting.borrow_mut() += 1;
        let (book, gone) = (self.book(), waiting.clone());
        let spawned = task::spawn("caller", move || {
            let ended = act();
            match ended {
                Ok(ended) => came.borrow_mut().push((number, ended)),
                // Its end comes as that of a submitted call.
                Err(error) if error.status == Status::Timeout => {}
                Err(error) if matches!(error.status, Status::Closed | Status::Limit) => {
                    came.borrow_mut().push((number, None));
                }
                Err(error) => book.with(|ledger| ledger.fail(format!("a call of a pool failed: {error}"))),
            }
            *waiting.borrow_mut() -= 1;
        });
        if spawned.is_err() {
            *gone.borrow_mut() -= 1;
            self.learn(number, None);
        }
    }

    /// Finds memory for the values of a call: pieces, with gaps between them.
    fn place(&mut self, part: usize, kind: Kind, keys: &[u64]) -> Vec<Vec<(u64, u64)>> {
        if !matches!(kind, Kind::Put | Kind::Get) {
            return Vec::new();
        }
        let bytes_max = self.program.world.plan.pool.as_ref().map_or(0, |plan| plan.bytes_max);
        let mut at = self.address + part as u64 * self.part_bytes;
        let draw = &mut self.draw;
        let place = |key: &u64| {
            let mut left = length(*key, bytes_max);
            let mut pieces = Vec::new();
            for nth in 0..3 {
                let bytes = if nth == 2 || draw.percent(60) { left } else { draw.between(0, left) };
                pieces.push((at, bytes));
                (at, left) = (at + bytes + GAP, left - bytes);
            }
            pieces
        };
        keys.iter().map(place).collect()
    }

    fn learn_refusal(&mut self, number: u64, error: Option<ferry::status::Error>) {
        let Some(error) = error else { return };
        if !matches!(error.status, Status::Closed | Status::Limit) {
            self.book().with(|ledger| ledger.fail(format!("a call of a pool failed: {error}")));
        }
        self.learn(number, None);
    }

    /// Takes the ends of calls.
    pub fn hear(&mut self) {
        let came = std::mem::take(&mut *self.came.borrow_mut());
        for (number, ended) in came {
            self.learn(number, ended);
        }
        while let Some(ended) = self.pool.as_ref().and_then(|pool| pool.poll()) {
            self.learn(ended.user_data, Some(ended));
        }
    }

    fn learn(&mut self, number: u64, ended: Option<Ended>) {
        let (book, life) = (self.book(), self.life());
        let Some(at) = self.open.iter().position(|made| made.number == number) else {
            return book.with(|ledger| {
                let name = ledger.named(life);
                ledger.fail(format!("a pool of {name} tells {ended:?}, of no open call"));
            });
        };
        let made = self.open.swap_remove(at);
        if let Some(ended) = ended {
            self.outcomes.extend(made.keys.iter().copied().zip(ended.keys.iter().map(|end| end.outcome)));
            self.check(&made, &ended);
        }
        book.with(|ledger| ledger.pool_call_is_over(life, &made));
        let salt = self.draw.between(0, 255) as u8;
        made.memory.iter().for_each(|pieces| scribble(salt, pieces));
    }

    /// Looks at the end of each key of a call.
    fn check(&mut self, made: &Made, ended: &Ended) {
        let (book, life) = (self.book(), self.life());
        let me = self.pool.as_ref().map(|pool| NodeId::of(pool.name()));
        let Made { number, kind, keys, memory, .. } = made;
        trace::event("called", &[life as u64, *number], || {
            let outcomes: Vec<_> = ended.keys.iter().map(|end| end.outcome.name()).collect();
            format!("{kind:?} {number} ends {outcomes:?}")
        });
        let plan = self.program.world.plan.clone();
        let (bytes_max, removed) = plan.pool.as_ref().map_or((0, 0), |plan| (plan.bytes_max, plan.removed));
        book.with(|ledger| {
            let fail = |ledger: &mut crate::ledger::Ledger, text: String| {
                let name = ledger.named(life);
                ledger.fail(format!("{kind:?} {number} of {name} ends {:?}: {text}", ended.keys));
            };
            if ended.keys.len() != keys.len() {
                return fail(ledger, "it has not as many ends as keys".into());
            }
            let is_prefix = *kind == Kind::Exists { prefix: true };
            let first_miss = ended.keys.iter().position(|end| !end.outcome.is_ok()).unwrap_or(keys.len());
            for (at, (key, end)) in keys.iter().zip(&ended.keys).enumerate() {
                if Made::is_wrong(*kind, end.outcome) {
                    fail(ledger, format!("no {kind:?} ends {}", end.outcome));
                }
                match (kind, end.outcome) {
                    (Kind::Get, Outcome::Ok) => {
                        if let Some(byte) = wrong(*key, &memory[at]) {
                            fail(ledger, format!("key {key} is wrong from byte {byte} on"));
                        }
                        if end.bytes != length(*key, bytes_max) {
                            fail(ledger, format!("key {key} has {} bytes", end.bytes));
                        }
                        if end.node.is_some() && end.node != me && end.bytes > 0 {
                            moment::reached(FAR);
                        }
                    }
                    (Kind::Put, Outcome::Ok | Outcome::Here) => {
                        let node = end.node.filter(|_| *key >= removed);
                        node.into_iter().for_each(|node| ledger.was_stored(made, *key, node));
                    }
                    (Kind::Put, Outcome::Full) => moment::reached(FULL),
                    (Kind::Get | Kind::Exists { .. }, Outcome::Absent) if !is_prefix || at <= first_miss => {
                        ledger.was_absent(life, made, at);
                    }
                    (Kind::Remove, Outcome::Ok | Outcome::Absent) => ledger.was_removed(made, *key),
                    _ => {}
                }
            }
        });
    }

    /// Notes what this node has dropped.
    fn note_counts(&self) {
        let (Some(pool), life) = (&self.pool, self.life()) else { return };
        let counts = pool.stats().owner;
        let drops = counts.evicted + counts.corrupt;
        if counts.evicted > 0 {
            moment::reached(EVICTED);
        }
        self.book().with(|ledger| {
            let opening = ledger.pool.nodes.get(&life).and_then(|node| node.opening);
            if let Some(opening) = opening {
                ledger.pool.openings[opening].drops = drops;
            }
        });
    }

    pub fn check_due(&self) {
        let life = self.life();
        self.book().with(|ledger| {
            if let Some(made) = self.open.iter().find(|made| ledger.is_overdue(life, made)) {
                let name = ledger.named(life);
                ledger.fail(format!("{:?} {} of {name} should have ended by now", made.kind, made.number));
            }
        });
    }

    fn begin_closing(&self) {
        let life = self.life();
        self.book().with(|ledger| {
            let opening = ledger.pool.nodes.get_mut(&life).and_then(|node| node.opening);
            if let Some(opening) = opening {
                ledger.pool.openings[opening].is_open = false;
            }
        });
    }

    /// Closes the pool, and sees the ends of its calls.
    fn close(&mut self) {
        let Some(pool) = self.pool.clone() else { return };
        self.begin_closing();
        let (book, life) = (self.book(), self.life());
        let frozen = || book.with(|ledger| ledger.lives[life].frozen_ns());
        let (since, frozen_before) = (virtual_ns(), frozen());
        while let Err(error) = pool.close(Some(Duration::from_millis(500))) {
            let passed = virtual_ns() - since - (frozen() - frozen_before);
            let pages_ns = book.with(|ledger| ledger.late_pages_ns());
            if error.status != Status::Busy || passed > CLOSE_NS + pages_ns {
                return book.with(|ledger| {
                    let name = ledger.named(life);
                    ledger.fail(format!("{name} cannot close its pool: {error}"));
                });
            }
        }
        self.forget_pool();
    }

    /// Sees the ends of all calls when the engine is closed.
    fn see_the_end(&mut self) {
        let Some(pool) = self.pool.clone() else { return };
        self.begin_closing();
        let begun_ns = virtual_ns();
        loop {
            match pool.wait(Some(Duration::from_millis(200))) {
                Ok(ended) => self.learn(ended.user_data, Some(ended)),
                Err(error) if error.status == Status::Closed => return self.forget_pool(),
                Err(_) if virtual_ns() > begun_ns + 4 * CLOSE_NS => {
                    let (book, life) = (self.book(), self.life());
                    return book.with(|ledger| {
                        let name = ledger.named(life);
                        ledger.fail(format!("the pool of {name} outlives its engine"));
                    });
                }
                Err(_) => {}
            }
        }
    }

    fn forget_pool(&mut self) {
        while *self.waiting.borrow() > 0 {
            task::sleep(Duration::from_millis(1));
        }
        self.hear();
        self.note_counts();
        self.pool = None;
        let (book, life) = (self.book(), self.life());
        book.with(|ledger| {
            ledger.pool.nodes.get_mut(&life).expect("a node").opening = None;
            if let Some(made) = self.open.first() {
                let name = ledger.named(life);
                let Made { kind, number, .. } = made;
                ledger.fail(format!("the pool of {name} is closed, and its {kind:?} {number} has not ended"));
            }
        });
    }
}
