//! The cache's thread: sleeps until the engine's queue has events, a call wakes it, or the machine's time has come.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ferry::notify::{Event, EventBody};
use ferry::status::{Error, Result};
use ferry::Status;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::state::{Inner, UnderWay};
use super::Shared;

/// Events that are taken before others have a turn at the lock.
const EVENTS_PER_TURN: usize = 256;

pub fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    shared.lock().me = Arc::downgrade(shared);
    let own = shared.clone();
    let run = move || {
        while let Some(until) = own.turn() {
            own.sleep_until(until);
        }
        own.end();
    };
    let started = std::thread::Builder::new().name("ferry-kv".into()).spawn(run);
    started.map_err(|error| Error::system("starting the thread ferry-kv", &error))
}

/// When to take the next turn at the latest.
enum Until {
    Now,
    At(u64),
    Woken,
    /// The engine is broken, and not over yet. Its queue stays readable, so it can't be waited for.
    Broken,
}

/// How often what the engine had no room for is tried again. The application makes room too, by letting go of its own
/// transfers, and no event tells of that.
const NO_ROOM_NS: u64 = 10_000_000;

/// How often a broken engine is asked whether it is over.
const BROKEN_PAUSE: Duration = Duration::from_millis(5);

impl Shared {
    /// Serves what has come. None when the cache is closed, or its engine.
    fn turn(&self) -> Option<Until> {
        let mut events = Vec::new();
        let count = self.queue.drain(&mut events, EVENTS_PER_TURN);
        // What a broken engine had begun may still move, until its lanes are closed and its leases are over.
        let (is_broken, is_engine_over) = (self.engine.check_health().is_err(), self.engine.is_over());
        let mut inner = self.lock();
        for event in events {
            self.serve(&mut inner, event);
        }
        self.look_at_device_events(&mut inner);
        let due = inner.machine.tick(self.now());
        let is_quiet = inner.is_closing && inner.machine.close(self.now());
        self.act(&mut inner);
        if count == EVENTS_PER_TURN {
            return Some(Until::Now);
        }
        if (is_quiet && inner.under_way.is_empty()) || is_engine_over {
            return None;
        }
        if is_broken {
            return Some(Until::Broken);
        }
        let again = (!inner.backlog.is_empty()).then(|| self.now().saturating_add(NO_ROOM_NS));
        Some(due.into_iter().chain(again).min().map_or(Until::Woken, Until::At))
    }

    fn serve(&self, inner: &mut Inner, event: Event) {
        let (peer, now) = (event.peer, self.now());
        match event.body {
            EventBody::Transfer { user_data, status, .. } => match inner.under_way.remove(&user_data) {
                Some(UnderWay::Message(to, of)) => {
                    let result = match status {
                        Status::Ok => Ok(()),
                        status => Err(Error::new(status, format!("a message to the peer failed: {status}"))),
                    };
                    inner.machine.sent(to, of, result, now);
                }
                Some(UnderWay::Post(post)) => {
                    let transfer = inner.posts.remove(&post);
                    let result = match status {
                        Status::Ok => Ok(()),
                        status => Err(Error::new(status, why(transfer, status))),
                    };
                    inner.machine.moved(post, result, now);
                }
                Some(UnderWay::Part) | None => {}
            },
            EventBody::Notification { bytes, .. } => inner.machine.notification(peer, &bytes, now),
            EventBody::PeerLost { why, .. } => {
                let by_us = if self.engine.check_not_closed().is_err() {
                    "the engine was closed"
                } else {
                    "the peer was fenced"
                };
                inner.machine.peer_lost(peer, if why.is_empty() { by_us } else { &why }, now);
            }
            EventBody::LateApply { address, length, .. } => {
                inner.machine.late_apply(&(address..address.saturating_add(length)), now);
            }
            _ => {}
        }
        self.act(inner);
    }

    fn sleep_until(&self, until: Until) {
        let timeout = match until {
            Until::Now => return,
            Until::Broken => return std::thread::sleep(BROKEN_PAUSE),
            Until::Woken => None,
            Until::At(at) => {
                let left = at.saturating_sub(self.now());
                Some(Timespec {
                    tv_sec: (left / 1_000_000_000) as i64,
                    tv_nsec: (left % 1_000_000_000) as i64,
                })
            }
        };
        let mut fds = [PollFd::new(&*self.queue, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // An interrupted poll is a turn too early, which does no harm.
        let _ = poll(&mut fds, timeout.as_ref());
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// The cache is over: nothing of it is under way. With the engine over, that holds for all transfers.
    fn end(&self) {
        let mut inner = self.lock();
        inner.machine.engine_closed(self.now());
        (inner.is_closing, inner.is_over) = (true, true);
        inner.posts.clear();
        inner.device_events.clear();
        let _ = rustix::io::write(&self.news, &1u64.to_ne_bytes());
        drop(inner);
        // BUSY only if the engine is closed, which frees the queue.
        let _ = self.destroy_queue();
        self.changed.notify_all();
    }
}

/// Why a transfer failed, in the words of its first request that did.
fn why(transfer: Option<ferry::Transfer>, status: Status) -> String {
    let failed = transfer.and_then(|transfer| {
        let failed = transfer.results().into_iter().find(|request| request.status != Status::Ok)?;
        Some(format!("a transfer failed: {} over {}", failed.status, failed.transport.name()))
    });
    failed.unwrap_or_else(|| format!("a transfer failed: {status}"))
}
