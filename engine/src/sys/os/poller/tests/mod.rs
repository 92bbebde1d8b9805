//! Tests of both kinds of `Poller`. If io_uring is missing, its half reports that on stderr, past the test harness's
//! capture, and counts as skipped. This file tests a single thread; `threads` tests several.

use super::{Interest, Poller, PollerKind, Ready, READY_MAX};
use crate::sys::clock::monotonic_ns;
use crate::sys::map::HashSet;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

const NONE: Interest = Interest { read: false, write: false };
const READ: Interest = Interest { read: true, write: false };
const WRITE: Interest = Interest { read: false, write: true };
const BOTH: Interest = Interest { read: true, write: true };
/// Far longer than any test needs: a wait that lasts this long has lost an event.
const LOST_NS: u64 = 20_000_000_000;
const MS: u64 = 1_000_000;

macro_rules! over_both_kinds {
    ($($name:ident)*) => {
        mod epoll {
            $(#[test] fn $name() { super::$name(&super::Poller::new(super::PollerKind::Epoll).unwrap()) })*
        }
        mod io_uring {
            $(#[test] fn $name() { if let Some(poller) = super::uring_or_skip(stringify!($name)) { super::$name(&poller) } })*
        }
    };
}

mod threads;

/// Tests that run with epoll run unchanged.
#[test]
fn what_comes_by_itself_is_epoll() {
    assert_eq!(Poller::new(PollerKind::Auto).unwrap().kind(), PollerKind::Epoll);
}

over_both_kinds! {
    reports_readable_writable_and_hangup repeats_while_the_level_lasts reports_nothing_once_interest_is_withdrawn
    a_reused_number_is_the_new_file timeouts_are_not_cut_short two_thousand_are_each_reported
    a_half_closed_stream_without_read_interest_is_quiet misuse_has_its_errno
}

fn uring_or_skip(test: &str) -> Option<Poller> {
    static SKIPPED: AtomicUsize = AtomicUsize::new(0);
    if let Err(reason) = Poller::probe_io_uring() {
        let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = writeln!(io::stderr(), "SKIPPED io_uring::{test}: {reason} ({count} skipped)");
        return None;
    }
    Some(Poller::new(PollerKind::IoUring).unwrap())
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    (near, far)
}

fn wait(poller: &Poller, timeout_ns: u64) -> Vec<Ready> {
    let mut out = Vec::new();
    poller.wait(&mut out, Some(timeout_ns)).unwrap();
    out
}

/// (token, readable, writable, hangup) of the only one.
fn only(ready: &[Ready]) -> (u64, bool, bool, bool) {
    match ready {
        [one] => (one.token, one.readable, one.writable, one.hangup),
        other => panic!("{other:?}"),
    }
}

/// Waits until the thread `id` of this process sleeps in the kernel.
fn until_asleep(id: libc::pid_t) {
    let path = format!("/proc/self/task/{id}/stat");
    while !std::fs::read_to_string(&path).unwrap().contains(") S ") {
        thread::yield_now();
    }
}

/// Runs `act` while another thread, whose id it gets, sleeps in a wait. Returns the result of that wait.
fn while_asleep(poller: &Poller, act: impl FnOnce(libc::pid_t)) -> Vec<Ready> {
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let waiter = scope.spawn(move || {
            // SAFETY: no arguments, no failure.
            send.send(unsafe { libc::gettid() }).unwrap();
            wait(poller, LOST_NS)
        });
        let id = receive.recv().unwrap();
        until_asleep(id);
        act(id);
        waiter.join().unwrap()
    })
}

fn reports_readable_writable_and_hangup(poller: &Poller) {
    let (near, mut far) = pair();
    poller.add(near.as_raw_fd(), 7, READ).unwrap();
    assert!(wait(poller, 0).is_empty());
    far.write_all(b"x").unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (7, true, false, false));
    poller.set(near.as_raw_fd(), 8, BOTH).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (8, true, true, false));
    poller.set(near.as_raw_fd(), 8, WRITE).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (8, false, true, false));
    poller.set(near.as_raw_fd(), 8, READ).unwrap();
    (&near).read_exact(&mut [0]).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (8, true, false, true));
    drop(far);
    poller.set(near.as_raw_fd(), 9, NONE).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (9, false, false, true));
}

fn repeats_while_the_level_lasts(poller: &Poller) {
    let (near, mut far) = pair();
    poller.add(near.as_raw_fd(), 1, READ).unwrap();
    far.write_all(b"abc").unwrap();
    for _ in 0..3 {
        assert_eq!(only(&wait(poller, 0)), (1, true, false, false));
        assert_eq!(only(&wait(poller, LOST_NS)), (1, true, false, false));
        (&near).read_exact(&mut [0]).unwrap();
    }
    // At most one readiness that was collected before the last read may still arrive.
    assert!(wait(poller, 0).is_empty() || wait(poller, 0).is_empty());
}

