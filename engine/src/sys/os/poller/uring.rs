//! The io_uring kind of `Poller`: one oneshot poll per descriptor (`registry` decides which). The system call that
//! sleeps also submits polls and collects completions.
//!
//! The first wait creates the ring on the waiting thread: SINGLE_ISSUER lets no other thread submit. Other threads
//! only write wishes into the registry and ring the doorbell, which the ring polls too. If another thread waits, it
//! replaces the ring by its own: with a shared ring the kernel would interrupt the thread that submitted a poll,
//! whatever that thread is doing by then.

use super::epoll::Epoll;
use super::registry::{Completion, Registry, Submission};
use super::{Doorbell, Interest, Ready, READY_MAX};
use crate::status::reason;
use crate::sys::clock::monotonic_ns;
use crate::sys::lock::Mutex;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{opcode, squeue, IoUring, Probe};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread::{self, ThreadId};
use std::time::Duration;

const SUBMISSIONS_MAX: u32 = 256;
/// More completions wait in the kernel's overflow list (NODROP), which costs a system call.
const COMPLETIONS_MAX: u32 = 4096;

// User data of the entries that are not the registry's; no slot index comes near.
const KEY_DOORBELL: u64 = u64::MAX;
const KEY_SIDE: u64 = u64::MAX - 1;
const KEY_CANCEL: u64 = u64::MAX - 2;

pub(super) struct Uring {
    /// Locked during a whole wait, and by nothing else. Taken before `registry`.
    ring: Mutex<Option<Ring>>,
    /// Locked only briefly.
    registry: Mutex<Registry>,
    /// Watches the descriptors that the registry parks. The ring polls it.
    side: Epoll,
}

struct Ring {
    io: IoUring,
    owner: ThreadId,
    doorbell_armed: bool,
    side_armed: bool,
}

/// The result of one pass over the completion queue, besides `Ready`.
struct Reaped {
    count: usize,
    doorbell: u8,
}

impl Uring {
    pub(super) fn new() -> io::Result<Uring> {
        Ok(Uring { ring: Mutex::new(None), registry: Mutex::default(), side: Epoll::new()? })
    }

    pub(super) fn add(&self, doorbell: &Doorbell, fd: RawFd, token: u64, want: Interest) -> io::Result<()> {
        // SAFETY: no pointers. Without this, a bad descriptor would be found only by the next wait.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.change(doorbell, fd, |registry| registry.add(fd, token, want).map(|()| false))
    }

    pub(super) fn set(&self, doorbell: &Doorbell, fd: RawFd, token: u64, want: Interest) -> io::Result<()> {
        self.change(doorbell, fd, |registry| registry.set(fd, token, want))
    }

    pub(super) fn remove(&self, doorbell: &Doorbell, fd: RawFd, token: u64) {
        // The edit cannot fail.
        let _ = self.change(doorbell, fd, |registry| Ok(registry.remove(fd, token)));
    }

    pub(super) fn wait(
        &self,
        doorbell: &Doorbell,
        out: &mut Vec<Ready>,
        timeout_ns: Option<u64>,
    ) -> io::Result<()> {
        let sleeps = timeout_ns != Some(0);
        let deadline_ns = timeout_ns.filter(|_| sleeps).map(|ns| monotonic_ns().saturating_add(ns));
        let mut left_ns = timeout_ns;
        let mut ring = self.ring.lock();
        let ring = self.own_ring(&mut ring)?;
        // Repeats only after completions that lead to no readiness (cancels, stale polls, changes by other threads),
        // each of which is consumed by its round.
        loop {
            let entered = self.prepare(ring, doorbell, sleeps).and_then(|()| ring.enter(left_ns));
            let reaped = self.reap(ring, doorbell, out);
            if !out.is_empty() || reaped.doorbell & Doorbell::WAKE != 0 {
                return Ok(());
            }
            if let Err(error) = entered {
                match error.raw_os_error() {
                    Some(libc::ETIME | libc::EINTR) => return Ok(()),
                    // The kernel wanted the completion queue emptied first, and now it is.
                    Some(libc::EBUSY | libc::EAGAIN) if reaped.count > 0 => {}
                    _ => return Err(error),
                }
            } else if reaped.count == 0 && ring.io.submission().is_empty() {
                // Time-out or signal, hidden behind a successful submission.
                return Ok(());
            }
            if !sleeps {
                return Ok(());
            }
            if let Some(deadline_ns) = deadline_ns {
                match deadline_ns.saturating_sub(monotonic_ns()) {
                    0 => return Ok(()),
                    ns => left_ns = Some(ns),
                }
            }
        }
    }

    /// Applies `edit`, which returns whether `fd` was parked, and wakes a waiting thread that has already planned.
    fn change(
        &self,
        doorbell: &Doorbell,
        fd: RawFd,
        edit: impl FnOnce(&mut Registry) -> io::Result<bool>,
    ) -> io::Result<()> {
        let mut registry = self.registry.lock();
        if edit(&mut registry)? {
            self.side.remove(fd);
        }
        let sleeping = registry.sleeping;
        drop(registry);
        if sleeping {
            doorbell.ring(Doorbell::CHANGED);
        }
        Ok(())
    }

