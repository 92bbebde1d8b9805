//! Panics where a test wants them: at a lock that some thread of an engine has just taken.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

#[derive(Default)]
pub struct Bombs {
    laid: AtomicBool,
    list: Mutex<Vec<Arc<Bomb>>>,
}

/// Goes off in a thread of this name, whatever number follows, at the lock it takes after `left` others.
pub struct Bomb {
    thread: &'static str,
    left: AtomicU32,
    pub gone_off: OnceLock<Instant>,
}

impl Bomb {
    fn is_for(&self, name: &str) -> bool {
        let number = name.strip_prefix(self.thread).map(|rest| rest.trim_start_matches('-'));
        number.is_some_and(|rest| rest.chars().all(|each| each.is_ascii_digit()))
    }
}

impl Bombs {
    pub fn lay(&self, thread: &'static str, left: u32) -> Arc<Bomb> {
        let bomb = Arc::new(Bomb { thread, left: AtomicU32::new(left), gone_off: OnceLock::new() });
        self.list.lock().unwrap().push(bomb.clone());
        self.laid.store(true, Ordering::SeqCst);
        bomb
    }

    pub fn pass(&self) {
        // One load for whoever has no bomb, as in the product.
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
        panic!("a bomb in {name}");
    }
}
