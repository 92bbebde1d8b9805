//! The simulated side of `sys::copy`. As in `racing`, a copy goes piece by piece, and other tasks may run between them.

use ferry_sim_kernel::memory::copied;
use ferry_sim_kernel::point;

/// The bytes that are copied before other tasks may run.
const PIECE_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: *const u8,
    pub to: *mut u8,
    pub length: usize,
}

/// # Safety
/// As in the product.
pub unsafe fn copy_all(pieces: &[Piece]) {
    for piece in pieces {
        let mut done = 0;
        while done < piece.length {
            point();
            let length = PIECE_BYTES.min(piece.length - done);
            // SAFETY: inside, by the caller's promise.
            unsafe { copied(piece.from.add(done), piece.to.add(done), length, "copy") };
            done += length;
        }
    }
}
