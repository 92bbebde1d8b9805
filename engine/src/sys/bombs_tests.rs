//! Makes an engine's thread panic where a test wants it: at a lock that the thread has just taken. Also makes a turn of
//! a thread last longer than it would.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Bombs {
    laid: AtomicBool,
    list: Mutex<Vec<Arc<Bomb>>>,
    /// The name of a thread without its number, and what its next turn lasts at least.
    prolonged: Mutex<Option<(&'static str, Duration)>>,
}

/// Panics in a thread with this name (and any number after it), at the lock taken after `left` others.
pub struct Bomb {
    thread: &'static str,
    left: AtomicU32,
    pub gone_off: OnceLock<Instant>,
}

impl Bomb {
    fn is_for(&self, name: &str) -> bool {
        is_named(name, self.thread)
    }
}

/// True for this name, with any number after it.
fn is_named(name: &str, thread: &str) -> bool {
    let number = name.strip_prefix(thread).map(|rest| rest.trim_start_matches('-'));
    number.is_some_and(|rest| rest.chars().all(|each| each.is_ascii_digit()))
}

impl Bombs {
    pub fn lay(&self, thread: &'static str, left: u32) -> Arc<Bomb> {
        let bomb = Arc::new(Bomb { thread, left: AtomicU32::new(left), gone_off: OnceLock::new() });
        self.list.lock().unwrap().push(bomb.clone());
        self.laid.store(true, Ordering::SeqCst);
        bomb
    }

    /// Delays the next turn of a thread with this name: the turn begins, and does its work after this time.
    pub fn prolong(&self, thread: &'static str, length: Duration) {
        *self.prolonged.lock().unwrap() = Some((thread, length));
    }

    pub fn prolong_turn(&self) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let is_ours = |it: &mut (&str, Duration)| is_named(name, it.0);
        let prolonged = self.prolonged.lock().unwrap().take_if(is_ours);
        prolonged.into_iter().for_each(|(_, length)| std::thread::sleep(length));
    }

    /// Whether the turn has begun.
    pub fn is_prolonged(&self) -> bool {
        self.prolonged.lock().unwrap().is_none()
    }

    pub fn pass(&self) {
        // Costs one load for threads without a bomb, as in the product.
        if !self.laid.load(Ordering::Relaxed) || std::thread::panicking() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let mut list = self.list.lock().unwrap();
        let Some(at) = list.iter().position(|bomb| bomb.is_for(name)) else { return };
        if list[at].left.load(Ordering::Relaxed) > 0 {
            list[at].left.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let bomb = list.remove(at);
        drop(list);
        let _ = bomb.gone_off.set(Instant::now());
        // Without the panic hook: a backtrace with names takes seconds in the machine of `make test-rdma`.
        std::panic::resume_unwind(Box::new(format!("a bomb in {name}")));
    }
}