    /// Returns the ring of the calling thread, and replaces any other thread's ring.
    fn own_ring<'a>(&self, ring: &'a mut Option<Ring>) -> io::Result<&'a mut Ring> {
        let owner = thread::current().id();
        if ring.as_ref().is_some_and(|ring| ring.owner != owner) {
            *ring = None;
            self.registry.lock().forget_ring();
        }
        match ring {
            Some(ring) => Ok(ring),
            None => {
                let io = build()?;
                Ok(ring.insert(Ring { io, owner, doorbell_armed: false, side_armed: false }))
            }
        }
    }

    /// Queues every poll that is due. After this, changes ring the doorbell if this wait `sleeps`.
    fn prepare(&self, ring: &mut Ring, doorbell: &Doorbell, sleeps: bool) -> io::Result<()> {
        if !ring.doorbell_armed {
            ring.push(&poll(doorbell.event.as_raw_fd(), libc::POLLIN as u32, KEY_DOORBELL))?;
            ring.doorbell_armed = true;
        }
        if !ring.side_armed {
            ring.push(&poll(self.side.as_raw_fd(), libc::POLLIN as u32, KEY_SIDE))?;
            ring.side_armed = true;
        }
        let mut registry = self.registry.lock();
        registry.plan(|step| match step {
            Submission::Arm { fd, events, key } => ring.push(&poll(fd, events, key)),
            Submission::Cancel { key } => {
                ring.push(&opcode::PollRemove::new(key).build().user_data(KEY_CANCEL))
            }
        })?;
        registry.sleeping = sleeps;
        Ok(())
    }

    /// Consumes completions until `out` is full; the rest stays in the queue for the next wait.
    fn reap(&self, ring: &mut Ring, doorbell: &Doorbell, out: &mut Vec<Ready>) -> Reaped {
        let mut registry = self.registry.lock();
        registry.sleeping = false;
        let mut reaped = Reaped { count: 0, doorbell: 0 };
        let mut completions = ring.io.completion();
        while out.len() < READY_MAX {
            let Some(completion) = completions.next() else { break };
            reaped.count += 1;
            match completion.user_data() {
                KEY_CANCEL => {}
                KEY_DOORBELL => {
                    ring.doorbell_armed = false;
                    reaped.doorbell |= doorbell.consume();
                }
                KEY_SIDE => {
                    ring.side_armed = false;
                    self.reap_side(&registry, out);
                }
                key => match registry.complete(key, completion.result()) {
                    Completion::Stale => {}
                    Completion::Ready(ready) => out.push(ready),
                    Completion::Park { fd, interest } => {
                        if self.side.add(fd, key, interest).is_err() {
                            out.push(registry.unpark(key));
                        }
                    }
                },
            }
        }
        reaped
    }

    fn reap_side(&self, registry: &Registry, out: &mut Vec<Ready>) {
        let first = out.len();
        // Fails only if memory is exhausted. The next wait polls it again.
        let _ = self.side.wait(out, Some(0));
        let mut index = first;
        while index < out.len() {
            match registry.token(out[index].token) {
                Some(token) => {
                    out[index].token = token;
                    index += 1;
                }
                None => drop(out.swap_remove(index)),
            }
        }
    }
}

impl Ring {
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: polls and their cancels refer to no memory; the kernel checks the descriptor.
        if unsafe { self.io.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.io.submit()?;
        // SAFETY: as above.
        unsafe { self.io.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Submits the queue and, unless completions are there already, sleeps for one.
    fn enter(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        let submissions = self.io.submission();
        let idle = submissions.is_empty() && !submissions.taskrun() && !submissions.cq_overflow();
        drop(submissions);
        if timeout_ns == Some(0) || !self.io.completion().is_empty() {
            // The kernel flags deferred work and overflow in the mapped ring: a caller that spins
            // makes no system call while there is nothing.
            return if idle { Ok(()) } else { self.io.submit().map(drop) };
        }
        let Some(ns) = timeout_ns else { return self.io.submit_and_wait(1).map(drop) };
        let timeout = Timespec::from(Duration::from_nanos(ns));
        self.io.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout)).map(drop)
    }
}

pub(super) fn probe() -> Result<(), String> {
    let ring = build()
        .map_err(|error| format!("io_uring can't be used: io_uring_setup failed: {}", reason(&error)))?;
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err(
            "io_uring lacks timeouts per wait or a lossless completion queue (before Linux 5.11)".into()
        );
    }
    let mut known = Probe::new();
    ring.submitter()
        .register_probe(&mut known)
        .map_err(|error| format!("io_uring can't be used: its probe failed: {}", reason(&error)))?;
    for (code, name) in [(opcode::PollAdd::CODE, "POLL_ADD"), (opcode::PollRemove::CODE, "POLL_REMOVE")] {
        if !known.is_supported(code) {
            return Err(format!("io_uring lacks {name}"));
        }
    }
    Ok(())
}

/// Builds a ring for the calling thread alone if the kernel can (6.1): readiness then costs no interrupt, only a flag,
/// and is handled when this thread waits. The kernel makes the descriptor close-on-exec.
fn build() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(COMPLETIONS_MAX);
    let mut exclusive = builder.clone();
    exclusive.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun().setup_taskrun_flag();
    match exclusive.build(SUBMISSIONS_MAX) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(SUBMISSIONS_MAX),
        result => result,
    }
}

fn poll(fd: RawFd, events: u32, key: u64) -> squeue::Entry {
    opcode::PollAdd::new(Fd(fd), events).build().user_data(key)
}
