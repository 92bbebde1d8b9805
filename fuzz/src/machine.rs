//! The session's state machine, driven by any well-formed sequence of messages, timers and losses. After each step:
//! a record leaves once and for a reason that proves its fence, nothing is sent without a connection, and no timer is
//! due that changes nothing. In the end every record has left.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::session::machine::{Action, Carried, Machine, Role, Timing};
use ferry::internals::session::message::Message;
use ferry::limits::FENCES_WAITING_MAX;
use ferry::types::{Boottime, LaneId, Monotonic, TransferId};
use ferry::{Fence, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const MS: u64 = 1_000_000;

#[derive(Arbitrary, Debug)]
struct Input {
    dials: bool,
    drain_ms: u8,
    answer_ms: u8,
    reconnect_ms: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Pass(u16),
    Timer,
    /// To the moment of the next timer.
    NextTimer,
    Connected(bool),
    ControlLost,
    LaneLost(Vec<(u8, bool)>),
    /// Many lanes without records.
    LanesLost(u16),
    Strike(u8),
    Ready,
    FenceAck(u8),
    AnyFenceAck(u32),
    Pong(bool),
    RegionsAdd,
    Bye,
    Other(u64),
    DialFailed(bool),
    GiveUp(u8),
    Drain(u8, bool),
    Ping,
    DialToo,
}

/// A frame on a lost lane.
#[derive(Debug)]
struct Record {
    number: usize,
    lane: LaneId,
    lease_until_ns: Monotonic,
    is_struck: Cell<bool>,
}

#[derive(Clone, Debug)]
struct Held(Rc<Record>);

impl Carried for Held {
    fn lease_until_ns(&self) -> Monotonic {
        self.0.lease_until_ns
    }
    fn is_struck(&self) -> bool {
        self.0.is_struck.get()
    }
}

/// The state of a lost lane; its number is its place in the list + 1.
struct Lost {
    /// The connection on which its fence was asked; None if there was none.
    asked: Option<u64>,
}

struct World {
    machine: Machine<Held>,
    now_ns: Monotonic,
    records: Vec<Rc<Record>>,
    released: Vec<Option<Fence>>,
    lanes: Vec<Lost>,
    /// Many lanes were lost at once: once is enough.
    has_flooded: bool,
    /// The number of the connection; 0 without one.
    connection: u64,
    connections: u64,
    is_up: bool,
    given_up: bool,
    wants_drop: bool,
    /// Set by what may release records with CONFIRMED or another fence that the caller names.
    reason: RefCell<Reason>,
    drains: Vec<TransferId>,
}

#[derive(Clone, Debug, PartialEq)]
enum Reason {
    None,
    /// An acknowledgement of this lane's fence.
    Ack(LaneId),
    /// Lanes of earlier connections, by Ready.
    Orphans,
    /// All lanes, with this fence.
    All(Fence),
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let timing = Timing {
        drain_ns: u64::from(input.drain_ms) * MS,
        answer_ns: (u64::from(input.answer_ms) + 1) * MS,
        // Off in one input of four.
        keepalive_ns: u64::from(input.answer_ms % 4) * u64::from(input.drain_ms) * MS,
        reconnect_ns: u64::from(input.reconnect_ms) * 4 * MS,
        backoff_min_ns: MS,
        backoff_max_ns: 8 * MS,
    };
    let now_ns = Monotonic::from_ns(1000 * MS);
    let role = if input.dials { Role::Dialer } else { Role::Acceptor };
    let mut world = World {
        machine: Machine::new(role, timing, now_ns),
        now_ns,
        records: Vec::new(),
        released: Vec::new(),
        lanes: Vec::new(),
        has_flooded: false,
        connection: 0,
        connections: 0,
        is_up: false,
        given_up: false,
        wants_drop: false,
        reason: RefCell::new(Reason::None),
        drains: Vec::new(),
    };
    input.steps.into_iter().take(300).for_each(|step| world.step(step));
    world.end();
}

impl World {
    fn step(&mut self, step: Step) {
        *self.reason.borrow_mut() = Reason::None;
        let mut out = Vec::new();
        match step {
            Step::Pass(ms) => self.now_ns += u64::from(ms) * MS / 16,
            Step::Timer => return self.timer(),
            Step::NextTimer => {
                if let Some(at_ns) = self.machine.next_timer() {
                    self.now_ns = self.now_ns.max(at_ns);
                }
                return self.timer();
            }
            Step::Connected(dials) => self.connect(dials),
            Step::ControlLost => self.control_lost(),
            Step::LaneLost(records) => self.lane_lost(&records, &mut out),
            Step::LanesLost(count) => {
                let most = if self.has_flooded { 16 } else { FENCES_WAITING_MAX as u16 + 8 };
                self.has_flooded |= count % most > 16;
                for _ in 0..count % most {
                    self.lane_lost(&[], &mut out);
                }
            }
            Step::Strike(nth) => {
                if let Some(record) = pick(&self.records, nth) {
                    record.is_struck.set(true);
                }
            }
            Step::Ready => {
                *self.reason.borrow_mut() = Reason::Orphans;
                self.message(&Message::Ready { notify_limit: 7 }, &mut out);
            }
            Step::FenceAck(nth) => {
                if !self.lanes.is_empty() {
                    self.fence_ack(LaneId::from_raw(u32::from(nth) % self.lanes.len() as u32 + 1), &mut out);
                }
            }
            Step::AnyFenceAck(lane) => self.fence_ack(LaneId::from_raw(lane), &mut out),
            Step::Pong(is_next) => {
                let nonce = self.machine.ping(self.now_ns, &mut out).0 + u64::from(!is_next);
                self.message(&Message::Pong { nonce, clock_ns: Boottime::ZERO }, &mut out);
            }
            Step::RegionsAdd => self.message(&Message::RegionsAdd(Vec::new()), &mut out),
            Step::Bye => {
                *self.reason.borrow_mut() = Reason::All(Fence::Confirmed);
                self.message(&Message::Bye { status: 0 }, &mut out);
            }
            Step::Other(number) => self.message(&Message::Grant { limit: number }, &mut out),
            Step::DialFailed(fatal) => {
                self.machine.dial_failed(self.now_ns, Status::Unreachable, fatal, &mut out)
            }
            Step::GiveUp(fence) => {
                let fence = match fence % 3 {
                    0 => None,
                    1 => Some(Fence::Dead),
                    _ => Some(Fence::Confirmed),
                };
                *self.reason.borrow_mut() = fence.map_or(Reason::None, Reason::All);
                self.machine.give_up(Status::Closed, fence, &mut out);
            }
            Step::Drain(transfer, again) => {
                let transfer = TransferId::from_raw(u64::from(transfer) + 1);
                if again {
                    self.machine.drain_on(self.now_ns, transfer);
                } else {
                    self.machine.drain(self.now_ns, transfer);
                }
                self.drains.push(transfer);
            }
            Step::Ping => drop(self.machine.ping(self.now_ns, &mut out)),
            Step::DialToo => self.machine.dial_too(),
        }
        self.check(out);
    }

    fn connect(&mut self, dials: bool) {
        // A given-up session has no later connection, and a connection is lost before the next begins.
        if self.given_up || self.connection != 0 {
            return;
        }
        self.connections += 1;
        self.connection = self.connections;
        (self.is_up, self.wants_drop) = (false, false);
        self.machine.connected(self.now_ns, if dials { Role::Dialer } else { Role::Acceptor });
    }

    fn control_lost(&mut self) {
        self.machine.control_lost(self.now_ns);
        (self.connection, self.is_up, self.wants_drop) = (0, false, false);
    }

    fn lane_lost(&mut self, leases: &[(u8, bool)], out: &mut Vec<Action<Held>>) {
        let lane = LaneId::from_raw(self.lanes.len() as u32 + 1);
        let mut held = Vec::new();
        for (ms, is_struck) in leases.iter().take(20) {
            let record = Rc::new(Record {
                number: self.records.len(),
                lane,
                lease_until_ns: self.now_ns + u64::from(*ms) * MS,
                is_struck: Cell::new(*is_struck),
            });
            self.records.push(record.clone());
            self.released.push(None);
            held.push(Held(record));
        }
        let asked = (self.connection != 0 && !self.given_up).then_some(self.connection);
        self.lanes.push(Lost { asked });
        self.machine.lane_lost(self.now_ns, lane, held, out);
    }

    /// Passes a message on if the control loop would: it ends the session at an answer that nobody asked for.
    fn message(&mut self, message: &Message, out: &mut Vec<Action<Held>>) {
        if self.connection != 0 && !self.given_up && self.machine.expects(message) {
            self.machine.heard(self.now_ns);
            self.machine.message(self.now_ns, message, out);
        }
    }

    fn fence_ack(&mut self, lane: LaneId, out: &mut Vec<Action<Held>>) {
        let message = Message::FenceAck { lane };
        let expected = self.machine.expects(&message);
        let at = lane.raw().wrapping_sub(1) as usize;
        let asked = self.lanes.get(at).and_then(|lost| lost.asked);
        assert!(!expected || asked == Some(self.connection), "{lane} was not asked for on this connection");
        *self.reason.borrow_mut() = Reason::Ack(lane);
        self.message(&message, out);
        if expected {
            // Answered once.
            assert!(!self.machine.expects(&message), "the fence of {lane} is answered twice");
            self.lanes[at].asked = None;
        }
    }

    fn timer(&mut self) {
        // A timer that is due must change something: otherwise the loop would spin.
        for _ in 0..1000 {
            let mut out = Vec::new();
            self.machine.timer(self.now_ns, &mut out);
            let is_quiet = out.is_empty();
            self.check(out);
            match self.machine.next_timer() {
                Some(at_ns) if at_ns <= self.now_ns && !self.wants_drop => {
                    assert!(!is_quiet, "a timer is due and changes nothing")
                }
                _ => return,
            }
        }
        panic!("the timer is due without end");
    }

    fn check(&mut self, out: Vec<Action<Held>>) {
        let reason = self.reason.borrow().clone();
        for action in out {
            match action {
                Action::Send(_) => {
                    assert!(self.connection != 0 && !self.given_up, "sent without a connection")
                }
                Action::Dial => assert!(self.connection == 0 && !self.given_up, "dials while connected"),
                Action::DrainOver(transfer) => {
                    let at = self.drains.iter().position(|other| *other == transfer);
                    // A transfer that drains twice at one moment is noted once.
                    self.drains.swap_remove(at.unwrap_or_else(|| panic!("{transfer} did not drain")));
                }
                Action::Release(records, fence) => self.release(&records, fence, &reason),
                Action::Up => {
                    assert!(self.connection != 0 && !std::mem::replace(&mut self.is_up, true), "up twice");
                    assert_eq!(reason, Reason::Orphans, "up without Ready");
                }
                Action::DropControl => {
                    assert!(self.connection != 0);
                    self.wants_drop = true;
                }
                Action::GiveUp(_) => assert!(!std::mem::replace(&mut self.given_up, true), "given up twice"),
            }
        }
        assert_eq!(self.machine.is_up(), self.is_up && !self.given_up);
        assert_eq!(self.machine.is_given_up(), self.given_up);
    }

    fn release(&mut self, records: &[Held], fence: Fence, reason: &Reason) {
        for Held(record) in records {
            let before = self.released[record.number].replace(fence);
            assert_eq!(before, None, "a record left twice");
            let asked = self.lanes[record.lane.raw() as usize - 1].asked;
            match (fence, reason) {
                (Fence::Lease, _) => {
                    assert!(record.lease_until_ns <= self.now_ns, "released before its lease was over")
                }
                (Fence::Confirmed, Reason::Ack(answered)) => assert_eq!(*answered, record.lane),
                (Fence::Confirmed, Reason::Orphans) => {
                    assert_ne!(asked, Some(self.connection), "Ready confirms a lane of this connection")
                }
                (fence, Reason::All(expected)) => assert_eq!(fence, *expected),
                (fence, reason) => panic!("{fence:?} because of {reason:?}"),
            }
        }
    }

    /// Everything is lost and time passes: every record leaves.
    fn end(&mut self) {
        *self.reason.borrow_mut() = Reason::None;
        self.control_lost();
        self.now_ns += 3600 * 1000 * MS;
        self.timer();
        self.timer();
        assert!(self.machine.is_idle() && self.machine.is_given_up());
        let left: Vec<usize> = (0..self.released.len()).filter(|at| self.released[*at].is_none()).collect();
        assert!(left.is_empty(), "records {left:?} never left");
        assert_eq!(self.machine.next_timer(), None);
    }
}

fn pick<T>(of: &[T], nth: u8) -> Option<&T> {
    of.get(usize::from(nth) % of.len().max(1))
}
