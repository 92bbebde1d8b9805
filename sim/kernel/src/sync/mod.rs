//! Locks and condition variables of tasks, with the interfaces of `std::sync`, but without poisoning. The seed chooses
//! which of the tasks that want a lock gets it. Each operation is a point. A guard's drop is a point before the lock is
//! free, so that others find the lock busy. Outside of a world the locks work as spin locks of real threads.

pub mod atomic;
mod once;
mod rw;

pub use once::OnceLock;
pub use rw::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::clock;
use crate::moment;
use crate::wait::WaitQueue;
use crate::world::{is_running, point, try_with};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    held: AtomicBool,
    waiters: WaitQueue,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the holder of the lock.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { held: AtomicBool::new(false), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        point();
        while !self.take() {
            if is_running() {
                self.waiters.wait_until("a lock", None, || ());
            } else {
                std::thread::yield_now();
            }
        }
        MutexGuard { mutex: self, not_send: PhantomData }
    }

    /// Returns None while another task holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        if !self.take() {
            moment::reached(moment::BUSY_LOCK);
            return None;
        }
        Some(MutexGuard { mutex: self, not_send: PhantomData })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline]
    fn take(&self) -> bool {
        if is_running() {
            // One thread runs the world, so a load and a store are one step.
            let free = !self.held.load(Ordering::Relaxed);
            self.held.store(true, Ordering::Relaxed);
            return free;
        }
        !self.held.swap(true, Ordering::Acquire)
    }

    #[inline]
    fn release(&self) {
        self.held.store(false, Ordering::Release);
        self.waiters.wake_one();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => formatter.debug_tuple("Mutex").field(&&*guard).finish(),
            None => formatter.write_str("Mutex(<locked>)"),
        }
    }
}

pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    not_send: PhantomData<*const ()>,
}

// SAFETY: as for a reference to the value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        point();
        self.mutex.release();
    }
}

#[derive(Default, Debug)]
pub struct Condvar(WaitQueue);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(WaitQueue::new())
    }

    /// Waits for a `notify`, or for nothing at all: as everywhere, the caller checks its condition again.
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_for(guard, None).0
    }

    /// Also returns true if the time was over.
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_for(guard, Some(time))
    }

    fn wait_for<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Option<Duration>,
    ) -> (MutexGuard<'a, T>, bool) {
        point();
        let mutex = guard.mutex;
        std::mem::forget(guard);
        let spurious = try_with(|world| world.rng.chance(world.options.spurious_ppm));
        let woken = if spurious == Some(true) {
            mutex.release();
            point();
            true
        } else {
            self.0.wait_until("a condition", time.map(clock::deadline), || mutex.release())
        };
        (mutex.lock(), !woken)
    }

    pub fn notify_one(&self) {
        point();
        self.0.wake_one();
    }

    pub fn notify_all(&self) {
        point();
        self.0.wake_all();
    }
}
