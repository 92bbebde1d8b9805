//! Events of devices for which offers wait: taken from the engine in the call, looked at by the cache's thread when the
//! engine has woken it.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use ferry::status::Result;
use ferry::types::MemoryKind;
use ferry::Start;

use super::state::Inner;
use super::{named, Cache, Shared};
use crate::handoff::HandoffId;
use crate::os::EventFd;

impl Cache {
    /// As `offer_ready`, once the program's work on a device of this kind has come to a point: an event as it is recorded
    /// at this call, or all work that a stream has been given so far. Afterwards the program may record the event anew or
    /// destroy it. The readies of an offer apply in the order of their calls, also those without an event. If the work
    /// before the point fails, the offer fails with the device's status.
    ///
    /// Errors as of `offer_ready`, told by the call itself, and of `Engine::reached`. LIMIT while
    /// `limits::DEVICE_EVENTS_MAX` wait.
    pub fn offer_ready_after(
        &self,
        id: HandoffId,
        layers: Range<u32>,
        tokens: u64,
        kind: MemoryKind,
        at: Start,
    ) -> Result<()> {
        let reached = self.shared.engine.reached(kind, at).map_err(|error| named(error, "event"))?;
        let mut inner = self.shared.lock_open()?;
        inner.next_number += 1;
        let number = inner.next_number;
        inner.machine.offer_ready_after(id, layers, tokens, number, self.shared.now())?;
        inner.device_events.insert(number, reached);
        drop(inner);
        // The thread looks at it for the first time.
        self.shared.wake();
        Ok(())
    }
}

impl Shared {
    /// Hands those that are reached to the machine, and gives up those for which nobody waits any more.
    pub(super) fn look_at_device_events(&self, inner: &mut Inner) {
        if inner.device_events.is_empty() {
            return;
        }
        let waker = Waker::from(Arc::new(Alarm(self.wake.clone())));
        let mut context = Context::from_waker(&waker);
        let mut reached = Vec::new();
        for (number, event) in &mut inner.device_events {
            if let Poll::Ready(result) = Pin::new(event).poll(&mut context) {
                reached.push((*number, result));
            }
        }
        for (number, result) in reached {
            inner.device_events.remove(&number);
            inner.machine.event_reached(number, result, self.now());
        }
        let awaited = inner.machine.awaited_events();
        inner.device_events.retain(|number, _| awaited.contains(number));
    }
}

/// Wakes the cache's thread. It does not hold the cache, which must not end on the device's thread.
struct Alarm(Arc<EventFd>);

impl Wake for Alarm {
    fn wake(self: Arc<Alarm>) {
        self.0.raise();
    }
}
