//! The operating system, which the simulation replaces. Each module documents itself and its twin in `sim`.

pub mod bare;
pub(super) mod children;
pub mod clock;
pub mod copy;
pub mod eventfd;
pub mod fd;
pub mod file;
pub mod file_ring;
pub mod fork;
pub mod guarded;
pub mod host;
pub mod landmark;
pub mod loader;
pub mod local;
pub mod mapping;
pub mod memfd;
pub mod memory;
pub mod names;
// Miri has neither signal masks nor CPUs.
#[cfg_attr(miri, path = "../sim/origin.rs")]
pub(super) mod origin;
pub mod packet;
pub mod pagemap;
pub mod poller;
pub mod racing;
pub mod random;
pub mod sched;
pub mod socket;
pub mod tcp;
pub mod unforked;
pub mod unix;
pub mod verbs;
pub mod vm;

/// The atomics with which threads hand work to each other. They are the standard library's. A simulation replaces them,
/// because it may switch threads at each access.
pub mod atomic {
    pub use std::sync::atomic::{
        fence, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
}

/// Maps and sets without an order. Their hasher is the standard library's random one, because peers choose keys. A
/// simulation takes a hasher that is the same in each run, so that iteration repeats. `default` makes an empty map;
/// the standard library has `new` for its own hasher alone.
pub mod map {
    pub use std::collections::hash_map::Entry;
    use std::hash::RandomState;

    pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
    pub type HashSet<T> = std::collections::HashSet<T, RandomState>;
}

/// Moments: situations that the simulation must reach, or else it tests less than it seems to. The parts of the engine
/// name them where they occur. The product does nothing then; `sim` counts them.
pub mod moment {
    /// Reports the moment if `is_there` returns true. The product does not call `is_there`.
    #[inline(always)]
    pub fn reached_if(_name: &'static str, _is_there: impl FnOnce() -> bool) {}
}

/// Channels between threads: the standard library's. A simulation replaces them, because a receiver waits.
pub mod mpsc {
    pub use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, TryRecvError};
}

/// A value that is set once: the standard library's. A simulation replaces it, because a thread waits while another
/// makes the value.
pub mod once {
    pub use std::sync::OnceLock;
}

/// How a thread waits without a lock: it sleeps, yields its CPU, or spins. The engine waits only through this module,
/// which `tests/imports.rs` enforces.
pub mod pause {
    use std::time::Duration;

    pub fn sleep(duration: Duration) {
        std::thread::sleep(duration);
    }

    /// Lets another thread run on this CPU.
    pub fn yield_now() {
        std::thread::yield_now();
    }

    /// One iteration of a polling loop.
    #[inline]
    pub fn spin() {
        std::hint::spin_loop();
    }
}
