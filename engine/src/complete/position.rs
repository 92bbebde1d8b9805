//! Where a transfer stands in its peer's outbox, noted on the transfer itself: so that the outbox finds it
//! again without a search, and what was struck is counted once wherever it stood.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// The outbox has not had it.
    New = 0,
    /// Behind an earlier ORDERED transfer that is not final; none of its slices is queued.
    Behind = 1,
    /// Has its turn and waits to be started; none of its slices is queued.
    Held = 2,
    /// Queued, posted or dropped, slice by slice.
    Out = 3,
}

/// Written and read under the outbox's lock; atomics because the transfer is shared.
pub struct Position {
    place: AtomicU8,
    /// Not started yet.
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

    /// Whether it waits to be started.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    pub fn start(&self) {
        self.held.store(false, Ordering::Relaxed);
    }

    /// Its number among the peer's transfers, in order of submission.
    pub fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    pub fn set_order(&self, order: u64) {
        self.order.store(order, Ordering::Relaxed);
    }
}
