//! The cache's thread: sleeps until the engine's queue has events, a call wakes it, or the machine's time has come.

use std::sync::Arc;
use std::time::Duration;

use ferry::notify::{Event, EventBody};
use ferry::status::{Error, Result};
use ferry::thread::{self, JoinHandle};
use ferry::types::{PeerId, Request};
use ferry::Status;

use super::moving::NO_ROOM_NS;
use super::state::{Inner, Sent, UnderWay};
use super::Shared;
use crate::os::{sleep, wait_readable, AsFd};

/// Events that are taken before others have a turn at the lock.
pub const EVENTS_PER_TURN: usize = 256;

pub fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    shared.lock().me = Arc::downgrade(shared);
    let own = shared.clone();
    let run = move || {
        let mut requests = Vec::new();
        while let Some(until) = own.turn(&mut requests) {
            own.sleep_until(until);
        }
        own.end();
    };
    let started = thread::spawn("ferry-kv", run);
    started.map_err(|error| Error::system("starting the thread ferry-kv", &error))
}

/// When to take the next turn at the latest.
enum Until {
    Now,
    At(u64),
    Woken,
    /// The engine is broken, and not over yet. Its queue stays readable, so it can't be waited for.
    Broken,
    /// The cache has said goodbye. Its queue is the successor's, so nothing is taken from it any more.
    Parting,
}

/// How often a broken engine is asked whether it is over.
const BROKEN_PAUSE: Duration = Duration::from_millis(5);
/// How often the goodbyes are asked whether they have arrived.
const PARTING_PAUSE: Duration = Duration::from_millis(1);

impl Shared {
    /// Submits what has room and handles what has arrived. None once the cache or its engine is closed.
    fn turn(&self, requests: &mut Vec<Request>) -> Option<Until> {
        if self.lock().is_parting {
            return self.part();
        }
        self.move_on(requests);
        let mut over = std::mem::take(&mut self.lock().over);
        let mut events = Vec::new();
        let count = self.queue.drain(&mut events, EVENTS_PER_TURN);
        // Transfers that a broken engine has begun may go on until its lanes are closed and its leases are over.
        let (is_broken, is_engine_over) = (self.engine.check_health().is_err(), self.engine.is_over());
        let mut inner = self.lock();
        for event in events {
            self.serve(&mut inner, event);
        }
        if count == EVENTS_PER_TURN {
            inner.over.append(&mut over)
        } else {
            over.into_iter().for_each(|(peer, error)| inner.inbox.add(lost(peer, &error)))
        }
        drop(inner);
        let has_more = self.hear_some() || count == EVENTS_PER_TURN;
        let mut inner = self.lock();
        self.look_at_device_events(&mut inner);
        self.look_at_probes(&mut inner);
        let due = inner.machine.tick(self.now());
        let is_quiet = inner.is_closing && inner.machine.close(self.now());
        let cut = self.close_in_time(&mut inner);
        self.act(&mut inner);
        let plan = self.plan_next(&mut inner);
        if has_more {
            return Some(Until::Now);
        }
        let is_said = inner.inbox.is_idle() && !inner.outgoing.is_waiting();
        if is_quiet && (is_said || inner.is_cut) && inner.under_way.is_empty() {
            inner.is_parting = true;
            drop(inner);
            return self.part();
        }
        if is_engine_over {
            return None;
        }
        if is_broken {
            return Some(Until::Broken);
        }
        let again = inner.outgoing.is_waiting().then(|| self.now().saturating_add(NO_ROOM_NS));
        let due = due.into_iter().chain(again).chain(inner.moving.next_at(0)).chain(cut).chain(plan).min();
        Some(due.map_or(Until::Woken, Until::At))
    }

    /// Waits until the peers have the goodbyes, for the time that they may be silent: takes may end well because their
    /// producer said goodbye, and the engine may be closed next.
    fn part(&self) -> Option<Until> {
        let mut inner = self.lock();
        inner.goodbyes.retain(|goodbye| goodbye.result().is_none());
        let since = inner.idle_since.unwrap_or_default();
        let is_late = self.now() >= since.saturating_add(inner.machine.silence_ns());
        let is_over = inner.goodbyes.is_empty() || is_late || self.engine.is_over();
        (!is_over).then_some(Until::Parting)
    }

