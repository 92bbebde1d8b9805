//! Looks at memory that others write, part by part, through copies (`racing`).

use super::racing::copy_out;
use std::convert::Infallible;

/// The size of the parts: small enough for the stack and the nearest cache.
pub(super) const PART_BYTES: usize = 4096;

/// Calls `look` with the bytes part by part, each as it was when it was copied.
///
/// # Safety
/// As for `racing::copy_out`.
pub unsafe fn for_each_part(from: *const u8, length: usize, look: impl FnMut(&[u8])) {
    let always = || Ok::<(), Infallible>(());
    // SAFETY: the caller's promise.
    let Ok(()) = unsafe { try_each_part(from, length, always, look) };
}

/// As `for_each_part`, but asks before each part whether its bytes may be read. The first refusal ends the call.
///
/// # Safety
/// As for `racing::copy_out`.
pub unsafe fn try_each_part<E>(
    from: *const u8,
    length: usize,
    mut may_read: impl FnMut() -> Result<(), E>,
    mut look: impl FnMut(&[u8]),
) -> Result<(), E> {
    let mut part = [0; PART_BYTES];
    let mut at = 0;
    while at < length {
        may_read()?;
        let part = &mut part[..PART_BYTES.min(length - at)];
        // SAFETY: inside, by the caller's promise; the part is this function's own.
        unsafe { copy_out(from.add(at), part) };
        look(part);
        at += part.len();
    }
    Ok(())
}
