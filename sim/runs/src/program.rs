//! The program of one process: opens an engine, registers memory, starts the application's threads, drains events, and
//! closes the engine when it is told to leave.

use crate::actor::Actor;
use crate::checks::bounds::SLACK_NS;
use crate::draw::Draw;
use crate::kv;
use crate::ledger::{Book, Life, LifeId};
use crate::memory::{Memory, MemoryId};
use crate::plan::{EnginePlan, MemoryPlan, Plan, MS};
use crate::pool;
use crate::probes;
use ferry::limits::DEVICE_IDLE_MS;
use ferry::notify::{Event, EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_PEER_STATES};
use ferry::status::Status;
use ferry::types::{Access, Location, MemoryKind, PeerId, RegionId};
use ferry::{Config, Engine, PeerState, RegionOptions};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::nic::NicId;
use ferry_sim_kernel::process::{HostId, ProcessId};
use ferry_sim_kernel::{arena, device, memory, process, task};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const RETRY: Duration = Duration::from_millis(20);
/// Events that are taken at once.
const EVENTS: usize = 16;

/// The state that every task of a run knows.
#[derive(Clone)]
pub struct World {
    pub seed: u64,
    pub book: Book,
    pub plan: Rc<Plan>,
    pub hosts: Rc<Vec<HostId>>,
    /// The NICs of all hosts.
    pub nics: Rc<Vec<NicId>>,
}

/// One life: the program's tasks share this.
#[derive(Clone)]
pub struct Program {
    pub world: World,
    pub plan: EnginePlan,
    pub slot: usize,
    pub life: LifeId,
    pub engine: Engine,
}

/// Starts the process of a slot, or its program in this one.
pub fn start(world: &World, slot: usize, process: Option<ProcessId>) {
    let plan = world.plan.engines[slot].clone();
    let host = world.hosts[plan.host];
    let life = world.book.with(|ledger| ledger.lives.len());
    let process = process.unwrap_or_else(|| host.start(&format!("e{slot}.{life}")));
    world.book.with(|ledger| {
        ledger.lives.push(Life::new(slot, process));
        ledger.slots[slot].life = Some(life);
    });
    let world = world.clone();
    process.spawn("main", move || run(world, plan, slot, life)).expect("a fresh program has threads");
}

fn run(world: World, plan: EnginePlan, slot: usize, life: LifeId) {
    let book = world.book.clone();
    let engine = open(&world, &plan);
    let program = Program { world, plan, slot, life, engine };
    let incarnation = program.engine.descriptor().expect("the engine listens").incarnation;
    book.with(|ledger| {
        ledger.lives[life].incarnation = incarnation;
        ledger.slots[slot].address = program.engine.address().to_owned();
    });
    for memory in &program.plan.memories {
        program.register(memory);
    }
    let events: Vec<Arc<Queue>> =
        program.plan.channels.iter().map(|channel| program.events(*channel)).collect();
    book.with(|ledger| {
        ledger.lives[life].is_ready = true;
        ledger.lives[life].threads_left = program.plan.threads;
    });
    let plan = program.world.plan.clone();
    let is_rank = plan.kv.as_ref().is_some_and(|kv| kv.is_rank(slot));
    if is_rank || plan.pool.is_some() {
        book.with(|ledger| {
            ledger.lives[life].threads_left += 1;
            ledger.lives[life].has_rank = true;
        });
        let (name, play): (_, fn(Program)) = if is_rank { ("rank", kv::run) } else { ("node", pool::run) };
        persist(|| {
            let program = program.clone();
            task::spawn(name, move || play(program))
        });
    }
    for nth in 0..program.plan.threads {
        let program = program.clone();
        persist(|| {
            let program = program.clone();
            task::spawn(&format!("app{nth}"), move || Actor::new(program, nth).run())
        });
    }
    if program.plan.is_wide {
        book.with(|ledger| ledger.lives[life].threads_left += 1);
        persist(|| {
            let program = program.clone();
            task::spawn("probes", move || probes::run(program))
        });
    }
    program.serve(&events);
    program.close();
    while book.with(|ledger| ledger.lives[life].has_rank && !ledger.has_failed) {
        task::sleep(RETRY);
    }
    events.iter().for_each(|events| program.callback_is_gone(events));
    book.with(|ledger| ledger.lives[life].is_ready = false);
    // Events may still be drained.
    events.iter().for_each(|events| program.drain(events, 1 << 10));
    book.with(|ledger| ledger.slots[slot].life = None);
}