    /// Gives up the last messages of a closing cache once its peers have had the time for which they may be silent.
    /// Returns when that is.
    fn close_in_time(&self, inner: &mut Inner) -> Option<u64> {
        if !inner.is_closing || inner.is_cut || !inner.machine.is_idle() {
            return None;
        }
        let now = self.now();
        let until = inner.idle_since.get_or_insert(now).saturating_add(inner.machine.silence_ns());
        if now < until {
            return Some(until);
        }
        inner.is_cut = true;
        self.cut_messages(inner);
        for peer in inner.inbox.unplanned() {
            inner.machine.part_from(peer);
        }
        None
    }

    /// Notes the engines that have answered their probes. An answer does not wake the thread; it looks before it calls an
    /// engine silent. An error is no silence: it comes from this side's engine, or from a session whose end has an event
    /// of its own.
    fn look_at_probes(&self, inner: &mut Inner) {
        let now = self.now();
        let machine = &mut inner.machine;
        inner.probes.retain(|peer, probe| {
            let is_answered = probe.take().is_some();
            if is_answered {
                machine.engine_answered(*peer, now);
            }
            !is_answered
        });
    }

    fn serve(&self, inner: &mut Inner, event: Event) {
        let (peer, now) = (event.peer, self.now());
        // Any event may mean that there is room again.
        inner.moving.room_came();
        match event.body {
            EventBody::Transfer { user_data, status, .. } => match inner.under_way.remove(&user_data) {
                Some(UnderWay::Part(Sent { peer: to, of, is_last, .. })) => {
                    inner.outgoing.ended(to);
                    let result = match status {
                        Status::Ok => Ok(()),
                        status => Err(Error::new(status, format!("a message to the peer failed: {status}"))),
                    };
                    if is_last {
                        inner.machine.sent(to, of, result, now);
                    }
                }
                Some(UnderWay::Post(post)) => {
                    let transfer = inner.moving.ended(post, user_data);
                    if status != Status::Ok {
                        inner.moving.failed(post, Error::new(status, why(transfer, status)));
                    }
                    self.settle_post(inner, post);
                }
                None => {}
            },
            EventBody::Notification { .. } => {
                inner.machine.heard(peer, now);
                inner.inbox.add(event);
            }
            EventBody::PeerLost { .. } => inner.inbox.add(event),
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
            Until::Broken => return sleep(BROKEN_PAUSE),
            Until::Parting => return sleep(PARTING_PAUSE),
            Until::Woken => None,
            Until::At(at) => Some(Duration::from_nanos(at.saturating_sub(self.now()))),
        };
        // An early turn does no harm.
        wait_readable(self.queue.as_fd(), self.wake.as_fd(), timeout);
        self.wake.clear();
    }

    /// The cache is over: nothing of it is under way. With the engine over, that holds for all transfers.
    fn end(&self) {
        // It holds the engine.
        let planner = self.lock().planner.take();
        let _ = planner.map(JoinHandle::join);
        let mut inner = self.lock();
        inner.machine.engine_closed(self.now());
        (inner.is_closing, inner.is_over) = (true, true);
        inner.moving.clear();
        inner.under_way.clear();
        inner.goodbyes.clear();
        inner.device_events.clear();
        self.news.raise();
        drop(inner);
        // BUSY only if the engine is closed, which frees the queue.
        let _ = self.destroy_queue();
        self.changed.notify_all();
    }
}

fn lost(peer: PeerId, error: &Error) -> Event {
    let Error { status, os_error, .. } = *error;
    let body = EventBody::PeerLost { status, os_error, why: error.message.as_str().into() };
    Event { peer, body, credit: None }
}

/// Why a transfer failed, by its first request that did.
fn why(transfer: Option<ferry::Transfer>, status: Status) -> String {
    let failed = transfer.and_then(|transfer| {
        let failed = transfer.results().into_iter().find(|request| request.status != Status::Ok)?;
        Some(format!("a transfer failed: {} over {}", failed.status, failed.transport.name()))
    });
    failed.unwrap_or_else(|| format!("a transfer failed: {status}"))
}
