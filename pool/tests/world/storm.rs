//! Random stories: programs put, get, look for and remove keys while nodes are killed, stopped, closed and parted,
//! memory is short, bytes rot, transfers fail and clocks jump. Then the faults stop, and within five seconds everything
//! is right.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::program::KEYS_OF_CALL;
use crate::world::{Life, World, UNIT};

/// What the index and all calls have after the last fault.
const CALM_NS: u64 = 5_000_000_000;
const SMALL_KEYS: usize = 12;
const OTHER_KEYS: usize = 400;
const FAULTS: usize = 8;

pub struct Storm {
    pub world: World,
    /// Faults of this story, by their numbers.
    faults: Vec<usize>,
    is_stormy: bool,
    /// Nodes are taken out, and come again.
    drains: bool,
    /// A node that stays away when the faults stop.
    away: Option<usize>,
}

impl Storm {
    fn new(seed: u64, with_faults: bool, with_files: bool) -> Storm {
        let mut world = World::new(&[], seed);
        let members = 2 + world.random.below(5);
        let clients = world.random.below(3);
        let lends = |world: &mut World| [512, 1024, 2048, 4096][world.random.below(4)];
        let mut nodes: Vec<u64> = (0..members).map(|_| lends(&mut world)).collect();
        nodes.extend(vec![0; clients.max(3usize.saturating_sub(members))]);
        let mut world = if with_files {
            // More than its memory, or less.
            let units = |lends: &u64| (*lends / UNIT) as u32 * world.random.below(4) as u32 / 2;
            let units: Vec<u32> = nodes.iter().map(units).collect();
            World::with_quotas(&nodes, &units, seed % 4 == 0, seed ^ 1)
        } else {
            World::with_quotas(&nodes, &vec![0; nodes.len()], seed % 4 == 0, seed ^ 1)
        };
        let faults: Vec<usize> = (0..FAULTS).filter(|_| with_faults && world.random.one_in(2)).collect();
        world.corrupts = faults.contains(&4);
        (world.has_faults, world.had_faults) = (faults.contains(&5), faults.contains(&5));
        world.is_hasty = with_faults && world.random.one_in(4);
        let away = (with_faults && world.random.one_in(3)).then(|| world.random.below(nodes.len()));
        Storm { world, faults, is_stormy: with_faults, drains: false, away }
    }

    fn run(&mut self) {
        let steps = 200 + self.world.random.below(800);
        while self.world.connect_some() {}
        for _ in 0..steps {
            match self.world.random.below(60) {
                0..=11 => self.program(),
                12..=13 if !self.faults.is_empty() => self.fault(),
                14..=15 => drop(self.world.connect_some()),
                16..=19 => {
                    self.world.now +=
                        self.world.random.below(if self.is_stormy { 30_000_000 } else { 2_000_000 }) as u64
                }
                20 if self.is_stormy && self.world.random.one_in(3) => {
                    self.world.now += self.world.random.below(700_000_000) as u64
                }
                21 => self.revive(),
                _ => drop(self.world.advance()),
            }
            self.close_on();
            self.world.note_greeted();
        }
        self.calm();
        self.check_rest();
        self.remove_in_absence();
        self.check_rest();
        self.audit();
        self.check_rest();
        self.world.check_free_memory();
    }