/// Repeats what may fail because the process has too few descriptors or threads.
pub fn persist<T, E: std::fmt::Display>(mut act: impl FnMut() -> Result<T, E>) -> T {
    loop {
        match act() {
            Ok(value) => return value,
            Err(error) => ferry_sim_kernel::trace::event("again", &[], || format!("tries again: {error}")),
        }
        task::sleep(RETRY);
    }
}

fn open(world: &World, plan: &EnginePlan) -> Engine {
    loop {
        let mut config = Config::default();
        let address = format!("{}:{}", world.hosts[plan.host].address(), plan.port);
        config.set("listen_address", &address).expect("an address");
        for (key, value) in &plan.settings {
            config.set(key, value).expect("a setting");
        }
        match Engine::open(config) {
            Ok(engine) => return engine,
            Err(error) => world.book.with(|ledger| ledger.check_call("opening an engine", &error)),
        }
        task::sleep(RETRY);
    }
}

impl Program {
    pub fn is_leaving(&self) -> bool {
        self.world.book.with(|ledger| ledger.lives[self.life].leaves || ledger.has_failed)
    }

    /// Adds a memory and registers it.
    pub fn register(&self, plan: &MemoryPlan) {
        let MemoryPlan { bytes, access, device } = *plan;
        let address = match device {
            Some(ordinal) => device::allocate(ordinal, bytes as usize),
            None => arena::allocate(bytes as usize),
        };
        let address = address.expect("the arena has room");
        let id = self.world.book.with(|ledger| {
            let (region, old, claims) = (None, Vec::new(), BTreeMap::new());
            let (goes, comes) = (false, false);
            let life = self.life;
            let new = Memory { life, address, bytes, access, device, region, old, goes, comes, claims };
            ledger.memories.push(new);
            let id = ledger.memories.len() - 1;
            ledger.lives[life].memories.push(id);
            id
        });
        memory::register(process::current(), id as u64, address, bytes);
        persist(|| self.register_again(id));
    }

    /// Registers a memory, which becomes another region.
    pub fn register_again(&self, id: MemoryId) -> ferry::status::Result<RegionId> {
        let (address, bytes, access, device) = self.world.book.with(|ledger| {
            let memory = &mut ledger.memories[id];
            memory.comes = true;
            (memory.address, memory.bytes, memory.access, memory.device)
        });
        // The program says where some memory is; for other memory, ferry finds out.
        let stated = device.filter(|_| id % 2 == 0).map(|device| Location { kind: MemoryKind::Cuda, device });
        let options = RegionOptions { access: Access(access), location: stated, ..RegionOptions::default() };
        // SAFETY: memory of the arena, which stays until the run is over; nobody holds references to it across a point.
        let region = unsafe { self.engine.register(address as *mut u8, bytes as usize, &options) };
        self.world.book.with(|ledger| {
            let memory = &mut ledger.memories[id];
            memory.comes = false;
            if let Ok(region) = region {
                memory.region = Some(region);
                memory.goes = false;
            }
        });
        region
    }

    /// Creates the queue of a channel; that of channel 0 also takes the events of peers.
    fn events(&self, channel: u16) -> Arc<Queue> {
        let of_peers = if channel == 0 { WHAT_PEERS | WHAT_PEER_STATES } else { 0 };
        persist(|| self.engine.channel_queue(WHAT_NOTIFICATIONS | of_peers, 64, channel))
    }

