//! The peer's process: its pid, and whether that pid is still this process's.

use crate::status::reason;
use crate::sys::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::fd::{AsFd, BorrowedFd, OwnedFd};
use crate::sys::packet::{poll, Polled};
use crate::sys::proven::Proven;
use crate::sys::socket::IoVec;
use crate::sys::{host, unix, vm};
use crate::types::Monotonic;
use std::io;
use std::sync::Arc;

/// How long a check that the process lives is trusted. The kernel gives its pid to another process only after it has
/// given out all others, which takes far longer.
const BELIEF_NS: u64 = 1_000_000;

#[derive(Debug)]
pub struct Process {
    /// 0 if the process has no pid in our pid namespace.
    pub pid: i32,
    pidfd: Arc<OwnedFd>,
    /// True if the kernel took the pidfd from the socket, not from a pid.
    attested: bool,
    ended: AtomicBool,
    seen_alive_ns: AtomicU64,
}

/// Why system calls don't reach the peer's memory.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The memory cannot be read, so nothing is known about its owner.
    Unreadable(String),
    /// The memory is not the peer's.
    Strange(String),
}

impl Obstacle {
    pub fn why(self) -> String {
        match self {
            Obstacle::Unreadable(why) | Obstacle::Strange(why) => why,
        }
    }
}

impl Process {
    /// Returns the process at the other end of an AF_UNIX connection.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Process> {
        let attested = unix::attested_pidfd(socket)?;
        Ok(Process {
            pid: unix::peer_credentials(socket)?.pid,
            attested: attested.is_some(),
            pidfd: Arc::new(attested.map_or_else(|| unix::pidfd(socket), Ok)?),
            ended: AtomicBool::new(false),
            seen_alive_ns: AtomicU64::new(0),
        })
    }

    /// Returns a process with pid `pid` and the pidfd of `watched`.
    #[cfg(test)]
    pub fn numbered(pid: i32, watched: i32) -> Process {
        let pidfd = Arc::new(unix::pidfd_of(watched).unwrap());
        let (ended, seen_alive_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        Process { pid, pidfd, attested: true, ended, seen_alive_ns }
    }

    /// Returns the descriptor that becomes readable when the process ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns whether the process has ended, as of at most a millisecond before `now_ns`, the time of the call
    /// (CLOCK_MONOTONIC).
    pub fn has_ended(&self, now_ns: Monotonic) -> bool {
        let seen_ns = self.seen_alive_ns.load(Ordering::Relaxed);
        // A time before the last check may be any old time, so it requires a new check.
        if now_ns.ns().checked_sub(seen_ns).is_none_or(|age_ns| age_ns > BELIEF_NS) {
            let mut polled = [Polled::new(self.pidfd(), true, false)];
            poll(&mut polled, 0);
            if polled[0].is_ready() {
                self.ended.store(true, Ordering::Relaxed);
            } else {
                self.seen_alive_ns.fetch_max(now_ns.ns(), Ordering::Relaxed);
            }
        }
        self.ended.load(Ordering::Relaxed)
    }

    /// Checks that the process's memory can be read, and that `expected` is at `address`, which proves that it is the
    /// peer's.
    pub fn prove(&self, address: u64, expected: &[u8]) -> Result<(), Obstacle> {
        if self.pid <= 0 {
            let why = "the peer's process has no pid in this pid namespace";
            return Err(Obstacle::Unreadable(why.into()));
        }
        let mut found = vec![0u8; expected.len()];
        let local = [IoVec::new(found.as_mut_ptr() as u64, found.len())];
        let remote = [IoVec::new(address, expected.len())];
        // SAFETY: only this call uses `found`; reading the wrong process shows in the bytes.
        match unsafe { vm::read(self.pid, &local, &remote) } {
            Ok(count) if count == expected.len() && found == expected => Ok(()),
            Ok(_) => Err(Obstacle::Strange("the peer's process is not where the kernel says it is".into())),
            Err(error) => Err(Obstacle::Unreadable(format!(
                "process_vm_readv: {}{}",
                reason(&error),
                ptrace_hint(&error)
            ))),
        }
    }

    /// Returns the process, for callers that take descriptors or device memory from it; `found` is the result of
    /// `prove`. Contract 9: only if its memory has shown that it is the peer's, or the kernel has attested it for the
    /// socket on which the peer proved its session. A pid proves nothing: another process may have got it before the
    /// check.
    pub fn proven(&self, found: &Result<(), Obstacle>) -> Option<Arc<Proven>> {
        let is_known = match found {
            Ok(()) => true,
            Err(Obstacle::Unreadable(_)) => self.attested,
            Err(Obstacle::Strange(_)) => false,
        };
        is_known.then(|| Arc::new(Proven::new(self.pid, self.pidfd.clone())))
    }
}

/// Explains a "not permitted".
fn ptrace_hint(error: &io::Error) -> String {
    if error.raw_os_error() != Some(libc::EPERM) {
        return String::new();
    }
    match &*host::ptrace_scope() {
        "" | "0" => " (a container's limits, or a process that may not be traced)".into(),
        scope => format!(" (kernel.yama.ptrace_scope is {scope}; see the setting local_any_tracer)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn own() -> (Process, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Process::of(ours.as_fd()).unwrap(), theirs)
    }

    #[test]
    fn only_the_value_meant_is_a_proof() {
        let (process, _theirs) = own();
        let value = Box::new([7u8; 32]);
        let at = value.as_ptr() as u64;
        assert_eq!(process.prove(at, &*value), Ok(()));
        let mut other = *value;
        other[31] ^= 1;
        assert!(process.prove(at, &other).unwrap_err().why().contains("not where"));
        assert!(process.prove(8, &*value).unwrap_err().why().contains("process_vm_readv"));
        assert!(!process.has_ended(Monotonic::NEVER));
    }

    /// Descriptors are taken from the peer's process only.
    #[test]
    fn a_process_is_proven_by_its_memory_or_by_the_socket_and_by_no_number() {
        let (mut process, _theirs) = own();
        let strange = || Err(Obstacle::Strange("".into()));
        let unreadable = || Err(Obstacle::Unreadable("".into()));
        process.attested = true;
        assert!(process.proven(&Ok(())).is_some_and(|it| it.is_self()));
        assert!(process.proven(&unreadable()).is_some());
        assert!(process.proven(&strange()).is_none());
        process.attested = false;
        assert!(process.proven(&Ok(())).is_some());
        assert!(process.proven(&unreadable()).is_none() && process.proven(&strange()).is_none());
        process.pid = 0;
        assert!(matches!(process.prove(8, &[0; 32]), Err(Obstacle::Unreadable(_))));
    }

    /// A time from before the last check is no reason to trust that check.
    #[test]
    fn an_old_time_is_no_belief_that_it_lives() {
        const CHECK_NS: u64 = 1_000_000_000;
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        let times = [0, 1, CHECK_NS - 1, CHECK_NS + BELIEF_NS + 1, u64::MAX];
        let all: Vec<_> = times.iter().map(|old_ns| (Process::numbered(pid, pid), *old_ns)).collect();
        assert!(all.iter().all(|(process, _)| !process.has_ended(Monotonic::from_ns(CHECK_NS))));
        child.kill().unwrap();
        child.wait().unwrap();
        for (process, old_ns) in &all {
            assert!(
                !process.has_ended(Monotonic::from_ns(CHECK_NS + BELIEF_NS)),
                "a check is trusted for this long"
            );
            assert!(process.has_ended(Monotonic::from_ns(*old_ns)), "{old_ns}");
        }
    }
}