    fn program(&mut self) {
        let world = &mut self.world;
        let node = world.random.below(world.nodes.len());
        if !world.runs(node) || world.nodes[node].is_closing || world.nodes[node].calls.open.len() >= 3 {
            return;
        }
        let count = 1 + world.random.below(KEYS_OF_CALL);
        let is_small = !world.random.one_in(3);
        let key = |world: &mut World| {
            let (first, count) = if is_small { (0, SMALL_KEYS) } else { (100, OTHER_KEYS) };
            (first + world.random.below(count)) as u64
        };
        let keys: Vec<u64> = (0..count).map(|_| key(world)).collect();
        let what = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3][world.random.below(10)];
        world.begin(node, &keys, what);
    }

    fn fault(&mut self) {
        let world = &mut self.world;
        let node = world.random.below(world.nodes.len());
        let runs = world.runs(node) && !world.nodes[node].is_closing;
        if self.drains && runs && world.random.one_in(4) {
            let (copies, now) = (!world.random.one_in(8), world.time(node));
            // A client, or the only node that takes puts, is not taken out.
            let _ = world.nodes[node].machine.drain(copies, None, now);
            return world.settle(node);
        }
        match self.faults[world.random.below(self.faults.len())] {
            0 if runs && world.random.one_in(2) => {
                world.forget_calls(node);
                world.kill(node);
            }
            1 if runs => world.nodes[node].life = Life::Stopped,
            2 | 3 => {
                let open: Vec<usize> =
                    (0..world.sessions.len()).filter(|at| world.sessions[*at].is_open).collect();
                if !open.is_empty() {
                    let at = world.random.below(open.len());
                    world.part(open[at]);
                }
            }
            4 if runs => world.corrupt(node),
            6 if world.random.one_in(2) => {
                world.nodes[node].ahead_ns += world.random.below(3_000_000_000) as u64;
            }
            7 if runs && world.random.one_in(2) => {
                world.nodes[node].is_closing = true;
                world.nodes[node].machine.leave(world.now);
                world.settle(node);
            }
            _ => {}
        }
    }

    fn revive(&mut self) {
        let node = self.world.random.below(self.world.nodes.len());
        match self.world.nodes[node].life {
            Life::Runs => {}
            Life::Stopped => self.world.nodes[node].life = Life::Runs,
            Life::Dead => self.world.restart(node),
        }
    }

    /// A node that was drained closes. A node that closes is over when nothing is open, and opens anew with nothing.
    fn close_on(&mut self) {
        for node in 0..self.world.nodes.len() {
            let one = &mut self.world.nodes[node];
            let drained = one.machine.drained().filter(|_| one.life == Life::Runs && !one.is_closing);
            if let Some(it) = drained {
                for (name, count) in [("drained", it.moved), ("drained_here", it.here), ("left", it.left)] {
                    *one.calls.ended.entry(name).or_default() += count as usize;
                }
                one.is_closing = true;
                one.machine.leave(self.world.now);
                self.world.settle(node);
            }
            if self.world.runs(node) && self.world.nodes[node].is_closing {
                let is_idle =
                    self.world.nodes[node].machine.is_idle(self.world.now) && !self.world.has_flights(node);
                if is_idle {
                    // The puts of its drain have ended.
                    self.world.nodes[node].calls.drained.clear();
                    self.world.reopen(node);
                }
            }
        }
    }

    /// The faults stop. All calls end, and nothing is under way any more.
    fn calm(&mut self) {
        let world = &mut self.world;
        world.has_faults = false;
        for node in 0..world.nodes.len() {
            match world.nodes[node].life {
                _ if self.away == Some(node) => {}
                Life::Runs => {}
                Life::Stopped => world.nodes[node].life = Life::Runs,
                Life::Dead => world.restart(node),
            }
        }
        if let Some(away) = self.away.filter(|away| world.runs(*away)) {
            if world.random.one_in(2) {
                world.forget_calls(away);
                world.kill(away);
            } else {
                world.nodes[away].life = Life::Stopped;
            }
        }
        self.quiet(CALM_NS);
        if self.away.is_some_and(|away| self.world.nodes[away].life == Life::Stopped) {
            // Who asks a stopped node finds out that it is silent.
            for node in (0..self.world.nodes.len()).filter(|node| self.world.runs(*node)).collect::<Vec<_>>()
            {
                self.world.begin(node, &[0, 1, 2, 3, 4, 5, 6, 7], 2);
            }
            self.quiet(CALM_NS);
        }
        let world = &self.world;
        for node in (0..world.nodes.len()).filter(|node| world.runs(*node)) {
            let open = &world.nodes[node].calls.open;
            assert!(open.is_empty(), "{node}: calls are open five seconds after the last fault: {open:?}");
        }
    }

    /// Goes on until nothing is pending and this time has passed.
    fn quiet(&mut self, ns: u64) {
        let until = self.world.now + ns;
        for _ in 0..400_000 {
            self.close_on();
            let moved = self.world.connect_some() || self.world.advance();
            self.world.note_greeted();
            if moved || self.world.may_connect_some() {
                continue;
            }
            let next = self.world.next_due().unwrap_or(u64::MAX).min(until);
            if self.world.now >= until {
                return;
            }
            self.world.now = self.world.now.max(next);
        }
        panic!("the world does not become quiet");
    }

    /// Keys are removed while one node that holds some is absent, and comes back.
    fn remove_in_absence(&mut self) {
        let world = &mut self.world;
        let lends = |node: &usize| world.runs(*node) && world.nodes[*node].lends > 0;
        let members: Vec<usize> = (0..world.nodes.len()).filter(lends).collect();
        let absent = members[world.random.below(members.len())];
        let others: Vec<usize> = members.into_iter().filter(|node| *node != absent).collect();
        if others.is_empty() {
            return;
        }
        world.absent = Some(absent);
        for other in 0..world.nodes.len() {
            world.session_of(absent, other).into_iter().for_each(|(session, _)| world.part(session));
        }
        self.quiet(1);
        let caller = others[self.world.random.below(others.len())];
        self.world.begin(caller, &(0..SMALL_KEYS as u64).collect::<Vec<_>>(), 3);
        self.quiet(CALM_NS);
        self.world.absent = None;
        self.quiet(CALM_NS);
    }

    fn check_rest(&mut self) {
        let world = &self.world;
        assert!(world.is_quiet());
        for node in (0..world.nodes.len()).filter(|node| world.runs(*node)) {
            let machine = &world.nodes[node].machine;
            let left: Vec<_> = machine.leftovers().into_iter().filter(|(_, count)| *count > 0).collect();
            assert!(left.is_empty(), "{node}: at rest there are {left:?}");
            world.check_space(node);
        }
        world.check_removed();
    }

    /// Every node finds what is held, and nothing else.
    fn audit(&mut self) {
        self.world.all_is_sure();
        let mut keys: Vec<u64> = (0..SMALL_KEYS as u64).collect();
        keys.extend(self.world.nodes.iter().flat_map(|node| node.calls.held.keys().copied()));
        keys.sort_unstable();
        keys.dedup();
        keys.push(1_000_000);
        for node in (0..self.world.nodes.len()).filter(|node| self.world.runs(*node)).collect::<Vec<_>>() {
            self.world.audit(node, &keys, false);
            let from = self.world.random.below(keys.len());
            let some: Vec<u64> = keys.iter().copied().cycle().skip(from).take(12).collect();
            self.world.audit(node, &some, true);
        }
        self.quiet(CALM_NS);
        let open =
            self.world.nodes.iter().filter(|node| node.life == Life::Runs).map(|node| node.calls.open.len());
        assert_eq!(open.sum::<usize>(), 0);
    }
}

