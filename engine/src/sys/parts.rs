//! Looks at memory that others write, part by part, through copies (`racing`).

use super::racing::copy_out;

/// The size of the parts: small enough for the stack and the nearest cache.
pub(super) const PART_BYTES: usize = 4096;

/// Calls `look` with the bytes part by part, each as it was when it was copied.
///
/// # Safety
/// As for `racing::copy_out`.
pub unsafe fn for_each_part(from: *const u8, length: usize, mut look: impl FnMut(&[u8])) {
    let mut part = [0; PART_BYTES];
    let mut at = 0;
    while at < length {
        let part = &mut part[..PART_BYTES.min(length - at)];
        // SAFETY: inside, by the caller's promise; the part is this function's own.
        unsafe { copy_out(from.add(at), part) };
        look(part);
        at += part.len();
    }
}
