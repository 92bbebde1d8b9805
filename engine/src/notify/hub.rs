//! All queues of an engine, and the routing of events to them. `session` delivers notifications and peer events, `api`
//! creates and destroys queues for the application.

use super::dispatcher::{Callback, Dispatcher};
use super::event::Event;
use super::queue::{Closed, Queue};
use super::{QUEUES_MAX, QUEUE_CAPACITY_MAX, WHAT_ALL, WHAT_NOTIFICATIONS};
use crate::handle::{self, Kind, Parts, Tag};
use crate::limits::CHANNELS_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::eventfd::EventFd;
use crate::sys::health::Health;
use crate::sys::lock::{Mutex, RwLock};
use crate::types::QueueId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub struct Hub {
    tag: Tag,
    dispatcher: Arc<Dispatcher>,
    /// Locked before `slots` and before any queue's lock. Held while a queue is created or destroyed or gets a
    /// notification, so that no notification is lost between two subscribers.
    routes: Mutex<Routes>,
    /// Separate from `routes`, because every submit looks up its queue.
    slots: RwLock<Vec<QueueSlot>>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}

#[derive(Default)]
struct Routes {
    /// The queues that take notifications, by channel.
    subscribers: BTreeMap<u16, Arc<Queue>>,
    /// Notifications of channels that no queue takes now. The senders' credits bound their number.
    backlog: BTreeMap<u16, VecDeque<Event>>,
    /// Vacant slots, longest unused first.
    free: VecDeque<u32>,
    closed: bool,
}

impl Routes {
    /// Keeps a notification for the next queue that takes its channel.
    fn keep(&mut self, event: Event) {
        if let Some(channel) = event.body.channel() {
            self.backlog.entry(channel).or_default().push_back(event);
        }
    }
}

struct QueueSlot {
    generation: u32,
    queue: Option<Arc<Queue>>,
}

impl Hub {
    pub(crate) fn new(tag: Tag) -> Hub {
        Hub { tag, dispatcher: Arc::default(), routes: Mutex::default(), slots: RwLock::default() }
    }

    /// Sets the engine to which the callback thread belongs.
    pub(crate) fn set_health(&self, health: Arc<Health>) {
        self.dispatcher.set_health(health);
    }

    /// Creates a queue for the kinds of events in `what` (`WHAT_` bits), with room for `capacity` transfers. A queue
    /// for notifications takes those of `channel`, and starts with those that arrived while no queue took them.
    /// INVALID for no or unknown kinds, for a capacity of 0 or above 2^20 and for a channel that does not exist, BUSY
    /// if another queue takes this channel's notifications, LIMIT for too many queues, SYSTEM if the eventfd cannot
    /// be created, CLOSED after `close`.
    pub(crate) fn create(&self, what: u32, capacity: usize, channel: u16) -> Result<Arc<Queue>> {
        if what == 0 || what & !WHAT_ALL != 0 {
            return Err(Error::invalid(format!("what: {what:#x} is not a set of known kinds of events")));
        }
        if !(1..=QUEUE_CAPACITY_MAX).contains(&capacity) {
            return Err(Error::invalid(format!("capacity: {capacity} is not 1 to {QUEUE_CAPACITY_MAX}")));
        }
        check_channel(channel, "channel")?;
        let eventfd = EventFd::new().map_err(|error| Error::system("creating an eventfd", &error))?;
        let mut routes = self.routes.lock();
        if routes.closed {
            return Err(Error::new(Status::Closed, "the engine is closing"));
        }
        if what & WHAT_NOTIFICATIONS != 0 && routes.subscribers.contains_key(&channel) {
            let text = format!("another queue takes the notifications of channel {channel}");
            return Err(Error::new(Status::Busy, text));
        }
        let queue = self.place(&mut routes, |handle| {
            Queue::new(handle, what, capacity, eventfd, self.dispatcher.clone())
        })?;
        if what & WHAT_NOTIFICATIONS != 0 {
            let waiting = routes.backlog.remove(&channel).into_iter().flatten();
            waiting.for_each(|event| queue.push_unreserved(event));
            routes.subscribers.insert(channel, queue.clone());
        }
        Ok(queue)
    }

