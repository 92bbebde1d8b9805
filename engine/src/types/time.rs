//! Moments on the clocks, as types, so that the clocks cannot be confused with each other or with a length of time.
//! Lengths are nanoseconds in a plain `u64`.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

macro_rules! moment {
    ($(#[$what:meta])* $Name:ident) => {
        $(#[$what])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $Name(u64);

        impl $Name {
            /// The start of the clock; also used for "not yet".
            pub const ZERO: $Name = $Name(0);
            /// A moment that never comes.
            pub const NEVER: $Name = $Name(u64::MAX);

            /// Returns the moment this many nanoseconds after the start of the clock.
            #[inline]
            pub const fn from_ns(ns: u64) -> $Name {
                $Name(ns)
            }

            /// Returns the nanoseconds since the start of the clock.
            #[inline]
            pub const fn ns(self) -> u64 {
                self.0
            }

            #[inline]
            pub const fn saturating_add(self, ns: u64) -> $Name {
                $Name(self.0.saturating_add(ns))
            }

            #[inline]
            pub fn saturating_add_duration(self, length: Duration) -> $Name {
                self.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
            }

            /// Returns the moment this many nanoseconds earlier, at least the start of the clock.
            #[inline]
            pub const fn saturating_sub_ns(self, ns: u64) -> $Name {
                $Name(self.0.saturating_sub(ns))
            }

            /// Returns the nanoseconds from `earlier` to this moment; 0 if `earlier` is later.
            #[inline]
            pub const fn saturating_sub(self, earlier: $Name) -> u64 {
                self.0.saturating_sub(earlier.0)
            }
        }

        impl Add<u64> for $Name {
            type Output = $Name;
            #[inline]
            fn add(self, ns: u64) -> $Name {
                $Name(self.0 + ns)
            }
        }

        impl AddAssign<u64> for $Name {
            #[inline]
            fn add_assign(&mut self, ns: u64) {
                self.0 += ns;
            }
        }

        impl Sub<u64> for $Name {
            type Output = $Name;
            #[inline]
            fn sub(self, ns: u64) -> $Name {
                $Name(self.0 - ns)
            }
        }

        /// The nanoseconds between two moments.
        impl Sub for $Name {
            type Output = u64;
            #[inline]
            fn sub(self, earlier: $Name) -> u64 {
                self.0 - earlier.0
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }
    };
}

moment! {
    /// A moment on CLOCK_MONOTONIC_RAW, which deadlines, timers and initiators' leases use: it runs at the rate of the
    /// hardware, even while a daemon adjusts the system's time.
    ///
    /// ```compile_fail,E0308
    /// use ferry::types::{Boottime, Monotonic};
    /// assert!(Monotonic::ZERO < Boottime::NEVER);
    /// ```
    Monotonic
}

/// Returns the moment this much later; at most NEVER.
impl Add<Duration> for Monotonic {
    type Output = Monotonic;
    #[inline]
    fn add(self, length: Duration) -> Monotonic {
        self.saturating_add_duration(length)
    }
}

moment! {
    /// A moment on CLOCK_MONOTONIC_RAW plus the time that the machine slept, which targets' leases use: a frame is late
    /// after a sleep too.
    Boottime
}

moment! {
    /// A moment on CLOCK_MONOTONIC, which programs read: the times of results.
    Shown
}
