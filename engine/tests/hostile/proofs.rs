//! Proofs of the same user: the bytes that an engine sends, and to whom.

use crate::hostile::{Who, PATIENCE};
use crate::support::{engine, eventually};
use ferry::internals::session::handshake::{Acceptor, AuthPolicy};
use ferry::internals::sys::{clock, unix};
use ferry::Status;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Returns a socket at which another user of the host listens, and its name.
fn listener_of_another_user() -> (impl AsFd + Send, Vec<u8>) {
    let listening = std::thread::spawn(|| {
        // SAFETY: no memory is involved. The system call itself, unlike libc's function, changes this thread alone.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) }, 0);
        unix::listen_abstract(unix::Type::STREAM).unwrap()
    });
    listening.join().unwrap()
}

/// The nonce identifies the connection on which it is sent: another user who saw the nonce could use it as a proof.
#[test]
fn the_nonce_of_a_proof_is_not_shown_to_another_user() {
    // SAFETY: no arguments, no memory.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED the_nonce_of_a_proof_…: only root can become somebody else");
        return;
    }
    let engine = engine(&[("secret", ""), ("same_user", "true")]);
    let (proofs, name) = listener_of_another_user();
    let mut who = Who::new();
    who.0.auth = AuthPolicy { same_user: true, ..AuthPolicy::default() };
    who.0.unix_name = Some(name);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&address, Some(PATIENCE)).unwrap_err());
        let mut socket = listener.accept().unwrap().0;
        let mut bytes = [0; 4096];
        let count = socket.read(&mut bytes).unwrap();
        let mut acceptor = Acceptor::new(&who.0).unwrap();
        let step = acceptor.input(&bytes[..count], &mut |_| None, clock::boottime_ns()).unwrap();
        socket.write_all(&step.output).unwrap();
        let mut came = None;
        eventually("the engine comes to prove itself", || {
            came = unix::accept(proofs.as_fd()).ok();
            came.is_some()
        });
        let mut proof = UnixStream::from(came.unwrap());
        proof.set_nonblocking(false).unwrap();
        proof.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut shown = Vec::new();
        proof.read_to_end(&mut shown).unwrap();
        assert_eq!(shown, []);
        assert_eq!(connecting.join().unwrap().status, Status::Refused);
    });
}
