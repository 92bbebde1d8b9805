//! Simulated devices with memory of their own, as a library of devices shows them. A device copies by itself, between
//! its memory and pinned memory of its host, and takes the liberties that a real one has, because a program must not
//! rely on less:
//!
//! - A copy moves in parts of a page at most, in any order, among all batches that are under way. Others run between
//!   two parts, and see each part as it moves.
//! - A batch may fail after some of its parts, or when it is started. A device may break under a queue: then the queue
//!   moves nothing any more, and can start nothing.
//! - A device may stand (stall) for any time, during which its library takes longer to look for the end of a batch.
//!   Stopping the copies may succeed. Otherwise nobody knows whether they stopped: they go on later.
//! - A stopped process's device goes on; a dead process's copies are over, as its kernel takes the device away before
//!   anybody hears of the end.
//!
//! No call of the kernel reaches memory of a device, and a processor that touches it is a failure of the run.
//!
//! ```text
//!  copy ─▶ batches under way ─▶ step: a part of any batch ─▶ memory (the observer is told)
//!                 └── poll_done, in the order of the batches          fault: slow, failing, standing
//! ```
//! `memory` has what processes allocate and pin, `queue` what they hold, `step` the device's own work, `fault` what
//! happens to devices.

mod fault;
mod memory;
mod queue;
mod step;

pub use fault::{calm, hang, is_broken, set_faults, states, stood_ns, Faults, States};
pub use memory::{allocate, has, locate, pin, unpin, Allocation};
pub use queue::{Direction, Failure, Piece, Queue};
pub use step::COPIES;

use crate::arena::{self, Arena};
use crate::process::{HostId, ProcessId};
use crate::rng::Rng;
use crate::timer::Event;
use crate::world::{with, World};
use memory::Pinned;
use queue::QueueState;
use std::collections::BTreeMap;

/// The most bytes that move at once.
const PART_BYTES: u64 = 4096;

/// A step of a queue is due.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    queue: u64,
    at: u64,
}

struct Device {
    host: HostId,
    /// Its number on its host.
    ordinal: i32,
}

pub(crate) struct Devices {
    rng: Rng,
    faults: Faults,
    /// The longest pause before a part.
    gap_ns_max: u64,
    hang: Option<fault::Hang>,
    /// The memory of all devices.
    pub memory: Arena,
    devices: Vec<Device>,
    /// By address.
    allocations: BTreeMap<u64, memory::Allocated>,
    pinned: Vec<Pinned>,
    /// By serial number.
    queues: BTreeMap<u64, QueueState>,
    queues_made: u64,
    /// For how long the devices of a process have stood, or will have.
    stood_ns: BTreeMap<ProcessId, u64>,
    /// Steps of suspended hosts' queues, due when the hosts wake up.
    asleep: Vec<(HostId, Due)>,
}

impl Devices {
    pub fn new(seed: u64) -> Devices {
        let mut rng = Rng::new(seed, 5);
        let gap_ns_max = rng.log_uniform(4_000, 40_000);
        Devices {
            rng,
            faults: Faults::default(),
            gap_ns_max,
            hang: None,
            memory: Arena::new(&arena::DEVICES),
            devices: Vec::new(),
            allocations: BTreeMap::new(),
            pinned: Vec::new(),
            queues: BTreeMap::new(),
            queues_made: 0,
            stood_ns: BTreeMap::new(),
            asleep: Vec::new(),
        }
    }
}

/// Adds a device to a host, and returns its number there.
pub fn add(host: HostId) -> i32 {
    with(|world| {
        let ordinal = world.devices.devices.iter().filter(|device| device.host == host).count() as i32;
        world.devices.devices.push(Device { host, ordinal });
        ordinal
    })
}

/// Returns how many devices the running task's host has. It is no point: hosts without devices run as if there were no
/// such call.
pub fn count_here() -> usize {
    with(|world| {
        let host = world.processes[world.here().0 as usize].host;
        world.devices.devices.iter().filter(|device| device.host == host).count()
    })
}

impl World {
    /// Returns whether the host of the running task has this device.
    fn has_device(&self, ordinal: i32) -> bool {
        let host = self.processes[self.here().0 as usize].host;
        self.devices.devices.iter().any(|device| (device.host, device.ordinal) == (host, ordinal))
    }

    /// Moves what is due.
    pub(crate) fn device_due(&mut self, due: Due) {
        let Some(queue) = self.devices.queues.get(&due.queue) else { return };
        let host = self.processes[queue.process.0 as usize].host;
        match self.clock_of(host).suspended_at {
            Some(_) => self.devices.asleep.push((host, due)),
            None => self.queue_steps(due),
        }
    }

    /// A host that was suspended goes on.
    pub(crate) fn devices_wake_up(&mut self, host: HostId) {
        let all = std::mem::take(&mut self.devices.asleep);
        let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(of, _)| *of == host);
        self.devices.asleep = others;
        for (_, due) in own {
            self.plan(self.now, Event::Device(due));
        }
    }

    /// The kernel takes the copies of a dead process back. Its devices' memory stays, as the registered memory of a
    /// killed process does.
    pub(crate) fn devices_of_dead(&mut self, process: ProcessId) {
        self.devices.queues.retain(|_, queue| queue.process != process);
        self.devices.pinned.retain(|pinned| pinned.process != process);
    }
}
