//! Drives the node: takes the events of the engine's queue, has the machine handle them, and sums values. One thread at a
//! time drives: a caller that waits or, while none does, the thread `ferry-pool`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use ferry::notify::{Event, EventBody};
use ferry::status::{Error, Result};
use ferry::thread::{self, JoinHandle};
use ferry::types::PeerId;
use ferry::Status;
use ferry_kv::os::{sleep, wait_readable, AsFd, Instant, MutexGuard};

use super::acting::{failed, DIALS_FROM};
use super::membership::Membership;
use super::{Inner, Shared};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::wire::Message;

/// Events that are taken before others have a turn at the lock.
const EVENTS_PER_TURN: usize = 256;
/// Bytes that are summed before the queue is looked at again.
const SUMMED_PER_TURN: u64 = 4 << 20;
/// How long the thread leaves the node to callers before it looks whether one drives: longer each time that one does.
/// A request that comes after the last call of a program may wait as long.
const NAP: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_micros(400);
/// Events that are further apart are no conversation.
const CONVERSATION: Duration = Duration::from_micros(200);
/// The longest sleep: what has no room now is tried again.
const NO_ROOM: Duration = Duration::from_millis(1);
/// The longest sleep of the thread.
const SLEEP_MAX: Duration = Duration::from_millis(100);
const BROKEN_PAUSE: Duration = Duration::from_millis(5);

/// The state of whoever drives.
#[derive(Debug, Default)]
pub struct Driver {
    /// The node that was heard last, whose next message may be received at once.
    talker: Option<PeerId>,
    /// When the last event came, or the call began for which a thread drives; and how long before it the previous one did.
    last_ns: u64,
    gap_ns: u64,
    /// A caller drives; and one drove when the last event came, whose conversation is not the thread's.
    is_caller: bool,
    was_caller: bool,
    /// When what is due was looked at last, and how long nothing is.
    ticked_ns: u64,
    due: Option<Duration>,
}

impl Driver {
    fn heard(&mut self, now: u64) {
        (self.gap_ns, self.last_ns, self.was_caller) = (now - self.last_ns, now, self.is_caller);
    }
}

pub fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    shared.lock().me = Arc::downgrade(shared);
    let own = shared.clone();
    let started = thread::spawn("ferry-pool", move || own.run_thread());
    started.map_err(|error| Error::system("starting the thread ferry-pool", &error))
}

impl Shared {
    fn run_thread(&self) {
        let mut nap = NAP;
        loop {
            // A caller that waits for the role and does not come is not waited for.
            let is_wanted = self.is_wanted() && nap < NAP_MAX;
            let role = if is_wanted { None } else { self.try_drive() };
            let Some(mut driver) = role else {
                if is_wanted {
                    self.tell_waiting();
                }
                sleep(nap);
                nap = NAP_MAX.min(nap * 2);
                continue;
            };
            nap = NAP;
            driver.is_caller = false;
            let pause = self.step(&mut driver);
            drop(driver);
            let Some(pause) = pause else { break };
            if pause.is_zero() || self.is_wanted() {
                continue;
            }
            wait_readable(self.queue.as_fd(), self.wake.as_fd(), Some(pause));
            self.wake.clear();
            if self.engine.check_health().is_err() {
                // The queue of a broken engine stays readable.
                sleep(BROKEN_PAUSE);
            }
        }
        self.end();
    }

    /// Drives for a while. Returns how long to sleep then; None when the node has ended.
    fn step(&self, driver: &mut Driver) -> Option<Duration> {
        let is_busy = self.turn(driver);
        if self.is_over() {
            return None;
        }
        if is_busy || self.spin(driver) {
            return Some(Duration::ZERO);
        }
        self.tick(driver);
        // A caller that leaves may leave something due earlier.
        Some(driver.due.map_or(SLEEP_MAX, |due| due.min(SLEEP_MAX)))
    }