    /// Drains events until the process leaves and its threads have ended. A slow program drains all channels but 0.
    fn serve(&self, events: &[Arc<Queue>]) {
        let mut draw = Draw::new(self.world.seed, 1_000 + self.life as u64);
        loop {
            let (ends, is_slow) = self.world.book.with(|ledger| {
                let life = &ledger.lives[self.life];
                let ends = (life.leaves || ledger.has_failed) && life.threads_left == 0;
                (ends, ledger.slots[self.slot].is_slow && !ledger.is_calm)
            });
            if ends {
                return;
            }
            let rests = self.serve_channel(&events[0], is_slow, &mut draw);
            for events in &events[1..] {
                self.serve_channel(events, false, &mut draw);
            }
            if !rests {
                continue;
            }
            task::sleep(Duration::from_micros(draw.between(self.plan.drain_us / 2, self.plan.drain_us)));
        }
    }

    /// Takes events of a queue. Returns false if that has waited for them.
    fn serve_channel(&self, events: &Queue, is_slow: bool, draw: &mut Draw) -> bool {
        match self.plan.calls_back {
            true => self.call_back_on(events, is_slow, draw),
            false if is_slow => {}
            // The programs of every other life sleep until there are events.
            false if self.life % 2 == 0 => {
                self.await_events(events, Duration::from_micros(self.plan.drain_us));
                return false;
            }
            false => self.drain(events, EVENTS),
        }
        true
    }

    /// Keeps the callback set. At times unsets it until the next call, which drains the events and sets it again.
    /// Leaves it unset while the program is slow.
    fn call_back_on(&self, events: &Queue, is_slow: bool, draw: &mut Draw) {
        let is_set = self.is_called_back(events);
        if is_set && (is_slow || draw.percent(5)) {
            self.unset_callback(events);
        } else if !is_set && !is_slow {
            self.drain(events, EVENTS);
            let program = self.clone();
            self.call_back(events, move |event| {
                let tick = program.world.book.with(|ledger| ledger.tick());
                program.hear(event, tick);
            });
        }
    }

    fn await_events(&self, events: &Queue, patience: Duration) {
        match self.engine.wait_events(events, EVENTS, Some(patience)) {
            Ok(all) => self.hear_all(all),
            Err(error) if error.status == Status::Timeout => {}
            Err(error) => {
                self.world.book.with(|ledger| ledger.fail(format!("waiting for events failed: {error}")))
            }
        }
    }

    fn drain(&self, events: &Queue, most: usize) {
        let mut all: Vec<Event> = Vec::new();
        events.drain(&mut all, most);
        self.hear_all(all);
    }

    fn hear_all(&self, all: Vec<Event>) {
        let tick = self.world.book.with(|ledger| ledger.tick());
        // Each credit goes back before the next event is looked at.
        for event in all {
            self.hear(&event, tick);
        }
    }

    /// An event was taken before this tick.
    fn hear(&self, event: &Event, tick: u64) {
        let of = self.life_behind(event.peer);
        let is_lost = matches!(event.body, EventBody::PeerLost { .. });
        // A pool connects at any time.
        let may_be_only = is_lost && self.world.plan.pool.is_none();
        let is_only = may_be_only && of.is_some_and(|of| self.has_no_session(of, event.peer));
        if is_lost {
            self.world.book.with(|ledger| {
                ledger.lives[self.life].lost.insert(event.peer.raw());
                // A cache or a pool may have fenced the peer: it is refused until this side connects again, as its exam
                // does.
                let plan = &self.world.plan;
                if let Some(of) = of.filter(|_| plan.kv.is_some() || plan.pool.is_some()) {
                    let slot = ledger.lives[of].slot;
                    ledger.passed.remove(&(self.life, slot));
                }
            });
        }
        self.world.book.with(|ledger| match &event.body {
            EventBody::Notification { channel, bytes } => ledger.arrived(self.life, of, *channel, bytes),
            body => {
                ledger.cache_heard(self.life, body);
                ledger.heard((self.life, tick), event.peer.raw(), of, is_only, body)
            }
        });
    }

