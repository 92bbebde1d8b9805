//! Locks without `health`, for code that a model checker runs: its locks have the same methods. They are the standard
//! library's. A simulation replaces them.

pub use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// Threads that belong to no engine yet.
pub mod thread {
    pub use std::thread::{
        available_parallelism, current, panicking, scope, Builder, JoinHandle, Scope, ScopedJoinHandle,
        ThreadId,
    };
}
