//! Tests that a third party between the ends can stop a handshake, and nothing more: no altered byte leads to two
//! sessions that differ, and no input causes a panic or unbounded memory.

use super::super::wire::{INPUT_BYTES_MAX, KIND_CONTROL};
use super::super::*;
use super::support::*;
use super::{policies, proof};
use crate::types::Boottime;
use proptest::prelude::*;

/// Returns the positions of the frames' length prefixes. A changed length may leave a side waiting until its driver's
/// deadline.
fn length_positions(stream: &[u8]) -> Vec<usize> {
    let mut positions = Vec::new();
    let mut at = 7;
    while at + 2 <= stream.len() {
        positions.extend([at, at + 1]);
        at += 2 + u16::from_le_bytes([stream[at], stream[at + 1]]) as usize;
    }
    positions
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let secret = (with_secret(1, 9), with_secret(2, 9));
    let [_, _, strict, _, lenient] = policies(1);
    let [_, _, strict_b, _, lenient_b] = policies(2);
    for (a, b) in [secret, (strict, strict_b), (lenient, lenient_b)] {
        let wire = || Wire { proof: Some(proof()), ..Wire::default() };
        let sent = Pump::new(&a, &b, wire()).run().sent;
        for (target, stream) in [(true, &sent.0), (false, &sent.1)] {
            let lengths = length_positions(stream);
            for bit in 0..stream.len() * 8 {
                let alter = |from_dialer: bool, at: usize, byte: &mut u8| {
                    if from_dialer == target && at == bit / 8 {
                        *byte ^= 1 << (bit % 8);
                    }
                };
                let ends = Pump::new(&a, &b, Wire { alter: Box::new(alter), ..wire() }).run().ends;
                let failed = |end: &End| matches!(end, Some(Err(_)));
                let waits = ends.0.is_none() && lengths.contains(&(bit / 8));
                assert!(
                    failed(&ends.0) || failed(&ends.1) || waits,
                    "bit {bit} from {}: {ends:?}",
                    if target { "the dialer" } else { "the acceptor" }
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::cases::most(256))]

    #[test]
    fn garbage_neither_panics_nor_establishes_nor_piles_up(
        ferry in any::<bool>(),
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..40),
    ) {
        let mut acceptor = Acceptor::new(&policies(2)[4]).unwrap();
        let (mut dialer, _) = Dialer::start(&policies(1)[4]).unwrap();
        let opening = if ferry { preamble(KIND_CONTROL).to_vec() } else { Vec::new() };
        for chunk in std::iter::once(&opening).chain(&chunks) {
            if let Ok(step) = acceptor.input(chunk, &mut |_| Some(proof()), Boottime::ZERO) {
                prop_assert!(!matches!(step.next, Next::Done(_)));
            }
            if let Ok(step) = dialer.input(chunk, Boottime::ZERO) {
                prop_assert!(!matches!(step.next, Next::Done(_)));
            }
            prop_assert!(acceptor.buffered_capacity() <= 2 * INPUT_BYTES_MAX);
            prop_assert!(dialer.buffered_capacity() <= 2 * INPUT_BYTES_MAX);
        }
    }

    #[test]
    fn random_changes_never_lead_to_two_sessions_that_disagree(
        modes in (0usize..5, 0usize..5),
        piece in 1usize..600,
        changes in prop::collection::vec((any::<bool>(), 0usize..500, any::<u8>()), 0..6),
    ) {
        let alter = |from_dialer: bool, at: usize, byte: &mut u8| {
            for (direction, position, value) in &changes {
                if (*direction, *position) == (from_dialer, at) {
                    *byte = *value;
                }
            }
        };
        let wire = Wire { piece, alter: Box::new(alter), proof: Some(proof()), turn_down: None };
        let pump = Pump::new(&policies(1)[modes.0], &policies(2)[modes.1], wire).run();
        if let (Some(Ok(dialer)), Some(Ok(acceptor))) = &pump.ends {
            prop_assert_eq!(dialer.session_id, acceptor.session_id);
            prop_assert_eq!(dialer.lane_key.bytes(), acceptor.lane_key.bytes());
            prop_assert_eq!(dialer.auth, acceptor.auth);
        }
    }
}
