//! The memory of one transfer, gathered or scattered, cut to the limits of a system call.

/// The parts of a transfer that go in one call with its blocks.
pub const HEADER_BYTES: usize = 64;
/// Bytes per system call. 64 KiB loses 15 %; more than 1 MiB gains nothing.
const CALL_BYTES_MAX: usize = 1 << 20;
/// The kernel takes no more buffers in one call.
const CALL_IOVECS_MAX: usize = libc::UIO_MAXIOV as usize;
/// Memory still to be sent or received, in order. Reused from transfer to transfer.
#[derive(Default)]
pub struct Pieces {
    iovecs: Vec<libc::iovec>,
    first: usize,
    bytes: usize,
}

impl Pieces {
    /// Appends a range, joined to the last one if they touch, and cut if a call would be too long.
    ///
    /// # Safety
    /// The range must stay valid, for writing if these pieces are received into, until they are used
    /// up or cleared.
    pub unsafe fn push(&mut self, mut base: *mut u8, mut bytes: usize) {
        self.bytes += bytes;
        while bytes > 0 {
            let joined = match self.iovecs[self.first..].last_mut() {
                Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
                    let room = CALL_BYTES_MAX - last.iov_len.min(CALL_BYTES_MAX);
                    let joined = room.min(bytes);
                    last.iov_len += joined;
                    joined
                }
                _ => 0,
            };
            base = base.wrapping_add(joined);
            bytes -= joined;
            if bytes > 0 {
                let cut = bytes.min(CALL_BYTES_MAX);
                self.iovecs.push(libc::iovec { iov_base: base.cast(), iov_len: cut });
                base = base.wrapping_add(cut);
                bytes -= cut;
            }
        }
    }

    /// Returns the bytes still to be moved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn clear(&mut self) {
        self.iovecs.clear();
        (self.first, self.bytes) = (0, 0);
    }

    /// Returns the pieces of the next call: at least one piece, if any is left.
    pub fn window(&mut self) -> &mut [libc::iovec] {
        let rest = &mut self.iovecs[self.first..];
        let mut bytes = 0;
        let mut count = 0;
        for piece in rest.iter().take(CALL_IOVECS_MAX) {
            bytes += piece.iov_len;
            if count > 0 && bytes > CALL_BYTES_MAX + HEADER_BYTES {
                break;
            }
            count += 1;
        }
        &mut rest[..count]
    }

    pub fn advance(&mut self, mut moved: usize) {
        self.bytes -= moved;
        while let Some(piece) = self.iovecs.get_mut(self.first) {
            if moved < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(moved);
                piece.iov_len -= moved;
                return;
            }
            moved -= piece.iov_len;
            self.first += 1;
        }
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(pieces: &mut Pieces) -> Vec<usize> {
        pieces.iovecs[pieces.first..].iter().map(|piece| piece.iov_len).collect()
    }

    #[test]
    fn touching_ranges_join_and_long_ones_are_cut() {
        let mut memory = vec![0u8; 3 << 20];
        let base = memory.as_mut_ptr();
        let mut pieces = Pieces::default();
        // SAFETY: all inside `memory`, and never handed to the kernel.
        unsafe {
            pieces.push(base, 100);
            pieces.push(base.add(100), 28);
            pieces.push(base.add(200), CALL_BYTES_MAX + 5);
        }
        assert_eq!(shape(&mut pieces), [128, CALL_BYTES_MAX, 5]);
        assert_eq!(pieces.window().len(), 1, "a second piece would exceed the call's bytes");
    }

    #[test]
    fn advancing_stops_anywhere_and_ends_empty() {
        let mut memory = [0u8; 64];
        let base = memory.as_mut_ptr();
        let mut pieces = Pieces::default();
        // SAFETY: all inside `memory`, and never handed to the kernel.
        unsafe {
            pieces.push(base, 10);
            pieces.push(base.add(20), 10);
        }
        pieces.advance(3);
        assert_eq!(shape(&mut pieces), [7, 10]);
        pieces.advance(7);
        assert_eq!(shape(&mut pieces), [10]);
        pieces.advance(10);
        assert_eq!((pieces.bytes, pieces.iovecs.len()), (0, 0));
    }

    #[test]
    fn a_window_never_exceeds_the_kernels_limit() {
        let mut memory = vec![0u8; 4_096];
        let base = memory.as_mut_ptr();
        let mut pieces = Pieces::default();
        for index in 0..2_000 {
            // SAFETY: inside `memory`, and never handed to the kernel.
            unsafe { pieces.push(base.add(index * 2), 1) };
        }
        assert_eq!(pieces.window().len(), CALL_IOVECS_MAX);
    }
}
