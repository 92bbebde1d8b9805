//! Variables of a thread, which are the standard library's, and state that a process keeps outside of its engines, in
//! statics. A simulation replaces both: its threads and processes share one thread of the operating system.

/// Declares variables of threads.
pub use std::thread_local as local;

/// A variable of the process. `process_local` makes such statics.
pub struct ProcessKey<T>(T);

impl<T> ProcessKey<T> {
    pub const fn new(value: T) -> ProcessKey<T> {
        ProcessKey(value)
    }

    #[inline(always)]
    pub fn with<R>(&'static self, act: impl FnOnce(&T) -> R) -> R {
        act(&self.0)
    }
}

/// Declares variables of the process. Their first values are constants.
macro_rules! process_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr);+ $(;)?) => {
        $($(#[$attribute])* $visible static $name: $crate::sys::local::ProcessKey<$type> =
            $crate::sys::local::ProcessKey::new($value);)+
    };
}

pub(crate) use process_local;
