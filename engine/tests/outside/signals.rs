//! Signals: a program that takes its signals by a signalfd gets each of them, whatever threads ferry has.

use crate::common::data::{check, contents, fill, pattern};
use crate::common::{engine, request, run, Pair, PATIENCE};
use crate::role;
use ferry::notify::{Event, WHAT_NOTIFICATIONS};
use ferry::types::Op;
use ferry::{Deadline, State, TransferOptions};
use std::sync::{mpsc, Arc};

const SIGNALS: usize = 20;

fn block(signal: libc::c_int) -> libc::c_int {
    // SAFETY: `set` is emptied before it is used, and outlives both calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()), 0);
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
    }
}

/// Not a test: blocks SIGTERM after it has opened engines, of which one runs a callback, and takes the signal from a
/// signalfd. The libtest harness has a thread of its own, which leaves SIGTERM unblocked: the role ends it first by
/// running in a forked child, which has this thread alone.
#[test]
#[ignore = "the other process of a test"]
fn signalfd_role() {
    let Some(_) = role::word() else { return };
    // SAFETY: the child has one thread, which goes on with this test as the parent's did.
    match unsafe { libc::fork() } {
        0 => {
            takes_signals();
            // SAFETY: ends the child without the harness, which belongs to the parent.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` lives on this stack, and the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        }
    }
}

fn takes_signals() {
    let any_path = [("transports", "auto"), ("workers", "2")];
    let pair = Pair::of(engine(&any_path), engine(&any_path));
    let (called, calls) = mpsc::channel();
    let queue = pair.b.queue(WHAT_NOTIFICATIONS, 8).unwrap();
    let callback = move |_: &Event| {
        let _ = called.send(());
    };
    pair.b.hub().unwrap().set_callback(queue.handle(), Some(Arc::new(callback))).unwrap();
    let signals = block(libc::SIGTERM);
    let (local, remote) = pair.memories(1 << 20, 1 << 20);
    for tag in 0..SIGNALS as u32 {
        // SAFETY: sends a signal to this process; nothing has a handler for it.
        assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGTERM) }, 0);
        let mut info = [0u8; 128];
        // SAFETY: a signalfd writes one signalfd_siginfo, of 128 bytes.
        assert_eq!(unsafe { libc::read(signals, info.as_mut_ptr().cast(), info.len()) }, 128);
        fill(&local, tag);
        let one = [request(&local, 0, &remote, 0, 1 << 20)];
        let result = run(&pair.a, pair.b_at_a, Op::Write, &one, &TransferOptions::default());
        assert_eq!(result.state, State::Done);
        check("written", &contents(&remote), &pattern(tag, 1 << 20));
        pair.a.notify(pair.b_at_a, b"word", Deadline::Default).unwrap();
        calls.recv_timeout(PATIENCE).unwrap();
    }
    println!("@@ {SIGNALS}");
}

#[test]
fn a_program_with_a_signalfd_gets_its_signals() {
    let mut role = role::start("signals::signalfd_role", "run");
    assert_eq!(role.answer(), SIGNALS.to_string());
    role.ends_well();
}
