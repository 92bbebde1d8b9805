//! The simulated side of `sys::memfd`: memory of the kernel's arena behind a descriptor. A size never changes.

use crate::sys::fd::{BorrowedFd, OwnedFd};
use ferry_sim_kernel::arena;
use std::ffi::CStr;
use std::io;

pub fn create(_name: &CStr, length: usize) -> io::Result<OwnedFd> {
    arena::share(length)
}

pub fn check(fd: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    match arena::shared(fd) {
        Ok((_, held)) if held >= length => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a sealed memfd of the size announced")),
    }
}
