//! A queue of events. `hub` and the thread that ends a transfer push events. The application drains them, sleeps until
//! there are some (`wake`), or `dispatcher` takes them singly for a callback.
//!
//! The wake-up contract is arm and drain. The eventfd is written when the first event comes to an empty, armed queue.
//! It is written again only after a drain that returned fewer events than requested has armed the queue. Both happen
//! under the queue's lock, so "readable" means that drain has events, or has not yet returned fewer than requested, or
//! that the engine has ended.

use super::dispatcher::{Callback, Dispatcher};
use super::event::{Event, EventBody};
use super::pending::{Pending, Room};
use super::waiter::Signal;
use super::wake::Tasks;
use super::{WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use crate::status::{Error, Result, Status};
use crate::sys::eventfd::EventFd;
use crate::sys::fd::{AsFd, BorrowedFd};
use crate::sys::lock::Mutex;
use crate::types::QueueId;
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

pub struct Queue {
    handle: QueueId,
    what: u32,
    capacity: usize,
    eventfd: EventFd,
    dispatcher: Arc<Dispatcher>,
    /// This queue, for the dispatcher's list.
    me: Weak<Queue>,
    pub(super) inner: Mutex<Inner>,
    /// Raised for the threads that sleep until there is an event.
    pub(super) signal: Signal,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Queue { handle, what, capacity, .. } = self;
        let kinds = format_args!("{what:#b}");
        f.debug_struct("Queue")
            .field("handle", handle)
            .field("what", &kinds)
            .field("capacity", capacity)
            .finish()
    }
}

#[derive(Default)]
pub(super) struct Inner {
    pub pending: Pending,
    /// Submitted transfers and started connects whose event is yet to come.
    reserved: usize,
    /// Events in `pending` that had a reservation. `reserved` and this add up to at most `capacity`.
    pending_reserved: usize,
    pub closed: bool,
    /// The eventfd was requested. Before that no system call is spent on it.
    watched: bool,
    /// The eventfd is readable.
    raised: bool,
    /// The engine is broken or closed: the eventfd stays readable, for pollers that drained meanwhile.
    is_over: bool,
    callback: Option<Callback>,
    /// The dispatcher has this queue in its list, or is about to return to it.
    scheduled: bool,
    /// Threads that sleep, or are about to.
    pub sleepers: usize,
    /// Tasks that wait for an event.
    pub tasks: Tasks,
    /// The number of the last future that waited.
    pub futures: u64,
}

impl Queue {
    pub(super) fn new(
        handle: QueueId,
        what: u32,
        capacity: usize,
        eventfd: EventFd,
        dispatcher: Arc<Dispatcher>,
    ) -> Arc<Queue> {
        Arc::new_cyclic(|me| Queue {
            handle,
            what,
            capacity,
            eventfd,
            dispatcher,
            me: me.clone(),
            inner: Mutex::default(),
            signal: Signal::new(),
        })
    }

    pub fn handle(&self) -> QueueId {
        self.handle
    }

    /// Returns the kinds of events that the queue takes: `WHAT_` bits.
    pub(crate) fn what(&self) -> u32 {
        self.what
    }

    /// Reserves room for a transfer's event before the transfer is submitted. LIMIT if as many transfers as the queue
    /// has room for are in progress or wait to be drained, CLOSED if the queue was destroyed, INVALID if the queue does
    /// not take transfers. Notifications and peer events, which a peer could send at will, take no room from transfers.
    pub(crate) fn reserve(&self) -> Result<()> {
        if self.what & WHAT_TRANSFERS == 0 {
            return Err(Error::invalid("the queue does not take transfers"));
        }
        self.take_room()
    }

    /// Reserves room for the outcome of an asynchronous connect. INVALID if the queue does not take peer events.
    pub(crate) fn reserve_connect(&self) -> Result<()> {
        if self.what & WHAT_PEERS == 0 {
            return Err(Error::invalid("the queue does not take peer events"));
        }
        self.take_room()
    }

