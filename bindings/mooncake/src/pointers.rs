//! Checks of pointers that a C caller passes. Each error names the argument. The caller promises that a
//! pointer stays valid for the length of the call.

use crate::engine::Engine;
use ferry::status::Result;
use ferry::{Error, Status};
use std::ffi::{c_char, CStr};
use std::mem::MaybeUninit;

/// The place of one output value, which the caller may have left uninitialised.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Returns the engine. Fails for NULL, and after a fork: threads that don't exist here may hold its locks.
pub fn opened(engine: Option<&Engine>) -> Result<&Engine> {
    let engine = engine.ok_or_else(|| null("engine"))?;
    if engine.ferry.is_forked() {
        return Err(Error::new(Status::Closed, "engine: a forked child can't use its parent's"));
    }
    Ok(engine)
}

pub fn null(what: &str) -> Error {
    Error::invalid(format!("{what} is NULL"))
}

/// Returns terminated bytes.
///
/// # Safety
/// `pointer` is NULL or points to a terminated string that stays for `'a`.
pub unsafe fn bytes<'a>(pointer: *const c_char, what: &str) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL, and the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Returns terminated UTF-8.
///
/// # Safety
/// As for `bytes`.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(pointer, what) }?;
    std::str::from_utf8(bytes).map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// Returns `count` values as a slice; an empty list may be NULL.
///
/// # Safety
/// `pointer` is NULL or points to `count` values that stay and are not written to for `'a`.
pub unsafe fn list<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(what));
    }
    if !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Error::invalid(format!("{what}: no {count} entries can be at {pointer:p}")));
    }
    // SAFETY: not NULL, aligned, of a possible size, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Copies a text and its terminator into the caller's buffer. Cuts a text that does not fit, and returns
/// LIMIT.
///
/// # Safety
/// `buffer` is NULL or may be written to for `length` bytes, now.
pub unsafe fn put_text(buffer: *mut c_char, length: usize, text: &str) -> Result<()> {
    if buffer.is_null() || length == 0 {
        return Err(Error::invalid("buf_out has no room"));
    }
    let count = text.len().min(length - 1);
    // SAFETY: the caller's promise, and `count` + 1 bytes are at most `length`. The text is ours.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
        buffer.add(count).write(0);
    }
    if count < text.len() {
        return Err(Error::new(
            Status::Limit,
            format!("buf_len is {length}, and {} are needed", text.len() + 1),
        ));
    }
    Ok(())
}

/// Makes a list with room for `count` values, or returns NO_MEMORY: a caller's size may be any number.
pub fn reserve<T>(list: &mut Vec<T>, count: usize) -> Result<()> {
    list.try_reserve(count)
        .map_err(|_| Error::new(Status::NoMemory, format!("no memory for {count} entries")))
}
