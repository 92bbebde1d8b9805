//! Tests of whole handshakes in memory: every authentication mode and every failure. `same_user` tests same-user
//! proofs, `tampering` a man in the middle; `support` has the pump.

mod modes;
mod same_user;
pub(crate) mod support;
mod tampering;

use super::wire::{KIND_CONTROL, WIRE_VERSION};
use super::*;
use crate::status::Status;
use crate::types::Boottime;
use support::*;

fn error(end: End) -> HandshakeError {
    end.expect("the handshake did not end").unwrap_err()
}

fn proof() -> Proof {
    Proof { key: Key::from([0x5a; 32]), pid: 4321, uid: 1000 }
}

/// Returns engine `n` with the given secret, same-user offer and permission for sessions without proof.
fn policy(n: u8, secret: Option<u8>, same_user: bool, allow_unauthenticated: bool) -> Local {
    let mut local = secret.map_or_else(|| local(n), |byte| with_secret(n, byte));
    local.auth = AuthPolicy { same_user, allow_unauthenticated, ..local.auth };
    local
}

/// Returns the five policies to combine: secret; secret or none; same user; same user or none; none.
fn policies(n: u8) -> [Local; 5] {
    [
        policy(n, Some(9), true, false),
        policy(n, Some(9), true, true),
        policy(n, None, true, false),
        policy(n, None, true, true),
        policy(n, None, false, true),
    ]
}

fn same_identity(identity: &Identity, local: &Local, boottime_ns: Boottime) {
    let expected = Identity {
        engine_id: local.engine_id,
        incarnation: local.incarnation,
        place: local.place,
        process: local.process,
        address: local.address.clone(),
        tag: local.tag,
        lanes_max: local.lanes_max,
        frame_bytes_max: local.frame_bytes_max,
        reads_max: local.reads_max,
        notify_credits: local.notify_credits,
        boottime_ns,
    };
    assert_eq!(identity, &expected);
}

fn agree(dialer: &Established, acceptor: &Established) {
    assert_eq!(dialer.session_id, acceptor.session_id);
    assert_eq!(dialer.lane_key.bytes(), acceptor.lane_key.bytes());
    assert_eq!(dialer.auth, acceptor.auth);
}

#[test]
fn all_policies_meet_as_they_should_in_pieces_of_any_size() {
    const SAME: Auth = Auth::SameUser { pid: 4321, uid: 1000 };
    let (s, u, n) = (Some(Auth::Secret), Some(SAME), Some(Auth::None));
    let expected = [
        [s, s, None, None, None],
        [s, s, None, n, n],
        [None, None, u, u, None],
        [None, n, u, u, n],
        [None, n, None, n, n],
    ];
    for (row, a) in policies(1).iter().enumerate() {
        for (column, b) in policies(2).iter().enumerate() {
            for piece in [usize::MAX, 1, 7, 100] {
                let wire = Wire { piece, proof: Some(proof()), ..Wire::default() };
                let (dialer, acceptor) = Pump::new(a, b, wire).run().ends;
                let Some(auth) = expected[row][column] else {
                    for end in [error(dialer), error(acceptor)] {
                        assert_eq!(end.refusal, Some(RefusalCode::AuthRequired), "{row} {column}");
                        assert_eq!(end.error.status, Status::Refused);
                    }
                    continue;
                };
                let (dialer, acceptor) = (dialer.unwrap().unwrap(), acceptor.unwrap().unwrap());
                agree(&dialer, &acceptor);
                assert_eq!(dialer.auth, auth, "{row} {column}");
                same_identity(&dialer.peer, b, ACCEPTOR_NS);
                same_identity(&acceptor.peer, a, DIALER_NS);
            }
        }
    }
}

#[test]
fn sessions_differ_and_their_channels_work_both_ways() {
    let (mut dialer, mut acceptor) = established();
    let (other, _) = established();
    assert_ne!(dialer.session_id, other.session_id);
    assert_ne!(dialer.lane_key.bytes(), other.lane_key.bytes());
    assert_ne!(dialer.lane_key.bytes()[..16], dialer.session_id.0);
    let mut wire = Vec::new();
    dialer.channel.seal(b"there", &mut wire).unwrap();
    assert_eq!(acceptor.channel.open(&mut wire).unwrap().unwrap(), b"there");
    acceptor.channel.seal(b"and back", &mut wire).unwrap();
    assert_eq!(dialer.channel.open(&mut wire).unwrap().unwrap(), b"and back");
}

