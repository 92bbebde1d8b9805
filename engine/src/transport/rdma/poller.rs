//! A device's thread. It sleeps until a completion queue reports, polls that endpoint while completions keep coming,
//! and posts work that waited for room. Chains whose completion no thread sleeps for are not announced; ticks settle
//! them. The thread uses no CPU time while nothing is posted.

use super::device::{Device, RECEIVED};
use super::endpoint::Endpoint;
use crate::status::{Error, Result};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::lock::Mutex;
use crate::sys::pause;
use crate::sys::poller::{Interest, Ready};
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Next, Turns};
use crate::types::{Monotonic, Transport};
use std::sync::Arc;

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
    /// How long the endpoint is polled after its last completion.
    spin_ns: u64,
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
        let (own, poller) = (polling.clone(), polling.device.poller.clone());
        let make = move || Some(Loop { polling: own, watched: Vec::new(), rounds: 0, ticks: false });
        let thread = turns::start("ferry-rdma-poll", "reaping completions", poller, make)
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

    /// Takes in notifications, and arms the queue for the next ones.
    fn receive(&self) {
        while self.device.receive() {}
        if self.device.received.arm().is_ok() {
            // Arming does not announce what arrived before.
            while self.device.receive() {}
        }
    }
}

/// The state of the thread between its turns.
struct Loop {
    polling: Arc<Polling>,
    watched: Vec<Watched>,
    /// Rounds of polling since the completion channel was checked.
    rounds: u32,
    /// The thread has slept for one tick at most.
    ticks: bool,
}

impl Turns for Loop {
    /// While endpoints are watched, a turn is one round of polling.
    fn turn(&mut self, now: Monotonic, _: &[Ready]) -> Next {
        if std::mem::take(&mut self.ticks) {
            self.polling.device.tick();
        }
        if self.watched.is_empty() || self.rounds == ROUNDS {
            self.rounds = 0;
            self.collect(now);
        }
        if !self.watched.is_empty() {
            self.rounds += 1;
            self.watched.retain_mut(|it| it.poll(now));
            return Next::Again;
        }
        if self.polling.stopping.load(Ordering::SeqCst) {
            return Next::Over;
        }
        self.ticks = self.polling.device.is_ticking();
        Next::at(self.ticks.then(|| now + TICK_NS))
    }
}

impl Loop {
    /// Takes the reports of the completion channel.
    fn collect(&mut self, now: Monotonic) {
        let Polling { device, spin_ns, .. } = &*self.polling;
        while let Ok(Some(cookie)) = device.channel.next() {
            if cookie == RECEIVED {
                self.polling.receive();
                continue;
            }
            let Some(endpoint) = device.endpoint(cookie) else { continue };
            endpoint.watch.begin_reported();
            let until_ns = now.saturating_add(*spin_ns);
            if !self.watched.iter().any(|it| Arc::ptr_eq(&it.endpoint, &endpoint)) {
                self.watched.push(Watched { endpoint, spin_ns: *spin_ns, until_ns });
            }
        }
    }
}

impl Watched {
    /// Polls the endpoint once. Returns false when the endpoint is left to the completion channel again.
    fn poll(&mut self, now: Monotonic) -> bool {
        let mut after = self.endpoint.peer.after();
        let settled = self.endpoint.reap(&mut after);
        if settled > 0 {
            self.until_ns = now.saturating_add(self.spin_ns);
            after.nudge(Transport::Rdma);
            after.flush();
        }
        if self.endpoint.watch.has_work() && now < self.until_ns && !self.endpoint.is_broken() {
            pause::spin();
            return true;
        }
        self.endpoint.unwatch(&mut after);
        false
    }
}
