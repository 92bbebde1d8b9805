//! An application's thread: submits transfers, waits for them in one of several ways, cancels some, connects, fences
//! and closes peers, and takes memory back in the midst of it. `wishes` draws what it submits.

use crate::calls::Guest;
use crate::draw::Draw;
use crate::ledger::{LifeId, TransferId, View};
use crate::memory::MemoryId;
use crate::program::Program;
use ferry::notify::{Event, EventBody, Queue, WHAT_TRANSFERS};
use ferry::status::Status;
use ferry::types::PeerId;
use ferry::TransferCore;
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::task;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Transfers whose events a queue has room for.
const QUEUE_ROOM: usize = 64;
/// The longest time before a hasty thread cancels.
const SPINS_MAX: u64 = 300;
/// Events that are taken at once.
const EVENTS: usize = 16;
/// The pause of a thread that has nothing to do.
const REST: Duration = Duration::from_millis(5);

pub struct Actor {
    pub program: Program,
    pub draw: Draw,
    pub queue: Arc<Queue>,
    flights: Vec<Flight>,
    /// Transfers that the callback of its queue has submitted.
    foundlings: Rc<RefCell<Vec<Flight>>>,
    /// The memory that this thread takes back.
    going: Option<MemoryId>,
    nth: usize,
    /// How often it has set a callback.
    sets: u64,
    /// Looks at transfers since the last one ended.
    vain: u32,
    /// The next transfer has a notification.
    pub notes: bool,
    /// It has given many numbers up.
    has_skipped: bool,
}

pub struct Flight {
    pub id: TransferId,
    pub core: Arc<TransferCore>,
    pub style: Style,
}

/// How a thread learns of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Wait,
    Poll,
    Drain,
    Spin,
}

impl Actor {
    pub fn new(program: Program, nth: usize) -> Actor {
        let draw = Draw::new(program.world.seed, 2_000 + (program.life * 8 + nth) as u64);
        let queue = program.queue(WHAT_TRANSFERS, QUEUE_ROOM);
        Actor::of(program, draw, queue, nth)
    }

    pub fn of(program: Program, draw: Draw, queue: Arc<Queue>, nth: usize) -> Actor {
        let foundlings = Rc::default();
        Actor {
            program,
            draw,
            queue,
            flights: Vec::new(),
            foundlings,
            going: None,
            nth,
            sets: 0,
            vain: 0,
            notes: false,
            has_skipped: false,
        }
    }

    /// Sets the queue's callback, or keeps it set for the most part.
    fn call_back(&mut self, leaves: bool) {
        if self.program.is_called_back(&self.queue) {
            if leaves || self.draw.percent(3) {
                self.program.unset_callback(&self.queue);
            }
        } else if !leaves {
            let (seed, life) = (self.program.world.seed, self.program.life);
            let draw = Draw::new(seed, 100_000 + (life * 8 + self.nth) as u64 + (self.sets << 20));
            self.sets += 1;
            let actor = Actor::of(self.program.clone(), draw, self.queue.clone(), self.nth);
            let guest = Guest::new(actor, self.foundlings.clone());
            self.program.call_back(&self.queue, move |event| guest.take(event));
        }
    }

    pub fn run(mut self) {
        loop {
            let leaves = self.program.is_leaving();
            if self.program.plan.calls_back {
                self.call_back(leaves);
                self.flights.append(&mut self.foundlings.borrow_mut());
            }
            if leaves && self.flights.is_empty() {
                break;
            }
            self.reap();
            let (left, is_calm) =
                self.program.world.book.with(|ledger| (ledger.slots[self.program.slot].left, ledger.is_calm));
            if leaves {
                self.cancel_any();
            } else if self.going.is_some() {
                self.take_back();
            } else if self.nth == 0 && self.program.lacks_room() {
                self.program.make_room();
            } else if left > 0 && self.flights.len() < self.program.plan.window {
                self.act();
            } else if left == 0 && is_calm && self.nth == 0 && self.flights.is_empty() {
                self.examine();
            } else if self.flights.is_empty() {
                task::sleep(REST);
            }
            self.pause();
        }
        self.drain_queue();
        let life = self.program.life;
        self.program.world.book.with(|ledger| ledger.lives[life].threads_left -= 1);
    }