/// Runs stories, and counts how their keys ended.
fn stories(seeds: Range<u64>, with_faults: bool, with_files: bool) -> BTreeMap<&'static str, usize> {
    stories_of(seeds, |seed| Storm::new(seed, with_faults, with_files))
}

fn stories_of(seeds: Range<u64>, new: impl Fn(u64) -> Storm) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for seed in seeds {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut storm = new(seed);
            storm.run();
            storm
        }));
        let storm = told.unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
        *counts.entry("fenced").or_default() += storm.world.fenced;
        for (name, count) in storm.world.nodes.iter().flat_map(|node| {
            let owner = node.machine.stats().owner;
            let tier =
                [("saved", owner.saved), ("loaded", owner.loaded), ("tier_evicted", owner.tier_evicted)];
            let tier = tier
                .into_iter()
                .chain([("repaired", owner.repaired)])
                .map(|(name, count)| (name, count as usize));
            node.calls.ended.iter().map(|(name, count)| (*name, *count)).chain(tier)
        }) {
            *counts.entry(name).or_default() += count;
        }
    }
    counts
}

/// Whether the number of stories is the normal one, for which counts are known.
fn is_whole() -> bool {
    std::env::var_os("FERRY_TEST_POOL_STORIES").is_none()
}

/// The seeds from `first` on: as many as normally, or as the environment says.
fn seeds(first: u64, normally: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = first + number("FERRY_TEST_POOL_FROM").unwrap_or(0);
    first..first + number("FERRY_TEST_POOL_STORIES").unwrap_or(normally)
}