    /// Returns the life behind a handle.
    pub fn life_behind(&self, peer: PeerId) -> Option<LifeId> {
        let known = self.world.book.with(|ledger| ledger.lives[self.life].handles.get(&peer.raw()).copied());
        if known.is_some() {
            return known;
        }
        let incarnation = self.engine.peer_info(peer).ok()?.incarnation;
        self.world.book.with(|ledger| {
            let of = ledger.life_named(incarnation)?;
            ledger.lives[self.life].handles.insert(peer.raw(), of);
            Some(of)
        })
    }

    /// True if no session with that life stands, no thread connects to it, and the loss of each earlier session was
    /// told, too. `but`: the peer whose loss is told now.
    fn has_no_session(&self, other: LifeId, but: PeerId) -> bool {
        let (incarnation, lost) = self
            .world
            .book
            .with(|ledger| (ledger.lives[other].incarnation, ledger.lives[self.life].lost.clone()));
        let stands = match self.engine.peers() {
            Ok(all) => {
                let infos = all.into_iter().filter_map(|peer| self.engine.peer_info(peer).ok());
                let stand = infos.filter(|it| it.incarnation == incarnation).filter(|it| {
                    let is_told = it.handle == but || lost.contains(&it.handle.raw());
                    it.state != PeerState::Lost || !is_told
                });
                stand.count() > 0
            }
            // A closed engine tells of no peers. Copies may be under way for those that the program knew.
            Err(_) => self.world.book.with(|ledger| {
                let known = ledger.lives[self.life].handles.iter().filter(|(_, of)| **of == other);
                known.map(|(peer, _)| *peer).any(|peer| peer != but.raw() && !lost.contains(&peer))
            }),
        };
        !stands
            && self.world.book.with(|ledger| {
                let slot = ledger.lives[other].slot;
                !ledger.lives[self.life].busy.contains(&slot)
            })
    }

    /// Closes the engine, which takes as long as its transfers need at most.
    fn close(&self) {
        let frozen = || self.world.book.with(|ledger| ledger.lives[self.life].frozen_ns());
        let (since, frozen_before) = (virtual_ns(), frozen());
        loop {
            match self.engine.close(Some(Duration::from_millis(500))) {
                Ok(()) => return,
                Err(error) if error.status == Status::Busy => {}
                Err(error) => {
                    self.world.book.with(|ledger| ledger.fail(format!("closing an engine failed: {error}")));
                    return;
                }
            }
            let passed = virtual_ns() - since - (frozen() - frozen_before);
            if passed
                > self.plan.lease_ns
                    + self.plan.lease_ns / 500
                    + self.devices_ns()
                    + self.late_pages_ns()
                    + SLACK_NS
            {
                self.world.book.with(|ledger| {
                    let name = ledger.named(self.life);
                    ledger.fail(format!("{name} cannot close its engine"));
                });
                return;
            }
        }
    }

    fn late_pages_ns(&self) -> u64 {
        self.world.book.with(|ledger| ledger.late_pages_ns())
    }

    /// Returns by how much devices may delay the close, here or at a peer.
    fn devices_ns(&self) -> u64 {
        let engines = &self.world.plan.engines;
        let timeouts = self.plan.peers.iter().map(|peer| engines[*peer].device_timeout_ns);
        match timeouts.max().unwrap_or(0) {
            0 => 0,
            of_peer => of_peer + DEVICE_IDLE_MS * MS + device::stood_ns(process::current()),
        }
    }

    pub fn queue(&self, what: u32, capacity: usize) -> Arc<Queue> {
        persist(|| self.engine.queue(what, capacity))
    }
}
