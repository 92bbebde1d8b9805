//! A transfer's position in its peer's outbox, stored in the transfer itself: so the outbox finds the transfer without
//! a search, and a struck transfer is counted once wherever it stood.

use crate::sys::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// The transfer was not in the outbox yet.
    New = 0,
    /// The transfer waits for an earlier ORDERED transfer that is not final; none of its slices is queued.
    Behind = 1,
    /// The transfer has its turn and waits for its start event; none of its slices is queued.
    Held = 2,
    /// The slices are queued, posted or dropped, each on its own.
    Out = 3,
}

/// Written and read under the outbox's lock; atomics only because the transfer is shared.
pub struct Position {
    place: AtomicU8,
    /// The start event has not fired yet.
    held: AtomicBool,
    order: AtomicU64,
}

impl Position {
    pub fn new(held: bool) -> Position {
        Position {
            place: AtomicU8::new(Place::New as u8),
            held: AtomicBool::new(held),
            order: AtomicU64::new(0),
        }
    }

    pub fn place(&self) -> Place {
        match self.place.load(Ordering::Relaxed) {
            0 => Place::New,
            1 => Place::Behind,
            2 => Place::Held,
            _ => Place::Out,
        }
    }

    pub fn set_place(&self, place: Place) {
        self.place.store(place as u8, Ordering::Relaxed);
    }

    /// True while the transfer waits for its start event.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    pub fn start(&self) {
        self.held.store(false, Ordering::Relaxed);
    }

    /// Returns the transfer's number among the peer's transfers, in order of submission.
    pub fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    pub fn set_order(&self, order: u64) {
        self.order.store(order, Ordering::Relaxed);
    }
}
