//! The thread of one device. Only this thread makes the driver's calls that need a context, starts batches in order,
//! and polls for their end. `stage` gives it work, and is called back on this thread.

use super::{Batch, Direction, Driver, Piece, PieceFault, Point, Queue};
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::health;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::moment;
use crate::sys::mpsc;
use crate::sys::pause;
use crate::sys::poller::Ready;
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Awaited, HasWork, Next, Sleeper, Turns};
use crate::sys::{clock, sched, thread};
use crate::types::{Boottime, Location, Monotonic};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// The pause between two tries to free concealed memory.
const TIDY_PAUSE: Duration = Duration::from_millis(500);
/// The pause between two polls of copies that a panic has left.
const PAUSE: Duration = Duration::from_micros(5);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most bytes in one batch.
    pub batch_bytes: usize,
    /// The most batches under way on one device.
    pub depth: usize,
    /// The time after which a batch is given up.
    pub timeout: Duration,
}

type Done = Box<dyn FnOnce(Result<()>) + Send>;
/// Gets the pieces that failed alone, or the error of the whole batch.
type Copied = Box<dyn FnOnce(Result<Vec<PieceFault>>) + Send>;
type Work = Box<dyn FnOnce(Result<&mut dyn Queue>) + Send>;

/// A batch of copies. `done` is called on the device's thread, once, when nothing of the batch touches memory any
/// more. It must not block.
pub struct Job {
    pub direction: Direction,
    pub pieces: Vec<Piece>,
    /// On CLOCK_BOOTTIME: a batch that has not begun by then fails with TIMEOUT.
    pub not_after_ns: Boottime,
    /// See `Queue::copy_durably`.
    pub durable: bool,
    pub done: Copied,
}

enum Order {
    Copy(Job),
    Await { point: Box<dyn Point>, reached: Done },
    With(Work),
}

pub struct Worker {
    orders: Arc<Awaited<Orders>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The queue is open.
    opened: AtomicBool,
    /// Batches under way are to be given up.
    quitting: AtomicBool,
}

#[derive(Default)]
struct Orders {
    list: VecDeque<Order>,
    stopping: bool,
    /// The thread polls for the end of copies, and looks for orders between two polls.
    polling: bool,
    /// The thread has panicked: orders are dropped.
    gone: bool,
}

impl HasWork for Orders {
    fn has_work(&self) -> bool {
        !self.polling && (self.stopping || !self.list.is_empty())
    }
}

struct Running {
    batch: Batch,
    since: Monotonic,
    done: Copied,
}