    fn pause(&mut self) {
        self.vain += 1;
        if self.vain > self.program.plan.vain_max {
            task::sleep(REST);
        }
        let most = self.program.plan.pause_us;
        if self.draw.percent(90) {
            task::sleep(Duration::from_micros(self.draw.log_uniform(most / 64 + 1, most)));
        } else {
            task::yield_now();
        }
    }

    fn act(&mut self) {
        if self.program.plan.skips && self.nth == 0 && !self.has_skipped && self.draw.percent(5) {
            self.has_skipped = true;
            return self.give_numbers_up();
        }
        match self.draw.between(0, 199) {
            // In the midst of transfers that name several memories.
            10..=25 if self.nth == 0 && self.program.plan.is_wide => self.take_back(),
            0..=5 if self.nth == 0 => self.take_back(),
            6..=7 => self.close_peer(),
            // A pool lifts fences at any time.
            8..=9 if self.program.world.plan.pool.is_none() => self.fence(),
            _ => self.transfer(),
        }
    }

    /// Looks after the transfers that are under way.
    fn reap(&mut self) {
        self.drain_queue();
        for at in (0..self.flights.len()).rev() {
            let (core, style) = (self.flights[at].core.clone(), self.flights[at].style);
            let engine = &self.program.engine;
            match style {
                Style::Wait => {
                    let patience = Duration::from_micros(self.draw.log_uniform(10, 300_000));
                    if let Err(error) = engine.wait(&core, Some(patience)) {
                        self.expect(&error, &[Status::Timeout, Status::Closed]);
                    }
                }
                Style::Poll => engine.poll(&core),
                Style::Drain => self.await_events(),
                Style::Spin => {
                    for _ in 0..100 {
                        if core.is_final() {
                            break;
                        }
                        engine.poll(&core);
                        task::spin();
                    }
                }
            }
            if core.is_final() {
                self.end(at);
            } else if self.draw.percent(2) {
                self.cancel(at);
            }
        }
    }

    /// The transfer at this place is final: compares, and releases it.
    fn end(&mut self, at: usize) {
        self.vain = 0;
        let flight = self.flights.swap_remove(at);
        let (result, requests) = (flight.core.result(), flight.core.results());
        let again = flight.core.result();
        self.program.world.book.with(|ledger| match result {
            Some(result) if again == Some(result.clone()) => ledger.conclude(flight.id, result, &requests),
            _ => {
                ledger.fail(format!("transfer {} is final with the results {result:?}, {again:?}", flight.id))
            }
        });
        if let Err(error) = self.program.engine.release(flight.core.handle) {
            self.expect(&error, &[Status::Closed]);
        }
    }

    fn cancel(&mut self, at: usize) {
        let flight = &self.flights[at];
        self.program.world.book.with(|ledger| {
            ledger.transfers[flight.id].struck_ns.get_or_insert(virtual_ns());
        });
        if let Err(error) = self.program.engine.cancel(&flight.core) {
            self.expect(&error, &[Status::Closed, Status::Stale]);
        }
    }

    fn cancel_any(&mut self) {
        if !self.flights.is_empty() && self.draw.percent(20) {
            let at = self.draw.below(self.flights.len());
            self.cancel(at);
        }
    }

    fn await_events(&mut self) {
        let patience = Duration::from_micros(self.draw.log_uniform(10, 30_000));
        match self.program.engine.wait_events(&self.queue, EVENTS, Some(patience)) {
            Ok(events) => events.iter().for_each(|event| self.learn(event)),
            Err(error) => self.expect(&error, &[Status::Timeout, Status::Closed]),
        }
    }

    fn drain_queue(&mut self) {
        let mut events: Vec<Event> = Vec::new();
        while self.queue.drain(&mut events, EVENTS) == EVENTS {}
        events.iter().for_each(|event| self.learn(event));
    }