    fn take_room(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(Error::new(Status::Stale, "the queue has been destroyed"));
        }
        if inner.reserved + inner.pending_reserved >= self.capacity {
            let (capacity, open, over) = (self.capacity, inner.reserved, inner.pending_reserved);
            let text = format!(
                "the queue is full: {capacity} of {capacity} places are taken by transfers and connects that are in \
                 progress ({open}) or wait to be drained ({over}): drain it, or create it with a larger capacity"
            );
            return Err(Error::new(Status::Limit, text));
        }
        inner.reserved += 1;
        Ok(())
    }

    /// Returns a reservation after a submit that failed.
    pub(crate) fn unreserve(&self) {
        self.inner.lock().give_back_reservation();
    }

    /// Adds the event for which room was reserved. `publish` runs under the queue's lock, so that no thread sees the
    /// event before the published state, or the state before the event. `publish` must not block or use the queue.
    /// Never blocks, never fails, never runs user code.
    pub(crate) fn push_reserved(&self, event: Event, publish: impl FnOnce()) {
        self.push(event, Room::Reserved, publish);
    }

    /// Adds an event of a kind whose number is bounded elsewhere.
    pub(super) fn push_unreserved(&self, event: Event) {
        self.push(event, Room::Unreserved, || ());
    }

    fn push(&self, event: Event, room: Room, publish: impl FnOnce()) {
        let mut inner = self.inner.lock();
        publish();
        if room == Room::Reserved {
            inner.give_back_reservation();
            inner.pending_reserved += 1;
        }
        let replaced = inner.pending.push(event, room);
        self.raise(&mut inner);
        let (schedule, sleepers) = (inner.must_schedule(), inner.sleepers);
        drop(inner);
        if sleepers > 0 {
            self.signal.raise();
        }
        if schedule {
            self.dispatcher.schedule(self.me.clone());
        }
        // Outside the lock, because a credit calls back when it is dropped.
        drop(replaced);
    }

    /// Returns the eventfd, which is readable when `drain` has events. The queue owns it: the caller polls, and neither
    /// reads nor closes it.
    pub fn eventfd(&self) -> RawFd {
        let mut inner = self.inner.lock();
        inner.watched = true;
        if !inner.pending.is_empty() || inner.is_over {
            self.raise(&mut inner);
        }
        self.eventfd.as_raw_fd()
    }

    /// Moves up to `max` events to the end of `out`, oldest first, and returns how many. Fewer than
    /// `max` means that the queue was empty and is armed: the next event makes the eventfd readable.
    pub fn drain(&self, out: &mut Vec<Event>, max: usize) -> usize {
        self.take(&mut self.inner.lock(), out, max)
    }

    pub(super) fn take(&self, inner: &mut Inner, out: &mut Vec<Event>, max: usize) -> usize {
        let count = max.min(inner.pending.len());
        out.reserve(count);
        out.extend((0..count).map_while(|_| inner.pop()));
        if count < max {
            self.arm(inner);
        }
        count
    }

    /// Wakes all that wait for events, with or without an event: the engine is broken or closed, and each of them gets
    /// the error. Called under no lock, because tasks are woken.
    pub(super) fn rouse(&self) {
        let mut inner = self.inner.lock();
        inner.is_over = true;
        self.raise(&mut inner);
        let tasks = inner.tasks.take();
        drop(inner);
        self.signal.raise();
        tasks.wake();
    }

    /// Returns the number of waiting events.
    pub fn pending(&self) -> usize {
        self.inner.lock().pending.len()
    }

    /// Returns the number of waiting events for which no room was reserved: notifications and peer events.
    pub(super) fn unreserved(&self) -> usize {
        let inner = self.inner.lock();
        inner.pending.len() - inner.pending_reserved
    }

    fn raise(&self, inner: &mut Inner) {
        if inner.watched && !inner.raised {
            inner.raised = true;
            self.eventfd.raise();
        }
    }

    fn arm(&self, inner: &mut Inner) {
        if inner.raised && !inner.is_over {
            inner.raised = false;
            self.eventfd.clear();
        }
    }

    /// Replaces the callback and returns the old callback, for the caller to drop outside its locks.
    pub(super) fn replace_callback(&self, callback: Option<Callback>) -> Option<Callback> {
        let mut inner = self.inner.lock();
        let old = std::mem::replace(&mut inner.callback, callback);
        let schedule = !inner.pending.is_empty() && inner.must_schedule();
        drop(inner);
        if schedule {
            self.dispatcher.schedule(self.me.clone());
        }
        old
    }

    /// Schedules this queue with the dispatcher again, if the queue has events: a thread that stopped in a broken
    /// engine may have taken the queue out of the list, or marked it, without serving it.
    pub(super) fn reschedule(&self) {
        let mut inner = self.inner.lock();
        inner.scheduled = false;
        let schedule = !inner.pending.is_empty() && inner.must_schedule();
        drop(inner);
        if schedule {
            self.dispatcher.schedule(self.me.clone());
        }
    }

    /// Returns the tasks that wait, and the next event and its callback, for the dispatcher. If there is no event, the
    /// queue gets no further turn until it is scheduled again.
    pub(super) fn take_turn(&self) -> (Tasks, Option<(Callback, Event)>) {
        let mut inner = self.inner.lock();
        let tasks = inner.tasks.take();
        let callback = inner.callback.clone();
        let turn = callback.and_then(|callback| inner.pop().map(|event| (callback, event)));
        inner.scheduled = turn.is_some();
        if turn.is_some() && inner.pending.is_empty() {
            // As after a drain that emptied the queue: the callback took the events that made the eventfd readable.
            self.arm(&mut inner);
        }
        (tasks, turn)
    }

    /// Closes the queue and returns its undelivered notifications, in order. BUSY while the event of a transfer or a
    /// connect is yet to come. The other events and the callback are returned for the caller to drop outside its locks.
    pub(super) fn close(&self) -> Result<Closed> {
        let mut inner = self.inner.lock();
        if inner.reserved > 0 {
            let message = format!("{} transfers or connects have yet to report to the queue", inner.reserved);
            return Err(Error::new(Status::Busy, message));
        }
        inner.closed = true;
        let (mut notifications, mut dropped) = (Vec::new(), Vec::new());
        while let Some(event) = inner.pop() {
            match event.body {
                EventBody::Notification { .. } if self.what & WHAT_NOTIFICATIONS != 0 => {
                    notifications.push(event)
                }
                _ => dropped.push(event),
            }
        }
        self.arm(&mut inner);
        let (callback, tasks) = (inner.callback.take(), inner.tasks.take());
        drop(inner);
        self.signal.raise();
        Ok(Closed { notifications, dropped, callback, tasks })
    }
}

/// The eventfd, for pollers that borrow their descriptors (`rustix`, `tokio`'s AsyncFd).
impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd();
        self.eventfd.as_fd()
    }
}

/// The contents of a closed queue.
pub(super) struct Closed {
    pub notifications: Vec<Event>,
    pub dropped: Vec<Event>,
    pub callback: Option<Callback>,
    /// To be woken: they get STALE.
    pub tasks: Tasks,
}

impl Inner {
    fn give_back_reservation(&mut self) {
        // More pushes than reservations would let the queue grow without bound.
        assert!(self.reserved > 0, "a queue reservation was used twice");
        self.reserved -= 1;
    }

    fn pop(&mut self) -> Option<Event> {
        let (event, room) = self.pending.pop()?;
        self.pending_reserved -= usize::from(room == Room::Reserved);
        Some(event)
    }

    /// True if the dispatcher must be told of this queue; true only once until the dispatcher has served the queue.
    fn must_schedule(&mut self) -> bool {
        let wanted = self.callback.is_some() || !self.tasks.is_empty();
        wanted && !std::mem::replace(&mut self.scheduled, true)
    }
}
