//! Locks without `health`: the standard library's. Code that a model checker runs uses them, because the checker's
//! locks have the same methods. A simulation replaces them.

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
