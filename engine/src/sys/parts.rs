//! Reads memory that others write, part by part, through copies (`racing`, `guarded`).

use super::guarded::{self, Faulted};
use super::racing::copy_out;
#[cfg(test)]
use std::convert::Infallible;

/// The size of the parts: small enough for the stack and the nearest cache.
pub(super) const PART_BYTES: usize = 4096;
/// The size of parts that the kernel copies: large enough that a system call costs little beside its bytes.
const GUARDED_BYTES: usize = 16 << 10;
/// The same for long ranges, which pay for a buffer that only the second cache holds.
const LONG_BYTES: usize = 64 << 10;

/// Why not all parts were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread<E> {
    Refused(E),
    /// A page faults.
    Faulted,
}

impl<E> From<Faulted> for Unread<E> {
    fn from(_: Faulted) -> Unread<E> {
        Unread::Faulted
    }
}

/// Calls `look` with the bytes of memory that ferry allocated, part by part.
///
/// # Safety
/// As for `racing::copy_out`.
#[cfg(test)]
pub unsafe fn for_each_part(from: *const u8, length: usize, look: impl FnMut(&[u8])) {
    let always = || Ok::<(), Infallible>(());
    // SAFETY: the caller's promise.
    let read = unsafe { try_each_part(from, length, true, always, look) };
    assert_eq!(read, Ok(()));
}

/// Calls `look` with the bytes part by part, each as it was when it was copied. Asks before each part whether its bytes
/// may be read; the first refusal, or the first fault, ends the call. `is_ours`: ferry allocated the memory, which
/// therefore does not fault.
///
/// # Safety
/// As for `racing::copy_out` if `is_ours`; otherwise as for `guarded::get`.
pub unsafe fn try_each_part<E>(
    from: *const u8,
    length: usize,
    is_ours: bool,
    may_read: impl FnMut() -> Result<(), E>,
    look: impl FnMut(&[u8]),
) -> Result<(), Unread<E>> {
    // SAFETY: the caller's promise, of both.
    let ours = |from, into: &mut [u8]| unsafe {
        copy_out(from, into);
        Ok(())
    };
    // SAFETY: as above.
    let theirs = |from, into: &mut [u8]| unsafe { guarded::get(from, into) };
    match (is_ours, length <= PART_BYTES) {
        (true, _) => each_part::<PART_BYTES, E>(from, length, ours, may_read, look),
        // A small range does not pay for a large buffer.
        (false, true) => each_part::<PART_BYTES, E>(from, length, theirs, may_read, look),
        (false, false) if length < 4 * LONG_BYTES => {
            each_part::<GUARDED_BYTES, E>(from, length, theirs, may_read, look)
        }
        (false, false) => each_part::<LONG_BYTES, E>(from, length, theirs, may_read, look),
    }
}

fn each_part<const PART: usize, E>(
    from: *const u8,
    length: usize,
    copy: impl Fn(*const u8, &mut [u8]) -> Result<(), Faulted>,
    mut may_read: impl FnMut() -> Result<(), E>,
    mut look: impl FnMut(&[u8]),
) -> Result<(), Unread<E>> {
    let mut part = [0; PART];
    let mut at = 0;
    while at < length {
        may_read().map_err(Unread::Refused)?;
        let part = &mut part[..PART.min(length - at)];
        copy(from.wrapping_add(at), part)?;
        look(part);
        at += part.len();
    }
    Ok(())
}
