//! Tasks that borrow from their starter, which waits for all of them: `std::thread::scope` for tasks.

use crate::task::{spawn_unchecked, JoinHandle};
use crate::wait::WaitQueue;
use crate::world::with;
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::thread::Result;

pub struct Scope<'scope, 'env: 'scope> {
    open: Rc<Open>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct Open {
    count: Cell<usize>,
    panicked: Cell<bool>,
    none_left: WaitQueue,
}

/// Counts a task until it has ended, in whatever way.
struct Counted(Rc<Open>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.none_left.wake_all();
        }
    }
}

pub struct ScopedJoinHandle<'scope, T>(JoinHandle<T>, PhantomData<&'scope ()>);

impl<T> ScopedJoinHandle<'_, T> {
    pub fn join(self) -> Result<T> {
        self.0.join()
    }

    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Calls `act`, then waits for all tasks that it started in the scope. Panics if one of them panicked.
pub fn scope<'env, T>(act: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let scope = Scope { open: Rc::default(), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| act(&scope)));
    while scope.open.count.get() > 0 {
        scope.open.none_left.wait("the tasks of a scope", None);
    }
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if scope.open.panicked.get() => panic!("a task of the scope panicked"),
        Ok(value) => value,
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a task in the process of the running one.
    pub fn spawn<T: 'scope>(
        &'scope self,
        name: &str,
        body: impl FnOnce() -> T + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        self.open.count.set(self.open.count.get() + 1);
        let counted = Counted(self.open.clone());
        let whole = move || {
            let result = catch_unwind(AssertUnwindSafe(body));
            counted.0.panicked.set(counted.0.panicked.get() || result.is_err());
            drop(counted);
            result.unwrap_or_else(|payload| resume_unwind(payload))
        };
        let process = with(|world| world.here());
        // SAFETY: `scope` does not return before the body has ended, unless the process is killed: then neither runs
        // again. The result is for whoever joins within 'scope.
        let handle = unsafe { spawn_unchecked(process, name, whole) }?;
        Ok(ScopedJoinHandle(handle, PhantomData))
    }
}
