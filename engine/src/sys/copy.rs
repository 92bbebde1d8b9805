//! Copies between mapped ranges, tuned for size: what moves data where both ends' memory is mapped here.
//!
//! A small copy is `memcpy`: what it moves is usually in the cache, and stays there for whoever looks at
//! it next. From `STREAM_BYTES_MIN` on the stores are non-temporal: they leave the cache alone and spare
//! the read of each line before it is overwritten, which `memcpy` pays for memory that is not cached.
//! docs/decisions/008-streaming-copies.md has the figures.

/// From this many bytes in one call, stores go past the cache. Below, and in the cache, `memcpy` is four
/// times faster; out of the cache it is a third slower.
pub const STREAM_BYTES_MIN: usize = 64 << 10;
/// Shorter pieces of a long list are left to `memcpy`: aligning them costs more than streaming gains.
const PIECE_BYTES_MIN: usize = 256;
/// So much of the next piece is asked for before a piece is copied: the hardware notices a stream only
/// after some lines, and each scattered piece is a new one. More gained nothing.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 1 << 10;

/// One range to copy.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: *const u8,
    pub to: *mut u8,
    pub length: usize,
}

/// Copies one range. What it wrote is visible to other threads and processes before anything that this
/// thread stores afterwards.
///
/// # Safety
/// Both ranges are mapped, `from` for reading and `to` for writing, until this returns, and they do not
/// overlap. No reference to their bytes exists here; another process may change them meanwhile, and each
/// byte is then old or new.
pub unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise, of the only piece.
    unsafe { copy_all(&[Piece { from, to, length }]) };
}

/// Copies the pieces in order. The sum of their lengths decides how, and they share one fence: for
/// scattered blocks much faster than a `copy` each.
///
/// # Safety
/// As for `copy`, of each piece. Where targets overlap, the order of the writes is not defined.
pub unsafe fn copy_all(pieces: &[Piece]) {
    let bytes = pieces.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.length));
    if bytes < STREAM_BYTES_MIN {
        for piece in pieces {
            // SAFETY: the caller's promise.
            unsafe { plain(*piece) };
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { stream_all(pieces) };
}

/// # Safety
/// As for `copy`.
unsafe fn plain(piece: Piece) {
    // SAFETY: valid and disjoint, as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(piece.from, piece.to, piece.length) };
}

/// # Safety
/// As for `copy_all`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_all(pieces: &[Piece]) {
    for piece in pieces {
        // SAFETY: the caller's promise.
        unsafe { plain(*piece) };
    }
}

/// # Safety
/// As for `copy_all`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_all(pieces: &[Piece]) {
    let kernel = x86::kernel();
    for (index, piece) in pieces.iter().enumerate() {
        if let Some(next) = pieces.get(index + 1) {
            x86::prefetch(next.from, next.length.min(PREFETCH_BYTES));
        }
        // SAFETY: the caller's promise.
        unsafe { stream(kernel, *piece) };
    }
    x86::fence();
}

