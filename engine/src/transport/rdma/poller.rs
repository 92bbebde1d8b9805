//! A device's thread. It sleeps until a completion queue reports, polls that endpoint while completions keep coming,
//! and posts work that waited for room. Chains whose completion no thread sleeps for are not announced; ticks settle
//! them. The thread uses no CPU time while nothing is posted.

use super::device::{Device, RECEIVED};
use super::endpoint::Endpoint;
use crate::status::{Error, Result};
use crate::sys::clock;
use crate::sys::health;
use crate::sys::lock::Mutex;
use crate::sys::pause;
use crate::sys::poller::{Interest, Ready};
use crate::types::{Monotonic, Transport};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

const CHANNEL: u64 = 1;
/// Rounds of polling between two checks of the completion channel.
const ROUNDS: u32 = 64;
/// Two ticks bound the time until work that no thread sleeps for is settled.
const TICK_NS: u64 = 5_000_000;

pub struct Polling {
    device: Arc<Device>,
    spin_ns: u64,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An endpoint that this thread polls.
struct Watched {
    endpoint: Arc<Endpoint>,
    until_ns: Monotonic,
}

impl Polling {
    pub fn start(device: Arc<Device>, spin_ns: u64) -> Result<Arc<Polling>> {
        let system = |error: std::io::Error| Error::system("watching a completion channel", &error);
        device
            .poller
            .add(device.channel.fd(), CHANNEL, Interest { read: true, write: false })
            .map_err(system)?;
        let polling =
            Arc::new(Polling { device, spin_ns, stopping: AtomicBool::new(false), thread: Mutex::new(None) });
        let own = polling.clone();
        let thread = crate::sys::thread::spawn("ferry-rdma-poll", move || {
            health::doing("reaping completions");
            health::woken_by(&|| own.device.poller.wake(), || own.run());
        })
        .map_err(|error| Error::system("starting a thread for an RDMA device", &error))?;
        *polling.thread.lock() = Some(thread);
        Ok(polling)
    }

    /// Ends the thread. No endpoint may be left.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.device.poller.wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.device.poller.remove(self.device.channel.fd(), CHANNEL);
    }

    fn run(&self) {
        let mut ready: Vec<Ready> = Vec::new();
        let mut watched: Vec<Watched> = Vec::new();
        while !self.stopping.load(Ordering::SeqCst) {
            ready.clear();
            let timeout_ns = self.device.is_ticking().then_some(TICK_NS);
            if self.device.poller.wait(&mut ready, timeout_ns).is_err() {
                pause::yield_now();
            }
            if timeout_ns.is_some() {
                self.device.tick();
            }
            self.collect(&mut watched);
            while !watched.is_empty() {
                for _ in 0..ROUNDS {
                    watched.retain_mut(|it| self.poll(it));
                }
                self.collect(&mut watched);
            }
        }
    }

    /// Takes the reports of the completion channel.
    fn collect(&self, watched: &mut Vec<Watched>) {
        while let Ok(Some(cookie)) = self.device.channel.next() {
            if cookie == RECEIVED {
                self.receive();
                continue;
            }
            let Some(endpoint) = self.device.endpoint(cookie) else { continue };
            endpoint.watch_reported();
            let until_ns = clock::monotonic_ns().saturating_add(self.spin_ns);
            if !watched.iter().any(|it| Arc::ptr_eq(&it.endpoint, &endpoint)) {
                watched.push(Watched { endpoint, until_ns });
            }
        }
    }

    /// Takes in notifications, and arms the queue for the next ones.
    fn receive(&self) {
        while self.device.receive() {}
        if self.device.received.arm().is_ok() {
            // Arming does not announce what arrived before.
            while self.device.receive() {}
        }
    }

    /// Polls an endpoint once. Returns false when the endpoint is left to the completion channel again.
    fn poll(&self, it: &mut Watched) -> bool {
        let mut after = it.endpoint.peer.after();
        let settled = it.endpoint.reap(&mut after);
        let now_ns = clock::monotonic_ns();
        if settled > 0 {
            it.until_ns = now_ns.saturating_add(self.spin_ns);
            after.nudge(Transport::Rdma);
            after.flush();
        }
        if it.endpoint.has_work() && now_ns < it.until_ns && !it.endpoint.is_broken() {
            pause::spin();
            return true;
        }
        it.endpoint.rest(&mut after);
        false
    }
}
