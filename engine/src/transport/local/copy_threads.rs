//! The threads that copy for one peer. Each peer has its own threads because a copy may wait for a page of the peer's
//! process. They start when there is work and end after a time without work.

use crate::sys::lock::MutexGuard;
use crate::sys::poller::Ready;
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Awaited, HasWork, Next, Sleeper, Turns};
use crate::types::Monotonic;
use std::sync::Arc;
use std::time::Duration;

/// A thread without work ends after this time.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct CopyThreads {
    /// How many threads may copy at one time, including callers that wait.
    threads_max: usize,
    state: Arc<Awaited<CopyThreadsState>>,
}

#[derive(Default)]
struct CopyThreadsState {
    /// The threads that exist, and how many of them sleep.
    alive: usize,
    asleep: usize,
    /// Calls that no thread has taken yet.
    calls: usize,
    /// The number of threads that copy: copy threads and callers.
    copying: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl HasWork for CopyThreadsState {
    fn has_work(&self) -> bool {
        self.calls > 0 || self.closed
    }
}

impl CopyThreads {
    pub fn new(threads_max: usize) -> CopyThreads {
        CopyThreads { threads_max, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CopyThreadsState> {
        self.state.lock()
    }

    /// Takes a place to copy. False if all places are taken.
    pub fn take_place(&self) -> bool {
        let mut state = self.lock();
        let free = state.copying < self.threads_max;
        state.copying += usize::from(free);
        free
    }

    pub fn leave_place(&self) {
        self.lock().copying -= 1;
    }

    /// Calls up to `wanted` threads; each runs `work` once for a call. Returns false if no thread exists and none could
    /// be started, or after `close`.
    pub fn call(&self, wanted: usize, work: &Arc<dyn Fn() + Send + Sync>) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        let wanted = wanted.clamp(1, self.threads_max);
        let new_calls = wanted.saturating_sub(state.calls);
        state.calls += new_calls;
        let awake = state.asleep.min(new_calls);
        for _ in 0..awake {
            self.state.wake_one();
        }
        let missing = (new_calls - awake).min(self.threads_max.saturating_sub(state.alive));
        for _ in 0..missing {
            let (own, work) = (self.state.clone(), work.clone());
            let started = turns::start("ferry-copy", "copying", self.state.clone(), move || {
                Some(CopyThread { state: own, work, is_asleep: false, ends_ns: None })
            });
            let Ok(started) = started else { break };
            state.threads.retain(|thread| !thread.is_finished());
            state.threads.push(started);
            state.alive += 1;
        }
        if state.alive == 0 {
            state.calls = 0;
        }
        state.alive > 0
    }

    /// Closes: no thread begins any work from here on. Returns the threads for a caller that may block to join them.
    pub fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.lock();
        state.closed = true;
        self.state.wake();
        std::mem::take(&mut state.threads)
    }
}

/// A thread between its turns.
struct CopyThread {
    state: Arc<Awaited<CopyThreadsState>>,
    work: Arc<dyn Fn() + Send + Sync>,
    /// It is counted in `CopyThreadsState::asleep`.
    is_asleep: bool,
    /// When it ends unless it is called before. None while it works.
    ends_ns: Option<Monotonic>,
}

impl Turns for CopyThread {
    fn turn(&mut self, now: Monotonic, _: &[Ready]) -> Next {
        let mut state = self.state.lock();
        state.asleep -= usize::from(std::mem::take(&mut self.is_asleep));
        if state.calls > 0 && !state.closed {
            state.calls -= 1;
            drop(state);
            (self.work)();
            self.ends_ns = None;
            return Next::Again;
        }
        let ends_ns = *self.ends_ns.get_or_insert(now + PATIENCE);
        if state.closed || ends_ns <= now {
            state.alive -= 1;
            return Next::Over;
        }
        state.asleep += 1;
        self.is_asleep = true;
        Next::At(ends_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn every_call_is_answered_and_threads_are_bounded() {
        let copy_threads = CopyThreads::new(2);
        let (done, ended) = channel();
        let inside = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let watched = inside.clone();
        let work: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            let now = watched.0.fetch_add(1, Ordering::SeqCst) + 1;
            watched.1.fetch_max(now, Ordering::SeqCst);
            watched.0.fetch_sub(1, Ordering::SeqCst);
            let _ = done.send(());
        });
        for _ in 0..100 {
            assert!(copy_threads.call(8, &work));
            ended.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(inside.1.load(Ordering::SeqCst) <= 2);
        copy_threads.close().into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!copy_threads.call(1, &work), "closed");
    }

    /// A thread ends when it has had no work for its patience, and not while it is called.
    #[test]
    fn a_thread_without_work_ends() {
        let state = Arc::<Awaited<CopyThreadsState>>::default();
        state.lock().alive = 1;
        let work: Arc<dyn Fn() + Send + Sync> = Arc::new(|| ());
        let mut thread = CopyThread { state: state.clone(), work, is_asleep: false, ends_ns: None };
        let mut turn = |ms| thread.turn(Monotonic::ZERO + Duration::from_millis(ms), &[]);
        let at = |ms| Monotonic::ZERO + (PATIENCE + Duration::from_millis(ms));
        assert_eq!((turn(1), turn(400)), (Next::At(at(1)), Next::At(at(1))));
        assert_eq!(state.lock().asleep, 1);
        state.lock().calls = 1;
        assert_eq!((turn(501), turn(502)), (Next::Again, Next::At(at(502))));
        assert_eq!(turn(1002), Next::Over);
        let state = state.lock();
        assert_eq!((state.asleep, state.alive), (0, 0));
    }

    #[test]
    fn places_are_bounded() {
        let copy_threads = CopyThreads::new(2);
        assert!(copy_threads.take_place() && copy_threads.take_place() && !copy_threads.take_place());
        copy_threads.leave_place();
        assert!(copy_threads.take_place());
    }
}
