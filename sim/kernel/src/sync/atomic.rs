//! Atomics with the methods of std's. Each access is a point, and every order is as strong as SeqCst: the accesses of a
//! run are in one sequence. Weaker orders are for other tools to check.

use crate::world::{point, try_with};
use std::fmt;
use std::sync::atomic as real;
pub use std::sync::atomic::Ordering;

/// How many of a million weak exchanges fail without cause.
const WEAK_FAILS_PPM: u32 = 20_000;

/// A point; there is no other memory order to hold back.
pub fn fence(_order: Ordering) {
    point();
}

fn fails_weakly() -> bool {
    try_with(|world| world.script.is_none() && world.rng.chance(WEAK_FAILS_PPM)).unwrap_or(false)
}

/// The methods that all atomics have.
macro_rules! atomic {
    ([$($parameter:ident)?] $name:ty, $real:ty, $value:ty) => {
        impl $(<$parameter>)? $name {
            pub const fn new(value: $value) -> Self {
                Self(<$real>::new(value))
            }

            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }

            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if fails_weakly() {
                    return Err(self.load(Ordering::Relaxed));
                }
                self.compare_exchange(current, new, success, failure)
            }

            /// As std's: the function may run more than once.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(fetch);
                while let Some(new) = next(seen) {
                    match self.compare_exchange_weak(seen, new, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            /// # Safety
            /// As for std's.
            pub const unsafe fn from_ptr<'a>(pointer: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise; this type is std's in memory.
                unsafe { &*pointer.cast() }
            }
        }

        impl $(<$parameter>)? fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }

        impl $(<$parameter>)? Default for $name {
            fn default() -> Self {
                Self(Default::default())
            }
        }

        impl $(<$parameter>)? From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! fetches {
    ($name:ident, $value:ty, $($method:ident)*) => {
        impl $name {
            $(#[inline]
            pub fn $method(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.$method(value, order)
            })*
        }
    };
}

macro_rules! integers {
    ($($name:ident $value:ty;)*) => {$(
        #[repr(transparent)]
        pub struct $name(real::$name);
        atomic!([] $name, real::$name, $value);
        fetches!($name, $value, fetch_add fetch_sub fetch_and fetch_nand fetch_or fetch_xor fetch_max fetch_min);
    )*};
}

integers! {
    AtomicU8 u8;
    AtomicU16 u16;
    AtomicU32 u32;
    AtomicU64 u64;
    AtomicUsize usize;
    AtomicI8 i8;
    AtomicI16 i16;
    AtomicI32 i32;
    AtomicI64 i64;
    AtomicIsize isize;
}

#[repr(transparent)]
pub struct AtomicBool(real::AtomicBool);
atomic!([] AtomicBool, real::AtomicBool, bool);
fetches!(AtomicBool, bool, fetch_and fetch_nand fetch_or fetch_xor);

#[repr(transparent)]
pub struct AtomicPtr<T>(real::AtomicPtr<T>);
atomic!([T] AtomicPtr<T>, real::AtomicPtr<T>, *mut T);
