//! The simulated kernel (`sim/kernel`) in place of the operating system: the twins of the modules of `os`, which
//! documents them.

pub mod bare;
pub mod clock;
pub mod copy;
pub mod guarded;
pub mod host;
pub mod landmark;
pub mod loader;
pub mod mapping;
pub mod memfd;
pub mod memory;
pub mod mpsc;
pub mod names;
pub(super) mod origin;
pub mod packet;
pub mod pagemap;
pub mod poller;
pub mod racing;
pub mod random;
pub mod socket;
pub mod tcp;
pub mod unix;
pub mod verbs;

/// Each access is a point at which the seed may switch tasks.
pub mod atomic {
    pub use ferry_sim_kernel::sync::atomic::{
        fence, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
}

pub mod eventfd {
    pub use ferry_sim_kernel::eventfd::EventFd;
}

/// A descriptor is a number of a simulated process.
pub mod fd {
    pub use ferry_sim_kernel::fd::{AsFd, BorrowedFd, OwnedFd};
}

/// No simulated process forks.
pub mod fork {
    use std::io;

    pub struct ForkGuard;

    impl ForkGuard {
        pub fn new() -> io::Result<ForkGuard> {
            Ok(ForkGuard)
        }

        pub fn is_child(&self) -> bool {
            false
        }
    }
}

/// Variables of tasks and of simulated processes.
pub mod local {
    pub use ferry_sim_kernel::{local, process_local};
}

/// The hasher is the same in each run.
pub mod map {
    pub use std::collections::hash_map::Entry;
    use std::hash::{BuildHasherDefault, DefaultHasher};

    pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
    pub type HashSet<T> = std::collections::HashSet<T, BuildHasherDefault<DefaultHasher>>;
}

/// Counts the moments that a run reaches.
pub mod moment {
    pub use ferry_sim_kernel::moment::reached_if;
}

pub mod once {
    pub use ferry_sim_kernel::sync::OnceLock;
}

pub mod pause {
    pub use ferry_sim_kernel::task::{sleep, spin, yield_now};
}

/// The seed schedules.
pub mod sched {
    pub fn take_long_slices() {}

    pub fn sleep_exactly() {}
}

/// No simulated process forks in such work.
pub mod unforked {
    pub fn unforked<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

pub mod vm {
    use crate::sys::pages::Pages;

    pub use ferry_sim_kernel::vm::{read, write};

    /// Host memory of a simulation is always mapped.
    pub fn has_ends(_pages: &Pages, _address: u64, _length: u64) -> bool {
        true
    }

    pub fn allow_any_tracer() -> bool {
        false
    }
}
