//! The lock that many readers or one writer hold.

use crate::wait::WaitQueue;
use crate::world::{is_running, point};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Held by a writer.
const WRITER: u32 = u32::MAX;

#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    /// The number of readers, or `WRITER`.
    held: AtomicU32,
    waiters: WaitQueue,
    value: UnsafeCell<T>,
}

// SAFETY: as `std::sync::RwLock`: the value goes to one writer or to readers.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { held: AtomicU32::new(0), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.take(|held| (held != WRITER).then(|| held + 1));
        RwLockReadGuard { lock: self, not_send: PhantomData }
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.take(|held| (held == 0).then_some(WRITER));
        RwLockWriteGuard { lock: self, not_send: PhantomData }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline]
    fn take(&self, next: impl Fn(u32) -> Option<u32>) {
        point();
        while self.held.fetch_update(Ordering::Acquire, Ordering::Relaxed, &next).is_err() {
            if is_running() {
                self.waiters.wait_until("a lock for readers and writers", None, || ());
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Everyone is woken: any number of readers may go on.
    #[inline]
    fn free(&self) {
        self.waiters.wake_all();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("RwLock").field(&&*self.read()).finish()
    }
}

pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    not_send: PhantomData<*const ()>,
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is no writer while a reader holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        point();
        if self.lock.held.fetch_sub(1, Ordering::Release) == 1 {
            self.lock.free();
        }
    }
}

pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    not_send: PhantomData<*const ()>,
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        point();
        self.lock.held.store(0, Ordering::Release);
        self.lock.free();
    }
}
