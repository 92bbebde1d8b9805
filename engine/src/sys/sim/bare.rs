//! The simulated side of `sys::bare`: the kernel's locks and tasks, in the shapes of the standard library's. No lock is
//! ever poisoned.

use ferry_sim_kernel::sync;
pub use ferry_sim_kernel::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use std::sync::{LockResult, TryLockResult};
pub use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

#[derive(Default, Debug)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> LockResult<T> {
        Ok(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(self.0.lock())
    }

    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock().ok_or(TryLockError::WouldBlock)
    }

    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.0.get_mut())
    }
}

#[derive(Default, Debug)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        Ok(self.0.read())
    }

    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        Ok(self.0.write())
    }
}

#[derive(Default, Debug)]
pub struct Condvar(sync::Condvar);

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

type Waited<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        Ok(self.0.wait(guard))
    }

    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> Waited<'a, T> {
        let (guard, over) = self.0.wait_timeout(guard, time);
        Ok((guard, WaitTimeoutResult(over)))
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Tasks in the shape of `std::thread`.
pub mod thread {
    pub use ferry_sim_kernel::scope::{scope, Scope, ScopedJoinHandle};
    use ferry_sim_kernel::task;
    pub use ferry_sim_kernel::task::{panicking, JoinHandle, TaskId as ThreadId};
    use std::io;
    use std::num::NonZeroUsize;
    use std::rc::Rc;

    const CPUS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

    #[derive(Default)]
    pub struct Builder(String);

    impl Builder {
        pub fn new() -> Builder {
            Builder::default()
        }

        pub fn name(self, name: String) -> Builder {
            Builder(name)
        }

        pub fn spawn<T: Send + 'static>(
            self,
            body: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            task::spawn(&self.0, body)
        }

        pub fn spawn_scoped<'scope, T: Send + 'scope>(
            self,
            scope: &'scope Scope<'scope, '_>,
            body: impl FnOnce() -> T + Send + 'scope,
        ) -> io::Result<ScopedJoinHandle<'scope, T>> {
            scope.spawn(&self.0, body)
        }
    }

    /// The task that runs.
    pub struct Thread {
        id: ThreadId,
        name: Option<Rc<str>>,
    }

    impl Thread {
        pub fn id(&self) -> ThreadId {
            self.id
        }

        pub fn name(&self) -> Option<&str> {
            self.name.as_deref()
        }
    }

    pub fn current() -> Thread {
        Thread { id: task::current(), name: task::name() }
    }

    pub fn available_parallelism() -> io::Result<NonZeroUsize> {
        Ok(CPUS)
    }
}
