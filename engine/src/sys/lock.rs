//! The locks of an engine. A panic under a lock marks the engine as broken before the lock is released, and a thread
//! that takes a lock of a broken engine stops there (`health`). Poisoning adds no information, so `lock` returns no
//! `Result`.

use super::bare::thread::panicking;
use super::bare::{self as sync, PoisonError, TryLockError};
use super::health;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Dropped before the lock beside it is released. Contract 14: no other thread sees half-written state.
struct Mark {
    /// The thread was already panicking when it took the lock, so the panic did not begin under this lock.
    unwinding: bool,
}

impl Mark {
    fn new() -> Mark {
        Mark { unwinding: panicking() }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if panicking() && !self.unwinding {
            health::releases_in_panic();
        }
    }
}

#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = MutexGuard::new(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // Checked with the lock held: if the previous holder panicked, it has marked the engine by now.
        health::check();
        guard
    }

    /// Returns None while another thread holds the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let guard = guard.map(MutexGuard::new);
        health::check();
        guard
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Fields are dropped in order: the mark, then the lock.
pub struct MutexGuard<'a, T: ?Sized> {
    mark: Mark,
    inner: sync::MutexGuard<'a, T>,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    fn new(inner: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mark: Mark::new(), inner }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[derive(Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let guard = RwLockReadGuard { _mark: Mark::new(), inner };
        health::check();
        guard
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let guard = RwLockWriteGuard { _mark: Mark::new(), inner };
        health::check();
        guard
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

pub struct RwLockReadGuard<'a, T: ?Sized> {
    _mark: Mark,
    inner: sync::RwLockReadGuard<'a, T>,
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

pub struct RwLockWriteGuard<'a, T: ?Sized> {
    _mark: Mark,
    inner: sync::RwLockWriteGuard<'a, T>,
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Threads that wait here must be woken when the engine breaks: see `health::woken_by`.
#[derive(Default, Debug)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard { mark: _mark, inner } = guard;
        let guard = MutexGuard::new(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        health::check();
        guard
    }

    /// Waits for a limited time. Returns true with the guard if the time was over.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
        let MutexGuard { mark: _mark, inner } = guard;
        let (inner, waited) = self.0.wait_timeout(inner, time).unwrap_or_else(PoisonError::into_inner);
        let guard = MutexGuard::new(inner);
        health::check();
        (guard, waited.timed_out())
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{health::Health, thread};
    use super::*;
    use std::sync::mpsc::{channel, Receiver};
    use std::sync::Arc;

    /// Dropped after the guard that was taken after it. Keeps the panic going until the other thread has ended.
    struct Until(Receiver<()>);

    impl Drop for Until {
        fn drop(&mut self) {
            // The other thread drops its end of the channel when it ends, in any case.
            let _ = self.0.recv_timeout(Duration::from_secs(30));
        }
    }

    /// A thread that waits for a lock while its holder panics never sees the data under the lock, although the panic
    /// has not been caught yet.
    #[test]
    fn the_engine_is_marked_before_the_lock_is_released() {
        let health = Health::new();
        let shared = Arc::new(Mutex::new("whole"));
        let (locked, is_locked) = channel();
        let (ended, has_ended) = channel::<()>();
        let (entered, has_entered) = channel();
        let ours = shared.clone();
        let holder = health.within(|| {
            thread::spawn("ferry-holder", move || {
                let _until = Until(has_ended);
                let mut guard = ours.lock();
                *guard = "half written";
                locked.send(()).unwrap();
                panic!("under a lock");
            })
        });
        is_locked.recv_timeout(Duration::from_secs(30)).unwrap();
        let waiter = health.within(|| {
            thread::spawn("ferry-waiter", move || {
                let _ended = ended;
                let guard = shared.lock();
                entered.send(*guard).unwrap();
            })
        });
        waiter.unwrap().join().unwrap();
        holder.unwrap().join().unwrap();
        assert_eq!(has_entered.try_iter().collect::<Vec<_>>(), Vec::<&str>::new());
        assert!(health.error().message.contains("ferry-holder"), "{}", health.error());
    }
}
