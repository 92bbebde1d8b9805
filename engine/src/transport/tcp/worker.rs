//! A lane thread: polls its lanes' sockets, receives, and sends queued work. The thread blocks only in its poller and
//! runs no user code.
//!
//! After a small exchange the thread spins briefly before it sleeps, if spinning paid off the last time: the next
//! request of a conversation then costs no wake-up. The thread does not spin if it shares its CPU with the peer's
//! thread.

use crate::status::Result;
use crate::sys::clock;
use crate::sys::health;
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::pause;
use crate::sys::poller::{Interest, Poller, PollerKind, Ready};
use crate::sys::sched;
use crate::sys::socket;
use crate::sys::thread;
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::lanes::Lanes;
use crate::types::Monotonic;
use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;

/// Spinning pays for a gap that is shorter than this many spins.
pub const GAP_SPINS: u64 = 4;
/// While spinning on one lane, poll all other lanes after this many tries.
const TRIES_PER_POLL: u32 = 8;

/// An engine's lane threads, by what they carry. A message that waits for a bulk lane's turn, or whose
/// thread is one of many that always have work, waits for milliseconds: express lanes have threads of
/// their own, which mostly sleep and so are the scheduler's first choice when they wake. They start with the first
/// session.
pub struct Workers {
    bulk: Vec<Arc<Worker>>,
    express: Vec<Arc<Worker>>,
    /// All lanes that were given to these threads.
    pub lanes: Arc<Lanes>,
}

impl Workers {
    /// Creates `count` threads' state of each kind, at least one.
    pub fn new(count: u32, kind: PollerKind, spin_ns: u64) -> Result<Workers> {
        let lanes: Arc<Lanes> = Arc::default();
        let workers =
            || (0..count.max(1)).map(|_| Worker::new(kind, spin_ns, &lanes)).collect::<Result<Vec<_>>>();
        Ok(Workers { bulk: workers()?, express: workers()?, lanes: lanes.clone() })
    }

    /// Returns the worker of the lane in this slot, by the peer's index. A peer's bulk lanes are on different workers,
    /// and different peers start at different workers.
    pub fn of(&self, peer: u32, slot: u32) -> &Arc<Worker> {
        match slot {
            0 => &self.express[peer as usize % self.express.len()],
            slot => &self.bulk[peer.wrapping_add(slot) as usize % self.bulk.len()],
        }
    }

    /// Starts the threads that do not run. If one cannot be started, those before it stay for the next try.
    pub fn start(&self) -> Result<()> {
        let (starting, all_run) = mpsc::channel();
        for (index, worker) in self.bulk.iter().enumerate() {
            worker.start(|| format!("ferry-lane-{index}"), sched::take_long_slices, &starting)?;
        }
        for (index, worker) in self.express.iter().enumerate() {
            worker.start(|| format!("ferry-express-{index}"), || (), &starting)?;
        }
        drop(starting);
        // Fails once every thread runs and has dropped its sender: the first transfer does not wait for their start.
        let _ = all_run.recv();
        Ok(())
    }

    /// Ends the threads. Nobody starts them any more.
    pub fn stop(&self) {
        let all = || self.bulk.iter().chain(&self.express);
        all().for_each(|worker| worker.stop());
        all().for_each(|worker| worker.join());
    }
}

pub struct Worker {
    poller: Poller,
    lanes: RwLock<HashMap<u64, Arc<Lane>>>,
    all: Arc<Lanes>,
    kicked: Mutex<Vec<Arc<Lane>>>,
    has_kicks: AtomicBool,
    stop: AtomicBool,
    spin_ns: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    fn new(kind: PollerKind, spin_ns: u64, all: &Arc<Lanes>) -> Result<Arc<Worker>> {
        Ok(Arc::new(Worker {
            poller: Poller::new(kind)?,
            lanes: RwLock::new(HashMap::new()),
            all: all.clone(),
            kicked: Mutex::new(Vec::new()),
            has_kicks: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            spin_ns,
            thread: Mutex::new(None),
        }))
    }

