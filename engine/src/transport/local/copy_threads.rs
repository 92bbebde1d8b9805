//! The threads that copy for one peer. Each peer has its own threads because a copy may wait for a page of the peer's
//! process. They start when there is work and end after a time without work.

use crate::sys::health;
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::sys::thread;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread without work ends after this time.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct CopyThreads {
    /// How many threads may copy at one time, including callers that wait.
    threads_max: usize,
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
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

impl CopyThreads {
    pub fn new(threads_max: usize) -> CopyThreads {
        CopyThreads { threads_max, state: Mutex::default(), called: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
    /// be started.
    pub fn call(
        &self,
        wanted: usize,
        work: &Arc<dyn Fn() + Send + Sync>,
        copy_threads: &Arc<CopyThreads>,
    ) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        let wanted = wanted.clamp(1, self.threads_max);
        let new_calls = wanted.saturating_sub(state.calls);
        state.calls += new_calls;
        let awake = state.asleep.min(new_calls);
        for _ in 0..awake {
            self.called.notify_one();
        }
        let missing = (new_calls - awake).min(self.threads_max.saturating_sub(state.alive));
        for _ in 0..missing {
            let (copy_threads, work) = (copy_threads.clone(), work.clone());
            let started = thread::spawn("ferry-copy", move || {
                health::doing("copying");
                health::woken_by(&|| copy_threads.called.notify_all(), || copy_threads.run(&*work));
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
        self.called.notify_all();
        std::mem::take(&mut state.threads)
    }

    fn run(&self, work: &(dyn Fn() + Send + Sync)) {
        let mut state = self.lock();
        loop {
            if state.closed {
                state.alive -= 1;
                return;
            }
            if state.calls > 0 {
                state.calls -= 1;
                drop(state);
                work();
                state = self.lock();
                continue;
            }
            state.asleep += 1;
            let (woken, waited) = self.called.wait_timeout(state, PATIENCE);
            state = woken;
            state.asleep -= 1;
            if waited && state.calls == 0 {
                state.alive -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn every_call_is_answered_and_threads_are_bounded() {
        let copy_threads = Arc::new(CopyThreads::new(2));
        let (done, heard) = channel();
        let inside = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let watched = inside.clone();
        let work: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            let now = watched.0.fetch_add(1, Ordering::SeqCst) + 1;
            watched.1.fetch_max(now, Ordering::SeqCst);
            watched.0.fetch_sub(1, Ordering::SeqCst);
            let _ = done.send(());
        });
        for _ in 0..100 {
            assert!(copy_threads.call(8, &work, &copy_threads));
            heard.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(inside.1.load(Ordering::SeqCst) <= 2);
        copy_threads.close().into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!copy_threads.call(1, &work, &copy_threads), "closed");
    }

    #[test]
    fn places_are_bounded() {
        let copy_threads = CopyThreads::new(2);
        assert!(copy_threads.take_place() && copy_threads.take_place() && !copy_threads.take_place());
        copy_threads.leave_place();
        assert!(copy_threads.take_place());
    }
}