#[test]
fn a_wrong_secret_is_refused_on_both_sides() {
    let pump = Pump::new(&with_secret(1, 9), &with_secret(2, 8), Wire::default()).run();
    for end in [error(pump.ends.0), error(pump.ends.1)] {
        assert_eq!((end.error.status, end.refusal), (Status::Refused, Some(RefusalCode::BadSecret)));
        assert!(end.error.message.contains("different secrets"));
    }
}

#[test]
fn an_acceptor_without_the_secret_is_not_believed() {
    // The impostor forwards a real HELLO but cannot answer OPEN; the dialer refuses every invented answer.
    let (mut dialer, first) = Dialer::start(&with_secret(1, 9)).unwrap();
    let mut real = Acceptor::new(&with_secret(2, 9)).unwrap();
    let hello = real.input(&first, &mut |_| None, Boottime::ZERO).unwrap().output;
    let _ = dialer.input(&hello, Boottime::ZERO).unwrap();
    let mut answer = Vec::new();
    wire::put_frame(&mut answer, wire::FrameType::Answer, &[7; 120]);
    let refused = dialer.input(&answer, Boottime::ZERO).unwrap_err();
    assert_eq!((refused.error.status, refused.refusal), (Status::Refused, Some(RefusalCode::BadSecret)));
    assert_eq!(dialer.input(&answer, Boottime::ZERO).unwrap_err().error.status, Status::Closed);
}

#[test]
fn an_engine_that_dials_itself_notices() {
    let pump = Pump::new(&with_secret(1, 9), &with_secret(1, 9), Wire::default()).run();
    assert_eq!(error(pump.ends.0).error.status, Status::Invalid);
    assert_eq!(error(pump.ends.1).error.status, Status::Invalid);
    let reborn = Local { incarnation: 5, ..with_secret(1, 9) };
    assert!(Pump::new(&with_secret(1, 9), &reborn, Wire::default()).run().ends.0.unwrap().is_ok());
}

/// Positions in a stream whose first frame is a HELLO: preamble 7, length 2, type 1, then the versions.
const VERSION_MIN_AT: usize = 10;
const VERSION_MAX_AT: usize = 12;

#[test]
fn version_ranges_that_do_not_meet_are_named_on_both_sides() {
    let ours = WIRE_VERSION as u8;
    let (later, versions) =
        (ours + 1, [format!("{} to {}", ours + 1, ours + 2), format!("{ours} to {ours}")]);
    for from_dialer in [true, false] {
        let alter = move |dialer: bool, at: usize, byte: &mut u8| match at {
            VERSION_MIN_AT if dialer == from_dialer => *byte = later,
            VERSION_MAX_AT if dialer == from_dialer => *byte = later + 1,
            _ => (),
        };
        let wire = Wire { alter: Box::new(alter), ..Wire::default() };
        let pump = Pump::new(&with_secret(1, 9), &with_secret(2, 9), wire).run();
        for end in [error(pump.ends.0), error(pump.ends.1)] {
            assert_eq!((end.error.status, end.refusal), (Status::Version, Some(RefusalCode::Version)));
            assert!(versions.iter().all(|range| end.error.message.contains(range)), "{}", end.error.message);
        }
    }
}

#[test]
fn a_refusal_reaches_the_dialer_at_any_moment() {
    for &code in RefusalCode::ALL {
        let (mut dialer, _) = Dialer::start(&with_secret(1, 9)).unwrap();
        let refused = dialer.input(&refusal(code), Boottime::ZERO).unwrap_err();
        assert_eq!((refused.refusal, refused.error.status), (Some(code), code.status()));
        // After its HELLO, an acceptor sends the same refusal.
        let (mut dialer, first) = Dialer::start(&with_secret(1, 9)).unwrap();
        let mut acceptor = Acceptor::new(&with_secret(2, 9)).unwrap();
        let mut bytes = acceptor.input(&first, &mut |_| None, Boottime::ZERO).unwrap().output;
        bytes.extend(refusal(code));
        assert_eq!(dialer.input(&bytes, Boottime::ZERO).unwrap_err().refusal, Some(code));
    }
    let wire = Wire { turn_down: Some(RefusalCode::Duplicate), ..Wire::default() };
    let pump = Pump::new(&with_secret(1, 9), &with_secret(2, 9), wire).run();
    let end = error(pump.ends.0);
    assert_eq!((end.error.status, end.refusal), (Status::Refused, Some(RefusalCode::Duplicate)));
}

