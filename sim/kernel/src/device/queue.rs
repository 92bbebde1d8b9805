//! A queue of copies on one device, as one thread of a process holds it; `step` moves them. The run fails if a program
//! asks of a device what a correct one never does: more batches than it said, memory that is neither pinned nor the
//! device's, memory that is taken back under a copy.

use super::{has, PART_BYTES};
use crate::process::ProcessId;
use crate::task;
use crate::world::{is_running, point, try_with, with, World};
use std::collections::VecDeque;
use std::time::Duration;

/// How long the library takes to look for the end of a batch, and while the device stands.
const LOOK_NS: (u64, u64) = (300, 3_000);
const STUCK_NS: (u64, u64) = (100_000, 1_000_000);
/// How many of a million failing batches are not even started.
const NOT_STARTED_PPM: u32 = 300_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub to: u64,
    pub from: u64,
    pub length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// One batch failed.
    Copy,
    /// The device is broken: nothing moves any more.
    Broken,
}

impl Failure {
    /// The number by which the library tells it.
    pub fn code(self) -> i32 {
        match self {
            Failure::Copy => 700,
            Failure::Broken => 719,
        }
    }
}

pub(super) struct BatchState {
    pub number: u64,
    pub direction: Direction,
    /// The parts that have yet to move, each of a page at most.
    pub parts: Vec<Piece>,
    /// The batch fails when no more parts than these are left.
    pub fails_at: Option<usize>,
    pub failure: Option<Failure>,
}

impl BatchState {
    pub fn has_ended(&self) -> bool {
        self.parts.is_empty()
    }
}

pub(super) struct QueueState {
    pub process: ProcessId,
    pub ordinal: i32,
    batch_bytes: u64,
    depth: usize,
    /// Batches whose end was not told, in their order.
    pub batches: VecDeque<BatchState>,
    batches_made: u64,
    /// When the next part moves.
    pub step_at: Option<u64>,
    /// The device stands until then.
    pub stands_until: u64,
    /// `abort` stops what is under way. False: the copies go on later.
    pub can_stop: bool,
    pub broken: bool,
}

impl QueueState {
    pub fn is_busy(&self) -> bool {
        self.batches.iter().any(|batch| !batch.has_ended())
    }

    /// Ends all that is under way.
    pub fn break_down(&mut self) {
        self.broken = true;
        for batch in self.batches.iter_mut().filter(|batch| !batch.has_ended()) {
            batch.parts.clear();
            batch.failure = Some(Failure::Broken);
        }
    }
}

/// The queue, for one thread. Dropping it takes it away.
#[derive(Debug)]
pub struct Queue {
    serial: u64,
    world: u64,
}

impl Queue {
    /// Opens a queue on a device of this host. At most `depth` batches are under way, and one from or to the host has
    /// at most `batch_bytes`. None if there is no such device.
    pub fn open(ordinal: i32, batch_bytes: u64, depth: usize) -> Option<Queue> {
        point();
        with(|world| {
            if !world.has_device(ordinal) {
                return None;
            }
            world.devices.queues_made += 1;
            let (serial, process) = (world.devices.queues_made, world.here());
            let queue = QueueState {
                process,
                ordinal,
                batch_bytes,
                depth,
                batches: VecDeque::new(),
                batches_made: 0,
                step_at: None,
                stands_until: 0,
                can_stop: true,
                broken: false,
            };
            world.devices.queues.insert(serial, queue);
            Some(Queue { serial, world: world.serial })
        })
    }

    /// Starts a batch, and returns its number. After an error nothing of it was started.
    ///
    /// # Safety
    /// All memory stays as it is until the batch has ended, and the owners of its bytes agree to the copies.
    pub unsafe fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<u64, Failure> {
        point();
        with(|world| world.start_batch(self.serial, direction, pieces))
    }

    /// Returns whether this batch and all before it have ended. The caller asks for the oldest batch until it has
    /// ended, then for the next one.
    pub fn poll_done(&mut self, batch: u64) -> Result<bool, Failure> {
        let stuck_ns = with(|world| {
            let queue = world.devices.queues.get(&self.serial)?;
            let stands = queue.is_busy() && queue.stands_until > world.now;
            let (least, most) = if stands { STUCK_NS } else { LOOK_NS };
            let ns = world.devices.rng.between(least, most);
            if !stands {
                world.now += ns;
            }
            stands.then_some(ns)
        });
        match stuck_ns {
            Some(ns) => task::sleep(Duration::from_nanos(ns)),
            None => point(),
        }
        with(|world| world.look_for_end(self.serial, batch))
    }

