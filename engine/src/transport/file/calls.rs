//! Makes calls on files without waiting for them: by io_uring, or by a few threads where the kernel or the settings
//! allow no io_uring. `queue` gives the calls, and owns what they use.

use super::files::Files;
use crate::config::FileIo;
use crate::status::{Error, Result, Status};
use crate::sys::file::{self, FileCall};
use crate::sys::file_ring::FileRing;
use crate::sys::mpsc::{channel, Receiver, Sender};
use crate::sys::poller::Ready;
use crate::sys::thread::{self, JoinHandle};
use crate::sys::turns::{self, Awaited, HasWork, Next, Sleeper, Turns};
use crate::types::Monotonic;
use std::collections::VecDeque;
use std::sync::Arc;

/// Calls at once by io_uring. Disks have queues of some hundreds.
const RING_CALLS: u32 = 256;
/// The threads for one device without io_uring.
const THREADS: usize = 8;

pub enum Calls {
    Ring(Box<FileRing>),
    Threads(Threads),
}

impl Calls {
    pub fn new(files: &Arc<Files>) -> Result<Calls> {
        match files.io {
            FileIo::Threads => Threads::start(files).map(Calls::Threads),
            FileIo::Auto => match FileRing::new(RING_CALLS) {
                Ok(ring) => Ok(Calls::Ring(Box::new(ring))),
                Err(_) => Threads::start(files).map(Calls::Threads),
            },
            FileIo::IoUring => match FileRing::new(RING_CALLS) {
                Ok(ring) => Ok(Calls::Ring(Box::new(ring))),
                Err(why) => Err(Error::new(Status::Unavailable, format!("file_io: {why}"))),
            },
        }
    }

    /// The most calls at once.
    pub fn depth(&self) -> usize {
        match self {
            Calls::Ring(_) => RING_CALLS as usize,
            Calls::Threads(_) => THREADS,
        }
    }

    /// Begins a call, at `flush` at the latest. False: there is no room.
    ///
    /// # Safety
    /// As for `file::call`, until `reap` has returned the call's result.
    pub unsafe fn begin(&mut self, call: &FileCall, id: u64) -> bool {
        match self {
            // SAFETY: the caller's promise.
            Calls::Ring(ring) => unsafe { ring.push(call, id) },
            Calls::Threads(threads) => {
                threads.jobs.lock().list.push_back((id, *call));
                threads.jobs.wake_one();
                true
            }
        }
    }

    pub fn flush(&mut self) {
        if let Calls::Ring(ring) = self {
            ring.enter();
        }
    }

    /// Returns the calls that have ended: each one's number, and its result as of `file::call`.
    pub fn reap(&mut self, ended: &mut Vec<(u64, i32)>) {
        match self {
            Calls::Ring(ring) => ring.reap(ended),
            Calls::Threads(threads) => ended.extend(threads.ended.try_iter()),
        }
    }

    /// Takes back the calls that have not begun, as ended with ECANCELED.
    pub fn cancel(&mut self, ended: &mut Vec<(u64, i32)>) {
        if let Calls::Threads(threads) = self {
            let left = std::mem::take(&mut threads.jobs.lock().list);
            ended.extend(left.into_iter().map(|(id, _)| (id, -libc::ECANCELED)));
        }
    }
}

#[derive(Default)]
struct Jobs {
    list: VecDeque<(u64, FileCall)>,
    stopping: bool,
}

impl HasWork for Jobs {
    fn has_work(&self) -> bool {
        self.stopping || !self.list.is_empty()
    }
}

pub struct Threads {
    jobs: Arc<Awaited<Jobs>>,
    ended: Receiver<(u64, i32)>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(files: &Arc<Files>) -> Result<Threads> {
        let (tell, ended) = channel();
        let mut all = Threads { jobs: Arc::default(), ended, threads: Vec::new() };
        for _ in 0..THREADS {
            let (files, jobs, tell) = (files.clone(), all.jobs.clone(), tell.clone());
            let make = move || Some(Caller { files, jobs, tell });
            let started = turns::start("ferry-file-io", "reading or writing a file", all.jobs.clone(), make);
            all.threads.push(started.map_err(|error| thread::not_started("a thread for files", &error))?);
        }
        Ok(all)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.jobs.lock().stopping = true;
        self.jobs.wake();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// One of the threads, between its turns.
struct Caller {
    files: Arc<Files>,
    jobs: Arc<Awaited<Jobs>>,
    tell: Sender<(u64, i32)>,
}

impl Turns for Caller {
    fn turn(&mut self, _: Monotonic, _: &[Ready]) -> Next {
        let mut jobs = self.jobs.lock();
        let Some((id, call)) = jobs.list.pop_front() else {
            return if jobs.stopping { Next::Over } else { Next::WhenWoken };
        };
        drop(jobs);
        self.files.hooks.begins.call(&call);
        // SAFETY: `Calls::begin` has the promise, until the result is reaped.
        let _ = self.tell.send((id, unsafe { file::call(&call) }));
        Next::Again
    }

    /// Nobody makes the other calls any more: they end without having begun.
    fn abandon(self: Box<Self>) {
        let left = std::mem::take(&mut self.jobs.lock().list);
        left.into_iter().for_each(|(id, _)| {
            let _ = self.tell.send((id, -libc::ECANCELED));
        });
    }
}
