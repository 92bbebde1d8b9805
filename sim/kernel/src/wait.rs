//! Waiting and waking. A task that is about to wait takes a `Ticket`, leaves it where the waker looks, and blocks. A
//! ticket is of one wait: later wakes with it do nothing. No switch lies between taking a ticket and blocking, so no
//! wake-up is lost in between.

use crate::clock;
use crate::task::{suspend, State};
use crate::timer::Event;
use crate::world::{is_running, try_with, with, World};
use std::cell::UnsafeCell;
use std::time::Duration;

/// One wait of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    index: u32,
    generation: u32,
    wait: u32,
}

/// Returns the ticket of this task's next wait.
pub fn ticket() -> Ticket {
    with(|world| world.ticket_of(world.current))
}

/// Waits until `wake` is called with the ticket, or until the time is over. Returns true if it was woken. `what` is for
/// people who read of a deadlock.
pub fn block(what: &'static str, timeout: Option<Duration>) -> bool {
    let deadline = timeout.map(clock::deadline);
    block_until(what, deadline)
}

/// Like `block`, until the monotonic clock of this host shows `deadline`.
pub(crate) fn block_until(what: &'static str, deadline: Option<u64>) -> bool {
    if !is_running() {
        panic!("a wait for {what} outside of a simulation");
    }
    let at = with(|world| {
        assert!(world.no_switch == 0, "a wait for {what} where nothing may switch");
        let at = world.current;
        let task = &mut world.tasks[at];
        (task.state, task.wait, task.deadline, task.woken) = (State::Blocked, what, deadline, false);
        if deadline.is_some() {
            world.plan_end_of_wait(at);
        }
        at
    });
    suspend();
    with(|world| world.tasks[at].woken)
}

/// Ends the wait of this ticket. Returns false if the wait is over, or its task gone.
pub fn wake(ticket: Ticket) -> bool {
    try_with(|world| world.wake(ticket)).unwrap_or(false)
}

impl World {
    pub(crate) fn ticket_of(&self, index: usize) -> Ticket {
        let task = &self.tasks[index];
        Ticket { index: index as u32, generation: task.generation, wait: task.waits }
    }

    pub(crate) fn is_waiting(&self, ticket: Ticket) -> bool {
        let task = &self.tasks[ticket.index as usize];
        (task.generation, task.waits) == (ticket.generation, ticket.wait) && task.state == State::Blocked
    }

    pub(crate) fn wake(&mut self, ticket: Ticket) -> bool {
        let waits = self.is_waiting(ticket);
        if waits {
            self.end_wait(ticket, true);
        }
        waits
    }

    fn end_wait(&mut self, ticket: Ticket, woken: bool) {
        let task = &mut self.tasks[ticket.index as usize];
        task.woken = woken;
        task.waits += 1;
        task.state = State::Runnable;
        self.runnable.push(ticket.index as usize);
    }

    /// Plans the timeout of a task that is blocked, by its host's clock as it goes now.
    pub(crate) fn plan_end_of_wait(&mut self, index: usize) {
        let Some(deadline) = self.tasks[index].deadline else { return };
        let host = self.processes[self.tasks[index].process.0 as usize].host;
        // A clock that stands shows no later time; `HostId::wake_up` plans the waits of its host again.
        if let Some(at) = self.hosts[host.0 as usize].clock.when(deadline) {
            let ticket = self.ticket_of(index);
            self.plan(at.max(self.now), Event::Wait(ticket));
        }
    }

    /// Ends a wait whose time is over, unless its host's clock was slowed or stood meanwhile.
    pub(crate) fn time_is_over(&mut self, ticket: Ticket) {
        if !self.is_waiting(ticket) {
            return;
        }
        let task = &self.tasks[ticket.index as usize];
        let host = self.processes[task.process.0 as usize].host;
        if self.hosts[host.0 as usize].clock.monotonic(self.now) >= task.deadline.unwrap_or(u64::MAX) {
            self.end_wait(ticket, false);
        } else {
            self.plan_end_of_wait(ticket.index as usize);
        }
    }
}

/// Tasks that wait for one thing. No order is promised: the seed decides who is woken.
#[derive(Default, Debug)]
pub struct WaitQueue(UnsafeCell<Vec<Ticket>>);

// SAFETY: all access is within `tickets`, on the thread of the world; outside of a world nothing waits.
unsafe impl Send for WaitQueue {}
// SAFETY: as above.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    pub const fn new() -> WaitQueue {
        WaitQueue(UnsafeCell::new(Vec::new()))
    }

    /// Borrows the tickets while nothing switches and no code of others runs.
    fn tickets<R>(&self, act: impl FnOnce(&mut Vec<Ticket>) -> R) -> R {
        // SAFETY: the callers below run no foreign code and do not switch inside `act`, and all of them are on the
        // thread of the world.
        act(unsafe { &mut *self.0.get() })
    }

    /// Waits to be woken. Returns false if the time was over first.
    pub fn wait(&self, what: &'static str, timeout: Option<Duration>) -> bool {
        self.wait_until(what, timeout.map(clock::deadline), || ())
    }

    /// Calls `before` when a wake would reach this task already, then waits.
    pub(crate) fn wait_until(
        &self,
        what: &'static str,
        deadline: Option<u64>,
        before: impl FnOnce(),
    ) -> bool {
        if !is_running() {
            panic!("a wait for {what} outside of a simulation");
        }
        let own = ticket();
        self.tickets(|tickets| tickets.push(own));
        before();
        let woken = block_until(what, deadline);
        if !woken {
            self.tickets(|tickets| tickets.retain(|ticket| *ticket != own));
        }
        woken
    }

    /// Wakes one task. Returns false if none waits.
    #[inline]
    pub fn wake_one(&self) -> bool {
        // SAFETY: as in `tickets`; a look at the length.
        if unsafe { (*self.0.get()).is_empty() } {
            return false;
        }
        self.wake_any()
    }

    #[cold]
    fn wake_any(&self) -> bool {
        let woken = try_with(|world| {
            self.tickets(|tickets| {
                while !tickets.is_empty() {
                    let ticket = tickets.swap_remove(world.any(tickets.len()));
                    if world.wake(ticket) {
                        return true;
                    }
                }
                false
            })
        });
        woken.unwrap_or(false)
    }

    pub fn wake_all(&self) {
        while self.wake_one() {}
    }
}
