//! The peer's process: its pid, whether the pid is still this process's, and copies by system calls, which recognise
//! the peer's memory by its landmark.

use crate::status::reason;
use crate::sys::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::fd::{AsFd, BorrowedFd, OwnedFd};
use crate::sys::landmark::{self, Place};
use crate::sys::packet::{poll, Polled};
use crate::sys::proven::Proven;
use crate::sys::socket::IoVec;
use crate::sys::{host, unix, vm};
use crate::types::{Monotonic, Op};
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

/// Why a call copied nothing that counts.
#[derive(Debug)]
pub enum CallFault {
    /// The memory is not the peer's, or not any more. A READ may have written to the local ranges.
    Strange,
    System(io::Error),
}

/// Why system calls don't reach the peer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Returns whether the process is being dumped, so that none of its threads runs again. False if that is unknown.
    pub fn is_being_dumped(&self) -> bool {
        host::is_being_dumped(self.pidfd())
    }

    /// Checks that the process's memory can be read, and that the landmark and `expected` at `address` are there, which
    /// proves that the memory is the peer's. Waits for the process's pages.
    pub fn prove(&self, place: Option<Place>, address: u64, expected: &[u8]) -> Result<(), Obstacle> {
        if self.pid <= 0 {
            let why = "the peer's process has no pid in this pid namespace";
            return Err(Obstacle::Unreadable(why.into()));
        }
        let Some(place) = place else {
            let why = "the peer's process has no room for a page by which its memory is recognised";
            return Err(Obstacle::Unreadable(why.into()));
        };
        let mut found = vec![0u8; expected.len()];
        let mut local = [IoVec::nothing(), IoVec::new(found.as_mut_ptr() as u64, found.len())];
        let mut remote = [IoVec::nothing(), IoVec::new(address, expected.len())];
        // SAFETY: only this call uses `found`; reading the wrong process shows in the bytes.
        match unsafe { self.copy(Op::Read, place, &mut local, &mut remote) } {
            Ok(count) if count == expected.len() && found == expected => Ok(()),
            Ok(_) | Err(CallFault::Strange) => {
                Err(Obstacle::Strange("the peer's process is not where the kernel says it is".into()))
            }
            Err(CallFault::System(error)) => Err(Obstacle::Unreadable(format!(
                "process_vm_readv: {}{}",
                reason(&error),
                ptrace_hint(&error)
            ))),
        }
    }

    /// Copies by one system call from or to the memory in which this landmark is. The first entry of each list is this
    /// function's own. Returns how many bytes of the other entries were copied.
    ///
    /// # Safety
    /// As for `vm::read` and `vm::write`, except that the process need not be the one meant.
    pub unsafe fn copy(
        &self,
        op: Op,
        place: Place,
        local: &mut [IoVec],
        remote: &mut [IoVec],
    ) -> Result<usize, CallFault> {
        let mut found = place.secret;
        local[0] = IoVec::new(&raw mut found as u64, landmark::BYTES);
        // SAFETY: the caller's promise for all entries but the first, which is `found`. The kernel takes the process's
        // memory once in a call and stops at the first range that is not there: the landmark's, unless the memory is
        // the peer's.
        let copied = unsafe {
            match op {
                Op::Write => {
                    remote[0] = IoVec::new(place.address + landmark::BYTES as u64, landmark::BYTES);
                    vm::write(self.pid, local, remote)
                }
                Op::Read => {
                    found = !place.secret;
                    remote[0] = IoVec::new(place.address, landmark::BYTES);
                    vm::read(self.pid, local, remote)
                }
            }
        };
        match copied {
            Ok(copied) if copied >= landmark::BYTES && found == place.secret => Ok(copied - landmark::BYTES),
            Ok(_) => Err(CallFault::Strange),
            // The first range failed, in this process or in that.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && !self.is_at(place) => {
                Err(CallFault::Strange)
            }
            Err(error) => Err(CallFault::System(error)),
        }
    }

    fn is_at(&self, place: Place) -> bool {
        let mut found = !place.secret;
        let local = [IoVec::new(&raw mut found as u64, landmark::BYTES)];
        // SAFETY: only this call uses `found`.
        let read = unsafe { vm::read(self.pid, &local, &[IoVec::new(place.address, landmark::BYTES)]) };
        read.is_ok_and(|count| count == landmark::BYTES) && found == place.secret
    }

    /// Returns the process, for callers that take descriptors or device memory from it; `found` is the result of
    /// `prove`. Contract 9: only if its memory has shown that it is the peer's, or the kernel has attested it for the
    /// socket on which the peer proved its session. A pid proves nothing: another process may have got it before the
    /// check.
    pub fn proven(&self, found: &Result<(), Obstacle>) -> Option<Proven> {
        let is_known = match found {
            Ok(()) => true,
            Err(Obstacle::Unreadable(_)) => self.attested,
            Err(Obstacle::Strange(_)) => false,
        };
        is_known.then(|| Proven::new(self.pid, self.pidfd.clone()))
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
    use crate::sys::landmark::Landmark;
    use std::os::unix::net::UnixStream;

    fn own() -> (Process, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Process::of(ours.as_fd()).unwrap(), theirs)
    }

    #[test]
    fn only_the_value_meant_is_a_proof() {
        let (process, _theirs) = own();
        let (value, landmark) = (Box::new([7u8; 32]), Landmark::new().unwrap());
        let (at, place) = (value.as_ptr() as u64, landmark.place());
        assert_eq!(process.prove(Some(place), at, &*value), Ok(()));
        let mut other = *value;
        other[31] ^= 1;
        let strange = |found: Result<(), Obstacle>| found.unwrap_err().why().contains("not where");
        assert!(strange(process.prove(Some(place), at, &other)));
        assert!(strange(process.prove(Some(place), 8, &*value)));
        assert!(strange(process.prove(Some(Place { secret: !place.secret, ..place }), at, &*value)));
        assert!(process.prove(None, at, &*value).unwrap_err().why().contains("no room"));
        drop(landmark);
        assert!(strange(process.prove(Some(place), at, &*value)));
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
        assert!(matches!(process.prove(None, 8, &[0; 32]), Err(Obstacle::Unreadable(_))));
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
