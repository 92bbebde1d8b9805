//! The task of one rank: opens its cache, late at times, begins its sides of sequences, learns their ends and looks at
//! each byte, closes the cache and opens it again, and closes it or lets the engine do that when the process leaves.

use super::caches::{cells, layout, Cell, BLOCKS};
use super::check::Ended;
use super::desk::{byte, set_byte, spans, Rank, Role, Sequence, Side, Stage, LABEL};
use crate::actor::Actor;
use crate::draw::Draw;
use crate::plan::MS;
use crate::program::{persist, Program};
use ferry::notify::WHAT_TRANSFERS;
use ferry::status::Error;
use ferry::types::{PeerId, RegionId};
use ferry::{PeerState, RegionOptions};
use ferry_kv::handoff::{BlockList, End, Event, HandoffId, HandoffState, Mode, TakeSpec};
use ferry_kv::layout::Layout;
use ferry_kv::{Cache, CacheMemory, CacheOptions};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::{arena, memory, moment, process, task, trace};
use std::time::Duration;

pub const RECEIVED: &str = "a handoff is received";
pub const OPENED_LATE: &str = "a cache is opened after a take of its handoff";
pub const CLOSED: &str = "a cache is closed with handoffs";
/// Sequences that are under way at a time.
const WINDOW: usize = 3;
/// The stream of the seed's numbers for life 0; each further life has the next one.
const STREAM: u64 = 200_000;
/// The pause of a rank between two steps, in microseconds.
const PAUSE_US: (u64, u64) = (200, 30_000);

/// A side of a sequence that this rank plays.
pub struct Mine {
    pub sequence: usize,
    pub side: usize,
    pub id: HandoffId,
    pub role: Role,
    pub lists: Vec<BlockList>,
    /// The cells of a take, with what was there before.
    pub before: Vec<u8>,
    /// By token: the first version that the take may have. It may keep tokens that the producers take back later.
    pub least: Vec<u64>,
    /// When a take has ended at the latest; and how long this process could not run before.
    pub due_ns: Option<u64>,
    pub frozen_ns: u64,
    pub offer: super::producer::Offer,
}

pub struct Player {
    pub actor: Actor,
    pub draw: Draw,
    pub layout: Layout,
    pub cache: Option<Cache>,
    pub mine: Vec<Mine>,
    region: RegionId,
    address: u64,
    bytes: u64,
    opens_ns: u64,
}

