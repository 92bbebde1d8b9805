//! A peer that floods an engine does not slow that engine's other peers down: while it floods, the p99 of a
//! well-behaved peer's small WRITEs and READs is at most three times its p99 alone.
//!
//! The engine is in this process, the well-behaved peer and the flooding peer are processes of their own (`honest`,
//! `floods`). On machines of their own, neither would wait for a processor of the other. Here the well-behaved peer
//! runs as soon as it wakes up and the engine has a high priority, if that is allowed; the flooding process has the
//! lowest priority and the rate of a 10 Gbit/s NIC. The test is about what queues inside the engine, whose threads
//! for the well-behaved peer still compete with its threads for the flood.
//!
//! Each round measures alone and flooded, one right after the other, in turns of order. Load of the machine comes and
//! goes, and can only add. So two figures count, and one of them must hold: the median of the rounds' ratios, and the
//! ratio of the lower quartiles, which are of moments in which the machine was quiet. An engine that queues its peers
//! behind one another has it in every round, and in both.

#[path = "../common/hostile/mod.rs"]
mod hostile;
#[path = "../common/role.rs"]
mod role;

mod floods;
mod honest;
mod processors;

use ferry::notify::WHAT_NOTIFICATIONS;
use ferry::{Config, Engine, Memory, RegionOptions};
use hostile::SECRET;
use processors::{prioritise, Awake};
use role::Role;
use std::sync::Arc;

/// Rounds of a flood. Odd, for the median; of twice as many, the upper one counts.
const ROUNDS: usize = 9;
/// The most by which the p99 may grow.
const GROWTH_MAX: f64 = 3.0;
/// Where the engine is, and its memory: address of the engine, address of the memory, region.
const HUB: &str = "FERRY_TEST_HUB";
/// Bytes of the engine's memory; `honest` uses the first piece and the floods use the rest.
const GROUND_BYTES: usize = 64 << 20;
const HONEST_BYTES: usize = 1 << 20;

/// Opens an engine over TCP with the secret of the hostile peer.
fn engine(extra: &[(&str, &str)]) -> Engine {
    let mut config = Config::default();
    for (key, value) in [("transports", "tcp"), ("secret", SECRET)].iter().chain(extra) {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

/// A child's arguments.
struct Hub {
    address: String,
    memory: u64,
    region: u64,
}

impl Hub {
    fn of_parent() -> Option<Hub> {
        let text = std::env::var(HUB).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        Some(Hub { address: words[0].to_owned(), memory: number(1), region: number(2) })
    }
}

/// Starts a child process in one of the roles.
fn actor(role: &str, hub: &str) -> Role {
    let mut actor = Role::start(role, |command| {
        command.env(HUB, hub);
    });
    assert_eq!(actor.answer(), "ready");
    actor
}

/// The engine that is flooded, and both peers.
struct Scene {
    _hub: Engine,
    _ground: Memory,
    honest: Role,
    floods: Role,
}

impl Scene {
    fn open() -> Scene {
        let hub = engine(&[]);
        let ground = hub.alloc(GROUND_BYTES, &RegionOptions::default()).unwrap();
        // The application takes notifications as they come.
        let queue = hub.queue(WHAT_NOTIFICATIONS, 1).unwrap();
        hub.hub().unwrap().set_callback(queue.handle(), Some(Arc::new(|_| ()))).unwrap();
        let place = format!("{} {} {}", hub.address(), ground.address(), ground.region().raw());
        let (honest, floods) = (actor("honest::honest_role", &place), actor("floods::flood_role", &place));
        Scene { _hub: hub, _ground: ground, honest, floods }
    }

    /// Returns p50 and p99 of the well-behaved peer, in nanoseconds.
    fn measure(&mut self) -> [f64; 2] {
        let answer = self.honest.ask("measure");
        let mut numbers = answer.split(' ').map(|it| it.parse().unwrap());
        [numbers.next().unwrap(), numbers.next().unwrap()]
    }

    /// Also returns the rate of the flood, in units of work a second.
    fn flooded(&mut self, flood: &str) -> ([f64; 2], u64) {
        assert_eq!(self.floods.ask(&format!("start {flood}")), "started");
        let measured = self.measure();
        (measured, self.floods.ask("stop").parse().unwrap())
    }

    /// Measures rounds more, and returns by how much the p99 grows in all.
    fn growth(&mut self, flood: &str, rate: u64, rounds: &mut Rounds) -> f64 {
        let Rounds { alone, flooded } = rounds;
        let mut best = 0;
        println!("{flood}: p50/p99 alone -> flooded, us (units of the flood a second)");
        for round in 0..ROUNDS {
            let first = (round % 2 == 0).then(|| self.measure());
            let (during, done) = self.flooded(flood);
            let without = first.unwrap_or_else(|| self.measure());
            let us = |ns: [f64; 2]| format!("{:.0}/{:.0}", ns[0] / 1e3, ns[1] / 1e3);
            println!("    {} -> {} ({done})", us(without), us(during));
            best = best.max(done);
            alone.push(without);
            flooded.push(during);
        }
        assert!(best >= rate / 10, "{flood}: the flood did not get through, {best} of {rate} a second");
        let of = |at: usize| {
            let count = alone.len();
            let ratios = flooded.iter().zip(alone.iter()).map(|(during, without)| during[at] / without[at]);
            let quiet = |all: &[[f64; 2]]| ranked(all.iter().map(|it| it[at]), count / 4);
            (ranked(ratios, count / 2), quiet(flooded) / quiet(alone))
        };
        let ((p50, p50_quiet), (p99, p99_quiet)) = (of(0), of(1));
        println!("{flood}: median of ratios: p50 x {p50:.2}, p99 x {p99:.2}; quiet: {p50_quiet:.2}, {p99_quiet:.2}");
        p99.min(p99_quiet)
    }
}

/// p50 and p99 of each round, in nanoseconds.
#[derive(Default)]
struct Rounds {
    alone: Vec<[f64; 2]>,
    flooded: Vec<[f64; 2]>,
}

/// Returns the figure of this rank, the smallest being 0.
fn ranked(all: impl Iterator<Item = f64>, rank: usize) -> f64 {
    let mut all: Vec<f64> = all.collect();
    all.sort_by(f64::total_cmp);
    all[rank]
}

#[test]
fn a_flood_slows_no_other_peer_down() {
    // Above all else that runs here, if that is allowed: only what the engine does counts.
    if !prioritise(-15) {
        println!("no right to a higher priority: other load of this machine counts too");
    }
    let mut scene = Scene::open();
    let _awake = Awake::begin();
    scene.measure();
    let only = std::env::var("FERRY_TEST_FLOOD").ok();
    let mut slow = Vec::new();
    for (flood, rate) in floods::ALL.iter().filter(|it| only.as_ref().is_none_or(|only| only == it.0)) {
        let mut rounds = Rounds::default();
        let mut growth = scene.growth(flood, *rate, &mut rounds);
        if growth > GROWTH_MAX {
            // As many rounds again, and the figure of them all: other load of the machine comes and goes.
            growth = scene.growth(flood, *rate, &mut rounds);
        }
        if growth > GROWTH_MAX {
            slow.push(format!("{flood}: p99 x {growth:.2}"));
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}
