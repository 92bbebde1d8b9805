//! A lane thread: polls its lanes' sockets, receives, and sends queued work. The thread blocks only in its poller and
//! runs no user code. A page of registered memory may block it for ever, too: then the control loop, which looks from
//! time to time while a thread works (`Workers::watch`), starts another thread for the other lanes, and the thread that
//! was replaced ends when it comes back.
//!
//! After a small exchange the thread spins briefly before it sleeps, if spinning paid off the last time: the next
//! request of a conversation then costs no wake-up. Between two looks it makes way for others (`sys::crowd`), which may
//! take a turn of theirs.

use crate::command::Command;
use crate::limits::STUCK_THREADS_MAX;
use crate::status::Result;
use crate::sys::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sys::clock;
use crate::sys::health;
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::map::HashMap;
use crate::sys::mpsc;
use crate::sys::poller::{Interest, Poller, PollerKind, Ready};
use crate::sys::sched;
use crate::sys::thread;
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Next, Turns};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::lanes::Lanes;
use crate::transport::tcp::rx::By;
use crate::types::Monotonic;
use std::collections::VecDeque;
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
    watch: Arc<Watch>,
}

/// How the control loop looks at the threads.
#[derive(Default)]
struct Watch {
    /// The control loop looks again soon. Partner: `Worker::drive`.
    is_on: AtomicBool,
    /// Threads that were replaced and have not come back.
    stuck: AtomicUsize,
}

impl Workers {
    /// Creates `count` threads' state of each kind, at least one.
    pub fn new(count: u32, kind: PollerKind, spin_ns: u64) -> Result<Workers> {
        let (lanes, watch): (Arc<Lanes>, Arc<Watch>) = Default::default();
        let workers = |job: Job| {
            let worker = |index| Worker::new(kind, spin_ns, (job, index), &lanes, &watch);
            (0..count.max(1)).map(worker).collect::<Result<Vec<_>>>()
        };
        Ok(Workers {
            bulk: workers(Job::Bulk)?,
            express: workers(Job::Express)?,
            lanes: lanes.clone(),
            watch: watch.clone(),
        })
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.bulk.iter().chain(&self.express)
    }

    /// Replaces each thread that is in the same drive as at the last look. Returns true while a thread works. Called by
    /// the control loop.
    pub fn watch(&self) -> bool {
        self.all().for_each(|worker| worker.look());
        let works = || self.all().any(|worker| worker.drive.load(Ordering::SeqCst) != 0);
        if works() {
            return true;
        }
        self.watch.is_on.store(false, Ordering::SeqCst);
        // A thread that began in between may have found the watch on.
        works() && !self.watch.is_on.swap(true, Ordering::SeqCst)
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
        self.all().try_for_each(|worker| worker.start(&starting))?;
        drop(starting);
        // Fails once every thread runs and has dropped its sender: the first transfer does not wait for their start.
        let _ = all_run.recv();
        Ok(())
    }

    /// Ends the threads, which are not started again.
    pub fn stop(&self) {
        self.all().for_each(|worker| worker.stop());
        self.all().for_each(|worker| worker.join());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Bulk,
    Express,
}

pub struct Worker {
    job: Job,
    index: u32,
    watch: Arc<Watch>,
    /// The number of the thread's current drive of a lane; 0 between drives. If the thread itself changes the number to
    /// 0, it keeps the other lanes; if `look` does, it hands them to another thread.
    drive: AtomicU64,
    /// The token of that lane.
    driven: AtomicU64,
    /// The last number given, and the number at the last look.
    drives: AtomicU64,
    seen: AtomicU64,
    poller: Arc<Poller>,
    lanes: RwLock<HashMap<u64, Arc<Lane>>>,
    all: Arc<Lanes>,
    kicked: Mutex<VecDeque<Arc<Lane>>>,
    has_kicks: AtomicBool,
    stop: AtomicBool,
    spin_ns: u64,
    /// The thread, behind those that were replaced.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Worker {
    fn new(
        kind: PollerKind,
        spin_ns: u64,
        (job, index): (Job, u32),
        all: &Arc<Lanes>,
        watch: &Arc<Watch>,
    ) -> Result<Arc<Worker>> {
        Ok(Arc::new(Worker {
            job,
            index,
            watch: watch.clone(),
            drive: AtomicU64::new(0),
            driven: AtomicU64::new(0),
            drives: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            poller: Arc::new(Poller::new(kind)?),
            lanes: RwLock::new(HashMap::default()),
            all: all.clone(),
            kicked: Mutex::default(),
            has_kicks: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            spin_ns,
            threads: Mutex::default(),
        }))
    }

