//! The peer's process: its number, and whether that number still is this process's.

use crate::sys::packet::{poll, Polled};
use crate::sys::socket::IoVec;
use crate::sys::{unix, vm};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long "it lives" may be believed. Its number is given to another process only when all others
/// were given out in between, which takes far longer.
const BELIEF_NS: u64 = 1_000_000;

#[derive(Debug)]
pub struct Process {
    /// 0 if it has no number in our pid namespace.
    pub pid: i32,
    pidfd: OwnedFd,
    ended: AtomicBool,
    seen_alive_ns: AtomicU64,
}

impl Process {
    /// The process at the other end of an AF_UNIX connection.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Process> {
        Ok(Process {
            pid: unix::peer_credentials(socket)?.pid,
            pidfd: unix::pidfd(socket)?,
            ended: AtomicBool::new(false),
            seen_alive_ns: AtomicU64::new(0),
        })
    }

    /// Readable once the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it has ended, as of at most a millisecond before `now_ns` (CLOCK_MONOTONIC).
    pub fn has_ended(&self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.seen_alive_ns.load(Ordering::Relaxed)) > BELIEF_NS {
            let mut polled = [Polled::new(self.pidfd(), true, false)];
            poll(&mut polled, 0);
            if polled[0].is_ready() {
                self.ended.store(true, Ordering::Relaxed);
            } else {
                self.seen_alive_ns.store(now_ns, Ordering::Relaxed);
            }
        }
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether its memory can be read from here, and is the memory meant: `expected` is at `address`.
    pub fn prove(&self, address: u64, expected: &[u8]) -> Result<(), String> {
        if self.pid <= 0 {
            return Err("the peer's process has no number in this pid namespace".into());
        }
        let mut found = vec![0u8; expected.len()];
        let local = [IoVec::new(found.as_mut_ptr() as u64, found.len())];
        let remote = [IoVec::new(address, expected.len())];
        // SAFETY: `found` is ours alone; reading the wrong process shows in what is read.
        match unsafe { vm::read(self.pid, &local, &remote) } {
            Ok(count) if count == expected.len() && found == expected => Ok(()),
            Ok(_) => Err("the peer's process is not where the kernel says it is".into()),
            Err(error) => Err(format!("process_vm_readv: {error}{}", ptrace_hint(&error))),
        }
    }
}

/// What may stand behind "not permitted".
fn ptrace_hint(error: &io::Error) -> String {
    if error.raw_os_error() != Some(libc::EPERM) {
        return String::new();
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => " (a container's limits, or a process that may not be traced)".into(),
        scope => format!(" (kernel.yama.ptrace_scope is {scope}; see the setting local_any_tracer)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_the_value_meant_is_a_proof() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let process = Process::of(ours.as_fd()).unwrap();
        let value = Box::new([7u8; 32]);
        let at = value.as_ptr() as u64;
        assert_eq!(process.prove(at, &*value), Ok(()));
        let mut other = *value;
        other[31] ^= 1;
        assert!(process.prove(at, &other).unwrap_err().contains("not where"));
        assert!(process.prove(8, &*value).unwrap_err().contains("process_vm_readv"));
        assert!(!process.has_ended(u64::MAX));
    }
}
