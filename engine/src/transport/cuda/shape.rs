//! Decides how a batch is copied: by one call for each piece, or by one kernel for many pieces. Pure.
//!
//! A call costs the CPU and the device a microsecond or two, whatever its size. So small pieces that are scattered on
//! the device but adjacent on the host cross the bus as one copy, from or to scratch memory on the device. A kernel
//! gathers or scatters them there:
//!
//! ```text
//! device   ▒▒  ▒▒    ▒▒ ▒▒      pieces
//!            ╲ │   ╱  ╱         kernel, in the device's own memory
//! scratch    ▒▒▒▒▒▒▒▒           one run, as it lies on the host
//!                ║              one copy across the bus
//! host       ▒▒▒▒▒▒▒▒
//! ```

use crate::device::{Direction, Piece};

/// Fewer pieces than this are copied one by one: starting a kernel costs as much as some copies.
pub const KERNEL_PIECES_MIN: usize = 8;
/// From this size on a copy takes longer than its call. An estimate from the bus's 50 GB/s.
pub const DIRECT_BYTES_MIN: u64 = 256 << 10;
/// The kernel moves vectors of this size if both sides are equally aligned to it.
const VECTOR_BYTES: u64 = 16;

/// Pieces that are adjacent on the host: `first` to `first + count - 1`, in `length` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: usize,
    pub count: usize,
    pub host: u64,
    pub length: u64,
    /// The run's offset in the scratch memory, with the same alignment to vectors as on the host.
    pub scratch: u64,
}

pub fn host_side(direction: Direction, piece: &Piece) -> u64 {
    match direction {
        Direction::DeviceToHost => piece.to,
        _ => piece.from,
    }
}

pub fn device_side(direction: Direction, piece: &Piece) -> u64 {
    match direction {
        Direction::DeviceToHost => piece.from,
        _ => piece.to,
    }
}

/// Joins pieces that are adjacent on both sides, and drops empty ones. Reuses `out`.
pub fn join(pieces: &[Piece], out: &mut Vec<Piece>) {
    out.clear();
    for piece in pieces.iter().filter(|piece| piece.length > 0) {
        match out.last_mut() {
            Some(last) if last.from + last.length == piece.from && last.to + last.length == piece.to => {
                last.length += piece.length;
            }
            _ => out.push(*piece),
        }
    }
}

/// Returns whether pieces of this number and size are worth a kernel.
pub fn are_scattered(pieces: &[Piece]) -> bool {
    let bytes: u64 = pieces.iter().map(|piece| piece.length).sum();
    pieces.len() >= KERNEL_PIECES_MIN && bytes / (pieces.len() as u64) < DIRECT_BYTES_MIN
}

/// Lays the runs on the host out in scratch memory. False if they do not fit into `scratch_bytes`, or are too many for
/// the kernel to pay off.
///
/// A run from the host may have gaps smaller than a vector (alignment of its blocks), which are copied along. A run to
/// the host may not, because the copy would overwrite the gaps.
pub fn runs(direction: Direction, pieces: &[Piece], scratch_bytes: u64, out: &mut Vec<Run>) -> bool {
    out.clear();
    let gap_max = if direction == Direction::HostToDevice { VECTOR_BYTES - 1 } else { 0 };
    let mut used = 0u64;
    for (at, piece) in pieces.iter().enumerate() {
        let host = host_side(direction, piece);
        match out.last_mut() {
            Some(run) if host >= run.host + run.length && host - run.host - run.length <= gap_max => {
                run.count += 1;
                run.length = host + piece.length - run.host;
            }
            _ => {
                let scratch = used.next_multiple_of(VECTOR_BYTES) + host % VECTOR_BYTES;
                out.push(Run { first: at, count: 1, host, length: piece.length, scratch });
            }
        }
        if let Some(run) = out.last() {
            used = run.scratch + run.length;
        }
    }
    used <= scratch_bytes && out.len() * 4 <= pieces.len()
}

