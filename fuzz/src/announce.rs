//! The announcements of regions to one peer: however regions come and go meanwhile, a peer that has been told everything
//! knows exactly the regions that exist, and none was told twice on one connection or after its end.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::control::announce::Announcements;
use ferry::internals::handle::Tag;
use ferry::internals::region::{Registry, RemoteRegions};
use ferry::limits::REGIONS_PER_MESSAGE;
use ferry::types::RegionId;
use ferry::RegionSpec;
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

#[derive(Arbitrary, Debug)]
enum Step {
    Register(u16),
    Unregister(u16, u8),
    /// The loop takes so many commands of the application.
    Command(u8),
    /// The connection is lost and another stands.
    Begin,
    Take(u8),
    Trim,
}

struct World {
    registry: Registry,
    live: Vec<RegionId>,
    next_address: u64,
    commands: VecDeque<(Vec<RegionId>, bool)>,
    announcements: Announcements,
    remote: RemoteRegions,
    told: HashSet<RegionId>,
    /// How often many regions may still be registered at once.
    floods_left: u32,
}

pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut world = World {
        registry: Registry::new(Tag::from_random(5), None),
        live: Vec::new(),
        next_address: 1 << 20,
        commands: VecDeque::new(),
        announcements: Announcements::default(),
        remote: RemoteRegions::new(),
        told: HashSet::new(),
        floods_left: 3,
    };
    world.begin();
    for step in steps.into_iter().take(40) {
        match step {
            Step::Register(count) => {
                let most = if world.floods_left > 0 { 300 } else { 8 };
                let count = u64::from(count) % most + 1;
                world.floods_left -= u32::from(count > 8);
                world.register(count);
            }
            Step::Unregister(at, count) => world.unregister(at.into(), count.into()),
            Step::Command(count) => (0..=count % 8).for_each(|_| world.command()),
            Step::Begin => world.begin(),
            Step::Take(count) => (0..=count % 4).for_each(|_| world.take()),
            Step::Trim => world.announcements.trim(),
        }
    }
    world.end();
}

impl World {
    fn begin(&mut self) {
        self.remote.renew();
        self.told.clear();
        self.announcements.begin(&self.registry);
    }

    fn register(&mut self, count: u64) {
        if self.live.len() > 1000 {
            return;
        }
        // Not in the order of addresses, and partly between older regions.
        let address = |nth: u64| self.next_address + (nth * 7919 % count) * 64;
        let spec = |nth| RegionSpec { address: address(nth), length: 8, ..RegionSpec::default() };
        let specs: Vec<RegionSpec> = (0..count).map(spec).collect();
        self.next_address = match self.next_address % 64 {
            0 | 16 => self.next_address + 16,
            _ => (self.next_address / 64 + 700) * 64,
        };
        let Ok(regions) = self.registry.register(&specs) else { return };
        let ids: Vec<RegionId> = regions.iter().map(|region| region.id).collect();
        self.live.extend(&ids);
        self.commands.push_back((ids, false));
    }

    fn unregister(&mut self, at: usize, count: usize) {
        for _ in 0..count.min(self.live.len()) {
            let id = self.live.swap_remove(at % self.live.len());
            self.registry.unregister(id, Some(Duration::ZERO)).expect("nothing uses the region");
            self.commands.push_back((vec![id], true));
        }
    }

    fn command(&mut self) {
        if let Some((ids, gone)) = self.commands.pop_front() {
            self.announcements.note(&ids, gone);
        }
    }

    fn take(&mut self) {
        let told = self.announcements.take(&self.registry);
        assert!(told.came.len() <= REGIONS_PER_MESSAGE && told.gone.len() <= REGIONS_PER_MESSAGE);
        assert!(!told.has_revoked, "told after its end");
        for region in &told.came {
            assert!(self.told.insert(region.id), "told twice on one connection");
        }
        self.remote.add(told.came);
        self.remote.remove(&told.gone);
        if told.is_all {
            self.remote.settle();
        }
    }

    fn end(&mut self) {
        while !self.commands.is_empty() {
            self.command();
        }
        let mut pieces = 0;
        while !self.announcements.is_complete() {
            self.take();
            pieces += 1;
            assert!(pieces < 100_000, "the announcements do not end");
        }
        let known: HashSet<RegionId> = self.remote.snapshot().iter().map(|region| region.id).collect();
        assert_eq!(known, self.live.iter().copied().collect());
    }
}
