//! The simulated side of `sys::loader`: no library of a device is installed.

use libc::{c_int, c_void};
use std::ffi::CStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes;

pub fn changes() -> Option<Changes> {
    Some(Changes)
}

/// # Safety
/// As in the product.
pub unsafe fn open(_name: &CStr, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}
