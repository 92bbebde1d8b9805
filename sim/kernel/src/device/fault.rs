//! Faults of devices, and the present states of their queues.

use super::queue::Direction;
use crate::process::ProcessId;
use crate::rng::MILLION;
use crate::world::{point, with, World};
use std::time::Duration;

/// How often faults happen by themselves.
#[derive(Clone, Debug)]
pub struct Faults {
    /// How many of a million batches fail.
    pub fail_ppm: u32,
    /// So many times as long as usual before each part.
    pub slowness: u64,
}

impl Default for Faults {
    /// Returns the values that hold without a fault.
    fn default() -> Faults {
        Faults { fail_ppm: 0, slowness: 1 }
    }
}

/// A device that copies is to stand.
#[derive(Clone, Copy)]
pub(super) struct Hang {
    ns: u64,
    can_stop: bool,
}

/// The chance that a device begins to stand at the next batch or part, in a million.
const BEGINS_PPM: u32 = 400_000;

/// Replaces the rates of faults.
pub fn set_faults(faults: Faults) {
    assert!(faults.fail_ppm <= MILLION && faults.slowness > 0);
    with(|world| {
        world.note("device faults", &[], |_| "changes the rates of devices' faults".into());
        world.devices.faults = faults;
    });
}

/// Lets the device that moves one of the next parts stand for so long, in the midst of its copies. `can_stop`: a
/// program that gives the copies up stops them; otherwise they go on. Another hang that is yet to begin is replaced.
pub fn hang(time: Duration, can_stop: bool) {
    point();
    with(|world| world.devices.hang = Some(Hang { ns: time.as_nanos() as u64, can_stop }));
}

/// Lets all devices go on, without faults. Broken ones stay so.
pub fn calm() {
    set_faults(Faults::default());
    with(|world| {
        world.devices.hang = None;
        let all: Vec<u64> = world.devices.queues.keys().copied().collect();
        for serial in all {
            if let Some(queue) = world.devices.queues.get_mut(&serial) {
                (queue.stands_until, queue.step_at) = (0, None);
            }
            world.plan_step(serial);
        }
    });
}

/// How many batches and queues are in each state at the moment, for those who count what runs reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Batches under way from hosts to devices, and from devices to hosts.
    pub coming_in: usize,
    pub going_out: usize,
    /// Queues that copy, and whose devices stand.
    pub standing: usize,
}

pub fn states() -> States {
    with(|world| {
        let mut states = States::default();
        for queue in world.devices.queues.values() {
            let open = || queue.batches.iter().filter(|batch| !batch.has_ended());
            let count = |of| open().filter(|batch| batch.direction == of).count();
            states.coming_in += count(Direction::HostToDevice);
            states.going_out += count(Direction::DeviceToHost);
            states.standing += usize::from(queue.is_busy() && queue.stands_until > world.now);
        }
        states
    })
}

/// Returns for how long the devices of a process have stood by now, or will have when they go on.
pub fn stood_ns(process: ProcessId) -> u64 {
    with(|world| world.devices.stood_ns.get(&process).copied().unwrap_or(0))
}

/// True if a device is of no more use to this process.
pub fn is_broken(process: ProcessId) -> bool {
    with(|world| world.devices.queues.values().any(|queue| queue.process == process && queue.broken))
}

impl World {
    /// Lets the device of a queue that copies stand, if one is to and this is the moment.
    pub(super) fn may_stand(&mut self, serial: u64) {
        let now = self.now;
        if self.devices.hang.is_none() || !self.devices.rng.chance(BEGINS_PPM) {
            return;
        }
        let Some(Hang { ns, can_stop }) = self.devices.hang.take() else { return };
        let Some(queue) = self.devices.queues.get_mut(&serial) else { return };
        let until = queue.stands_until.max(now + ns);
        let added = until - queue.stands_until.max(now);
        (queue.stands_until, queue.can_stop) = (until, can_stop);
        *self.devices.stood_ns.entry(queue.process).or_default() += added;
        self.note("device stands", &[serial, ns, can_stop.into()], |_| {
            format!("the device of queue {serial} stands for {} µs", ns / 1_000)
        });
    }
}