impl Worker {
    /// Starts the thread and opens the device on it; fails if opening fails.
    pub fn start(driver: Arc<dyn Driver>, at: Location, limits: Limits) -> Result<Arc<Worker>> {
        let limits = Limits { depth: driver.depth(limits.depth), ..limits };
        let (tell, told) = mpsc::sync_channel(1);
        let open = move || {
            let (queue, result) = match driver.open(at.device, limits.batch_bytes, limits.depth) {
                Ok(queue) => (Some(queue), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ = tell.send(result);
            queue
        };
        let worker = Worker::start_with(at, limits, open, || ())?;
        let opened = told.recv().unwrap_or_else(|_| {
            Err(Error::new(Status::Unavailable, "the device's thread ended while it opened the device"))
        });
        if opened.is_err() {
            worker.stop();
        }
        opened.map(|()| worker)
    }

    /// Starts a thread for the queue that `open` opens on it. `open` reports its result itself. `ended` is called when
    /// the queue is closed, or was not opened.
    pub fn start_with(
        at: Location,
        limits: Limits,
        open: impl FnOnce() -> Option<Box<dyn Queue>> + Send + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Worker>> {
        let worker = Arc::new(Worker {
            orders: Arc::default(),
            thread: Mutex::new(None),
            opened: AtomicBool::new(false),
            quitting: AtomicBool::new(false),
        });
        let own = worker.clone();
        let ended = AtEnd(Some(Box::new(ended)));
        let make = move || {
            health::doing("opening a device");
            let ended = ended;
            let queue = open()?;
            own.opened.store(true, Ordering::SeqCst);
            sched::sleep_exactly();
            Some(Loop::new(own, queue, limits, ended))
        };
        let name = format!("ferry-{}-{}", at.kind.name(), at.device);
        let thread = turns::start(name, "copying", worker.orders.clone(), make)
            .map_err(|error| thread::not_started("a device's thread", &error))?;
        *worker.thread.lock() = Some(thread);
        Ok(worker)
    }

    pub fn copy(&self, job: Job) {
        self.push(Order::Copy(job));
    }

    /// Calls `reached` on the device's thread when the point is reached or has failed.
    pub fn wait_for(&self, point: Box<dyn Point>, reached: Done) {
        self.push(Order::Await { point, reached });
    }

    /// Runs `work` on the device's thread, between batches.
    pub fn with(&self, work: impl FnOnce(Result<&mut dyn Queue>) + Send + 'static) {
        self.push(Order::With(Box::new(work)));
    }

    /// Makes the thread end after the orders given so far. Does not wait.
    pub fn finish(&self) {
        self.lock().stopping = true;
        self.orders.wake();
    }

    /// Ends the thread after the orders given so far, and waits for its end.
    pub fn stop(&self) {
        self.finish();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Ends the thread without waiting for batches under way, or for the opening of the queue.
    pub fn quit(&self) {
        self.quitting.store(true, Ordering::SeqCst);
        if self.opened.load(Ordering::SeqCst) {
            self.stop()
        } else {
            self.finish()
        }
    }

    fn push(&self, order: Order) {
        let mut orders = self.lock();
        if orders.gone {
            drop(orders);
            return drop(order);
        }
        orders.list.push_back(order);
        drop(orders);
        self.orders.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock()
    }
}

/// Calls the function when dropped, in a panic too.
struct AtEnd(Option<Box<dyn FnOnce() + Send>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

/// The thread between its turns.
struct Loop {
    worker: Arc<Worker>,
    queue: Box<dyn Queue>,
    limits: Limits,
    running: VecDeque<Running>,
    points: Vec<(Box<dyn Point>, Done)>,
    /// When something last began or ended.
    busy_since: Monotonic,
    /// The value of `Orders::polling`.
    polling: bool,
    /// The reason why nothing is started any more.
    failed: Option<Error>,
    /// Batches under way have been told to stop.
    given_up: bool,
    /// Dropped last.
    _ended: AtEnd,
}

impl Turns for Loop {
    /// Takes one order, and looks once for what has ended.
    fn turn(&mut self, now: Monotonic, _: &[Ready]) -> Next {
        let order = self.next_order();
        let begun = order.is_some();
        if let Some(order) = order {
            self.start(order);
        }
        if self.worker.quitting.load(Ordering::SeqCst) && !self.given_up {
            self.give_up(Error::new(Status::Unavailable, "the engine is being closed"));
        }
        let ended = self.poll(now);
        if begun || ended {
            self.busy_since = clock::monotonic_ns();
            return Next::Again;
        }
        self.next_turn(now)
    }

    /// Waits until the copies under way have ended, or stops them. If they cannot be stopped, the queue is leaked, and
    /// their memory is never freed.
    fn abandon(self: Box<Self>) {
        let Loop { worker, queue, limits, running, .. } = *self;
        let mut queue = ManuallyDrop::new(queue);
        let since = clock::now();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut left = running.iter().map(|it| it.batch).peekable();
            while let Some(batch) = left.peek() {
                match queue.poll_done(*batch) {
                    Ok(false) if clock::now().duration_since(since) > limits.timeout => return queue.abort(),
                    Ok(false) => pause::sleep(PAUSE),
                    _ => drop(left.next()),
                }
            }
            true
        }));
        if matches!(ended, Ok(true)) {
            drop(ManuallyDrop::into_inner(queue));
        } else {
            health::never_ends();
        }
        let left = {
            let mut orders = worker.lock();
            orders.gone = true;
            std::mem::take(&mut orders.list)
        };
        drop(left);
    }
}

impl Loop {
    fn new(worker: Arc<Worker>, queue: Box<dyn Queue>, limits: Limits, ended: AtEnd) -> Loop {
        Loop {
            worker,
            queue,
            limits,
            running: VecDeque::new(),
            points: Vec::new(),
            busy_since: Monotonic::ZERO,
            polling: false,
            failed: None,
            given_up: false,
            _ended: ended,
        }
    }

    /// Returns the next order if it can begin. If the device has failed, every order begins at once, and fails.
    fn next_order(&mut self) -> Option<Order> {
        let is_full = self.running.len() >= self.limits.depth && self.failed.is_none();
        (!is_full).then(|| self.worker.lock().list.pop_front())?
    }

    /// Decides when the next turn is, after a turn in which nothing has begun or ended.
    fn next_turn(&mut self, now: Monotonic) -> Next {
        let polling = !self.running.is_empty() || !self.points.is_empty();
        if polling != self.polling {
            self.polling = polling;
            self.worker.lock().polling = polling;
        }
        if polling {
            let quiet = Duration::from_nanos(now.saturating_sub(self.busy_since));
            let pause = self.queue.pause(quiet);
            if pause.is_zero() {
                pause::spin();
                return Next::Again;
            }
            return Next::At(clock::monotonic_ns() + pause);
        }
        let is_left = self.queue.tidy();
        let orders = self.worker.lock();
        if orders.stopping && orders.list.is_empty() {
            Next::Over
        } else {
            Next::at(is_left.then(|| now + TIDY_PAUSE))
        }
    }

    fn start(&mut self, order: Order) {
        match order {
            Order::Copy(job) => {
                let started = match &self.failed {
                    None if clock::boottime_ns() >= job.not_after_ns => {
                        Err(Error::new(Status::Timeout, "the time to begin the copy is over"))
                    }
                    None if job.durable => self.queue.copy_durably(job.direction, &job.pieces),
                    None => self.queue.copy(job.direction, &job.pieces),
                    Some(error) => Err(error.clone()),
                };
                match started {
                    Ok(batch) => self.running.push_back(Running {
                        batch,
                        since: clock::monotonic_ns(),
                        done: job.done,
                    }),
                    Err(error) => {
                        self.note(&error);
                        (job.done)(Err(error));
                    }
                }
            }
            Order::Await { point, reached } => self.points.push((point, reached)),
            Order::With(work) => match &self.failed {
                None => work(Ok(&mut *self.queue)),
                Some(error) => work(Err(error.clone())),
            },
        }
    }

    /// Polls for ended batches and reached points. Returns whether any has ended.
    fn poll(&mut self, now: Monotonic) -> bool {
        let mut ended = self.poll_points();
        let mut at = 0;
        while let Some(running) = self.running.get(at) {
            match self.queue.poll_done(running.batch) {
                Ok(false) => {
                    if now > running.since + self.limits.timeout && !self.given_up {
                        let seconds = self.limits.timeout.as_secs_f32();
                        let text = format!("a copy on the device took longer than {seconds} s");
                        self.give_up(Error::new(Status::Unavailable, text));
                    }
                    if self.queue.is_ordered() {
                        break;
                    }
                    at += 1;
                }
                result => {
                    ended = true;
                    moment::reached_if("a copy ends after its device was given up", || self.given_up);
                    let result =
                        result.map(|_| self.queue.take_faults()).inspect_err(|error| self.note(error));
                    if let Some(running) = self.running.remove(at) {
                        (running.done)(result);
                    }
                }
            }
        }
        if self.given_up && self.running.is_empty() && self.queue.recovers() {
            (self.given_up, self.failed) = (false, None);
        }
        ended
    }

    fn poll_points(&mut self) -> bool {
        let before = self.points.len();
        let is_stopping = before > 0 && self.worker.lock().stopping;
        for (point, reached) in std::mem::take(&mut self.points) {
            match point.is_reached() {
                // No transfer waits any more when the thread stops; any other caller gets this error.
                Ok(false) if is_stopping => reached(Err(Error::new(Status::Closed, "the engine was closed"))),
                Ok(false) => self.points.push((point, reached)),
                result => reached(result.map(|_| ())),
            }
        }
        self.points.len() < before
    }

    /// Stops the batches under way. If they cannot be stopped, they stay under way, and their memory stays in use.
    fn give_up(&mut self, error: Error) {
        self.given_up = true;
        self.failed = Some(error.clone());
        if self.queue.abort() {
            self.running.drain(..).for_each(|running| (running.done)(Err(error.clone())));
        }
    }

    /// Remembers an error after which the device cannot be used any more.
    fn note(&mut self, error: &Error) {
        if matches!(error.status, Status::Unavailable | Status::PeerLost) {
            self.failed.get_or_insert_with(|| error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SPIN;
    use super::*;
    use crate::types::MemoryKind;

    /// A device whose copies end when the flag is set.
    struct Hanging(Arc<AtomicBool>);

    impl Queue for Hanging {
        fn copy(&mut self, _: Direction, _: &[Piece]) -> Result<Batch> {
            Ok(Batch(0))
        }
        fn poll_done(&mut self, _: Batch) -> Result<bool> {
            Ok(self.0.load(Ordering::SeqCst))
        }
        fn abort(&mut self) -> bool {
            true
        }
    }

    /// Orders that wait for room on a full device do not keep the thread from its pauses between two polls.
    #[test]
    fn a_full_device_is_polled_with_pauses() {
        let at = Location { kind: MemoryKind::Cuda, device: 0 };
        let limits = Limits { batch_bytes: 1, depth: 1, timeout: Duration::from_secs(60) };
        let worker = Worker::start_with(at, limits, || None, || ()).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let mut thread = Loop::new(worker.clone(), Box::new(Hanging(done.clone())), limits, AtEnd(None));
        for _ in 0..2 {
            let (direction, not_after_ns) = (Direction::HostToDevice, Boottime::NEVER);
            let job =
                Job { direction, pieces: Vec::new(), not_after_ns, durable: false, done: Box::new(|_| ()) };
            worker.copy(job);
        }
        assert!(worker.lock().has_work());
        assert_eq!(thread.turn(Monotonic::ZERO, &[]), Next::Again, "the first copy has begun");
        assert_eq!(thread.turn(Monotonic::ZERO, &[]), Next::Again, "for a while there is no pause");
        assert!(matches!(thread.turn(clock::monotonic_ns() + SPIN, &[]), Next::At(_)));
        assert!(!worker.lock().has_work(), "the second copy waits for the first");
        done.store(true, Ordering::SeqCst);
        (0..2).for_each(|_| assert_eq!(thread.turn(Monotonic::ZERO, &[]), Next::Again));
        assert_eq!(thread.turn(Monotonic::ZERO, &[]), Next::WhenWoken);
        assert!(!worker.lock().has_work());
        worker.finish();
        assert!(worker.lock().has_work());
        assert_eq!(thread.turn(Monotonic::ZERO, &[]), Next::Over);
    }
}
