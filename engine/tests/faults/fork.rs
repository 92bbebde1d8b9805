//! Forked children inherit an engine, and do it no harm.

use crate::child::Child;
use crate::support::*;
use ferry::notify::{Queue, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, PeerId};
use ferry::{Deadline, Engine, Memory, Status, TransferOptions};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Forks; the child runs `work` and exits with its result, without the parent's destructors. `work` may do only what
/// is safe in the forked child of a process with threads: calls of the engine are meant to be.
fn fork(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls `work` and `_exit`; see above.
    match unsafe { libc::fork() } {
        0 => {
            let number = work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(number) }
        }
        pid => {
            assert!(pid > 0, "{}", std::io::Error::last_os_error());
            pid
        }
    }
}

fn join(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` lives on this stack; the child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -1
    }
}

/// Returns the number of the first call that does not answer CLOSED, or 0 if all do.
fn try_everything(a: &Engine, peer: PeerId, local: &Memory, remote: &Memory, queue: &Queue) -> i32 {
    let closed =
        |result: ferry::status::Result<()>| matches!(result, Err(error) if error.status == Status::Closed);
    let requests = [request(local, remote, 0, 4096)];
    let checks = [
        closed(a.submit(peer, Op::Write, &requests, &options()).map(|_| ())),
        closed(a.connect("127.0.0.1:1", Some(BOUND)).map(|_| ())),
        closed(a.notify(peer, b"x", Default::default())),
        closed(local.unregister(Some(BOUND))),
        closed(a.fence(peer, Some(BOUND))),
        closed(a.close_peer(peer, Some(BOUND))),
        closed(a.peers().map(|_| ())),
        closed(a.stats().map(|_| ())),
        closed(a.wait_event(queue, Some(Duration::ZERO)).map(|_| ())),
        closed(a.alloc(4096, &Default::default()).map(|_| ())),
        a.close(Some(BOUND)).is_ok(),
    ];
    checks.iter().position(|right| !right).map_or(0, |at| at as i32 + 1)
}

#[test]
fn a_forked_child_gets_closed_and_the_parent_does_not_notice() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let (local, remote) = (alloc(&a, 8 * MIB), alloc(&b, 8 * MIB));
    fill(&local, 4);
    let requests = rounds(local.address(), remote.address(), remote.region(), 8 * MIB, 8);
    // It has an event, which is the parent's.
    let queue = a.queue(WHAT_TRANSFERS, 8).unwrap();
    let told = TransferOptions { queue: Some(queue.clone()), ..options() };
    a.write(peer, &[request(&local, &remote, 0, 4096)], &told).unwrap();
    for _ in 0..5 {
        let transfer = a.submit(peer, Op::Write, &requests, &options()).unwrap();
        let pid = fork(|| try_everything(&a, peer, &local, &remote, &queue));
        a.write(peer, &[request(&local, &remote, 0, 4096)], &options()).unwrap();
        assert_eq!(join(pid), 0, "the number of the call that did not answer CLOSED");
        assert_eq!(finish(&transfer).state, ferry::State::Done);
    }
    assert_pattern(&remote, 4, 0, 8 * MIB);
}

/// A child lives on: ending a session must reach the peer all the same, and cost the parent nothing afterwards.
#[test]
fn a_living_child_keeps_no_session_alive() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    let mut ends: [RawFd; 2] = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let pid = fork(|| {
        let mut byte = 0u8;
        // SAFETY: one byte of this stack; returns when the parent closes the pipe.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut byte).cast(), 1);
        }
        0
    });
    // A stranger's connection that is turned away ends, too.
    let mut stranger = std::net::TcpStream::connect(b.address()).unwrap();
    stranger.set_read_timeout(Some(BOUND)).unwrap();
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let answer = std::io::Read::read(&mut stranger, &mut [0; 64]);
    assert!(matches!(answer, Ok(0)) || answer.is_err_and(|e| e.raw_os_error() == Some(libc::ECONNRESET)));
    let started = Instant::now();
    a.close_peer(peer, Some(BOUND)).unwrap();
    wait_until("the other side knows", || b.stats().unwrap().peers_up == 0);
    assert!(started.elapsed() < SLACK);
    // Connected before and after: no descriptor of the old session makes the parent's loops spin.
    let peer = connect(&a, b.address());
    a.write(peer, &[request(&local, &remote, 0, MIB)], &options()).unwrap();
    let cpu = || {
        // SAFETY: all-zero is a valid rusage, and the call fills it in.
        let used = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut used);
            used
        };
        Duration::new((used.ru_utime.tv_sec + used.ru_stime.tv_sec) as u64, 0)
            + Duration::from_micros((used.ru_utime.tv_usec + used.ru_stime.tv_usec) as u64)
    };
    // Idle for a while: nothing must happen, which no event reports.
    let (before, started) = (cpu(), Instant::now());
    let (_hold, idle) = std::sync::mpsc::channel::<()>();
    let _ = idle.recv_timeout(Duration::from_millis(500));
    let used = cpu() - before;
    assert!(used < started.elapsed() / 10, "an idle engine used {used:?} of the processor");
    // SAFETY: our descriptors; closing the second lets the child end.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    assert_eq!(join(pid), 0);
}

/// Kills the parent while its child lives.
fn kill_the_parent(settings: &[(&str, &str)], child_settings: &str, load: bool) {
    let _turn = alone();
    let (mut child, address) = Child::engine(child_settings);
    let (region, there) = child.alloc(MIB, 0);
    let a = engine(settings);
    let queue = a.queue(WHAT_PEERS, 16).unwrap();
    let local = alloc(&a, MIB);
    let peer = connect(&a, &address);
    let grandchild = child.number("fork") as i32;
    let options = TransferOptions { deadline: Deadline::Never, ..options() };
    let requests = rounds(local.address(), there, region, MIB, 10_000);
    let transfer = load.then(|| a.submit(peer, Op::Write, &requests, &options).unwrap());
    child.kill();
    assert_eq!(wait_for_loss(&queue, peer), Status::PeerLost);
    if let Some(transfer) = transfer {
        assert_eq!(finish(&transfer).status, Status::PeerLost);
    }
    local.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
    // SAFETY: no memory is involved; the process is the child of our child, which waits for nothing else.
    assert_eq!(unsafe { libc::kill(grandchild, libc::SIGKILL) }, 0);
}

#[test]
fn a_killed_parent_of_the_same_user_is_lost_at_once() {
    kill_the_parent(&[SAME_USER], "secret=", false);
}

#[test]
fn a_killed_parent_under_load_is_lost_after_the_time_to_reconnect() {
    kill_the_parent(&[], "", true);
}