    /// Puts the queue that `make` returns for a slot's handle into that slot. LIMIT if no slot is left.
    fn place(&self, routes: &mut Routes, make: impl FnOnce(QueueId) -> Arc<Queue>) -> Result<Arc<Queue>> {
        let mut slots = self.slots.write();
        // Unused slots are taken before vacant slots, so that the handle of a destroyed queue stays recognisable for
        // long.
        let index = if slots.len() < QUEUES_MAX {
            slots.push(QueueSlot { generation: 0, queue: None });
            slots.len() as u32 - 1
        } else {
            let full = || Error::new(Status::Limit, format!("an engine has at most {QUEUES_MAX} queues"));
            routes.free.pop_front().ok_or_else(full)?
        };
        let slot = &mut slots[index as usize];
        slot.generation = handle::next_generation(slot.generation);
        let parts = Parts { index, generation: slot.generation };
        let queue = make(QueueId::from_raw(handle::make(Kind::Queue, self.tag, parts)));
        slot.queue = Some(queue.clone());
        Ok(queue)
    }

    /// Returns the queue of this handle. INVALID for 0 or another kind of handle; STALE for another engine's handle or
    /// a destroyed queue.
    pub fn get(&self, handle: QueueId) -> Result<Arc<Queue>> {
        let parts = handle::parse(Kind::Queue, self.tag, handle.raw())?;
        let slots = self.slots.read();
        let slot = slots.get(parts.index as usize).filter(|slot| slot.generation == parts.generation);
        let queue = slot.and_then(|slot| slot.queue.clone());
        queue.ok_or_else(|| Error::new(Status::Stale, format!("queue {handle:#x} has been destroyed")))
    }

    /// Returns STALE for a queue of another engine.
    pub(crate) fn check_own(&self, queue: &Queue) -> Result<()> {
        handle::parse(Kind::Queue, self.tag, queue.handle().raw()).map(|_| ())
    }

    /// Destroys a queue. When this returns, the queue's callback has ended and will not run again (also if called
    /// inside another queue's callback). The queue's notifications wait for the next queue that takes notifications;
    /// its other events are dropped. BUSY while transfers have yet to report to the queue, and inside its own callback.
    /// Errors for the handle as in `get`.
    pub fn destroy(&self, handle: QueueId) -> Result<()> {
        let (tasks, closed) = {
            let mut routes = self.routes.lock();
            let queue = self.get(handle)?;
            if self.dispatcher.is_inside_of(handle) {
                return Err(Error::new(Status::Busy, "the queue's callback is running on this thread"));
            }
            let Closed { notifications, dropped, callback, tasks } = queue.close()?;
            notifications.into_iter().for_each(|event| routes.keep(event));
            routes.subscribers.retain(|_, subscriber| subscriber.handle() != handle);
            let index = handle::parse(Kind::Queue, self.tag, handle.raw())?.index;
            let mut slots = self.slots.write();
            let slot = slots[index as usize].queue.take();
            routes.free.push_back(index);
            // The last references, and the objects that they hold, are dropped outside the locks.
            (tasks, (dropped, callback, slot, queue))
        };
        self.dispatcher.wait_for_turn(handle);
        tasks.wake();
        drop(closed);
        Ok(())
    }

    /// Delivers a peer's notification to the queue that takes its channel, or keeps it for the next such queue.
    pub(crate) fn notification(&self, event: Event) {
        let mut routes = self.routes.lock();
        match event.body.channel().and_then(|channel| routes.subscribers.get(&channel)) {
            Some(queue) => queue.push_unreserved(event),
            None => routes.keep(event),
        }
    }

    /// Returns how many notifications and peer events wait for the application.
    pub(crate) fn unreserved(&self) -> usize {
        let backlog: usize = self.routes.lock().backlog.values().map(VecDeque::len).sum();
        backlog + self.queues().iter().map(|queue| queue.unreserved()).sum::<usize>()
    }

    /// Delivers a peer event to every queue that takes such events. The event replaces a waiting event of the same kind
    /// about the same peer; PeerDown and the PeerUp behind it count as one kind.
    pub(crate) fn peer_event(&self, event: Event) {
        let what = event.body.what();
        for queue in self.queues() {
            if queue.what() & what != 0 {
                queue.push_unreserved(Event::new(event.peer, event.body.clone()));
            }
        }
    }

