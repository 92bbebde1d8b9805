//! Engines in simulated processes: what the tests of this folder open, connect and check.

use ferry::internals::sys::mapping::Mapping;
use ferry::types::{RegionId, Request};
use ferry::*;
use ferry_sim_kernel::process::ProcessId;
use ferry_sim_kernel::sync::{Condvar, Mutex};
use ferry_sim_kernel::trace::Story;
use ferry_sim_kernel::{random_u64, run, Options, Outcome};
use std::sync::Arc;
use std::time::Duration;

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Settings of engines that have TCP alone.
pub const TCP: &[(&str, &str)] = &[("secret", SECRET), ("transports", "tcp"), ("workers", "2")];

/// Settings of engines that have the same-host path, too.
pub const LOCAL: &[(&str, &str)] = &[("secret", SECRET), ("workers", "2"), ("local_threads", "2")];

/// Settings of engines that have RDMA alone, on hosts with NICs.
pub const RDMA: &[(&str, &str)] = &[("secret", SECRET), ("transports", "rdma"), ("workers", "2")];

/// A program's long deadline, in virtual time.
pub const LONG: Duration = Duration::from_secs(600);

/// Returns the seeds to run: SEEDS of them, from SEED on.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("SEED", 1);
    first..first + number("SEEDS", count)
}

/// Runs a body by a seed. FERRY_SIM_STORY=1 prints the story.
pub fn seeded(seed: u64, body: impl FnOnce()) -> Outcome {
    let story = if std::env::var_os("FERRY_SIM_STORY").is_some() { Story::Print } else { Story::None };
    run(seed, Options { story, strict_copies: false, ..Options::default() }, body)
}

pub fn config(listen: String, settings: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    config.set("listen_address", &listen).unwrap();
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    config
}

/// Opens an engine of the running task's process, at a port of its host; 0 for any.
pub fn open(port: u16, settings: &[(&str, &str)]) -> Engine {
    let host = ferry_sim_kernel::process::current().host();
    Engine::open(config(format!("{}:{port}", host.address()), settings)).unwrap()
}

/// Runs a program as the first task of a process and waits for its end.
pub fn within<T: 'static>(process: ProcessId, name: &str, program: impl FnOnce() -> T + 'static) -> T {
    process.spawn(name, program).unwrap().join().unwrap_or_else(|_| panic!("{name} panicked"))
}

/// Where a target listens, and what may be written there.
#[derive(Clone)]
pub struct Target {
    pub address: String,
    pub memory: u64,
    pub region: RegionId,
}

impl Target {
    pub fn of(engine: &Engine, memory: &Buffer) -> Target {
        Target { address: engine.address().to_owned(), memory: memory.address(), region: memory.region() }
    }

    /// A request for the first bytes of both sides.
    pub fn request(&self, local: &Buffer, length: usize) -> Request {
        let (local, length) = (local.address(), length as u64);
        Request { local, remote: self.memory, length, remote_region: self.region }
    }
}

/// Registered memory: the engine's own, which other processes of the host can map, or the program's.
pub enum Buffer {
    Allocated(Memory),
    Registered(Mapping, RegionId),
}

impl Buffer {
    /// The seed chooses whose memory it is.
    pub fn new(engine: &Engine, length: usize) -> Buffer {
        if random_u64() % 2 == 0 {
            return Buffer::Allocated(engine.alloc(length, &RegionOptions::default()).unwrap());
        }
        let mapping = Mapping::private(length).unwrap();
        // SAFETY: the mapping is memory of the simulation's arena, which stays until the run is over.
        let region = unsafe { engine.register(mapping.address(), length, &RegionOptions::default()) };
        Buffer::Registered(mapping, region.unwrap())
    }

    pub fn address(&self) -> u64 {
        match self {
            Buffer::Allocated(memory) => memory.address(),
            Buffer::Registered(mapping, _) => mapping.address() as u64,
        }
    }

    pub fn region(&self) -> RegionId {
        match self {
            Buffer::Allocated(memory) => memory.region(),
            Buffer::Registered(_, region) => *region,
        }
    }

    pub fn read(&self, into: &mut [u8]) {
        match self {
            Buffer::Allocated(memory) => memory.read(0, into),
            Buffer::Registered(mapping, _) => mapping.read(0, into),
        }
    }

    pub fn write(&self, from: &[u8]) {
        match self {
            Buffer::Allocated(memory) => memory.write(0, from),
            Buffer::Registered(mapping, _) => mapping.write(0, from),
        }
    }
}

/// A place in which a task of one process leaves a value for tasks of others.
pub struct Place<T>(Arc<(Mutex<Option<T>>, Condvar)>);

impl<T> Clone for Place<T> {
    fn clone(&self) -> Place<T> {
        Place(self.0.clone())
    }
}

impl<T: Clone> Place<T> {
    pub fn new() -> Place<T> {
        Place(Arc::new((Mutex::new(None), Condvar::new())))
    }

    pub fn put(&self, value: T) {
        *self.0 .0.lock() = Some(value);
        self.0 .1.notify_all();
    }

    /// Waits for the value.
    pub fn get(&self) -> T {
        let mut value = self.0 .0.lock();
        loop {
            match &*value {
                Some(value) => return value.clone(),
                None => value = self.0 .1.wait(value),
            }
        }
    }
}

/// Bytes of which each eight say where they belong.
pub fn pattern(salt: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
    (0..length.div_ceil(8) as u64).flat_map(word).take(length).collect()
}
