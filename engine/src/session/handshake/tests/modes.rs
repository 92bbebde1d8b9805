//! Tests of a dialer that opens in another mode than the HELLOs determine: without proof it would need no secret.

use super::super::hello::{Hello, Mode, Role};
use super::super::wire::{put_frame, FrameType, Frames};
use super::super::*;
use super::support::*;
use super::{policies, proof};
use crate::status::Status;

/// Returns the acceptor's result for an OPEN that is made for `mode`. A same-user proof exists.
fn open_in(mode: Mode, dialer: &Local, acceptor: &Local) -> HandshakeResult<HandshakeStep> {
    let mut accepting = Acceptor::new(acceptor).unwrap();
    let ours = Hello::new(dialer, Role::Dialer).unwrap();
    let answer = accepting.input(&ours.opening(), &mut |_| None, ACCEPTOR_NS)?.output;
    let mut frames = Frames::default();
    frames.push(&answer)?;
    let (_, raw) = frames.next()?.expect("a HELLO");
    let theirs = Hello::decode(&raw)?;
    let with_secret = with_secret(1, 9);
    let (psk, _) = noise::credentials(mode, &with_secret, Some(proof())).expect("all that any mode needs");
    let mut noise = noise::start(Role::Dialer, &ours, &theirs, mode, &psk)?;
    let mut payload = Vec::new();
    identity::encode(dialer, DIALER_NS, &mut payload);
    let mut fields = vec![mode as u8];
    noise::write(&mut noise, &payload, &mut fields)?;
    let mut out = Vec::new();
    put_frame(&mut out, FrameType::Open, &fields);
    accepting.input(&out, &mut |_| Some(proof()), ACCEPTOR_NS)
}

/// The mode is part of the prologue: even with one key for two modes, an OPEN of one mode fails in the other.
#[test]
fn ends_in_different_modes_do_not_understand_each_other() {
    let (a, b) = (with_secret(1, 9), with_secret(2, 9));
    let (dialer, acceptor) = (Hello::new(&a, Role::Dialer).unwrap(), Hello::new(&b, Role::Acceptor).unwrap());
    let key = Key::random().unwrap();
    let modes = [Mode::Secret, Mode::SameUser, Mode::None];
    for (ours, theirs) in modes.into_iter().flat_map(|ours| modes.map(|theirs| (ours, theirs))) {
        let mut from = noise::start(Role::Dialer, &dialer, &acceptor, ours, &key).unwrap();
        let mut to = noise::start(Role::Acceptor, &acceptor, &dialer, theirs, &key).unwrap();
        let mut open = Vec::new();
        noise::write(&mut from, b"open", &mut open).unwrap();
        assert_eq!(noise::read(&mut to, &open, theirs).is_ok(), ours == theirs, "{ours:?} {theirs:?}");
    }
}

#[test]
fn a_mode_that_was_not_agreed_is_refused_by_the_acceptor() {
    let mut refused = 0;
    for dialer in policies(1) {
        for acceptor in policies(2) {
            let hello = |local: &Local, role| Hello::new(local, role).unwrap();
            let agreement = hello(&dialer, Role::Dialer).agree(&hello(&acceptor, Role::Acceptor));
            let Ok(agreement) = agreement else { continue };
            for mode in [Mode::Secret, Mode::SameUser, Mode::None] {
                let result = open_in(mode, &dialer, &acceptor);
                if agreement.permits(mode) {
                    assert!(result.is_ok(), "{mode:?} after {agreement:?}: {result:?}");
                    continue;
                }
                let error = result.expect_err("a mode that was not agreed").error;
                assert_eq!(error.status, Status::Corrupt, "{mode:?} after {agreement:?}");
                assert!(error.message.contains("not agreed"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10);
}
