//! The epoll kind of `Poller`: level-triggered, so the kernel keeps all state and every call is one
//! system call. `uring` uses one too, for the one case that a ring cannot express.

use super::{Interest, Ready, READY_MAX, TOKEN_WAKE};
use crate::sys::fd::above_standard;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) struct Epoll {
    fd: OwnedFd,
    /// The kernel (before 5.11) or a sandbox has no `epoll_pwait2`. Only a hint that saves a failing call, so its
    /// memory order does not matter.
    coarse: AtomicBool,
}

/// The kernel's timespec, 64-bit on every architecture.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above: fresh, open, and owned by nobody else.
        Ok(Epoll { fd: above_standard(unsafe { OwnedFd::from_raw_fd(fd) }), coarse: AtomicBool::new(false) })
    }

    pub(super) fn add(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub(super) fn set(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    /// Ignores ENOENT and EBADF: the kernel has already forgotten the descriptor.
    pub(super) fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::default());
    }

    /// Appends ready registrations until `out`, which must hold fewer, has `READY_MAX`. Returns true if the wake
    /// eventfd is ready. A signal counts as nothing ready.
    pub(super) fn wait(&self, out: &mut Vec<Ready>, timeout_ns: Option<u64>) -> io::Result<bool> {
        // On the stack and not cleared: 3 KiB that only the kernel writes.
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; READY_MAX];
        let count = match self.wait_raw(&mut events[..READY_MAX - out.len()], timeout_ns) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            result => result?,
        };
        let mut woken = false;
        for event in &events[..count] {
            // SAFETY: the kernel has written the first `count` events.
            let event = unsafe { event.assume_init() };
            match event.u64 {
                TOKEN_WAKE => woken = true,
                token => out.push(ready(token, event.events)),
            }
        }
        Ok(woken)
    }

    fn wait_raw(
        &self,
        events: &mut [MaybeUninit<libc::epoll_event>],
        timeout_ns: Option<u64>,
    ) -> io::Result<usize> {
        let coarse_ms = match timeout_ns {
            None => -1,
            Some(0) => 0,
            Some(ns) => {
                if !self.coarse.load(Ordering::Relaxed) {
                    match self.wait_precise(events, ns) {
                        // EPERM too: old container sandboxes return EPERM for calls they do not know, and
                        // the call itself never does.
                        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                            self.coarse.store(true, Ordering::Relaxed);
                        }
                        result => return result,
                    }
                }
                milliseconds(ns)
            }
        };
        // SAFETY: `events` is exclusively ours for the call and as long as we say.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                events.as_mut_ptr().cast(),
                events.len() as libc::c_int,
                coarse_ms,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn wait_precise(
        &self,
        events: &mut [MaybeUninit<libc::epoll_event>],
        timeout_ns: u64,
    ) -> io::Result<usize> {
        let timeout = Timespec {
            seconds: (timeout_ns / 1_000_000_000) as i64,
            nanoseconds: (timeout_ns % 1_000_000_000) as i64,
        };
        // SAFETY: `events` and `timeout` outlive the call; no signal mask is passed. (By number: glibc
        // has a wrapper only since 2.35.)
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as libc::c_int,
                &timeout as *const Timespec,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event { events: mask(interest), u64: token };
        // SAFETY: `event` outlives the call. The kernel checks both descriptors.
        if unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Returns the events to ask for; poll and epoll use the same bits. The kernel adds errors and hang-ups.
pub(super) fn mask(interest: Interest) -> u32 {
    let mut mask = 0;
    if interest.read {
        mask |= libc::EPOLLIN | libc::EPOLLRDHUP;
    }
    if interest.write {
        mask |= libc::EPOLLOUT;
    }
    mask as u32
}

pub(super) fn ready(token: u64, events: u32) -> Ready {
    let has = |bits: libc::c_int| events & bits as u32 != 0;
    Ready {
        token,
        readable: has(libc::EPOLLIN),
        writable: has(libc::EPOLLOUT),
        hangup: has(libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP),
    }
}

/// Rounds up, so that a wait never ends early. Longer timeouts than 24 days are cut to that.
fn milliseconds(timeout_ns: u64) -> libc::c_int {
    timeout_ns.div_ceil(1_000_000).min(libc::c_int::MAX as u64) as libc::c_int
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::sys::clock::monotonic_ns;

    #[test]
    fn milliseconds_round_up_and_saturate() {
        assert_eq!((milliseconds(1), milliseconds(1_000_000), milliseconds(1_000_001)), (1, 1, 2));
        let longest_ns = libc::c_int::MAX as u64 * 1_000_000;
        assert_eq!(milliseconds(longest_ns), libc::c_int::MAX);
        assert_eq!(milliseconds(longest_ns + 1), libc::c_int::MAX);
        assert_eq!(milliseconds(u64::MAX), libc::c_int::MAX);
    }

    #[test]
    fn a_coarse_timeout_is_not_cut_short_either() {
        let epoll = Epoll::new().unwrap();
        epoll.coarse.store(true, Ordering::Relaxed);
        let start_ns = monotonic_ns();
        epoll.wait(&mut Vec::new(), Some(2_500_000)).unwrap();
        assert!(monotonic_ns() - start_ns >= 2_500_000);
    }
}