    /// Stops all that is under way. False: nobody knows whether it stopped.
    pub fn abort(&mut self) -> bool {
        point();
        with(|world| {
            let Some(queue) = world.devices.queues.get_mut(&self.serial) else { return true };
            let stops = queue.can_stop;
            queue.broken = true;
            if stops {
                queue.batches.clear();
            }
            world.note("device abort", &[self.serial, stops.into()], |_| {
                let told = if stops { "stops" } else { "cannot stop" };
                format!("{told} the copies of queue {}", self.serial)
            });
            stops
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !is_running() {
            return;
        }
        try_with(|world| {
            if world.serial != self.world {
                return;
            }
            let gone = world.devices.queues.remove(&self.serial);
            if gone.is_some_and(|queue| queue.is_busy()) {
                world.fail("a queue of a device is closed while it copies".into());
            }
        });
    }
}

impl World {
    /// Returns what a correct program never asks.
    fn wrong_batch(
        &self,
        queue: &QueueState,
        direction: Direction,
        pieces: &[Piece],
    ) -> Option<&'static str> {
        let bytes: u64 = pieces.iter().map(|piece| piece.length).sum();
        let crosses = direction == Direction::DeviceToDevice;
        let at = (queue.process, queue.ordinal);
        if queue.batches.len() >= queue.depth {
            return Some("more batches than the queue has room for");
        }
        if pieces.is_empty() || (bytes > queue.batch_bytes && !crosses) {
            return Some("a batch of no piece, or of too many bytes");
        }
        for Piece { to, from, length } in pieces {
            let is_device = |address: u64| has(address);
            let wanted = match direction {
                Direction::HostToDevice => (true, false),
                Direction::DeviceToHost => (false, true),
                Direction::DeviceToDevice => (true, true),
            };
            if (is_device(*to), is_device(*from)) != wanted {
                return Some("a piece in another direction than its batch");
            }
            if ![to, from].iter().all(|address| self.device_reaches(at, **address, *length)) {
                return Some("memory that is neither pinned nor the device's");
            }
        }
        None
    }

    fn start_batch(&mut self, serial: u64, direction: Direction, pieces: &[Piece]) -> Result<u64, Failure> {
        let fails = self.devices.faults.fail_ppm;
        let (fails, at_once) = (self.devices.rng.chance(fails), self.devices.rng.chance(NOT_STARTED_PPM));
        let Some(queue) = self.devices.queues.get(&serial) else { return Err(Failure::Broken) };
        if queue.broken {
            return Err(Failure::Broken);
        }
        if let Some(wrong) = self.wrong_batch(queue, direction, pieces) {
            self.fail(format!("a device is asked for {wrong}"));
            return Err(Failure::Broken);
        }
        if fails && at_once {
            return Err(self.failure_of(serial));
        }
        let mut parts = Vec::new();
        for piece in pieces {
            let mut at = 0;
            while at < piece.length {
                let length = PART_BYTES.min(piece.length - at);
                parts.push(Piece { to: piece.to + at, from: piece.from + at, length });
                at += length;
            }
        }
        let fails_at = fails.then(|| self.devices.rng.index(parts.len()));
        let Some(queue) = self.devices.queues.get_mut(&serial) else { return Err(Failure::Broken) };
        queue.batches_made += 1;
        let (number, count) = (queue.batches_made, parts.len() as u64);
        queue.batches.push_back(BatchState { number, direction, parts, fails_at, failure: None });
        self.note("device copy", &[serial, number, count], |_| {
            format!("starts batch {number} of queue {serial}: {direction:?}, {count} parts")
        });
        self.may_stand(serial);
        self.plan_step(serial);
        Ok(number)
    }

    fn look_for_end(&mut self, serial: u64, batch: u64) -> Result<bool, Failure> {
        let Some(queue) = self.devices.queues.get_mut(&serial) else { return Err(Failure::Broken) };
        let Some(first) = queue.batches.front() else { return Ok(true) };
        if first.number != batch {
            self.fail(format!("batch {batch} is asked for, and another of queue {serial} is the oldest"));
            return Ok(true);
        }
        if !first.has_ended() {
            return Ok(false);
        }
        let failure = first.failure;
        queue.batches.pop_front();
        self.note("device done", &[serial, batch, u64::from(failure.is_some())], |_| {
            format!("batch {batch} of queue {serial} has ended: {failure:?}")
        });
        failure.map_or(Ok(true), Err)
    }
}
