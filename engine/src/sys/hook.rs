//! Hooks: points at which a test acts in a thread of the engine. Outside tests a hook is empty, and its call does
//! nothing.

use std::marker::PhantomData;
#[cfg(test)]
use std::sync::{
    atomic::{AtomicBool, Ordering},
    Arc, Mutex,
};

/// Whether hooks are called. Without tests, code that only prepares a call is left out.
pub const ARE_CALLED: bool = cfg!(test);

/// A test's callback, which gets a `T`.
pub struct Hook<T> {
    #[cfg(test)]
    is_set: AtomicBool,
    #[cfg(test)]
    callback: Mutex<Option<Arc<Callback<T>>>>,
    gets: PhantomData<fn(&T)>,
}

/// A point that each thread of an engine passes (`Health::hook`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A lock was taken.
    Lock,
    /// A turn begins.
    Turn,
}

#[cfg(test)]
type Callback<T> = dyn Fn(&T) + Send + Sync;

impl<T> Default for Hook<T> {
    fn default() -> Self {
        Hook {
            #[cfg(test)]
            is_set: AtomicBool::new(false),
            #[cfg(test)]
            callback: Mutex::new(None),
            gets: PhantomData,
        }
    }
}

impl<T> Hook<T> {
    /// Runs the test's callback, under no lock of the hook.
    #[inline(always)]
    pub fn call(&self, _argument: &T) {
        #[cfg(test)]
        self.run(_argument);
    }
}

#[cfg(test)]
impl<T> Hook<T> {
    /// Sets the callback, in place of an earlier one.
    pub fn set(&self, callback: impl Fn(&T) + Send + Sync + 'static) {
        *self.callback.lock().unwrap() = Some(Arc::new(callback));
        self.is_set.store(true, Ordering::SeqCst);
    }

    fn run(&self, argument: &T) {
        // A hook that is not set costs one load: some are called at every lock.
        if !self.is_set.load(Ordering::Relaxed) {
            return;
        }
        let callback = self.callback.lock().unwrap().clone();
        callback.into_iter().for_each(|callback| callback(argument));
    }
}
