//! The simulated side of `sys::unforked`: no simulated process forks in such work.

pub fn unforked<T>(work: impl FnOnce() -> T) -> T {
    work()
}
