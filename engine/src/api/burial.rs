//! The end of an engine that is broken: what every thread knew is not believed any more, so everything that could
//! move something is shut, stopped or destroyed, and waited for by what it is, not by what was noted of it.

use crate::context::Context;
use crate::notify::{Event, EventBody, Wakers};
use crate::peer::TransportService;
use crate::status::Result;
use crate::sys::clock;
use crate::sys::health::{Health, Undertaker};
use crate::sys::pause;
use crate::transport::rdma;
use crate::transport::tcp::lanes::Lanes;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at what copies on this host.
const PAUSE: Duration = Duration::from_millis(2);
/// What an RDMA network may still carry of a queue pair that is gone, as when an endpoint is closed.
const FABRIC_DRAIN_NS: u64 = 1_000_000_000;

/// What of an engine moves bytes.
pub struct Remains {
    pub context: Arc<Context>,
    pub lanes: Arc<Lanes>,
    pub services: Vec<Arc<dyn TransportService>>,
    pub rdma: Option<Arc<rdma::Service>>,
}

impl Undertaker for Remains {
    fn rouse(&self) {
        self.lanes.shut();
        self.services.iter().for_each(|service| service.shut());
        // Whoever waits for the control loop's answer hears why there is none.
        self.context.commands.close();
        for transfer in self.context.transfers.list() {
            if !transfer.is_final() {
                transfer.waiter.notify_all(&mut Wakers::default());
            }
        }
        self.context.hub.rouse();
    }

    fn bury(&self, health: &Health) -> Result<()> {
        self.destroy();
        health.wait_threads()?;
        // No thread of the engine makes anything new. Threads of the program may still be in the midst of a call:
        // under the lock of a lane or of an endpoint, or counted by the peer that they copy to.
        self.lanes.close();
        self.destroy();
        while !self.services.iter().all(|service| service.is_still()) {
            pause::sleep(PAUSE);
        }
        // Now nothing moves here; what was sent before may still be applied by peers, until its lease is over.
        let lease_ns = self.context.config.lease_ms * 1_000_000;
        let over_ns = clock::monotonic_ns() + lease_ns.max(self.rdma.as_ref().map_or(0, |_| FABRIC_DRAIN_NS));
        loop {
            let left_ns = over_ns.saturating_sub(clock::monotonic_ns());
            if left_ns == 0 {
                break;
            }
            pause::sleep(Duration::from_nanos(left_ns));
        }
        self.conclude();
        Ok(())
    }
}

impl Remains {
    fn destroy(&self) {
        self.rdma.iter().for_each(|rdma| rdma.destroy_all());
    }

    /// Makes every transfer final.
    fn conclude(&self) {
        for transfer in self.context.transfers.list() {
            // One of which too much is broken stays as it is; its waiters get PANIC all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let Some(state) = transfer.condemn() else { return };
                let Some(queue) = &transfer.spec.queue else { return transfer.publish(state) };
                let status = transfer.concluded_status();
                let (handle, user_data) = (transfer.handle, transfer.spec.user_data);
                let body = EventBody::Transfer { transfer: handle, user_data, status };
                queue.push_reserved(Event { peer: transfer.spec.peer, body, credit: None }, || {
                    transfer.publish(state)
                });
            }));
            transfer.waiter.notify_all(&mut Wakers::default());
        }
    }
}
