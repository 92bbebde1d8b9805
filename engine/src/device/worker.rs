//! The thread of one device. Only this thread makes the driver's calls that need a context, starts batches in order,
//! and polls for their end. `stage` gives it work, and is called back on this thread.

use super::{Batch, Direction, Driver, Piece, Point, Queue};
use crate::status::{Error, Result, Status};
use crate::sys::health;
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::sys::pause;
use crate::sys::{clock, sched, thread};
use crate::types::{Boottime, Location};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time for which the thread polls without a pause after an event.
const SPIN: Duration = Duration::from_micros(50);
/// The pause between two tries to free concealed memory.
const TIDY_PAUSE: Duration = Duration::from_millis(500);
/// The later pause between two polls. A transfer that waits for an event is at most this late.
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
type Work = Box<dyn FnOnce(Result<&mut dyn Queue>) + Send>;

/// A batch of copies. `done` is called on the device's thread, once, when nothing of the batch touches memory any
/// more. It must not block.
pub struct Job {
    pub direction: Direction,
    pub pieces: Vec<Piece>,
    /// On CLOCK_BOOTTIME: a batch that has not begun by then fails with TIMEOUT.
    pub not_after_ns: Boottime,
    pub done: Done,
}

enum Order {
    Copy(Job),
    Await { point: Box<dyn Point>, reached: Done },
    With(Work),
}

pub struct Worker {
    pub at: Location,
    orders: Mutex<Orders>,
    changed: Condvar,
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
    /// The thread has panicked: orders are dropped.
    gone: bool,
}

struct Running {
    batch: Batch,
    since: Instant,
    done: Done,
}

impl Worker {
    /// Starts the thread and opens the device on it; fails if opening fails.
    pub fn start(driver: Arc<dyn Driver>, at: Location, limits: Limits) -> Result<Arc<Worker>> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
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
            at,
            orders: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::new(None),
            opened: AtomicBool::new(false),
            quitting: AtomicBool::new(false),
        });
        let own = worker.clone();
        let ended = AtEnd(Some(ended));
        let body = move || {
            let _ended = ended;
            health::doing("opening a device");
            if let Some(queue) = open() {
                own.opened.store(true, Ordering::SeqCst);
                let (running, points) = (VecDeque::new(), Vec::new());
                let work =
                    Loop { worker: &own, queue, limits, running, points, failed: None, given_up: false };
                health::doing("copying");
                health::woken_by(&|| own.changed.notify_all(), || work.run());
            }
        };
        let thread = thread::spawn(format!("ferry-{}-{}", at.kind.name(), at.device), body)
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
        self.changed.notify_all();
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
        match self.opened.load(Ordering::SeqCst) {
            true => self.stop(),
            false => self.finish(),
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
        self.changed.notify_all();
    }

    /// Sleeps until a change, or until the time is over.
    fn pause<'a>(&self, orders: MutexGuard<'a, Orders>, time: Option<Duration>) -> MutexGuard<'a, Orders> {
        match time {
            Some(time) => self.changed.wait_timeout(orders, time).0,
            None => self.changed.wait(orders),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock()
    }
}

/// Calls the function when dropped, in a panic too.
struct AtEnd<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

struct Loop<'a> {
    worker: &'a Worker,
    queue: Box<dyn Queue>,
    limits: Limits,
    running: VecDeque<Running>,
    points: Vec<(Box<dyn Point>, Done)>,
    /// The reason why nothing is started any more.
    failed: Option<Error>,
    /// Batches under way have been told to stop.
    given_up: bool,
}