/// Copies a piece with stores that wait for a fence.
///
/// # Safety
/// As for `copy`; the CPU has what `kernel` needs.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(kernel: x86::Kernel, piece: Piece) {
    let Piece { from, to, length } = piece;
    if length < PIECE_BYTES_MIN {
        // SAFETY: the caller's promise.
        return unsafe { plain(piece) };
    }
    // Non-temporal stores are of whole aligned lines; what is left at both ends is stored as usual.
    let head = to.align_offset(x86::LINE_BYTES);
    let body = (length - head) / x86::LINE_BYTES * x86::LINE_BYTES;
    let tail = length - head - body;
    if head == 0 && tail == 0 {
        // Blocks of whole pages, mostly. At 4 KiB two empty copies cost a sixth of the speed.
        // SAFETY: the caller's promise; `to` is a line's start and `length` a whole number of lines.
        return unsafe { kernel(from, to, length) };
    }
    // SAFETY: the three parts lie one after the other within the piece; `to + head` is a line's start
    // and `body` a whole number of lines.
    unsafe {
        plain(Piece { from, to, length: head });
        kernel(from.add(head), to.add(head), body);
        plain(Piece { from: from.add(head + body), to: to.add(head + body), length: tail });
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    pub const LINE_BYTES: usize = 64;
    /// Lines that are read before any is written: 8 was a few percent better than 4, and 2 worse.
    const LINES: usize = 8;

    /// Streams whole lines: from, to (at a line's start), bytes (whole lines).
    pub type Kernel = unsafe fn(*const u8, *mut u8, usize);

    /// The widest that this CPU has.
    pub fn kernel() -> Kernel {
        static KERNEL: OnceLock<Kernel> = OnceLock::new();
        *KERNEL.get_or_init(|| {
            if is_x86_feature_detected!("avx512f") {
                avx512
            } else if is_x86_feature_detected!("avx2") {
                avx2
            } else {
                sse2
            }
        })
    }

    /// Asks for the lines of a range, which need not be mapped.
    pub fn prefetch(from: *const u8, bytes: usize) {
        for offset in (0..bytes).step_by(LINE_BYTES) {
            // SAFETY: a hint; it has no effect on memory and does not fault. SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(offset).cast()) };
        }
    }

    /// Streamed stores of this thread become visible before what it stores afterwards.
    pub fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() };
    }

    /// In assembly, because the intrinsics are newer than the oldest Rust that we build with. The upper
    /// sixteen registers need no vzeroupper.
    ///
    /// # Safety
    /// As `Kernel`; the ranges are those of `copy`, and the CPU has AVX-512F.
    pub unsafe fn avx512(mut from: *const u8, mut to: *mut u8, bytes: usize) {
        let rounds = bytes / (LINES * LINE_BYTES);
        if rounds > 0 {
            // SAFETY: reads and writes `rounds` times eight lines from the start of the ranges, which
            // have as many; every register it changes is named.
            unsafe {
                asm!(
                    "2:",
                    "vmovdqu64 zmm16, [{from}]",
                    "vmovdqu64 zmm17, [{from} + 64]",
                    "vmovdqu64 zmm18, [{from} + 128]",
                    "vmovdqu64 zmm19, [{from} + 192]",
                    "vmovdqu64 zmm20, [{from} + 256]",
                    "vmovdqu64 zmm21, [{from} + 320]",
                    "vmovdqu64 zmm22, [{from} + 384]",
                    "vmovdqu64 zmm23, [{from} + 448]",
                    "vmovntdq [{to}], zmm16",
                    "vmovntdq [{to} + 64], zmm17",
                    "vmovntdq [{to} + 128], zmm18",
                    "vmovntdq [{to} + 192], zmm19",
                    "vmovntdq [{to} + 256], zmm20",
                    "vmovntdq [{to} + 320], zmm21",
                    "vmovntdq [{to} + 384], zmm22",
                    "vmovntdq [{to} + 448], zmm23",
                    "add {from}, 512",
                    "add {to}, 512",
                    "dec {rounds}",
                    "jnz 2b",
                    from = inout(reg) from,
                    to = inout(reg) to,
                    rounds = inout(reg) rounds => _,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                    out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    options(nostack),
                );
            }
        }
        // SAFETY: the lines that remain, fewer than eight.
        unsafe { sse2(from, to, bytes % (LINES * LINE_BYTES)) };
    }

    /// # Safety
    /// As `Kernel`; the ranges are those of `copy`, and the CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(from: *const u8, to: *mut u8, bytes: usize) {
        const REGISTERS: usize = 8;
        const ROUND_BYTES: usize = REGISTERS * 32;
        let whole = bytes / ROUND_BYTES * ROUND_BYTES;
        for offset in (0..whole).step_by(ROUND_BYTES) {
            let mut values = [_mm256_setzero_si256(); REGISTERS];
            // SAFETY: within `whole`, so within the ranges; a line's start is aligned for the stores.
            unsafe {
                for (index, value) in values.iter_mut().enumerate() {
                    *value = _mm256_loadu_si256(from.add(offset + index * 32).cast());
                }
                for (index, value) in values.iter().enumerate() {
                    _mm256_stream_si256(to.add(offset + index * 32).cast(), *value);
                }
            }
        }
        // SAFETY: the lines that remain.
        unsafe { sse2(from.add(whole), to.add(whole), bytes - whole) };
    }

    /// # Safety
    /// As `Kernel`; the ranges are those of `copy`.
    pub unsafe fn sse2(from: *const u8, to: *mut u8, bytes: usize) {
        for offset in (0..bytes).step_by(LINE_BYTES) {
            // SAFETY: a whole line within the ranges, aligned at `to`. SSE2 is part of x86-64.
            unsafe {
                let value = |index: usize| _mm_loadu_si128(from.add(offset + index * 16).cast());
                let values = [value(0), value(1), value(2), value(3)];
                for (index, value) in values.into_iter().enumerate() {
                    _mm_stream_si128(to.add(offset + index * 16).cast(), value);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