    /// Sets or unsets (None) the callback that gets a queue's events on ferry's callback thread. Returns after a
    /// running call of the old callback has ended. Inside a callback does not wait: the change takes effect with the
    /// next event. Errors for the handle as in `get`, SYSTEM if the thread cannot be started, CLOSED after `close`.
    pub fn set_callback(&self, handle: QueueId, callback: Option<Callback>) -> Result<()> {
        let old = {
            // While `routes` is held, neither the queue is destroyed nor the hub closed.
            let routes = self.routes.lock();
            let queue = self.get(handle)?;
            if callback.is_some() {
                if routes.closed {
                    return Err(Error::new(Status::Closed, "the engine is closing"));
                }
                self.dispatcher.start()?;
            }
            queue.replace_callback(callback)
        };
        self.dispatcher.wait_for_turn(handle);
        drop(old);
        Ok(())
    }

    /// Wakes threads and tasks that wait for events, because the engine is broken or closed.
    pub(crate) fn rouse(&self) {
        self.queues().iter().for_each(|queue| queue.rouse());
    }

    /// The engine is broken, and all its events are in their queues: the next thread that calls back finds them.
    pub(crate) fn reschedule(&self) {
        self.dispatcher.clear();
        self.queues().iter().for_each(|queue| queue.reschedule());
    }

    /// Starts the thread that wakes tasks, which is the callback thread. SYSTEM if the thread cannot be started, CLOSED
    /// after `close`.
    pub(crate) fn start_waking(&self) -> Result<()> {
        self.dispatcher.start()
    }

    /// True if the calling thread is inside a callback of this hub.
    pub(crate) fn in_callback(&self) -> bool {
        self.dispatcher.is_inside()
    }

    /// Unsets all callbacks, ends the callback thread and, unless called inside a callback, waits for that thread.
    /// Returns whether it has ended before the deadline. Events still reach the queues and can be drained.
    pub(crate) fn close(&self, deadline: Option<Instant>) -> bool {
        let callbacks: Vec<Callback> = {
            let mut routes = self.routes.lock();
            routes.closed = true;
            self.queues().iter().filter_map(|queue| queue.replace_callback(None)).collect()
        };
        let has_ended = self.dispatcher.stop(deadline);
        drop(callbacks);
        has_ended
    }

    fn queues(&self) -> Vec<Arc<Queue>> {
        let slots = self.slots.read();
        slots.iter().filter_map(|slot| slot.queue.clone()).collect()
    }
}

/// INVALID unless there is such a channel. `what` names the argument.
pub(crate) fn check_channel(channel: u16, what: &str) -> Result<()> {
    if channel < CHANNELS_MAX {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what}: {channel} is not 0 to {}", CHANNELS_MAX - 1)))
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close(None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::WHAT_TRANSFERS;
    use super::*;

    /// Puts one queue into every slot, because that many queues would take as many descriptors.
    #[test]
    fn slots_are_bounded_and_reused_oldest_first_in_a_new_generation() {
        let hub = Hub::new(Tag::from_random(1));
        let first = hub.create(WHAT_TRANSFERS, 1, 0).unwrap();
        let second = hub.create(WHAT_TRANSFERS, 1, 0).unwrap();
        let other = second.clone();
        let place = || {
            let mut given = QueueId::NONE;
            let make = |handle| {
                given = handle;
                other.clone()
            };
            hub.place(&mut hub.routes.lock(), make).map(|_| given)
        };
        (2..QUEUES_MAX).for_each(|_| assert!(place().is_ok()));
        assert_eq!(place().unwrap_err().status, Status::Limit);
        hub.destroy(second.handle()).unwrap();
        hub.destroy(first.handle()).unwrap();
        let next = |queue: &Queue| QueueId::from_raw(queue.handle().raw() + (1 << handle::INDEX_BITS));
        assert_eq!(place().unwrap(), next(&second));
        assert_eq!(place().unwrap(), next(&first));
        assert_eq!(place().unwrap_err().status, Status::Limit);
    }
}