/// Returns the kernel's grid: x over pieces, y over the bytes of a piece; as many blocks as keep the device busy.
pub fn grid(pieces: usize, bytes: u64, multiprocessors: u32) -> (u32, u32) {
    /// The least work for a block: four vectors for each of its 256 threads.
    const BLOCK_BYTES: u64 = 16 << 10;
    let x = (pieces as u32).min(1 << 16);
    let per_piece = (bytes / pieces.max(1) as u64).div_ceil(BLOCK_BYTES).clamp(1, 64) as u32;
    let wanted = (multiprocessors * 8).div_ceil(x.max(1));
    (x, per_piece.min(wanted).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(from: u64, to: u64, length: u64) -> Piece {
        Piece { to, from, length }
    }

    #[test]
    fn neighbours_are_joined_and_nothing_else() {
        let mut out = Vec::new();
        join(
            &[piece(0, 100, 8), piece(8, 108, 8), piece(16, 200, 0), piece(16, 117, 3), piece(20, 120, 1)],
            &mut out,
        );
        assert_eq!(out, [piece(0, 100, 16), piece(16, 117, 3), piece(20, 120, 1)]);
    }

    #[test]
    fn small_scattered_pieces_are_worth_a_kernel() {
        let many = |count: u64, length: u64| -> Vec<Piece> {
            (0..count).map(|i| piece(2 * i * length, i * length, length)).collect()
        };
        assert!(are_scattered(&many(8, 4096)));
        assert!(!are_scattered(&many(7, 4096)));
        assert!(are_scattered(&many(8, DIRECT_BYTES_MIN - 1)));
        assert!(!are_scattered(&many(8, DIRECT_BYTES_MIN)));
        assert!(!are_scattered(&[]));
    }

    #[test]
    fn runs_are_as_the_host_has_them_and_keep_their_place_in_a_vector() {
        let pieces: Vec<Piece> = (0..8).map(|i| piece(i * 64, 1000 + i * 32, 32)).collect();
        let mut out = Vec::new();
        assert!(runs(Direction::DeviceToHost, &pieces, 264, &mut out));
        assert_eq!(out, [Run { first: 0, count: 8, host: 1000, length: 256, scratch: 8 }]);
        assert!(!runs(Direction::DeviceToHost, &pieces, 263, &mut out), "8 of alignment and 256");
    }

    #[test]
    fn gaps_are_read_along_and_never_written() {
        let gap = |bytes: u64| -> Vec<Piece> {
            (0..8).map(|i| piece(i * (32 + bytes), 4096 + i * (32 + bytes), 32)).collect()
        };
        let mut out = Vec::new();
        assert!(runs(Direction::HostToDevice, &gap(15), 1 << 20, &mut out));
        assert_eq!((out.len(), out[0].length), (1, 8 * 47 - 15));
        assert!(!runs(Direction::HostToDevice, &gap(16), 1 << 20, &mut out), "eight runs of eight pieces");
        assert!(!runs(Direction::DeviceToHost, &gap(1), 1 << 20, &mut out));
    }

    #[test]
    fn two_runs_do_not_share_scratch() {
        let mut pieces: Vec<Piece> = (0..4).map(|i| piece(i * 64, 7 + i * 10, 10)).collect();
        pieces.extend((0..4).map(|i| piece(4096 + i * 64, 9001 + i * 10, 10)));
        let mut out = Vec::new();
        assert!(runs(Direction::DeviceToHost, &pieces, 1 << 20, &mut out));
        assert_eq!(
            out.iter().map(|run| (run.scratch, run.length)).collect::<Vec<_>>(),
            [(7, 40), (48 + 9, 40)]
        );
        // One more would be more runs than a quarter.
        pieces.push(piece(9000, 20_000, 10));
        assert!(!runs(Direction::DeviceToHost, &pieces, 1 << 20, &mut out));
    }

    #[test]
    fn the_grid_covers_few_large_and_many_small_pieces() {
        assert_eq!(grid(1024, 1024 * 65536, 132), (1024, 2));
        assert_eq!(grid(8, 8 * 131_072, 132), (8, 8));
        assert_eq!(grid(8, 8, 132), (8, 1));
        assert_eq!(grid(1 << 20, 1 << 20, 132), (1 << 16, 1));
    }
}
