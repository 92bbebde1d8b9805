//! `sys::copy` copies every byte and touches none beside the target, for every alignment and length.

use super::*;

/// Room for every offset and length tried, and for guard bytes around them.
const ROOM: usize = 2 * STREAM_BYTES_MIN + 8_192;
const GUARD: u8 = 0xA5;

/// Makes bytes that do not repeat within 251.
fn source(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 % 251) as u8).collect()
}

/// Checks a copy, and that the bytes around the target are unchanged.
fn assert_copied(from: &[u8], to: &[u8], at: usize, what: &str) {
    assert!(to[..at].iter().all(|&byte| byte == GUARD), "{what}: bytes before");
    assert_eq!(&to[at..at + from.len()], from, "{what}");
    assert!(to[at + from.len()..].iter().all(|&byte| byte == GUARD), "{what}: bytes after");
}

fn copy_at(from: &[u8], to: &mut [u8], at: usize) {
    assert!(at + from.len() <= to.len());
    // SAFETY: two live allocations of this test, and the range fits (asserted).
    unsafe { copy_all(&[Piece { from: from.as_ptr(), to: to.as_mut_ptr().add(at), length: from.len() }]) };
}

/// Lengths on both sides of every step that a copy takes.
fn lengths() -> Vec<usize> {
    let steps = [0, 16, 64, PIECE_BYTES_MIN, 512, 1_024, 4_096, STREAM_BYTES_MIN, STREAM_BYTES_MIN + 512];
    let around = steps.iter().flat_map(|&step| [step.wrapping_sub(1), step, step + 1, step + 63, step + 65]);
    around.filter(|&length| length < 2 * STREAM_BYTES_MIN).collect()
}

#[test]
fn lengths_around_every_step_at_a_few_alignments() {
    let data = source(ROOM);
    let mut to = vec![GUARD; ROOM];
    for length in lengths() {
        for (here, there) in [(0, 0), (1, 64), (0, 1), (17, 63), (63, 31)] {
            let from = &data[here..here + length];
            copy_at(from, &mut to, there);
            assert_copied(from, &to, there, &format!("{length} bytes from {here} to {there}"));
            to[there..there + length].fill(GUARD);
        }
    }
}

#[test]
fn every_alignment_of_a_streamed_copy() {
    let length = STREAM_BYTES_MIN + 77;
    let data = source(ROOM);
    let mut to = vec![GUARD; ROOM];
    for there in 0..64 {
        for here in [0, 1, 8, 32, 63] {
            let from = &data[here..here + length];
            copy_at(from, &mut to, there);
            assert_copied(from, &to, there, &format!("from {here} to {there}"));
            to[there..there + length].fill(GUARD);
        }
    }
}

/// Lists above and below the threshold, with pieces of all lengths, not in the order of their addresses.
#[test]
fn lists_of_pieces_leave_the_gaps_alone() {
    for count in [0, 1, 7, 1_500] {
        let mut data = Vec::new();
        let mut places = Vec::new();
        let mut end = 3;
        for index in 0..count {
            let length = index * 37 % 600;
            places.push((data.len(), end, length));
            data.extend(source(length + index % 5));
            end += length + 1 + index % 67;
        }
        let mut to = vec![GUARD; end + 64];
        let base = to.as_mut_ptr();
        let piece = |&(here, there, length): &(usize, usize, usize)| Piece {
            from: data[here..].as_ptr(),
            to: base.wrapping_add(there),
            length,
        };
        let pieces: Vec<Piece> = places.iter().rev().map(piece).collect();
        // SAFETY: each piece lies within `data` and `to`, by construction.
        unsafe { copy_all(&pieces) };
        let mut expected = vec![GUARD; to.len()];
        for (here, there, length) in places {
            expected[there..there + length].copy_from_slice(&data[here..here + length]);
        }
        assert!(to == expected, "{count} pieces");
    }
}

/// The other tests use the widest kernel of this CPU; the narrower ones must be right too.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_kernel_of_this_cpu() {
    let mut kernels: Vec<(&str, x86::Kernel)> = vec![("sse2", x86::sse2)];
    if is_x86_feature_detected!("avx2") {
        kernels.push(("avx2", x86::avx2));
    }
    if is_x86_feature_detected!("avx512f") {
        kernels.push(("avx512", x86::avx512));
    }
    let data = source(ROOM);
    let mut to = vec![GUARD; ROOM];
    for (name, kernel) in kernels {
        for length in [PIECE_BYTES_MIN, 511, 512, 513, 575, 576, 1_023, 1_024, 4_096, 9_999] {
            for there in [0, 1, 63, 64] {
                let from = &data[there / 2..there / 2 + length];
                let piece = Piece { from: from.as_ptr(), to: to.as_mut_ptr().wrapping_add(there), length };
                // SAFETY: both ranges lie in live allocations, and the CPU has the kernel's feature.
                unsafe { stream(kernel, piece) };
                x86::fence();
                assert_copied(from, &to, there, &format!("{name}: {length} bytes to {there}"));
                to[there..there + length].fill(GUARD);
            }
        }
    }
}
