//! The simulated side of `sys::guarded`: copies by the kernel, piece by piece.

use super::copy::Piece;
use super::racing::pieces;
use ferry_sim_kernel::memory::{copied, is_reachable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted;

/// # Safety
/// As in the product.
pub unsafe fn put(to: *mut u8, from: &[u8]) -> Result<(), Faulted> {
    // SAFETY: the caller's promise.
    unsafe { put_shared(to, from.as_ptr(), from.len()) }
}

/// # Safety
/// As in the product.
pub unsafe fn put_shared(to: *mut u8, from: *const u8, length: usize) -> Result<(), Faulted> {
    pieces(to as usize, length, |at, length| {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        if !is_reachable(to as u64, length, true) {
            return Err(Faulted);
        }
        // SAFETY: the pages are there, and no other task runs before the copy; otherwise the caller's promise.
        unsafe { copied(from, to, length, "write") };
        Ok(())
    })
}

/// # Safety
/// As in the product.
pub unsafe fn get(from: *const u8, into: &mut [u8]) -> Result<(), Faulted> {
    // SAFETY: the caller's promise.
    unsafe { get_shared(from, into.as_mut_ptr(), into.len()) }
}

/// # Safety
/// As in the product.
pub unsafe fn get_shared(from: *const u8, to: *mut u8, length: usize) -> Result<(), Faulted> {
    pieces(from as usize, length, |at, length| {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        if !is_reachable(from as u64, length, false) {
            return Err(Faulted);
        }
        // SAFETY: as in `put`.
        unsafe { copied(from, to, length, "read") };
        Ok(())
    })
}

/// # Safety
/// As in the product.
pub unsafe fn copy_all(all: impl Iterator<Item = Piece>) -> Result<(), usize> {
    for (at, Piece { from, to, length }) in all.enumerate() {
        let copied = pieces(to as usize, length, |offset, length| {
            let (from, to) = (from.wrapping_add(offset), to.wrapping_add(offset));
            if !is_reachable(from as u64, length, false) || !is_reachable(to as u64, length, true) {
                return Err(Faulted);
            }
            // SAFETY: as in `put`.
            unsafe { copied(from, to, length, "copy") };
            Ok(())
        });
        copied.map_err(|Faulted| at)?;
    }
    Ok(())
}
