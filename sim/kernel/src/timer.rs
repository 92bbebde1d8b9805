//! The events that are due at a virtual time: the ends of waits, the arrivals of packets, the work of NICs and
//! devices, and calls that a program or a fault has planned. `run` fires them; events of one time fire in the order in
//! which they were planned.

use crate::device;
use crate::net::Arrival;
use crate::nic::Due;
use crate::wait::Ticket;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub(crate) enum Event {
    /// A wait's time is over.
    Wait(Ticket),
    Net(Arrival),
    Nic(Due),
    Device(device::Due),
    /// Runs outside of every task: it must not block.
    Call(Box<dyn FnOnce()>),
}

struct Planned {
    at: u64,
    order: u64,
    event: Event,
}

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Planned>,
    order: u64,
}

impl Timers {
    pub fn plan(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.heap.push(Planned { at, order: self.order, event });
    }

    /// Returns the time of the earliest event.
    pub fn next(&self) -> Option<u64> {
        self.heap.peek().map(|planned| planned.at)
    }

    /// Takes the earliest event if it is due.
    pub fn due(&mut self, now: u64) -> Option<Event> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|planned| planned.event)
    }
}

/// The heap's top is its greatest: the earliest, and of one time the one that was planned first.
impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.order == other.order
    }
}

impl Eq for Planned {}