    /// The thread drops its copy of `starting` when it has started.
    fn start(self: &Arc<Worker>, starting: &mpsc::Sender<()>) -> Result<()> {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            let starting = starting.clone();
            let started = self.start_thread(move || {
                drop(starting);
                true
            });
            threads.push(started.map_err(|error| thread::not_started("a lane thread", &error))?);
        }
        Ok(())
    }

    /// Starts a thread, which ends at once if `goes_on` returns false.
    fn start_thread(
        self: &Arc<Worker>,
        goes_on: impl FnOnce() -> bool + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (name, first): (&str, fn()) = match self.job {
            Job::Bulk => ("lane", sched::take_long_slices),
            Job::Express => ("express", || ()),
        };
        let worker = self.clone();
        turns::start(format!("ferry-{name}-{}", self.index), "starting", self.poller.clone(), move || {
            turns::may_touch_memory();
            first();
            goes_on().then(|| LaneThread::new(worker))
        })
    }

    /// Replaces the thread if it is in the same drive as at the last look.
    fn look(self: &Arc<Worker>) {
        let drive = self.drive.load(Ordering::SeqCst);
        let is_stuck = drive != 0 && self.seen.swap(drive, Ordering::Relaxed) == drive;
        if !is_stuck || self.watch.stuck.load(Ordering::Relaxed) >= STUCK_THREADS_MAX {
            return;
        }
        let (tell, told) = mpsc::channel();
        // Without another thread the stuck one keeps its lanes; the next look tries again.
        let Ok(thread) = self.start_thread(move || told.recv() == Ok(true)) else { return };
        let token = self.driven.load(Ordering::Relaxed);
        let is_ours = self.drive.compare_exchange(drive, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_ours {
            self.watch.stuck.fetch_add(1, Ordering::Relaxed);
            self.lane(token).iter().for_each(|lane| lane.set_aside());
        }
        let _ = tell.send(is_ours);
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.poller.wake();
    }

    fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(|thread| drop(thread.join()));
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
        kicked.push_back(lane);
        drop(kicked);
        self.has_kicks.store(true, Ordering::Release);
        self.poller.wake();
    }

    /// Stops watching a lane that stays with this worker.
    pub fn unwatch(&self, fd: RawFd, token: u64) {
        self.poller.remove(fd, token);
    }

    pub fn watch(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.poller.add(fd, token, interest)
    }

    fn lane(&self, token: u64) -> Option<Arc<Lane>> {
        self.lanes.read().get(&token).cloned()
    }

