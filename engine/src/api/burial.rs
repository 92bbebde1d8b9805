//! The teardown of a broken engine. The state that the engine's threads recorded is not trusted: everything that can
//! move bytes is shut, stopped or destroyed, and the teardown waits for the threads, sockets and queue pairs
//! themselves.

use crate::context::Context;
use crate::notify::Wakers;
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

/// Pause between two checks whether a process of this host still copies.
const PAUSE: Duration = Duration::from_millis(2);
/// How long an RDMA network may still deliver packets of a destroyed queue pair, as when an endpoint is closed.
const FABRIC_DRAIN_NS: u64 = 1_000_000_000;

/// The parts of an engine that move bytes.
pub struct Remains {
    pub context: Arc<Context>,
    pub lanes: Arc<Lanes>,
    pub services: Vec<Arc<dyn TransportService>>,
    pub rdma: Option<Arc<rdma::RdmaService>>,
}

impl Undertaker for Remains {
    fn rouse(&self) {
        self.lanes.shut();
        self.services.iter().for_each(|service| service.shut());
        // Drops the queued replies, so that callers that wait for the control loop get PANIC.
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
        // The engine's threads have ended and start nothing new. Threads of the program may still be inside a call:
        // they hold the lock of a lane or an endpoint, or are counted by the peer that they copy to.
        while !self.lanes.close() {
            pause::sleep(PAUSE);
        }
        self.destroy();
        // Every service is asked in every round: one service may release an object for which another one waits.
        while self.services.iter().filter(|service| !service.bury()).count() > 0 {
            pause::sleep(PAUSE);
        }
        // Contract 4: nothing moves here any more, but peers may apply sent frames until the frames' leases are over.
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
            // A transfer whose own state is broken stays as it is; its waiters get PANIC all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                transfer.condemn().into_iter().for_each(|state| transfer.publish(state));
            }));
            transfer.waiter.notify_all(&mut Wakers::default());
        }
        self.context.hub.reschedule();
    }
}
