//! `ferry_error` carries the cause of a failed call. The caller owns the struct. ferry therefore needs no
//! thread-local state, and a goroutine may change threads.

use crate::pointers::{copy_text, is_usable};
use crate::status::{ferry_status, FERRY_ERR_INVALID, FERRY_OK};
use crate::versioned::{self, Versioned};
use engine::Error;
use std::ffi::c_char;
use std::mem::size_of;

/// Why a call failed. The caller sets struct_size to sizeof(ferry_error) before the call, by FERRY_ERROR_INIT for
/// example. The call fills the other fields when it returns a negative status, and leaves them alone otherwise.
/// NULL is allowed wherever a ferry_error is. If struct_size is 0, the call takes the struct as that of this
/// version, the first, so that a program that only zeroes its errors learns why a call failed. If struct_size is
/// not 0 and below the size in this version, the call does nothing and returns FERRY_ERR_INVALID.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_error {
    /// In: sizeof(ferry_error). Out: how many bytes were written.
    pub struct_size: u32,
    /// The status that the call returned.
    pub status: ferry_status,
    /// errno of the operating system, or 0.
    pub os_error: i32,
    /// Code of the device library (work-completion status, ACL code), or 0.
    pub vendor_error: i32,
    /// Index of the failed request or region in the caller's list; UINT64_MAX if the error concerns none.
    pub request_index: u64,
    /// FERRY_TRANSPORT_* on which the error happened, or FERRY_TRANSPORT_NONE.
    pub transport: u32,
    /// Always 0.
    pub reserved: u32,
    /// A sentence for people: UTF-8, terminated, cut if it is too long. Programs must not parse it.
    pub message: [c_char; 256],
}

impl ferry_error {
    pub const EMPTY: ferry_error = ferry_error {
        struct_size: size_of::<ferry_error>() as u32,
        status: FERRY_OK,
        os_error: 0,
        vendor_error: 0,
        request_index: u64::MAX,
        transport: 0,
        reserved: 0,
        message: [0; 256],
    };

    #[cfg(test)]
    pub fn text(&self) -> String {
        let bytes = self.message.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
        String::from_utf8(bytes.collect()).unwrap()
    }
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_error {
    const SIZE_MIN: usize = 288;
}

/// A caller's `ferry_error` or NULL, checked before the call begins.
pub(crate) struct ErrorOut(Option<versioned::Out<ferry_error>>);

impl ErrorOut {
    /// Returns INVALID if `error` cannot be filled.
    ///
    /// # Safety
    /// `error` is NULL, or points to a ferry_error of any version, with at least `struct_size` bytes, which the
    /// caller owns for the length of the call.
    pub unsafe fn new(error: *mut ferry_error) -> Result<ErrorOut, ferry_status> {
        if error.is_null() {
            return Ok(ErrorOut(None));
        }
        if !is_usable(error) {
            return Err(FERRY_ERR_INVALID);
        }
        // SAFETY: not NULL, aligned; the caller has set the struct's first field, to 0 or its size.
        if unsafe { error.cast::<u32>().read() } == 0 {
            // SAFETY: as above; no version of the struct is smaller than the first.
            return Ok(ErrorOut(Some(unsafe { versioned::Out::of_first_version(error) })));
        }
        // SAFETY: not NULL, aligned, and the caller's promise.
        let out = unsafe { versioned::Out::new(error, "error") };
        out.map(|out| ErrorOut(Some(out))).map_err(|_| FERRY_ERR_INVALID)
    }

    pub fn fill(self, error: &Error) {
        let Some(out) = self.0 else { return };
        let mut value = ferry_error {
            status: error.status as ferry_status,
            os_error: error.os_error,
            vendor_error: error.vendor_error,
            request_index: error.request_index.unwrap_or(u64::MAX),
            transport: error.transport as u32,
            ..ferry_error::EMPTY
        };
        copy_text(&error.message, &mut value.message);
        out.set(&value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Status;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut error = ferry_error::EMPTY;
        let long = "é".repeat(200);
        // SAFETY: a ferry_error on this stack.
        let out = unsafe { ErrorOut::new(&mut error) }.unwrap_or_else(|_| unreachable!());
        out.fill(&Error::new(Status::Busy, long));
        // 255 bytes would cut the 128th character in two.
        assert_eq!(error.text(), "é".repeat(127));
        assert_eq!((error.status, error.request_index), (Status::Busy as i32, u64::MAX));
    }
}