fn reports_nothing_once_interest_is_withdrawn(poller: &Poller) {
    let (near, mut far) = pair();
    poller.add(near.as_raw_fd(), 1, READ).unwrap();
    assert!(wait(poller, 0).is_empty());
    far.write_all(b"x").unwrap();
    poller.set(near.as_raw_fd(), 1, NONE).unwrap();
    assert!(wait(poller, 0).is_empty());
    assert!(wait(poller, MS).is_empty());
    poller.set(near.as_raw_fd(), 1, READ).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)).0, 1);
    poller.remove(near.as_raw_fd(), 1);
    assert!(wait(poller, MS).is_empty());
}

fn a_reused_number_is_the_new_file(poller: &Poller) {
    let ((near, mut far), (newer, mut newer_far)) = (pair(), pair());
    let number = near.as_raw_fd();
    poller.add(number, 1, READ).unwrap();
    assert!(wait(poller, 0).is_empty());
    far.write_all(b"old").unwrap();
    poller.remove(number, 1);
    // SAFETY: both are open and ours. Replaces the file in one step, which closing and opening could
    // not while other tests open files.
    assert_eq!(unsafe { libc::dup2(newer.as_raw_fd(), number) }, number);
    poller.add(number, 2, READ).unwrap();
    assert!(wait(poller, 0).is_empty());
    newer_far.write_all(b"new").unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (2, true, false, false));
}

fn timeouts_are_not_cut_short(poller: &Poller) {
    for timeout_ns in [1, 50_000, 300_000, MS, 2_300_000, 10 * MS] {
        let start_ns = monotonic_ns();
        assert!(wait(poller, timeout_ns).is_empty());
        assert!(monotonic_ns() - start_ns >= timeout_ns, "{timeout_ns} ns");
    }
}

fn two_thousand_are_each_reported(poller: &Poller) {
    const COUNT: u64 = 2_000;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    let mut pairs: Vec<_> = (0..COUNT).map(|_| pair()).collect();
    for (token, (near, far)) in (0..).zip(&mut pairs) {
        poller.add(near.as_raw_fd(), token, READ).unwrap();
        far.write_all(b"x").unwrap();
    }
    // Nothing is read: fairness alone must bring each of them round.
    let mut seen = HashSet::default();
    for _ in 0..COUNT {
        if seen.len() as u64 == COUNT {
            break;
        }
        let ready = wait(poller, LOST_NS);
        assert!(ready.len() <= READY_MAX && ready.iter().all(|ready| ready.readable));
        seen.extend(ready.iter().map(|ready| ready.token));
    }
    assert_eq!(seen.len() as u64, COUNT);
    for (token, (near, _)) in (0..).zip(&pairs) {
        poller.remove(near.as_raw_fd(), token);
    }
    assert!(wait(poller, 0).is_empty());
}

fn a_half_closed_stream_without_read_interest_is_quiet(poller: &Poller) {
    let (near, mut far) = pair();
    let fd = near.as_raw_fd();
    poller.add(fd, 1, NONE).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert!(wait(poller, MS).is_empty());
    let mut sent = 0;
    while let Ok(count) = (&near).write(&[0; 4096]) {
        sent += count;
    }
    poller.set(fd, 2, WRITE).unwrap();
    assert!(wait(poller, MS).is_empty());
    far.read_exact(&mut vec![0; sent]).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (2, false, true, false));
    assert_eq!(only(&wait(poller, LOST_NS)), (2, false, true, false));
    poller.set(fd, 3, NONE).unwrap();
    assert!(wait(poller, MS).is_empty());
    let ready = while_asleep(poller, |_| drop(far));
    assert_eq!(only(&ready), (3, false, false, true));
    poller.set(fd, 4, READ).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (4, true, false, true));
}

fn misuse_has_its_errno(poller: &Poller) {
    let errno = |result: io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    let (near, _far) = pair();
    let fd = near.as_raw_fd();
    assert_eq!(errno(poller.add(fd, u64::MAX, READ)), libc::EINVAL);
    assert_eq!(errno(poller.set(fd, 1, READ)), libc::ENOENT);
    poller.add(fd, u64::MAX - 1, READ).unwrap();
    assert_eq!(errno(poller.add(fd, 1, READ)), libc::EEXIST);
    assert_eq!(errno(poller.set(fd, u64::MAX, READ)), libc::EINVAL);
    assert_eq!(errno(poller.add(-1, 1, READ)), libc::EBADF);
    poller.remove(fd, u64::MAX - 1);
    poller.remove(fd, u64::MAX - 1);
    poller.add(fd, 1, WRITE).unwrap();
    assert_eq!(only(&wait(poller, LOST_NS)), (1, false, true, false));
}
