//! A value that is written once. `std`'s would put the whole operating system's thread to sleep if a second task came
//! while the first makes the value.

use super::Mutex;
use crate::world::point;
use std::fmt;

pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    pub const fn new() -> OnceLock<T> {
        OnceLock { value: std::sync::OnceLock::new(), making: Mutex::new(()) }
    }

    pub fn get(&self) -> Option<&T> {
        point();
        self.value.get()
    }

    /// Returns the value back if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        self.value.set(value)
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock();
        if self.value.get().is_none() {
            // Made before std's call, which is then over without a switch.
            let value = make();
            let _ = self.value.set(value);
        }
        self.value.get().expect("just set")
    }

    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        OnceLock { value: value.into(), making: Mutex::new(()) }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}
