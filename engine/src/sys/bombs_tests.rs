//! Makes an engine's thread panic where a test wants it: at a lock that the thread has just taken. Also makes a turn of
//! a thread last longer than it would.

use super::hook::{Hook, Point};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Panics in a thread with this name (and any number after it), at the lock taken after `left` others.
pub struct Bomb {
    thread: &'static str,
    left: AtomicU32,
    pub gone_off: OnceLock<Instant>,
}

/// Returns the name of this thread if it is `thread`, with any number after it.
fn name_if(thread: &str) -> Option<String> {
    let name = std::thread::current().name()?.to_owned();
    let number = name.strip_prefix(thread)?.trim_start_matches('-');
    number.chars().all(|each| each.is_ascii_digit()).then_some(name)
}

/// An engine's hook takes one bomb, or one prolonged turn, at a time.
impl Hook<Point> {
    pub fn lay(&self, thread: &'static str, left: u32) -> Arc<Bomb> {
        let bomb = Arc::new(Bomb { thread, left: AtomicU32::new(left), gone_off: OnceLock::new() });
        let laid = bomb.clone();
        self.set(move |point| {
            if *point == Point::Lock {
                laid.pass();
            }
        });
        bomb
    }

    /// The next turn of a thread with this name begins, and does its work after this time. Returns whether the turn has
    /// begun.
    pub fn prolong(&self, thread: &'static str, length: Duration) -> Arc<AtomicBool> {
        let has_begun = Arc::new(AtomicBool::new(false));
        let begins = has_begun.clone();
        self.set(move |point| {
            let is_it = *point == Point::Turn && name_if(thread).is_some();
            if is_it && !begins.swap(true, Ordering::SeqCst) {
                std::thread::sleep(length);
            }
        });
        has_begun
    }
}

impl Bomb {
    fn pass(&self) {
        if std::thread::panicking() || self.gone_off.get().is_some() {
            return;
        }
        let Some(name) = name_if(self.thread) else { return };
        let count_down = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down).is_ok() {
            return;
        }
        if self.gone_off.set(Instant::now()).is_ok() {
            // Without the panic hook: a backtrace with names takes seconds in the machine of `make test-rdma`.
            std::panic::resume_unwind(Box::new(format!("a bomb in {name}")));
        }
    }
}