    /// The thread drops its copy of `starting` when it has started.
    fn start(
        self: &Arc<Worker>,
        name: impl FnOnce() -> String,
        first: fn(),
        starting: &mpsc::Sender<()>,
    ) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (worker, starting) = (self.clone(), starting.clone());
            let started = thread::spawn(name(), move || {
                first();
                drop(starting);
                health::woken_by(&|| worker.poller.wake(), || worker.run());
            });
            *thread = Some(started.map_err(|error| thread::not_started("a lane thread", &error))?);
        }
        Ok(())
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.poller.wake();
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Adds a lane, and receives its input from now on.
    pub fn add(&self, lane: &Arc<Lane>) -> io::Result<()> {
        self.all.add(lane);
        self.lanes.write().insert(lane.token, lane.clone());
        let added = self.poller.add(lane.fd(), lane.token, Interest { read: true, write: false });
        if added.is_err() {
            self.lanes.write().remove(&lane.token);
        }
        added
    }

    pub fn set(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.poller.set(fd, token, interest)
    }

    pub fn remove(&self, fd: RawFd, token: u64) {
        self.poller.remove(fd, token);
        self.lanes.write().remove(&token);
    }

    /// Wakes this worker to send the lane's queued work.
    pub fn kick(&self, lane: Arc<Lane>) {
        let mut kicked = self.kicked.lock();
        if self.stop.load(Ordering::Acquire) {
            // No thread would take the lane out again, and the lane holds the worker.
            return;
        }
        kicked.push(lane);
        drop(kicked);
        self.has_kicks.store(true, Ordering::Release);
        self.poller.wake();
    }

    fn lane(&self, token: u64) -> Option<Arc<Lane>> {
        self.lanes.read().get(&token).cloned()
    }

    fn run(&self) {
        let mut ready: Vec<Ready> = Vec::new();
        let mut again: Vec<Arc<Lane>> = Vec::new();
        let mut talker: Option<Arc<Lane>> = None;
        let (mut idle_since_ns, mut spin_pays) = (Monotonic::ZERO, true);
        while !self.stop.load(Ordering::Acquire) {
            self.run_kicks();
            let timeout = if again.is_empty() { None } else { Some(0) };
            if timeout.is_none() && spin_pays {
                if let Some(lane) = talker.take() {
                    if self.spin(&lane) {
                        talker = Some(lane);
                        continue;
                    }
                    spin_pays = false;
                }
            }
            ready.clear();
            if idle_since_ns == Monotonic::ZERO {
                idle_since_ns = clock::monotonic_ns();
            }
            if self.poller.wait(&mut ready, timeout).is_err() {
                // Only a broken descriptor table leads here; the lanes then fail by their timeouts.
                pause::yield_now();
            }
            if !ready.is_empty() {
                spin_pays = clock::monotonic_ns() - idle_since_ns < GAP_SPINS * self.spin_ns;
                idle_since_ns = Monotonic::ZERO;
            }
            for lane in std::mem::take(&mut again) {
                self.receive(&lane, &mut again, &mut talker);
            }
            for event in &ready {
                let Some(lane) = self.lane(event.token) else { continue };
                if event.writable {
                    health::doing("sending");
                    lane.writable();
                }
                if event.readable || event.hangup {
                    self.receive(&lane, &mut again, &mut talker);
                }
            }
        }
        self.kicked.lock().clear();
    }

    fn run_kicks(&self) {
        if self.has_kicks.swap(false, Ordering::AcqRel) {
            let kicked = std::mem::take(&mut *self.kicked.lock());
            health::doing("sending");
            kicked.iter().for_each(|lane| lane.drive_tx(&mut lane.peer.after()));
        }
    }

    fn receive(&self, lane: &Arc<Lane>, again: &mut Vec<Arc<Lane>>, talker: &mut Option<Arc<Lane>>) {
        health::doing("receiving");
        let turn = lane.drive_rx(false);
        if turn.again && !again.iter().any(|other| other.token == lane.token) {
            again.push(lane.clone());
        }
        // Bulk is received late, in large pieces, rather than at once in small ones.
        if turn.bytes > 0 && lane.is_express() {
            *talker = Some(lane.clone());
        }
    }

    /// Spins briefly for the next message on a lane, without sleeping. Returns true if one arrived.
    fn spin(&self, lane: &Arc<Lane>) -> bool {
        let (incoming, own) = socket::incoming_and_own_cpu(lane.fd());
        if self.spin_ns == 0 || incoming == own {
            return false;
        }
        let stats = &lane.context.stats;
        stats.spins.fetch_add(1, Ordering::Relaxed);
        let found = self.poll_briefly(lane);
        if !found {
            stats.spins_vain.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    fn poll_briefly(&self, lane: &Arc<Lane>) -> bool {
        let end_ns = clock::monotonic_ns() + self.spin_ns;
        let mut tries = 0;
        let mut ready = Vec::new();
        while clock::monotonic_ns() < end_ns {
            let turn = lane.drive_rx(false);
            if turn.bytes > 0 {
                return true;
            }
            if self.has_kicks.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed) || lane.is_closed()
            {
                return false;
            }
            tries += 1;
            if tries % TRIES_PER_POLL == 0 {
                // The poller is level-triggered: the next wait reports unhandled events again.
                let _ = self.poller.wait(&mut ready, Some(0));
                if ready.iter().any(|event| event.token != lane.token) {
                    return false;
                }
                ready.clear();
            }
            pause::spin();
        }
        false
    }
}