#[test]
fn what_nobody_disturbs_is_found() {
    let counts = stories(seeds(0, 300), false, false);
    println!("{counts:?}");
    assert_eq!(counts["fenced"], 0, "nobody was silent");
    let seen = counts["OK"] > 20_000 && counts["HERE"] > 1_000 && counts["ABSENT"] > 5_000;
    assert!(seen || !is_whole(), "{counts:?}");
}

#[test]
fn with_faults_nothing_is_wrong_and_all_is_right_five_seconds_later() {
    let counts = stories(seeds(1_000_000, 800), true, false);
    println!("{counts:?}");
    for (what, at_least) in
        [("OK", 30_000), ("OWNER_LOST", 500), ("CORRUPT", 50), ("FULL", 500), ("fenced", 500)]
    {
        assert!(
            counts.get(what).is_some_and(|count| *count >= at_least) || !is_whole(),
            "{what}: {counts:?}"
        );
    }
}

#[test]
fn nodes_with_files_lose_nothing_that_the_file_has() {
    let calm = stories(seeds(2_000_000, 200), false, true);
    let stormy = stories(seeds(3_000_000, 400), true, true);
    println!("{calm:?}\n{stormy:?}");
    for (counts, name, least) in [
        (&calm, "saved", 2_000),
        (&calm, "loaded", 200),
        (&calm, "tier_evicted", 500),
        (&stormy, "loaded", 400),
        (&stormy, "CORRUPT", 5),
    ] {
        let count = counts.get(name).copied().unwrap_or_default();
        assert!(count >= least || !is_whole(), "{name}: {count}");
    }
}

#[test]
fn nodes_that_are_taken_out_in_a_storm_lose_nothing_and_bring_nothing_back() {
    let drains = |with_faults, with_files| {
        move |seed| Storm { drains: true, ..Storm::new(seed, with_faults, with_files) }
    };
    let memory = stories_of(seeds(4_000_000, 400), drains(true, false));
    let files = stories_of(seeds(5_000_000, 200), drains(true, true));
    println!("{memory:?}\n{files:?}");
    for (counts, name, least) in
        [(&memory, "drained", 400), (&memory, "drained_here", 100), (&files, "drained", 200)]
    {
        let count = counts.get(name).copied().unwrap_or_default();
        assert!(count >= least || !is_whole(), "{name}: {count}");
    }
}

/// A put waited for the acknowledgement of a member that had forgotten its closing owner. A node waited for answers of one
/// that had refused it, and then took it in. A key of a node that was just forgotten was said to be nowhere. The last four
/// find the planted bugs that few others find: pool-silent-member-awaited, pool-told-twice, pool-views-differ-for-ever and
/// pool-suspect-asked-again. In the last one calls ended with a refusal, and their memory was read afterwards.
#[test]
fn stories_that_have_failed_before() {
    for seed in [1_002_141, 1_001_747, 1_007_001, 1_000_975, 1_001_193, 1_001_237, 1_003_427, 1_040_502] {
        stories(seed..seed + 1, true, false);
    }
    // A removal that was passed on was not passed on again, to a node that only its hearer saw.
    stories(2_041_979..2_041_980, false, true);
    // The remover of a key was silent from the moment at which it met the node that had the key: no fault of the pool's.
    stories(3_209_295..3_209_296, true, true);
    // An object came and went within one step, and the world took the next put's for it: no fault of the pool's.
    stories(2_304_819..2_304_820, false, true);
}
