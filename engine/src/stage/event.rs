//! The events of the stage's thread, and the inbox in which other threads leave them.

use super::bridge_target::Exposure;
use super::bridges::BridgeSlot;
use super::mapped::{Mapped, MappingKey};
use super::serve::Begun;
use crate::complete::transfer::Failure;
use crate::device::PieceFault;
use crate::peer::SessionInfo;
use crate::region::Region;
use crate::status::Result;
use crate::sys::turns::{Awaited, HasWork};
use crate::types::{BridgeId, OperationId, PeerId, RegionId, SessionId, TransferId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

pub enum Event {
    Begin(SessionInfo),
    End(PeerId),
    /// The peer is lost.
    Forget(PeerId),
    /// Nothing of the lost peer can land here any more.
    Quiet(PeerId),
    Received(PeerId, Vec<u8>),
    /// Slices were queued for this peer.
    Post(PeerId),
    Struck(PeerId, TransferId),
    /// A part of an operation is final.
    Moved {
        peer: PeerId,
        op: OperationId,
    },
    /// Copies of an operation have ended; `Served` is the same event of a peer's operation.
    Copied {
        peer: PeerId,
        op: OperationId,
        /// The slices that failed alone.
        result: Result<Vec<Failure>>,
    },
    Served {
        peer: PeerId,
        op: OperationId,
        begun: Begun,
        result: Result<Vec<PieceFault>>,
    },
    /// A device here has mapped the memory that a peer lent in this session.
    Mapped {
        peer: PeerId,
        session: Option<SessionId>,
        key: MappingKey,
        result: Result<Arc<Mapped>>,
    },
    /// A device here has exported this region for a peer.
    Exported {
        peer: PeerId,
        region: Arc<Region>,
        result: Result<Vec<u8>>,
    },
    /// This region is being unregistered.
    Recall(RegionId),
    /// A device here has made memory for a peer's bridge.
    Exposed {
        peer: PeerId,
        bridge: BridgeId,
        result: Result<(Arc<Exposure>, Vec<u8>)>,
    },
    /// A device here is attached to a peer's device, or could not be attached.
    Attached {
        peer: PeerId,
        bridge: BridgeId,
        result: Result<(u64, u64, u32)>,
    },
    /// The device is detached again.
    Detached {
        peer: PeerId,
        bridge: BridgeId,
    },
    /// Devices have moved the data of a bridge.
    Carried {
        peer: PeerId,
        op: OperationId,
        bridge_slot: BridgeSlot,
        result: Result<()>,
    },
    Stop,
}

#[derive(Default)]
pub struct Events(VecDeque<Event>);

impl HasWork for Events {
    fn has_work(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The stage's thread sleeps while it is empty.
pub type Inbox = Awaited<Events>;

impl Inbox {
    pub fn push(&self, event: Event) {
        self.lock().0.push_back(event);
        self.wake_one();
    }

    /// Returns the events that have come.
    pub fn take(&self) -> VecDeque<Event> {
        std::mem::take(&mut self.lock().0)
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