impl Loop<'_> {
    fn run(mut self) {
        // Unwind safety: `self` is only wound up afterwards.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.work())) {
            health::exempt(|| self.wind_up());
            resume_unwind(payload);
        }
    }

    /// Winds up after a panic: the copies under way end, or are stopped, before the thread ends. If they
    /// cannot be stopped, their memory stays in use for ever.
    fn wind_up(self) {
        let Loop { worker, queue, limits, running, .. } = self;
        let mut queue = ManuallyDrop::new(queue);
        let since = clock::now();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut left = running.iter().map(|it| it.batch).peekable();
            while let Some(batch) = left.peek() {
                match queue.is_done(*batch) {
                    Ok(false) if since.elapsed() > limits.timeout => return queue.abort(),
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

    fn work(&mut self) {
        sched::sleep_exactly();
        let mut busy_since = clock::now();
        while let Some(order) = self.next(busy_since) {
            if let Some(order) = order {
                busy_since = clock::now();
                self.start(order);
            }
            if self.worker.quitting.load(Ordering::SeqCst) && !self.given_up {
                self.give_up(Error::new(Status::Unavailable, "the engine is being closed"));
            }
            if self.look() {
                busy_since = clock::now();
            }
        }
    }

    /// Returns the next order that can begin; Some(None) after a short wait while something is under way; None at the
    /// end.
    fn next(&mut self, busy_since: Instant) -> Option<Option<Order>> {
        let worker = self.worker;
        let mut orders = worker.lock();
        loop {
            // A failed device takes every order at once, and fails it.
            let full = self.running.len() >= self.limits.depth && self.failed.is_none();
            if !full {
                if let Some(order) = orders.list.pop_front() {
                    return Some(Some(order));
                }
            }
            if self.running.is_empty() && self.points.is_empty() {
                if orders.stopping {
                    return None;
                }
                drop(orders);
                let is_left = self.queue.tidy();
                orders = worker.lock();
                if orders.list.is_empty() && !orders.stopping {
                    orders = worker.pause(orders, is_left.then_some(TIDY_PAUSE));
                }
                continue;
            }
            drop(orders);
            if busy_since.elapsed() > SPIN {
                pause::sleep(PAUSE);
            } else {
                pause::spin();
            }
            return Some(None);
        }
    }

    fn start(&mut self, order: Order) {
        match order {
            Order::Copy(job) => {
                let started = match &self.failed {
                    None if clock::boottime_ns() >= job.not_after_ns => {
                        Err(Error::new(Status::Timeout, "the time to begin the copy is over"))
                    }
                    None => self.queue.copy(job.direction, &job.pieces),
                    Some(error) => Err(error.clone()),
                };
                match started {
                    Ok(batch) => {
                        self.running.push_back(Running { batch, since: clock::now(), done: job.done })
                    }
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
    fn look(&mut self) -> bool {
        let mut ended = self.look_at_points();
        while let Some(first) = self.running.front() {
            match self.queue.is_done(first.batch) {
                Ok(false) => {
                    if first.since.elapsed() > self.limits.timeout && !self.given_up {
                        let seconds = self.limits.timeout.as_secs_f32();
                        let text = format!("a copy on the device took longer than {seconds} s");
                        self.give_up(Error::new(Status::Unavailable, text));
                    }
                    break;
                }
                result => {
                    ended = true;
                    let result = result.map(|_| ()).inspect_err(|error| self.note(error));
                    if let Some(running) = self.running.pop_front() {
                        (running.done)(result);
                    }
                }
            }
        }
        ended
    }

    fn look_at_points(&mut self) -> bool {
        let before = self.points.len();
        for (point, reached) in std::mem::take(&mut self.points) {
            match point.is_reached() {
                Ok(false) => self.points.push((point, reached)),
                result => reached(result.map(|_| ())),
            }
        }
        self.points.len() < before
    }

    /// Stops the batches under way. Batches that cannot be stopped stay under way, and their memory in
    /// use.
    fn give_up(&mut self, error: Error) {
        self.given_up = true;
        self.failed = Some(error.clone());
        if self.queue.abort() {
            self.running.drain(..).for_each(|running| (running.done)(Err(error.clone())));
        }
    }

    /// Remembers an error after which the device is of no further use.
    fn note(&mut self, error: &Error) {
        if matches!(error.status, Status::Unavailable | Status::PeerLost) {
            self.failed.get_or_insert_with(|| error.clone());
        }
    }
}