#[test]
fn strangers_are_told_apart_from_broken_engines() {
    let mut acceptor = Acceptor::new(&with_secret(2, 9)).unwrap();
    let stray = acceptor.input(b"GET / HTTP/1.1\r\n", &mut |_| None, Boottime::ZERO).unwrap_err();
    assert_eq!((stray.error.status, stray.reply.len()), (Status::NotFerry, 0));
    let (mut dialer, _) = Dialer::start(&with_secret(1, 9)).unwrap();
    assert_eq!(dialer.input(b"SSH-2.0-", Boottime::ZERO).unwrap_err().error.status, Status::NotFerry);
    let oversized = [&preamble(KIND_CONTROL)[..], &[0x01, 0x04, 1]].concat();
    let mut acceptor = Acceptor::new(&with_secret(2, 9)).unwrap();
    let broken = acceptor.input(&oversized, &mut |_| None, Boottime::ZERO).unwrap_err();
    assert_eq!((broken.error.status, broken.refusal), (Status::Corrupt, Some(RefusalCode::Malformed)));
}

#[test]
fn a_truncated_handshake_waits_and_claims_nothing() {
    let whole = Pump::new(&with_secret(1, 9), &with_secret(2, 9), Wire::default()).run().sent.0;
    for length in 0..whole.len() {
        let mut acceptor = Acceptor::new(&with_secret(2, 9)).unwrap();
        // A HELLO of another handshake: its OPEN does not fit ours, which has a new nonce.
        match acceptor.input(&whole[..length], &mut |_| None, Boottime::ZERO) {
            Ok(step) => assert!(matches!(step.next, Next::More)),
            Err(replayed) => assert_eq!(replayed.refusal, Some(RefusalCode::BadSecret)),
        }
    }
}

#[test]
fn what_follows_the_handshake_is_left_for_the_channel() {
    let (mut dialer, first) = Dialer::start(&with_secret(1, 9)).unwrap();
    let mut acceptor = Acceptor::new(&with_secret(2, 9)).unwrap();
    let none: &mut acceptor::Proofs = &mut |_| None;
    let hello = acceptor.input(&first, none, Boottime::ZERO).unwrap().output;
    let open = dialer.input(&hello, Boottime::ZERO).unwrap().output;
    let answer = acceptor.input(&open, none, Boottime::ZERO).unwrap().output;
    let confirm = dialer.input(&answer, Boottime::ZERO).unwrap().output;
    let HandshakeStep { mut output, next: Next::Done(mut at_acceptor) } =
        acceptor.input(&confirm, none, Boottime::ZERO).unwrap()
    else {
        panic!("not done")
    };
    at_acceptor.channel.seal(b"first", &mut output).unwrap();
    at_acceptor.channel.seal(b"second", &mut output).unwrap();
    let Next::Done(mut at_dialer) = dialer.input(&output, Boottime::ZERO).unwrap().next else {
        panic!("not done")
    };
    let mut leftover = dialer.leftover();
    assert_eq!(at_dialer.channel.open(&mut leftover).unwrap().unwrap(), b"first");
    assert_eq!(at_dialer.channel.open(&mut leftover).unwrap().unwrap(), b"second");
    assert!(leftover.is_empty() && acceptor.leftover().is_empty());
    assert_eq!(dialer.input(b"more", Boottime::ZERO).unwrap_err().error.status, Status::Closed);
}

#[test]
fn handshakes_and_channels_can_move_between_threads() {
    fn sendable<T: Send>() {}
    sendable::<Dialer>();
    sendable::<Acceptor>();
    sendable::<Established>();
}
