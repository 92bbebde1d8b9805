//! The steps in which a device moves what is under way on a queue (`queue`): a part of any batch at a time.

use super::queue::{BatchState, Failure, Piece, QueueState};
use super::Due;
use crate::timer::Event;
use crate::world::World;

/// The name under which devices access memory.
pub const COPIES: &str = "device";
/// The shortest pause before a part.
const GAP_NS_MIN: u64 = 100;
/// How many of a million failures break the device.
const BREAKS_PPM: u32 = 100_000;

impl World {
    /// Draws a failure. It may be that of the whole device.
    pub(super) fn failure_of(&mut self, serial: u64) -> Failure {
        let breaks = self.devices.rng.chance(BREAKS_PPM);
        if breaks {
            if let Some(queue) = self.devices.queues.get_mut(&serial) {
                queue.break_down();
            }
        }
        self.note("device fails", &[serial, breaks.into()], |_| {
            format!("a copy of queue {serial} fails{}", if breaks { ", and the device breaks" } else { "" })
        });
        if breaks {
            Failure::Broken
        } else {
            Failure::Copy
        }
    }

    /// Plans the next part, if something is under way.
    pub(super) fn plan_step(&mut self, serial: u64) {
        let (slowness, most) = (self.devices.faults.slowness, self.devices.gap_ns_max);
        let Some(queue) = self.devices.queues.get(&serial) else { return };
        if queue.step_at.is_some() || !queue.is_busy() {
            return;
        }
        let gap_ns = slowness * self.devices.rng.log_uniform(GAP_NS_MIN, most);
        let at = queue.stands_until.max(self.now + gap_ns);
        if let Some(queue) = self.devices.queues.get_mut(&serial) {
            queue.step_at = Some(at);
        }
        self.plan(at, Event::Device(Due { queue: serial, at }));
    }

    /// Moves a part of some batch.
    pub(super) fn queue_steps(&mut self, due: Due) {
        let Some(queue) = self.devices.queues.get_mut(&due.queue) else { return };
        // Another step was planned in its place.
        if queue.step_at != Some(due.at) {
            return;
        }
        queue.step_at = None;
        if queue.stands_until <= self.now {
            self.move_part(due.queue);
            if self.devices.queues.get(&due.queue).is_some_and(QueueState::is_busy) {
                self.may_stand(due.queue);
            }
        }
        self.plan_step(due.queue);
    }

    fn move_part(&mut self, serial: u64) {
        let Some(queue) = self.devices.queues.get_mut(&serial) else { return };
        let open = queue.batches.iter_mut().filter(|batch| !batch.has_ended());
        let mut open: Vec<&mut BatchState> = open.collect();
        if open.is_empty() {
            return;
        }
        let chosen = self.devices.rng.index(open.len());
        let batch = &mut *open[chosen];
        let part = batch.parts.swap_remove(self.devices.rng.index(batch.parts.len()));
        let (process, ordinal) = (queue.process, queue.ordinal);
        let fails = batch.fails_at == Some(batch.parts.len());
        if fails {
            batch.parts.clear();
        }
        let number = batch.number;
        let Piece { to, from, length } = part;
        for (address, write) in [(from, false), (to, true)] {
            if !self.device_reaches((process, ordinal), address, length) {
                let told = if write { "to" } else { "from" };
                self.fail(format!("a device copies {told} memory that was taken back meanwhile"));
                return;
            }
            self.touch_of(None, process, address, length, write, COPIES);
        }
        // SAFETY: the promise of `copy`, and both were looked up just now. One thread runs all tasks, so nobody looks
        // at the bytes meanwhile; memory of a device and of a host is apart, and so are two ranges of one batch.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, length as usize) };
        if fails {
            let failure = self.failure_of(serial);
            let Some(queue) = self.devices.queues.get_mut(&serial) else { return };
            if let Some(batch) = queue.batches.iter_mut().find(|batch| batch.number == number) {
                batch.failure = Some(failure);
            }
        }
    }
}
