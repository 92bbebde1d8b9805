//! The events of the stage's thread, and the inbox in which other threads leave them.

use super::bridge::Berth;
use super::bridge_target::Shown;
use super::mapped::{Mapped, Place};
use crate::peer::SessionInfo;
use crate::region::Region;
use crate::status::Result;
use crate::sys::lock::{Condvar, Mutex};
use crate::types::PeerId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

pub enum Event {
    Begin(SessionInfo),
    End(PeerId),
    /// The peer is lost.
    Forget(PeerId),
    /// Nothing of the lost peer can land here any more.
    Quiet(PeerId),
    Said(PeerId, Vec<u8>),
    /// Slices were queued for this peer.
    Post(PeerId),
    Struck(PeerId, u64),
    /// A part of an operation is final.
    Moved {
        peer: PeerId,
        op: u64,
    },
    /// Copies of an operation have ended; `Served` is the same event of a peer's operation.
    Copied {
        peer: PeerId,
        op: u64,
        result: Result<()>,
    },
    Served {
        peer: PeerId,
        op: u64,
        blocks: Vec<u32>,
        result: Result<()>,
    },
    /// A device here has mapped the memory that a peer lent in this session.
    Mapped {
        peer: PeerId,
        session: Option<[u8; 16]>,
        place: Place,
        result: Result<Arc<Mapped>>,
    },
    /// A device here has exported this region for a peer.
    Exported {
        peer: PeerId,
        region: Arc<Region>,
        result: Result<Vec<u8>>,
    },
    /// This region is being unregistered.
    Recall(u64),
    /// A device here has made memory for a peer's bridge.
    Shown {
        peer: PeerId,
        bridge: u64,
        result: Result<(Arc<Shown>, Vec<u8>)>,
    },
    /// A device here is attached to a peer's device, or could not be attached.
    Attached {
        peer: PeerId,
        bridge: u64,
        result: Result<(u64, u64, u32)>,
    },
    /// The device is detached again.
    Detached {
        peer: PeerId,
        bridge: u64,
    },
    /// Devices have moved the data of a bridge.
    Carried {
        peer: PeerId,
        op: u64,
        berth: Berth,
        result: Result<()>,
    },
    Stop,
}

#[derive(Default)]
pub struct Inbox {
    events: Mutex<VecDeque<Event>>,
    changed: Condvar,
}

impl Inbox {
    pub fn push(&self, event: Event) {
        self.events.lock().push_back(event);
        self.changed.notify_one();
    }

    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Returns the events that have come, after at most `timeout`.
    pub fn take(&self, timeout: Option<Duration>) -> VecDeque<Event> {
        let mut events = self.events.lock();
        if events.is_empty() {
            events = match timeout {
                Some(timeout) => self.changed.wait_timeout(events, timeout).0,
                None => self.changed.wait(events),
            };
        }
        std::mem::take(&mut *events)
    }
}

/// Pushes an event when it is woken.
struct Wake<F>(Arc<Inbox>, F);

impl<F: Fn() -> Event + Send + Sync + 'static> std::task::Wake for Wake<F> {
    fn wake(self: Arc<Self>) {
        self.0.push(self.1());
    }
}

pub fn waker(inbox: &Arc<Inbox>, event: impl Fn() -> Event + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Wake(inbox.clone(), event)))
}