/// Plays a rank until its process leaves.
pub fn run(program: Program) {
    let life = program.life;
    let book = program.world.book.clone();
    let mut player = Player::new(program);
    while !player.actor.program.is_leaving() {
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
    player.cache = None;
    book.with(|ledger| ledger.lives[life].has_rank = false);
}

impl Player {
    fn new(program: Program) -> Player {
        let mut draw = Draw::new(program.world.seed, STREAM + program.life as u64);
        let plan = program.world.plan.kv.as_ref().expect("a plan of caches");
        let (shape, rank) = plan.place(program.slot).expect("a rank");
        let placeless = layout(shape, rank, 0);
        let ends = placeless.layers.iter().filter_map(|layer| layer.extent(&placeless));
        let bytes = ends.map(|extent| extent.end).max().unwrap_or(1);
        let address = arena::allocate(bytes as usize).expect("the arena has room");
        let layout = layout(shape, rank, address);
        memory::register(process::current(), LABEL + program.life as u64, address, bytes);
        (0..bytes).for_each(|at| set_byte(address + at, (at * 7) as u8));
        let options = RegionOptions::default();
        // SAFETY: memory of the arena, which stays until the run is over; nobody holds references to it across a point.
        let region =
            persist(|| unsafe { program.engine.register(address as *mut u8, bytes as usize, &options) });
        let opens_ns = virtual_ns() + if draw.percent(40) { draw.log_uniform(1, 2_000) * MS } else { 0 };
        let (life, own) = (program.life, Rank::new(layout.clone(), address, BLOCKS));
        program.world.book.with(|ledger| ledger.kv.ranks.insert(life, own));
        let queue = program.queue(WHAT_TRANSFERS, 1);
        let actor = Actor::of(program, Draw::new(0, 0), queue, usize::MAX);
        Player { actor, draw, layout, cache: None, mine: Vec::new(), region, address, bytes, opens_ns }
    }

    fn step(&mut self) {
        let is_calm = self.actor.program.world.book.with(|ledger| {
            ledger.look_for_dead_sides();
            ledger.is_calm
        });
        self.connect(is_calm);
        if self.is_first() {
            self.make_sequence(is_calm);
        }
        if self.cache.is_none() && !self.open(is_calm) {
            return;
        }
        self.look_at_takes();
        self.hear();
        self.check_due();
        self.begin();
        if self.mine.is_empty() {
            return;
        }
        let at = self.draw.below(self.mine.len());
        let is_exam =
            self.actor.program.world.book.with(|ledger| ledger.kv.sequences[self.mine[at].sequence].is_exam);
        if !is_calm && self.draw.percent(1) && self.draw.percent(30) {
            moment::reached(CLOSED);
            self.close();
            self.opens_ns = virtual_ns() + self.draw.log_uniform(1, 1_000) * MS;
        } else if !is_exam && (is_calm || self.draw.percent(1) && self.draw.percent(40)) {
            // After the last fault, what is left makes room for the exam.
            let (id, cache) = (self.mine[at].id, self.cache.as_ref().expect("it is open"));
            let _ = match self.mine[at].role {
                Role::Producer => cache.offer_cancel(id),
                Role::Taker(_) => cache.take_cancel(id),
            };
        } else if self.mine[at].role == Role::Producer {
            self.produce(at, is_exam);
        }
    }

    fn is_first(&self) -> bool {
        let program = &self.actor.program;
        program.world.plan.kv.as_ref().is_some_and(|kv| kv.producers[0] == program.slot)
    }

    /// Opens the cache when its time has come. Returns whether it is open.
    fn open(&mut self, is_calm: bool) -> bool {
        if virtual_ns() < self.opens_ns && !is_calm {
            return false;
        }
        let program = &self.actor.program;
        let silence_ms = program.world.plan.kv.as_ref().map_or(1_000, |kv| kv.silence_ms);
        let memory = CacheMemory { region: self.region, address: self.address, length: self.bytes };
        let options = CacheOptions { silence: Duration::from_millis(silence_ms), leased_blocks_max: 0 };
        match Cache::open(&program.engine, self.layout.clone(), &[memory], options) {
            Ok(cache) => self.cache = Some(cache),
            Err(error) => program.world.book.with(|ledger| ledger.check_call("opening a cache", &error)),
        }
        let (life, is_open) = (program.life, self.cache.is_some());
        let is_awaited = program.world.book.with(|ledger| {
            if let Some(rank) = ledger.kv.ranks.get_mut(&life) {
                rank.has_cache = is_open;
            }
            let all = ledger.kv.sequences.iter();
            let mut open =
                all.filter(|it| it.sides.iter().any(|side| side.life == life && side.stage == Stage::Waits));
            open.any(|it| it.sides.iter().any(|side| side.stage == Stage::Begun))
        });
        if is_open && is_awaited {
            moment::reached(OPENED_LATE);
        }
        is_open
    }

    /// Connects to the ranks of the other side that are not connected. A fence ends with that.
    fn connect(&mut self, is_calm: bool) {
        if !is_calm && !self.draw.percent(10) {
            return;
        }
        let partners =
            self.actor.program.world.plan.kv.as_ref().map(|kv| kv.partners(self.actor.program.slot));
        for slot in partners.unwrap_or_default() {
            let _ = self.peer(slot);
        }
    }

    /// Returns the peer at a slot. A lost one is connected to again.
    fn peer(&mut self, slot: usize) -> Option<(PeerId, usize)> {
        let (peer, life) = self.actor.peer(slot)?;
        let info = self.actor.program.engine.peer_info(peer);
        if info.is_ok_and(|info| info.state != PeerState::Lost) {
            return Some((peer, life));
        }
        self.actor.forget(slot, peer);
        None
    }

    /// The first rank of the producer routes requests: it makes sequences for the processes that are there.
    fn make_sequence(&mut self, is_calm: bool) {
        let program = self.actor.program.clone();
        let Some(plan) = program.world.plan.kv.as_ref() else { return };
        let draw = &mut self.draw;
        program.world.book.with(|ledger| {
            let desk = &ledger.kv;
            let under_way = desk.sequences.iter().filter(|it| !it.is_over()).count();
            let is_exam = is_calm && !desk.passed && under_way == 0;
            let made = desk.sequences.len();
            if !is_exam && (is_calm || made >= plan.sequences || under_way >= WINDOW || !draw.percent(3)) {
                return;
            }
            let lives: Option<Vec<(usize, usize)>> =
                plan.slots().map(|slot| Some((slot, ledger.life_of(slot)?))).collect();
            let is_there = |life: &usize| {
                let rank = ledger.kv.ranks.get(life);
                rank.is_some_and(|rank| rank.has_cache || !is_exam) && !ledger.lives[*life].leaves
            };
            let Some(lives) = lives.filter(|lives| lives.iter().all(|(_, life)| is_there(life))) else {
                return;
            };
            let sides = lives.into_iter().map(|(slot, life)| {
                let taker = plan.takers.iter().position(|slots| slots.contains(&slot));
                let role = taker.map_or(Role::Producer, Role::Taker);
                Side { slot, life, role, stage: Stage::Waits, version: 0, least: vec![0; 64] }
            });
            let has_state = plan.source.middle == Some(ferry_kv::layout::GroupKind::State);
            let new = Sequence::new(draw, plan.takers.len(), is_exam, has_state, sides.collect());
            trace::event("sequence", &[made as u64], || {
                format!("makes sequence {made} of {} tokens", new.tokens)
            });
            ledger.kv.sequences.push(new);
        });
    }

    /// Begins a side that waits.
    fn begin(&mut self) {
        let (life, book) = (self.actor.program.life, self.actor.program.world.book.clone());
        let waiting = book.with(|ledger| {
            let all = ledger.kv.sequences.iter().enumerate();
            let mut own =
                all.flat_map(|(at, it)| it.sides.iter().enumerate().map(move |(nth, side)| (at, nth, side)));
            own.find(|(.., side)| side.life == life && side.stage == Stage::Waits)
                .map(|(at, nth, side)| (at, nth, side.role))
        });
        let Some((sequence, side, role)) = waiting else { return };
        let peers = match role {
            Role::Producer => Vec::new(),
            Role::Taker(_) => match self.peers_of(sequence) {
                Ok(peers) => peers,
                Err(is_over) => {
                    if is_over {
                        book.with(|ledger| ledger.kv.sequences[sequence].sides[side].stage = Stage::Gone);
                    }
                    return;
                }
            },
        };
        let (draw, layout) = (&mut self.draw, &self.layout);
        let mine = book.with(|ledger| {
            let desk = &mut ledger.kv;
            let of = &desk.sequences[sequence];
            let rank = desk.ranks.get_mut(&life)?;
            let lists = rank.allocate(draw, of, role)?;
            let tokens = of.tokens_of(role).0;
            let all = cells(layout, &lists, 0..tokens, sequence as u64);
            let before = all.iter().map(|cell| byte(cell.address)).collect();
            let may_write: Vec<Cell> =
                all.into_iter().filter(|cell| cell.token >= of.tokens_of(role).1).collect();
            if role != Role::Producer {
                rank.open.push((sequence, spans(&may_write)));
            }
            let least = (0..of.tokens).map(|token| of.least(token)).collect();
            let offer = super::producer::Offer::new(layout, of);
            let frozen_ns = ledger.lives[life].frozen_ns();
            let id = of.id;
            Some(Mine { sequence, side, id, role, lists, before, least, due_ns: None, frozen_ns, offer })
        });
        let Some(mut mine) = mine else { return };
        // The side has begun before anything can be told of it.
        book.with(|ledger| ledger.kv.sequences[sequence].sides[side].stage = Stage::Begun);
        let begun = match role {
            Role::Producer => self.begin_offer(&mut mine),
            Role::Taker(number) => self.begin_take(&mut mine, number, peers),
        };
        match begun {
            Ok(()) => self.mine.push(mine),
            Err(error) => {
                book.with(|ledger| {
                    ledger.check_call("beginning a handoff", &error);
                    let text = ledger.named_side(sequence, side);
                    trace::event("unbegun", &[sequence as u64], || format!("{text} cannot begin: {error}"));
                    ledger.side_ended(&mine, End::Failed);
                    ledger.kv.sequences[sequence].sides[side].stage = Stage::Gone;
                });
                self.give_back(&mine);
            }
        }
    }

    /// Returns the producers of a sequence. An error says whether they will never be there.
    fn peers_of(&mut self, sequence: usize) -> Result<Vec<PeerId>, bool> {
        let producers: Vec<(usize, usize)> = self.actor.program.world.book.with(|ledger| {
            ledger.kv.sequences[sequence].producers().map(|side| (side.slot, side.life)).collect()
        });
        let mut peers = Vec::new();
        for (slot, life) in producers {
            match self.peer(slot) {
                Some((peer, of)) if of == life => peers.push(peer),
                Some(_) => return Err(true),
                None => {
                    let book = &self.actor.program.world.book;
                    return Err(book.with(|ledger| {
                        !ledger.lives[life].is_alive || ledger.slots[slot].life != Some(life)
                    }));
                }
            }
        }
        Ok(peers)
    }

    fn begin_take(&mut self, mine: &mut Mine, number: usize, producers: Vec<PeerId>) -> Result<(), Error> {
        let (tokens, skip_tokens, is_exam) = self.actor.program.world.book.with(|ledger| {
            let of = &ledger.kv.sequences[mine.sequence];
            let (tokens, skip) = of.tokens_of(mine.role);
            (tokens, skip, of.is_exam)
        });
        let deadline = if is_exam {
            Duration::from_secs(60)
        } else {
            Duration::from_millis(self.draw.log_uniform(500, 8_000))
        };
        mine.due_ns = Some(virtual_ns() + deadline.as_nanos() as u64);
        let cache = self.cache.as_ref().expect("it is open");
        cache.take(TakeSpec {
            id: mine.id,
            producers,
            taker: number as u64,
            blocks: mine.lists.clone(),
            skip_tokens,
            tokens,
            mode: *self.draw.pick(&[Mode::Auto, Mode::Pull, Mode::Push]),
            deadline: Some(deadline),
            tell_layers: self.draw.percent(30),
        })
    }

    /// Remembers what takes may have that have not begun to end.
    fn look_at_takes(&mut self) {
        let book = self.actor.program.world.book.clone();
        let cache = self.cache.as_ref().expect("it is open");
        for mine in self.mine.iter_mut().filter(|mine| mine.role != Role::Producer) {
            let least: Vec<u64> = book.with(|ledger| {
                let of = &ledger.kv.sequences[mine.sequence];
                (0..of.tokens).map(|token| of.least(token)).collect()
            });
            // Whatever was taken back before this call, the take does not have any more.
            if matches!(cache.state(mine.id), HandoffState::Taking { .. }) {
                mine.least = least;
            }
        }
    }

    /// Takes the cache's events.
    pub fn hear(&mut self) {
        while let Some(event) = self.cache.as_ref().and_then(Cache::poll) {
            self.learn(event);
        }
    }

    pub fn learn(&mut self, event: Event) {
        let book = self.actor.program.world.book.clone();
        let id = match &event {
            Event::Layers { id, .. } | Event::Ended { id, .. } => *id,
        };
        let Some(at) = self.mine.iter().position(|mine| mine.id == id) else {
            return book
                .with(|ledger| ledger.fail(format!("a cache tells {event:?}, of nothing that has begun")));
        };
        let name = |ledger: &crate::ledger::Ledger, mine: &Mine| ledger.named_side(mine.sequence, mine.side);
        match event {
            Event::Layers { layers, .. } => {
                let (mine, layout) = (&self.mine[at], &self.layout);
                book.with(|ledger| {
                    let (tokens, skip) = ledger.kv.sequences[mine.sequence].tokens_of(mine.role);
                    let kept = |cell: &Cell| super::check::is_kept(layout, cell, tokens);
                    let may = |cell: &Cell| cell.layer < layers && cell.token >= skip && kept(cell);
                    if let Some(wrong) = ledger.wrong_cells(mine, layout, &may) {
                        let name = name(ledger, mine);
                        ledger.fail(format!("{name} is told of {layers} layers, and {wrong}"));
                    }
                });
            }
            Event::Ended { end, status, why, valid_tokens, untrusted, .. } => {
                let mine = self.mine.swap_remove(at);
                let layout = &self.layout;
                let ended = Ended { end, status, valid: valid_tokens, untrusted };
                book.with(|ledger| {
                    let name = name(ledger, &mine);
                    trace::event("handed", &[mine.sequence as u64, mine.side as u64], || {
                        format!("{name} ends {end:?}, {status}, {valid_tokens} tokens: {why}")
                    });
                    let wrong = match mine.role {
                        Role::Producer => {
                            (end == End::Sent && !mine.offer.sealed).then(|| "it is not whole".into())
                        }
                        Role::Taker(_) => ledger.wrong_take(&mine, layout, &ended),
                    };
                    if let Some(wrong) = wrong {
                        ledger.fail(format!("{name} ends {end:?}: {wrong}"));
                    }
                    ledger.side_ended(&mine, end);
                });
                if end == End::Received {
                    moment::reached(RECEIVED);
                }
                self.give_back(&mine);
            }
        }
    }

    /// The blocks of a side are the application's: it uses them for something else.
    fn give_back(&mut self, mine: &Mine) {
        let (life, scribble) = (self.actor.program.life, self.draw.between(0, 255) as u8);
        let all = cells(&self.layout, &mine.lists, 0..64, mine.sequence as u64);
        all.iter().for_each(|cell| set_byte(cell.address, scribble));
        self.actor.program.world.book.with(|ledger| {
            let Some(rank) = ledger.kv.ranks.get_mut(&life) else { return };
            for (group, list) in mine.lists.iter().enumerate() {
                rank.give_back(group, &list.ids);
            }
            rank.give_back(1.min(mine.lists.len() - 1), &mine.offer.window_ids());
        });
    }
}
