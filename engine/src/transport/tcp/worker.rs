//! A lane thread: polls its lanes' sockets, receives, and sends queued work. The thread blocks only in its poller and
//! runs no user code.
//!
//! After a small exchange the thread spins briefly before it sleeps, if spinning paid off the last time: the next
//! request of a conversation then costs no wake-up. The thread does not spin if it shares its CPU with the peer's
//! thread.

use crate::status::Result;
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::clock;
use crate::sys::health;
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::map::HashMap;
use crate::sys::mpsc;
use crate::sys::pause;
use crate::sys::poller::{Interest, Poller, PollerKind, Ready};
use crate::sys::sched;
use crate::sys::socket;
use crate::sys::thread;
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Next, Turns};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::lanes::Lanes;
use crate::types::Monotonic;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Spinning pays for a gap that is shorter than this many spins.
pub const GAP_SPINS: u64 = 4;
/// While spinning on one lane, look at all other lanes after this many tries.
const TRIES_PER_LOOK: u32 = 8;

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

    /// Ends the threads, which are not started again.
    pub fn stop(&self) {
        let all = || self.bulk.iter().chain(&self.express);
        all().for_each(|worker| worker.stop());
        all().for_each(|worker| worker.join());
    }
}

pub struct Worker {
    poller: Arc<Poller>,
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
            poller: Arc::new(Poller::new(kind)?),
            lanes: RwLock::new(HashMap::default()),
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
            let started = turns::start(name(), "starting", self.poller.clone(), move || {
                first();
                drop(starting);
                Some(LaneThread::new(worker))
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

    fn run_kicks(&self) {
        if self.has_kicks.swap(false, Ordering::AcqRel) {
            let kicked = std::mem::take(&mut *self.kicked.lock());
            health::doing("sending");
            kicked.iter().for_each(|lane| lane.drive_tx(&mut lane.peer.after()));
        }
    }

    /// Decides whether to poll this lane, which has just received, before sleeping. Counts the spins that begin.
    fn may_spin(&self, lane: &Lane) -> bool {
        if self.spin_ns == 0 {
            return false;
        }
        let (incoming, own) = socket::incoming_and_own_cpu(lane.fd());
        if incoming != own {
            lane.context.stats.spins.fetch_add(1, Ordering::Relaxed);
        }
        incoming != own
    }
}

/// The state of a lane thread between its turns.
struct LaneThread {
    worker: Arc<Worker>,
    /// Lanes that had more to receive when their turn was over.
    again: Vec<Arc<Lane>>,
    /// The express lane that received last.
    talker: Option<Arc<Lane>>,
    spin: Option<Spin>,
    /// When the thread began to wait for its sockets; None while it has work.
    idle_since_ns: Option<Monotonic>,
    spin_pays: bool,
}

/// The thread polls this lane instead of sleeping.
struct Spin {
    lane: Arc<Lane>,
    /// Zero before the first try.
    end_ns: Monotonic,
    tries: u32,
}

impl Turns for LaneThread {
    fn turn(&mut self, now: Monotonic, ready: &[Ready]) -> Next {
        match self.spin.take() {
            Some(spin) => match self.poll(spin, now, ready) {
                Polled::Nothing(next) => return next,
                // The poller is level-triggered: the next wait reports unhandled events again.
                Polled::Received => {}
                Polled::GivenUp => self.serve(now, ready),
            },
            None => self.serve(now, ready),
        }
        if self.worker.stop.load(Ordering::Acquire) {
            self.worker.kicked.lock().clear();
            return Next::Over;
        }
        self.worker.run_kicks();
        self.next_turn()
    }
}

/// How a try of a spin ended.
enum Polled {
    Nothing(Next),
    Received,
    GivenUp,
}

impl LaneThread {
    fn new(worker: Arc<Worker>) -> LaneThread {
        LaneThread {
            worker,
            again: Vec::new(),
            talker: None,
            spin: None,
            idle_since_ns: None,
            spin_pays: true,
        }
    }

    /// Receives and sends on the lanes that are ready, and receives on those that had more.
    fn serve(&mut self, now: Monotonic, ready: &[Ready]) {
        if !ready.is_empty() {
            let longest_ns = GAP_SPINS * self.worker.spin_ns;
            let idle_since_ns = self.idle_since_ns.take();
            self.spin_pays = idle_since_ns.is_none_or(|since_ns| now.saturating_sub(since_ns) < longest_ns);
        }
        for lane in std::mem::take(&mut self.again) {
            self.receive(&lane);
        }
        for event in ready {
            let Some(lane) = self.worker.lane(event.token) else { continue };
            if event.writable {
                health::doing("sending");
                lane.writable();
            }
            if event.readable || event.hangup {
                self.receive(&lane);
            }
        }
    }

    fn receive(&mut self, lane: &Arc<Lane>) {
        health::doing("receiving");
        let turn = lane.drive_rx(false);
        if turn.again && !self.again.iter().any(|other| other.token == lane.token) {
            self.again.push(lane.clone());
        }
        // Bulk is received late, in large pieces, rather than at once in small ones.
        if turn.bytes > 0 && lane.is_express() {
            self.talker = Some(lane.clone());
        }
    }

    fn next_turn(&mut self) -> Next {
        if !self.again.is_empty() {
            return Next::AFTER_A_LOOK;
        }
        // A thread that sleeps holds no lane, so that the lane's socket is closed with the lane.
        if let Some(lane) = self.talker.take().filter(|_| self.spin_pays) {
            if self.worker.may_spin(&lane) {
                self.spin = Some(Spin { lane, end_ns: Monotonic::ZERO, tries: 0 });
                return Next::Again;
            }
            self.spin_pays = false;
        }
        self.idle_since_ns.get_or_insert_with(clock::monotonic_ns);
        Next::WhenWoken
    }

    /// Looks for the next message on a lane, once.
    fn poll(&mut self, mut spin: Spin, now: Monotonic, ready: &[Ready]) -> Polled {
        let worker = &self.worker;
        if spin.end_ns == Monotonic::ZERO {
            spin.end_ns = now + worker.spin_ns;
        }
        let is_over = now >= spin.end_ns || ready.iter().any(|event| event.token != spin.lane.token);
        if !is_over {
            if spin.lane.drive_rx(false).bytes > 0 {
                self.talker = Some(spin.lane);
                return Polled::Received;
            }
            let is_wanted = worker.has_kicks.load(Ordering::Relaxed) || worker.stop.load(Ordering::Relaxed);
            if !is_wanted && !spin.lane.is_closed() {
                pause::spin();
                spin.tries += 1;
                let looks = spin.tries.is_multiple_of(TRIES_PER_LOOK);
                self.spin = Some(spin);
                return Polled::Nothing(if looks { Next::AFTER_A_LOOK } else { Next::Again });
            }
        }
        spin.lane.context.stats.spins_vain.fetch_add(1, Ordering::Relaxed);
        self.spin_pays = false;
        self.idle_since_ns = Some(now);
        Polled::GivenUp
    }
}