    /// Takes the next lane that was kicked. The others stay in the list: another thread may take them over.
    fn next_kicked(&self) -> Option<Arc<Lane>> {
        let mut kicked = self.kicked.lock();
        let lane = kicked.pop_front();
        if !kicked.is_empty() {
            self.has_kicks.store(true, Ordering::Release);
        }
        lane
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
    /// Another thread has taken over the lanes.
    is_replaced: bool,
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
                Polled::Nothing(_) if self.is_replaced => return Next::Over,
                Polled::Nothing(next) => return next,
                // The poller is level-triggered: the next wait reports unhandled events again.
                Polled::Received => {}
                Polled::GivenUp => self.serve(now, ready),
            },
            None => self.serve(now, ready),
        }
        if self.is_replaced {
            return Next::Over;
        }
        if self.worker.stop.load(Ordering::Acquire) {
            self.worker.kicked.lock().clear();
            return Next::Over;
        }
        self.run_kicks();
        if self.is_replaced {
            Next::Over
        } else {
            self.next_turn()
        }
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
            is_replaced: false,
        }
    }

    /// Runs `act` on a lane. `act` may touch registered memory, and block there. Once the thread is replaced, `drive`
    /// does nothing: the thread's successor polls the other lanes anew.
    fn drive<T: Default>(&mut self, lane: &Arc<Lane>, act: impl FnOnce(&Arc<Lane>) -> T) -> T {
        let worker = &self.worker;
        if self.is_replaced {
            return T::default();
        }
        let number = worker.drives.fetch_add(1, Ordering::Relaxed) + 1;
        worker.driven.store(lane.token, Ordering::Relaxed);
        worker.drive.store(number, Ordering::SeqCst);
        let watch = &worker.watch;
        if !watch.is_on.load(Ordering::SeqCst) && !watch.is_on.swap(true, Ordering::SeqCst) {
            lane.context.commands.push(Command::WatchWorkers);
        }
        let result = act(lane);
        if !lane.is_express() {
            lane.context.crowd.note_bulk();
        }
        if worker.drive.compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            self.is_replaced = true;
            watch.stuck.fetch_sub(1, Ordering::Relaxed);
            lane.take_back();
        }
        result
    }

    fn run_kicks(&mut self) {
        if !self.worker.has_kicks.swap(false, Ordering::AcqRel) {
            return;
        }
        let count = self.worker.kicked.lock().len();
        for _ in 0..count {
            if self.is_replaced {
                return;
            }
            let Some(lane) = self.worker.next_kicked() else { return };
            health::doing("sending");
            self.drive(&lane, |lane| lane.kicked());
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
                self.drive(&lane, |lane| lane.writable());
            }
            if event.readable || event.hangup {
                self.receive(&lane);
            }
        }
    }

    fn receive(&mut self, lane: &Arc<Lane>) {
        health::doing("receiving");
        let turn = self.drive(lane, |lane| lane.drive_rx(By::Worker));
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
        let may_spin = self.spin_pays && self.worker.spin_ns > 0;
        let is_crowded = |lane: &Arc<Lane>| lane.context.crowd.is_there(clock::monotonic_ns());
        if let Some(lane) = self.talker.take().filter(|lane| may_spin && !is_crowded(lane)) {
            lane.context.stats.spins.fetch_add(1, Ordering::Relaxed);
            self.spin = Some(Spin { lane, end_ns: Monotonic::ZERO, tries: 0 });
            return Next::Again;
        }
        self.idle_since_ns.get_or_insert_with(clock::monotonic_ns);
        Next::WhenWoken
    }

    /// Looks for the next message on a lane, once.
    fn poll(&mut self, mut spin: Spin, now: Monotonic, ready: &[Ready]) -> Polled {
        if spin.end_ns == Monotonic::ZERO {
            spin.end_ns = now + self.worker.spin_ns;
        }
        let is_over = now >= spin.end_ns || ready.iter().any(|event| event.token != spin.lane.token);
        if !is_over {
            if self.drive(&spin.lane, |lane| lane.drive_rx(By::Worker)).bytes > 0 {
                self.talker = Some(spin.lane);
                return Polled::Received;
            }
            let worker = &self.worker;
            let is_wanted = worker.has_kicks.load(Ordering::Relaxed) || worker.stop.load(Ordering::Relaxed);
            // A caller that waits polls the lane itself.
            let may_poll = !is_wanted && !spin.lane.is_closed() && !spin.lane.is_claimed();
            if may_poll && spin.lane.context.crowd.make_way(now) {
                spin.tries += 1;
                let looks = spin.tries % TRIES_PER_LOOK == 0;
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