    /// An event of the queue was taken.
    pub fn learn(&self, event: &Event) {
        let life = self.program.life;
        self.program.world.book.with(|ledger| match &event.body {
            EventBody::Transfer { user_data, status, .. } => ledger.ended_by_event(life, *user_data, *status),
            body => ledger.fail(format!("a queue of transfers has {body:?}")),
        });
    }

    pub fn take_flights(&mut self) -> Vec<Flight> {
        std::mem::take(&mut self.flights)
    }

    pub fn fly(&mut self, id: TransferId, core: Arc<TransferCore>) {
        let style = *self.draw.pick(&[Style::Wait, Style::Wait, Style::Poll, Style::Drain, Style::Spin]);
        self.flights.push(Flight { id, core, style });
        // So that a strike meets the threads that post.
        if self.program.plan.is_hasty && self.draw.percent(30) {
            (0..self.draw.log_uniform(1, SPINS_MAX)).for_each(|_| task::spin());
            self.cancel(self.flights.len() - 1);
        }
    }

    /// Fails the run if a call fails with another status than these.
    pub fn expect(&self, error: &ferry::status::Error, of: &[Status]) {
        if !of.contains(&error.status) {
            self.program.world.book.with(|ledger| ledger.fail(format!("a call failed: {error}")));
        }
    }

    /// Takes the right to change the peer of a slot. False if another thread has it.
    fn take(&self, slot: usize) -> bool {
        let life = self.program.life;
        self.program.world.book.with(|ledger| ledger.lives[life].busy.insert(slot))
    }

    fn give_back(&self, slot: usize) {
        let life = self.program.life;
        self.program.world.book.with(|ledger| ledger.lives[life].busy.remove(&slot));
    }

    pub fn any_peer(&mut self) -> usize {
        *self.draw.pick(&self.program.plan.peers)
    }

    /// Returns the peer at a slot, and the life behind it. Connects if no connection is known.
    pub fn peer(&mut self, slot: usize) -> Option<(PeerId, LifeId)> {
        let life = self.program.life;
        let known = self.program.world.book.with(|ledger| ledger.lives[life].peers.get(&slot).copied());
        if let Some(peer) = known {
            return Some((peer, self.program.life_behind(peer)?));
        }
        let address = self.program.world.book.with(|ledger| ledger.slots[slot].address.clone());
        if address.is_empty() || !self.take(slot) {
            return None;
        }
        self.program.world.book.with(|ledger| {
            ledger.lives[life].views.insert(slot, View::Connecting);
            let lives = &ledger.lives;
            let there: Vec<LifeId> = (0..lives.len()).filter(|other| lives[*other].slot == slot).collect();
            there.iter().for_each(|other| {
                ledger.lives[life].fenced.remove(other);
            });
        });
        let patience = Duration::from_millis(self.draw.log_uniform(20, 3_000));
        let connected = self.program.engine.connect(&address, Some(patience));
        let found = match connected {
            Ok(peer) => self.program.life_behind(peer).map(|of| (peer, of)),
            Err(error) => {
                ferry_sim_kernel::trace::event("unconnected", &[slot as u64], || {
                    format!("cannot connect to e{slot} within {patience:?}: {error}")
                });
                self.program.world.book.with(|ledger| {
                    ledger.check_call("connecting", &error);
                    ledger.lives[life].views.remove(&slot);
                });
                None
            }
        };
        if let Some((peer, of)) = found {
            self.program.world.book.with(|ledger| {
                ledger.lives[life].peers.insert(slot, peer);
                ledger.view(life, of, View::Up);
            });
        }
        self.give_back(slot);
        found
    }

    /// A peer is of no use any more.
    pub fn forget(&self, slot: usize, peer: PeerId) {
        let life = self.program.life;
        self.program.world.book.with(|ledger| {
            let peers = &mut ledger.lives[life].peers;
            if peers.get(&slot) == Some(&peer) {
                peers.remove(&slot);
            }
        });
    }

