//! Tests of handshakes with a key from AF_UNIX: in memory, and once over the sockets of `sys::unix`.

use super::super::*;
use super::support::*;
use super::{agree, error, policies, proof};
use crate::status::Status;
use crate::types::{Boottime, Monotonic};

#[test]
fn without_a_proof_it_ends_unless_both_allow_that() {
    let strict = Pump::new(&policies(1)[2], &policies(2)[3], Wire::default()).run();
    let (dialer, acceptor) = (error(strict.ends.0), error(strict.ends.1));
    assert!(dialer.error.message.contains("no such socket"));
    for end in [dialer, acceptor] {
        assert_eq!((end.error.status, end.refusal), (Status::Refused, Some(RefusalCode::SameUserFailed)));
    }
    let lenient = Pump::new(&policies(1)[3], &policies(2)[3], Wire::default()).run();
    let (dialer, acceptor) = (lenient.ends.0.unwrap().unwrap(), lenient.ends.1.unwrap().unwrap());
    agree(&dialer, &acceptor);
    assert_eq!(dialer.auth, Auth::None);
}

#[test]
fn a_proof_that_the_acceptor_did_not_issue_fails() {
    let (mut dialer, first) = Dialer::start(&policies(1)[2]).unwrap();
    let mut acceptor = Acceptor::new(&policies(2)[2]).unwrap();
    let hello = acceptor.input(&first, &mut |_| None, Boottime::ZERO).unwrap().output;
    let step = dialer.input(&hello, Boottime::ZERO).unwrap();
    let Next::ProveSameUser { name, nonce } = step.next else { panic!("no proof asked for") };
    assert_eq!(Some(name), local(2).unix_name);
    let open = dialer.proof(Ok(proof()), Boottime::ZERO).unwrap().output;
    let mut asked = None;
    let refused = acceptor.input(
        &open,
        &mut |nonce| {
            asked = Some(*nonce);
            Some(Proof { key: Key::from([1; 32]), ..proof() })
        },
        Boottime::ZERO,
    );
    assert_eq!(refused.unwrap_err().refusal, Some(RefusalCode::SameUserFailed));
    assert_eq!(asked, Some(nonce));
    assert_eq!(dialer.proof(Ok(proof()), Boottime::ZERO).unwrap_err().error.status, Status::Closed);
}

#[test]
fn an_acceptor_without_a_socket_offers_no_proof() {
    let acceptor = Local { unix_name: None, ..policies(2)[2].clone() };
    let pump = Pump::new(&policies(1)[2], &acceptor, Wire::default()).run();
    assert_eq!(error(pump.ends.0).refusal, Some(RefusalCode::AuthRequired));
}

#[test]
fn a_refusal_is_heard_while_the_proof_is_under_way() {
    let (mut dialer, first) = Dialer::start(&policies(1)[2]).unwrap();
    let mut acceptor = Acceptor::new(&policies(2)[2]).unwrap();
    let hello = acceptor.input(&first, &mut |_| None, Boottime::ZERO).unwrap().output;
    let bytes = [hello, refusal(RefusalCode::TooMany)].concat();
    assert!(matches!(dialer.input(&bytes, Boottime::ZERO).unwrap().next, Next::ProveSameUser { .. }));
    let refused = dialer.proof(Ok(proof()), Boottime::ZERO).unwrap_err();
    assert_eq!(refused.refusal, Some(RefusalCode::TooMany));
}

#[test]
fn a_same_user_session_over_real_sockets() {
    use crate::sys::unix;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    let (listener, name) = unix::listen_abstract(unix::Type::STREAM).unwrap();
    let at_acceptor = Local { unix_name: Some(name), ..policies(2)[2].clone() };
    let mut acceptor = Acceptor::new(&at_acceptor).unwrap();
    let mut table = ProofTable::new(1_000);
    let (mut dialer, first) = Dialer::start(&policies(1)[2]).unwrap();
    let hello = acceptor.input(&first, &mut |_| None, Boottime::ZERO).unwrap().output;
    let Next::ProveSameUser { name, nonce } = dialer.input(&hello, Boottime::ZERO).unwrap().next else {
        panic!("no proof")
    };

    let dialing = unix::connect_abstract(&name, unix::Type::STREAM).unwrap();
    let owner = unix::same_user_credentials(dialing.as_fd()).unwrap();
    let mut dialing = UnixStream::from(dialing);
    dialing.write_all(&nonce).unwrap();

    let accepted = unix::accept(listener.as_fd()).unwrap();
    let caller = unix::same_user_credentials(accepted.as_fd()).unwrap();
    let mut accepted = UnixStream::from(accepted);
    let (mut received, mut key) = ([0; 32], [0; 32]);
    accepted.read_exact(&mut received).unwrap();
    let issued = Proof { key: Key::random().unwrap(), pid: caller.pid, uid: caller.uid };
    table.insert(received, issued.clone(), Monotonic::ZERO).unwrap();
    accepted.write_all(issued.key.bytes()).unwrap();

    dialing.read_exact(&mut key).unwrap();
    let proof = Proof { key: Key::from(key), pid: owner.pid, uid: owner.uid };
    let open = dialer.proof(Ok(proof), Boottime::ZERO).unwrap().output;
    let answer = acceptor
        .input(&open, &mut |nonce| table.take(nonce, Monotonic::from_ns(1)), Boottime::ZERO)
        .unwrap()
        .output;
    let confirm = dialer.input(&answer, Boottime::ZERO).unwrap().output;
    let HandshakeStep { output, next: Next::Done(at_acceptor) } =
        acceptor.input(&confirm, &mut |_| None, Boottime::ZERO).unwrap()
    else {
        panic!("not done")
    };
    let Next::Done(at_dialer) = dialer.input(&output, Boottime::ZERO).unwrap().next else {
        panic!("not done")
    };
    agree(&at_dialer, &at_acceptor);
    let pid = std::process::id() as i32;
    assert!(matches!(at_dialer.auth, Auth::SameUser { pid: p, .. } if p == pid) && table.count() == 0);
}
