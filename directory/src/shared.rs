//! The state that a directory's calls and thread share: the table, the names that this engine registers, and how the
//! thread stands with etcd. `directory` has the calls, `etcd` the thread. The lock is held for bookkeeping alone.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry::status::{Error, Result};
use ferry::{Descriptor, Engine, Status};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::table::{Change, Table};

pub struct Shared {
    pub engine: Engine,
    /// The descriptor that this engine publishes. None if it does not listen.
    pub own: Option<Descriptor>,
    state: Mutex<DirectoryState>,
    /// Signals every change of the state.
    changed: Condvar,
    /// Readable while there are changes to take, and when the directory is closed.
    pub news: OwnedFd,
    /// Readable when the directory's thread has something to do: to register, to withdraw, or to end.
    work: OwnedFd,
}

#[derive(Default)]
pub struct DirectoryState {
    pub table: Table,
    pub registrations: BTreeMap<String, Registration>,
    pub link: Link,
    /// Values left out since open: they were not entries, or a list had more than `ENTRIES_MAX`.
    pub malformed: u64,
    /// How often etcd was reached anew.
    pub sessions: u64,
    pub is_closed: bool,
    /// The thread has ended: the directory or its engine was closed, the engine is broken, or the thread has panicked.
    pub is_over: bool,
}

impl DirectoryState {
    /// CLOSED if the thread has ended, so that waiting for it would be in vain.
    pub fn check_thread(&self) -> Result<()> {
        if self.is_over {
            Err(Error::new(Status::Closed, "the directory's thread has ended"))
        } else {
            Ok(())
        }
    }
}

#[derive(Default)]
pub enum Link {
    /// A `static:` directory.
    #[default]
    None,
    /// etcd has not answered yet.
    Never(Option<Error>),
    Up,
    Down {
        since: Instant,
        why: Error,
    },
}

/// A name of this engine's.
pub struct Registration {
    pub phase: Phase,
    /// The thread is to do something about it now.
    pub is_due: bool,
    /// The name has not been published yet: another engine's entry at this engine's address is out of date.
    pub is_new: bool,
    /// Why the name could not be published when last tried.
    pub refused: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Wanted,
    Published,
    Leaving,
}

impl Registration {
    pub fn new() -> Registration {
        Registration { phase: Phase::Wanted, is_due: true, is_new: true, refused: None }
    }
}

impl Shared {
    pub fn new(engine: &Engine, table: Table, link: Link) -> Result<Shared> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let failed = |error: Errno| Error::system("creating an eventfd", &error.into());
        let (news, work) = (eventfd(0, flags).map_err(failed)?, eventfd(0, flags).map_err(failed)?);
        Ok(Shared {
            engine: engine.clone(),
            own: engine.descriptor().ok(),
            state: Mutex::new(DirectoryState { table, link, ..DirectoryState::default() }),
            changed: Condvar::new(),
            news,
            work,
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, DirectoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// CLOSED if the directory or its engine is closed, and in a forked child.
    pub fn lock_open(&self) -> Result<MutexGuard<'_, DirectoryState>> {
        // First of all: in a forked child, the lock may be taken for ever.
        self.engine.check_not_closed()?;
        let state = self.lock();
        if state.is_closed {
            Err(Error::new(Status::Closed, "the directory is closed"))
        } else {
            Ok(state)
        }
    }

    /// Changes the state, and tells those who wait and the descriptor.
    pub fn change<T>(&self, change: impl FnOnce(&mut DirectoryState) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        if state.table.has_changes() || state.is_closed {
            let _ = rustix::io::write(&self.news, &1u64.to_ne_bytes());
        }
        self.changed.notify_all();
        result
    }

    /// Wakes the directory's thread.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.work, &1u64.to_ne_bytes());
    }

    /// The thread waits for work, for a socket, or for some time. CLOSED when the directory is closed.
    pub fn pause(&self, socket: Option<(BorrowedFd<'_>, PollFlags)>, left: Duration) -> Result<()> {
        let work = (self.work.as_fd(), PollFlags::IN);
        wait_for_any(&[work, socket.unwrap_or(work)], left)?;
        // Before the look at the state, which changes before `wake`.
        let _ = rustix::io::read(&self.work, &mut [0; 8]);
        if self.lock().is_closed {
            Err(Error::new(Status::Closed, "the directory is closed"))
        } else {
            Ok(())
        }
    }

    pub fn next_change(&self) -> Result<Option<Change>> {
        let mut state = self.lock_open()?;
        let change = state.table.next_change();
        if !state.table.has_changes() {
            let _ = rustix::io::read(&self.news, &mut [0; 8]);
        }
        Ok(change)
    }

    /// Waits until the state has changed, or the time has come.
    pub fn wait<'a>(
        &self,
        state: MutexGuard<'a, DirectoryState>,
        left: Duration,
    ) -> MutexGuard<'a, DirectoryState> {
        match self.changed.wait_timeout(state, left) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    /// Waits until `is_done` returns a result, and returns that result. None when the deadline has passed.
    pub fn wait_for<T>(
        &self,
        deadline: Deadline,
        mut is_done: impl FnMut(&mut DirectoryState) -> Option<Result<T>>,
    ) -> Option<Result<T>> {
        let mut state = match self.lock_open() {
            Ok(state) => state,
            Err(error) => return Some(Err(error)),
        };
        loop {
            if let Some(done) = is_done(&mut state) {
                return Some(done);
            }
            if state.is_closed {
                return Some(Err(Error::new(Status::Closed, "the directory is closed")));
            }
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            state = self.wait(state, left);
        }
    }
}

/// Waits for one of some descriptors, for some time at most.
pub fn wait_for_any(all: &[(BorrowedFd<'_>, PollFlags)], left: Duration) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> =
        all.iter().map(|&(fd, wants)| PollFd::from_borrowed_fd(fd, wants)).collect();
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut fds, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::system("waiting for etcd", &error.into())),
    }
}

/// When a call gives up.
#[derive(Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn after(timeout: Option<Duration>) -> Deadline {
        Deadline(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// An hour, if there is no deadline: who waits looks again then.
    pub fn left(self) -> Duration {
        self.0.map_or(Duration::from_secs(3_600), |at| at.saturating_duration_since(Instant::now()))
    }

    /// For a call that takes None as for ever.
    pub fn timeout(self) -> Option<Duration> {
        self.0.map(|_| self.left())
    }
}