    fn close_peer(&mut self) {
        let slot = self.any_peer();
        let Some((peer, of)) = self.peer(slot).filter(|_| self.take(slot)) else { return };
        let life = self.program.life;
        self.forget(slot, peer);
        let begun = self.program.world.book.with(|ledger| {
            ledger.part(life, of);
            ledger.view(life, of, View::Closing);
            let now = virtual_ns();
            let all = ledger.transfers.iter_mut().filter(|it| (it.wish.from, it.wish.handle) == (life, peer));
            all.for_each(|it| {
                it.struck_ns.get_or_insert(now);
            });
            ledger.live(|it| (it.wish.from, it.wish.handle) == (life, peer))
        });
        match self.program.engine.close_peer(peer, Some(Duration::from_secs(10))) {
            Ok(()) => {
                if let Some((id, _)) = begun.iter().find(|(_, core)| !core.is_final()) {
                    self.program.world.book.with(|ledger| {
                        ledger.fail(format!(
                            "close_peer has returned OK, and {} is not final",
                            ledger.told(*id)
                        ));
                    });
                }
            }
            Err(error) => {
                self.expect(&error, &[Status::Busy, Status::PeerLost, Status::Closed, Status::Stale])
            }
        }
        self.program.world.book.with(|ledger| {
            ledger.lives[life].views.remove(&slot);
        });
        self.give_back(slot);
    }

    fn fence(&mut self) {
        let slot = self.any_peer();
        let Some((peer, of)) = self.peer(slot).filter(|_| self.take(slot)) else { return };
        let life = self.program.life;
        self.program.world.book.with(|ledger| ledger.part(life, of));
        match self.program.engine.fence(peer, Some(Duration::from_secs(10))) {
            Ok(()) => self.program.world.book.with(|ledger| {
                let now = ledger.tick();
                ledger.cut_between(of, life, now, "peer_fence has returned OK");
                ledger.lives[life].fenced.insert(of);
                // The peer is refused until this side connects to it again, which a new exam does.
                ledger.passed.remove(&(life, slot));
                ledger.view(life, of, View::Fenced);
            }),
            Err(error) => self.expect(
                &error,
                &[Status::Timeout, Status::Busy, Status::PeerLost, Status::Closed, Status::Stale],
            ),
        }
        self.forget(slot, peer);
        self.give_back(slot);
    }

    /// Takes a memory back, in as many calls as that needs, and registers it again.
    fn take_back(&mut self) {
        let (book, life) = (self.program.world.book.clone(), self.program.life);
        let fresh = self.going.is_none();
        let id = match self.going {
            Some(id) => id,
            None => {
                let all = book.with(|ledger| ledger.lives[life].memories.clone());
                *self.draw.pick(&all)
            }
        };
        let region = book.with(|ledger| {
            ledger.memories[id].goes = true;
            ledger.memories[id].region
        });
        if let Some(region) = region {
            let ms = if fresh { *self.draw.pick(&[0, 1, 20, 500]) } else { 20 };
            book.with(|ledger| ledger.lives[life].unregistering += 1);
            let result = self.program.engine.unregister(region, Some(Duration::from_millis(ms)));
            book.with(|ledger| ledger.lives[life].unregistering -= 1);
            match result {
                Ok(()) => book.with(|ledger| ledger.unregistered(id)),
                Err(error) => {
                    self.expect(&error, &[Status::Busy]);
                    book.with(|ledger| ledger.memories[id].goes = ms > 0);
                    self.going = (ms > 0).then_some(id);
                    return;
                }
            }
            if self.draw.percent(50) {
                task::sleep(Duration::from_micros(self.draw.log_uniform(1, 50_000)));
            }
        }
        let again = self.program.register_again(id);
        self.going = again.is_err().then_some(id);
    }

    /// Faults are over: a fresh transfer to each peer must be DONE.
    fn examine(&mut self) {
        let life = self.program.life;
        for slot in self.program.plan.peers.clone() {
            let has_passed = || self.program.world.book.with(|ledger| ledger.passed.contains(&(life, slot)));
            if !has_passed() && self.exam(slot) {
                self.program.world.book.with(|ledger| ledger.passed.insert((life, slot)));
            }
        }
    }
}
