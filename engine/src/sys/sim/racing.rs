//! The simulated side of `sys::racing`. A copy goes piece by piece. Other tasks may run between two pieces, and each
//! piece is reported to the watchers of registered memory.

use ferry_sim_kernel::memory::copied;
use ferry_sim_kernel::point;
use std::convert::Infallible;

#[cfg(test)]
pub use crate::sys::parts::for_each_part;
pub use crate::sys::parts::{try_each_part, Unread};

const WORD: usize = size_of::<u64>();
/// The bytes that are copied before other tasks may run.
const PIECE_BYTES: usize = 1024;

/// Calls `copy` with the offset and the length of each piece, until one fails. Every piece but the first begins at a
/// word boundary.
pub(super) fn pieces<E>(
    address: usize,
    length: usize,
    mut copy: impl FnMut(usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let mut done = 0;
    while done < length {
        if done > 0 {
            point();
        }
        let piece = (PIECE_BYTES - (address + done) % WORD).min(length - done);
        copy(done, piece)?;
        done += piece;
    }
    Ok(())
}

/// # Safety
/// As in the product.
pub unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    let Ok(()) = pieces::<Infallible>(from as usize, into.len(), |at, length| {
        let to = into[at..][..length].as_mut_ptr();
        // SAFETY: inside, by the caller's promise and the bounds above.
        unsafe { copied(from.add(at), to, length, "read") };
        Ok(())
    });
}

/// # Safety
/// As in the product.
pub unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    let Ok(()) = pieces::<Infallible>(to as usize, from.len(), |at, length| {
        let from = from[at..][..length].as_ptr();
        // SAFETY: as in `copy_out`.
        unsafe { copied(from, to.add(at), length, "write") };
        Ok(())
    });
}
