//! Copies between mapped ranges, with the method chosen by size. Used if both ends' memory is mapped in this process.
//!
//! Small copies use `memcpy`: their data is usually in the cache, and stays there for the next reader. From
//! `STREAM_BYTES_MIN` on, stores are non-temporal: they bypass the cache and save reading each line before it is
//! overwritten, which `memcpy` costs for uncached memory. docs/decisions/same-host.md has the figures.
//!
//! These stores are no atomics. One side of a copy belongs to another process, whose accesses Rust does not see: they
//! are like a device's. The other side is memory of this program, and the language defines no result if a thread of
//! this process accesses the same bytes meanwhile, even by the atomic loads of `racing`: a program that reads what a
//! running READ writes has that race with any transport. In practice each byte is old or new, because the compiler
//! knows nothing of either address and the CPUs store whole bytes. A non-temporal store may be seen later than an
//! atomic store that follows it, until the fence at the end of `copy_all`. So only the end of a transfer, which comes
//! after the fence, shows that the bytes are there.

/// From this many bytes in one call, stores bypass the cache. Below that, `memcpy` is four times faster in the cache,
/// and a third slower out of it.
pub const STREAM_BYTES_MIN: usize = 64 << 10;
/// Shorter pieces of a long list use `memcpy`: aligning them costs more than streaming gains.
const PIECE_BYTES_MIN: usize = 256;
/// How much of the next piece to prefetch before a piece is copied. The hardware recognises a stream only after some
/// lines, and each scattered piece is a new stream. Larger values gained nothing.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 1 << 10;

/// One range to copy.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: *const u8,
    pub to: *mut u8,
    pub length: usize,
}

/// Copies the pieces in order. The sum of their lengths decides the method, and they share one fence: for scattered
/// blocks this is much faster than one call each. The writes are visible to other threads and processes before any
/// later store of this thread.
///
/// # Safety
/// Both ranges of each piece are mapped, `from` for reading and `to` for writing, until this returns, and they do not
/// overlap. No reference to their bytes exists here; another process may change them meanwhile, and each byte is then
/// old or new. Where targets overlap, the order of the writes is not defined.
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
/// As for `copy_all`.
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
/// As for `copy_all`; the CPU has what `kernel` needs.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(kernel: x86::Kernel, piece: Piece) {
    let Piece { from, to, length } = piece;
    if length < PIECE_BYTES_MIN {
        // SAFETY: the caller's promise.
        return unsafe { plain(piece) };
    }
    // Non-temporal stores need whole aligned lines; the rest at both ends is stored as usual.
    let head = to.align_offset(x86::LINE_BYTES);
    let body = (length - head) / x86::LINE_BYTES * x86::LINE_BYTES;
    let tail = length - head - body;
    if head == 0 && tail == 0 {
        // Mostly blocks of whole pages. At 4 KiB the two empty copies would cost a sixth of the speed.
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
    use crate::sys::unforked::unforked;
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    pub const LINE_BYTES: usize = 64;
    /// Lines that are read before any is written: 8 was a few percent faster than 4, and 2 was slower.
    const LINES: usize = 8;

    /// Streams whole lines: from, to (at a line's start), bytes (whole lines).
    pub type Kernel = unsafe fn(*const u8, *mut u8, usize);

    /// Returns the widest kernel that this CPU supports.
    pub fn kernel() -> Kernel {
        static KERNEL: OnceLock<Kernel> = OnceLock::new();
        let widest = || -> Kernel {
            if is_x86_feature_detected!("avx512f") {
                avx512
            } else if is_x86_feature_detected!("avx2") {
                avx2
            } else {
                sse2
            }
        };
        *KERNEL.get().unwrap_or_else(|| unforked(|| KERNEL.get_or_init(widest)))
    }

    /// Prefetches the lines of a range, which need not be mapped.
    pub fn prefetch(from: *const u8, bytes: usize) {
        for offset in (0..bytes).step_by(LINE_BYTES) {
            // SAFETY: a hint; it has no effect on memory and does not fault. SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(offset).cast()) };
        }
    }

    /// Makes this thread's streamed stores visible before its later stores.
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
            // SAFETY: within `whole`, so within the ranges; a line's start is aligned for the stores.
            unsafe {
                let mut values = [_mm256_setzero_si256(); REGISTERS];
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