    /// Waits until `done` has something, and drives the node meanwhile unless another thread does. TIMEOUT; CLOSED when
    /// the pool is closed and nothing can come any more.
    pub(super) fn drive_until<T>(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&Shared, &mut Inner) -> Option<T>,
    ) -> Result<T> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut look = |inner: &mut Inner| -> Result<Option<T>> {
            if let Some(found) = done(self, inner) {
                return Ok(Some(found));
            }
            if inner.is_over {
                return Err(Error::new(Status::Closed, "the pool is closed"));
            }
            if left() == Some(Duration::ZERO) {
                return Err(Error::new(Status::Timeout, "the call has not ended in time, and goes on"));
            }
            Ok(None)
        };
        loop {
            // Only the thread closes the node.
            let is_ending = self.lock().is_closing || self.engine.is_over();
            let Some(mut driver) = self.try_drive().filter(|_| !is_ending) else {
                let mut inner = self.lock();
                if let Some(found) = look(&mut inner)? {
                    return Ok(found);
                }
                // Whoever drives signals the end of calls, and that it stops; the thread stops for a caller.
                let pause = left().map_or(NO_ROOM, |left| left.min(NO_ROOM));
                self.wanted.fetch_add(usize::from(!is_ending), Ordering::SeqCst);
                // It may have stopped meanwhile, and nobody else looks.
                if is_ending || self.try_drive().is_none() {
                    drop(self.sleep(inner, Some(pause)));
                }
                self.wanted.fetch_sub(usize::from(!is_ending), Ordering::SeqCst);
                continue;
            };
            driver.is_caller = true;
            driver.heard(self.now());
            loop {
                let is_busy = self.turn(&mut driver);
                let mut inner = self.lock();
                let found = look(&mut inner);
                if inner.is_closing && matches!(found, Ok(None)) {
                    break;
                }
                if !matches!(found, Ok(None)) {
                    let others = !inner.waited.is_empty();
                    drop(inner);
                    drop(driver);
                    if others || self.is_wanted() {
                        self.tell_waiting();
                    }
                    return found.and_then(|found| found.ok_or_else(|| Error::invalid("nothing was found")));
                }
                drop(inner);
                if is_busy || self.spin(&mut driver) {
                    continue;
                }
                self.tick(&mut driver);
                let pause = [driver.due, left(), Some(NO_ROOM)].into_iter().flatten().min();
                let waited = self.engine.wait_event(&self.queue, pause);
                if let Ok(event) = waited {
                    self.serve(&mut driver, vec![event]);
                } else if self.engine.is_over() {
                    break;
                } else if self.engine.check_health().is_err() {
                    sleep(BROKEN_PAUSE);
                }
            }
        }
    }

    /// Whether callers wait for the role.
    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > 0
    }

    /// Wakes the callers that wait. One that has just looked holds the lock until it sleeps.
    fn tell_waiting(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// The role of the driver, unless another thread has it. A thread that panicked in it leaves it to the next one.
    fn try_drive(&self) -> Option<MutexGuard<'_, Driver>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::Poisoned(driver)) => Some(driver.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Handles what has come, and sums what is to be summed. Returns whether there may be more.
    fn turn(&self, driver: &mut Driver) -> bool {
        let mut events = Vec::new();
        let count = self.queue.drain(&mut events, EVENTS_PER_TURN);
        if count > 0 {
            self.serve(driver, events);
        }
        // A conversation without an end does not put off what is due.
        if self.now() >= driver.ticked_ns.saturating_add(NO_ROOM.as_nanos() as u64) {
            self.tick(driver);
        }
        self.sum_some() || count == EVENTS_PER_TURN
    }

    fn serve(&self, driver: &mut Driver, events: Vec<Event>) {
        driver.heard(self.now());
        let mut inner = self.lock();
        for event in events {
            self.take(&mut inner, driver, event);
        }
        self.act(&mut inner);
    }

    fn take(&self, inner: &mut Inner, driver: &mut Driver, event: Event) {
        let (peer, now) = (event.peer, self.now());
        match event.body {
            EventBody::Transfer { user_data, status, .. } => {
                if let Some(flight) = inner.under_way.remove(&user_data) {
                    inner.machine.moved(flight.number, &failed(&flight, status), now);
                }
            }
            EventBody::Notification { bytes, .. } => {
                driver.talker = Some(peer);
                let joined = inner.joiners.entry(peer).or_default().add(&bytes, MESSAGE_BYTES_MAX);
                match joined.and_then(|whole| whole.map(|whole| Message::decode(&whole)).transpose()) {
                    Ok(Some(message)) => {
                        let is_hello = matches!(message, Message::Hello(_));
                        inner.machine.heard(peer, message, now);
                        if is_hello {
                            self.count_missing(inner);
                            self.changed.notify_all();
                        }
                    }
                    Ok(None) => {}
                    // A node that sends what is no message is no node.
                    Err(error) => {
                        inner.refused.insert(peer, error.message);
                        inner.machine.suspect(peer, now);
                    }
                }
                self.act(inner);
            }
            EventBody::PeerLost { why, .. } => {
                self.lost(inner, peer, &why);
                driver.talker = driver.talker.filter(|talker| *talker != peer);
            }
            EventBody::PeerConnect { user_data, status, why, .. } => {
                let at = user_data.wrapping_sub(DIALS_FROM) as usize;
                match status {
                    Status::Ok => {
                        inner.dials.connected(at, peer);
                        inner.machine.greet(peer);
                    }
                    // The address leads back to this engine.
                    Status::Invalid => inner.dials.failed(at, &why, true, now),
                    _ => inner.dials.failed(at, &why, false, now),
                }
                self.count_missing(inner);
            }
            _ => {}
        }
    }

    /// Receives the next message of a conversation on this thread, while events follow one another so closely that a
    /// sleep would cost more. Returns whether to look again before a sleep.
    fn spin(&self, driver: &mut Driver) -> bool {
        let is_close = |ns: u64| Duration::from_nanos(ns) < CONVERSATION;
        let may_spin = self.may_spin && is_close(driver.gap_ns) && driver.is_caller == driver.was_caller;
        let Some(talker) = driver.talker.filter(|_| may_spin) else { return false };
        let is_caller = driver.is_caller;
        let is_wanted = || !is_caller && self.is_wanted();
        self.engine.spin_for_event(&self.queue, talker, &is_wanted) && is_close(self.now() - driver.last_ns)
    }

    /// Sums values, under no lock and for a bounded time. Returns whether more are to be summed.
    fn sum_some(&self) -> bool {
        let mut left = SUMMED_PER_TURN;
        while left > 0 {
            let Some(mut summing) = self.lock().sums.pop_front() else { return false };
            let is_over = summing.go_on(&self.engine, &mut left);
            let mut inner = self.lock();
            if is_over {
                inner.machine.summed(summing.of, &summing.sums, self.now());
                self.act(&mut inner);
            } else {
                inner.sums.push_front(summing);
            }
        }
        true
    }

    /// Does what is due: dials, inventories, eviction, silence.
    fn tick(&self, driver: &mut Driver) {
        let mut inner = self.lock();
        let now = self.now();
        if let Some(listed) = self.membership.as_ref().and_then(Membership::news) {
            inner.dials.follow(listed);
            self.count_missing(&mut inner);
        }
        let due = if inner.is_closing { Vec::new() } else { inner.dials.due(now) };
        for (at, address) in due {
            let dialed = self.engine.connect_async(&address, None, &self.queue, DIALS_FROM + at as u64);
            if let Err(error) = dialed {
                inner.dials.failed(at, &error.message, false, now);
            }
        }
        let due = inner.machine.tick(now);
        self.act(&mut inner);
        let blocked = (inner.outgoing.is_waiting() || !inner.waiting.is_empty())
            .then(|| now + NO_ROOM.as_nanos() as u64);
        let next = due.into_iter().chain(inner.dials.next_ns()).chain(blocked).min();
        driver.due = next.map(|next| Duration::from_nanos(next.saturating_sub(now)));
        driver.ticked_ns = now;
    }

    /// Whether the node has ended: it was closed, and all calls and requests with it, or its engine is over.
    fn is_over(&self) -> bool {
        if self.engine.is_over() {
            return true;
        }
        let mut inner = self.lock();
        if !inner.is_closing {
            return false;
        }
        if !inner.has_left {
            inner.has_left = true;
            inner.machine.leave(self.now());
            self.act(&mut inner);
        }
        // A connect that is under way keeps the queue.
        let is_idle = inner.machine.is_idle(self.now()) && !inner.dials.is_dialing();
        is_idle && inner.under_way.is_empty() && !inner.outgoing.is_waiting()
    }

    fn end(&self) {
        let mut inner = self.lock();
        self.give_up(&mut inner);
        inner.is_closing = true;
        drop(inner);
        self.changed.notify_all();
        // The directory may be silent.
        self.membership.iter().for_each(Membership::close);
        self.lock().is_over = true;
        self.news.raise();
        // BUSY only if the engine is closed, which frees the queue.
        let _ = self.destroy_queue();
        self.changed.notify_all();
    }
}
