//! The session's state machine: decides the actions, and their order, when lanes, the control connection or the
//! peer's process fail. Each peer has one machine, which outlives its connections. The machine handles lanes of all
//! transports alike, by their numbers.
//!
//! ```text
//!           connected                   Ready from the peer
//!   DOWN ───────────▶ STARTING ───────────────────────────────────▶ UP
//!    ▲ ▲                 │                                          │
//!    │ └── control lost ─┴───────────────── control lost ───────────┘
//!    └ redial with backoff (an acceptor later, if it can) ── too long ──▶ GiveUp
//! ```
//! The records `R` of a lost lane come in, and leave exactly once in `Action::Release` with their fence: CONFIRMED
//! when the peer acknowledged the lane's fence or said Ready on a new connection (the peer closes the old lanes
//! before), LEASE when the record's lease is over, DEAD when the process has ended.

use crate::complete::Fence;
use crate::limits::FENCES_WAITING_MAX;
use crate::lists::take_where;
use crate::session::message::Message;
use crate::status::Status;
use crate::types::{LaneId, Monotonic, TransferId};
use std::collections::BTreeSet;

/// Drains that end in one call of the timer. The rest follows in the next call.
const DRAINS_PER_TURN: usize = 64;

/// How long after the loss of a connection only the side that had dialed dials again.
const DIALER_ALONE_NS: u64 = 500_000_000;

/// Shortest time between two checks of a struck transfer, even if the drain is shorter.
const RECHECK_NS_MIN: u64 = 10_000_000;

/// A record: a frame that was posted and is not acknowledged.
pub trait Carried {
    /// Time from which the target refuses the frame.
    fn lease_until_ns(&self) -> Monotonic;
    /// Whether the transfer was struck. A struck record does not wait for the lane's other records.
    fn is_struck(&self) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Time for posted slices of a struck transfer to be acknowledged before their lanes are closed.
    pub drain_ns: u64,
    /// Time limit for an answer on the control connection.
    pub answer_ns: u64,
    /// How long a peer that is up may be silent; 0: for ever, while nothing is under way.
    pub keepalive_ns: u64,
    /// Time limit for connecting again before the peer is given up.
    pub reconnect_ns: u64,
    pub backoff_min_ns: u64,
    pub backoff_max_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Dialer,
    Acceptor,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action<R> {
    Send(Message),
    /// Dial the control connection again.
    Dial,
    /// If this transfer is not final, close the lanes on which it is posted.
    DrainOver(TransferId),
    /// Release these records: they can access no memory any more.
    Release(Vec<R>, Fence),
    /// The session can carry transfers.
    Up,
    /// The control connection is unusable: close it, then call `control_lost`.
    DropControl,
    /// The peer is lost for good.
    GiveUp(Status),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    Down {
        lost_ns: Monotonic,
        give_up_ns: Monotonic,
        redial_ns: Monotonic,
        backoff_ns: u64,
        dialing: bool,
    },
    /// `give_up_ns` and `backoff_ns` are the outage's, which lasts until the peer's Ready.
    Starting {
        since_ns: Monotonic,
        give_up_ns: Monotonic,
        backoff_ns: u64,
    },
    Up,
    GivenUp,
}

struct FenceWait<R> {
    lane: LaneId,
    /// When the fence was asked for, or the last Pong after that; None while the session has no connection. A thread of
    /// the peer that waits for a page delays the answer, although the connection works. So a Pong renews the time.
    asked_ns: Option<Monotonic>,
    records: Vec<R>,
}

pub struct Machine<R> {
    role: Role,
    timing: Timing,
    connection: Connection,
    fences: Vec<FenceWait<R>>,
    /// The end of each drain, and its transfer.
    drains: BTreeSet<(Monotonic, TransferId)>,
    ping: Option<(u64, Monotonic)>,
    next_nonce: u64,
    /// The last sign of life.
    heard_ns: Monotonic,
}

impl<R: Carried> Machine<R> {
    /// Creates a machine that is not connected.
    pub fn new(role: Role, timing: Timing, now_ns: Monotonic) -> Machine<R> {
        Machine {
            role,
            timing,
            connection: Connection::Down {
                lost_ns: now_ns,
                give_up_ns: now_ns + timing.reconnect_ns,
                redial_ns: Monotonic::NEVER,
                backoff_ns: timing.backoff_min_ns,
                dialing: true,
            },
            fences: Vec::new(),
            drains: BTreeSet::new(),
            ping: None,
            next_nonce: 1,
            heard_ns: now_ns,
        }
    }

    fn is_connected(&self) -> bool {
        matches!(self.connection, Connection::Up | Connection::Starting { .. })
    }

    pub fn is_up(&self) -> bool {
        self.connection == Connection::Up
    }

    pub fn is_given_up(&self) -> bool {
        self.connection == Connection::GivenUp
    }

    /// Returns true if no fence and no drain is waited for.
    pub fn is_idle(&self) -> bool {
        self.fences.is_empty() && self.drains.is_empty()
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// Notes a new control connection. `role` says which side dialed. The caller has closed every lane of earlier
    /// connections.
    pub fn connected(&mut self, now_ns: Monotonic, role: Role) {
        self.role = role;
        let (give_up_ns, backoff_ns) = match self.connection {
            Connection::Down { give_up_ns, backoff_ns, .. } => (give_up_ns, backoff_ns),
            Connection::Starting { give_up_ns, backoff_ns, .. } => (give_up_ns, backoff_ns),
            _ => (now_ns.saturating_add(self.timing.reconnect_ns), self.timing.backoff_min_ns),
        };
        self.connection = Connection::Starting { since_ns: now_ns, give_up_ns, backoff_ns };
        self.ping = None;
        self.heard(now_ns);
    }

    /// Notes a sign of life at this time. The timer asks a peer that is silent for too long.
    pub fn heard(&mut self, at_ns: Monotonic) {
        self.heard_ns = self.heard_ns.max(at_ns);
    }

    /// A third of the time that a peer may be silent: it is asked after two thirds, and has the third one to answer.
    fn third_ns(&self) -> Option<u64> {
        Some(self.timing.keepalive_ns / 3).filter(|third| *third > 0)
    }

    /// Returns when the peer is asked for a sign of life: it is silent, or a fence has waited for half of its time.
    fn asks_ns(&self) -> Option<Monotonic> {
        if self.ping.is_some() {
            return None;
        }
        let third_ns = self.third_ns().filter(|_| self.is_up());
        let silence_ns = third_ns.map(|third_ns| self.heard_ns + 2 * third_ns);
        let half = self.timing.answer_ns / 2;
        silence_ns.into_iter().chain(self.fences.iter().filter_map(|wait| Some(wait.asked_ns? + half))).min()
    }

    /// Returns when the answer to the Ping is overdue. Other signs of life extend the keepalive, but not `answer_ns`.
    fn pong_ns(&self) -> Option<Monotonic> {
        let (_, asked_ns) = self.ping?;
        let answer_ns = asked_ns + self.timing.answer_ns;
        let alive_ns = asked_ns.max(self.heard_ns);
        Some(self.third_ns().map_or(answer_ns, |third_ns| answer_ns.min(alive_ns + third_ns)))
    }

    /// Fences a lane that is closed and can no longer access memory on this side. `records`: the lane's records.
    pub fn lane_lost(&mut self, now_ns: Monotonic, lane: LaneId, records: Vec<R>, out: &mut Vec<Action<R>>) {
        let connected = self.is_connected();
        if connected {
            out.push(Action::Send(Message::Fence { lane }));
        }
        if connected || !records.is_empty() {
            self.fences.push(FenceWait { lane, asked_ns: connected.then_some(now_ns), records });
        }
        // Bounds the work that a peer can cause by opening and losing lanes without answering fences.
        if connected && self.fences.len() > FENCES_WAITING_MAX {
            out.push(Action::DropControl);
        }
    }

    /// Returns whether the message may come now. Answers are accepted only to questions on this connection.
    pub fn expects(&self, message: &Message) -> bool {
        match message {
            Message::FenceAck { lane } => {
                self.fences.iter().any(|wait| wait.lane == *lane && wait.asked_ns.is_some())
            }
            Message::Pong { nonce, .. } => self.ping.is_some_and(|(asked, _)| asked == *nonce),
            _ => true,
        }
    }

    pub fn message(&mut self, now_ns: Monotonic, message: &Message, out: &mut Vec<Action<R>>) {
        match message {
            Message::RegionsAdd(_) => {
                // A peer with many regions is not silent while it announces them; its Ready follows.
                if let Connection::Starting { since_ns, give_up_ns, .. } = &mut self.connection {
                    *since_ns = now_ns;
                    *give_up_ns = now_ns.saturating_add(self.timing.reconnect_ns);
                }
            }
            Message::Ready { .. } => {
                if let Connection::Starting { .. } = self.connection {
                    self.confirm_orphans(out);
                    self.connection = Connection::Up;
                    out.push(Action::Up);
                }
            }
            Message::FenceAck { lane } => {
                if let Some(at) =
                    self.fences.iter().position(|wait| wait.lane == *lane && wait.asked_ns.is_some())
                {
                    let wait = self.fences.swap_remove(at);
                    out.push(Action::Release(wait.records, Fence::Confirmed));
                }
            }
            Message::Pong { nonce, .. } if self.ping.is_some_and(|(asked, _)| asked == *nonce) => {
                self.ping = None;
                self.fences.iter_mut().filter_map(|wait| wait.asked_ns.as_mut()).for_each(|at| *at = now_ns);
            }
            Message::Bye { .. } => self.give_up(Status::PeerLost, Some(Fence::Confirmed), out),
            _ => {}
        }
    }

    /// Confirms lanes of earlier connections: the peer closed them before it said Ready.
    fn confirm_orphans(&mut self, out: &mut Vec<Action<R>>) {
        for wait in take_where(&mut self.fences, |wait| wait.asked_ns.is_none()) {
            out.push(Action::Release(wait.records, Fence::Confirmed));
        }
    }

    /// Notes the loss of the control connection. The caller closes all lanes (each by `lane_lost`).
    pub fn control_lost(&mut self, now_ns: Monotonic) {
        match &mut self.connection {
            Connection::GivenUp => return,
            // It was lost before it began: a redial failed.
            Connection::Down { redial_ns, backoff_ns, dialing, .. } => {
                if std::mem::take(dialing) {
                    *redial_ns = now_ns + *backoff_ns;
                    *backoff_ns = (*backoff_ns * 2).min(self.timing.backoff_max_ns);
                }
                return;
            }
            _ => {}
        }
        let (give_up_ns, at_ns, backoff_ns) = match self.connection {
            Connection::Starting { give_up_ns, backoff_ns, .. } => {
                (give_up_ns, now_ns + backoff_ns, (backoff_ns * 2).min(self.timing.backoff_max_ns))
            }
            _ => (now_ns.saturating_add(self.timing.reconnect_ns), now_ns, self.timing.backoff_min_ns),
        };
        let redial_ns = if self.role == Role::Dialer { at_ns } else { Monotonic::NEVER };
        self.connection =
            Connection::Down { lost_ns: now_ns, give_up_ns, redial_ns, backoff_ns, dialing: false };
        self.unask();
    }

    /// Lets this side dial too although the peer had dialed: the peer may not know that the connection is lost, or may
    /// take this side for the one that dials.
    pub fn dial_too(&mut self) {
        if let Connection::Down { lost_ns, redial_ns, .. } = &mut self.connection {
            if *redial_ns == Monotonic::NEVER {
                *redial_ns = *lost_ns + DIALER_ALONE_NS;
            }
        }
    }

    /// Notes a failed redial. `fatal`: another attempt cannot help (refused, replaced by a new incarnation).
    pub fn dial_failed(&mut self, now_ns: Monotonic, status: Status, fatal: bool, out: &mut Vec<Action<R>>) {
        let max = self.timing.backoff_max_ns;
        if let Connection::Down { give_up_ns, redial_ns, backoff_ns, dialing, .. } = &mut self.connection {
            // A peer that had dialed may dial again, whoever answers here.
            if fatal && self.role == Role::Dialer || now_ns >= *give_up_ns {
                return self.give_up(status, None, out);
            }
            *redial_ns = now_ns + *backoff_ns;
            *backoff_ns = (*backoff_ns * 2).min(max);
            *dialing = false;
        }
    }

    /// Ends the session from this side. Without a known fence, records wait for the end of their leases.
    pub fn give_up(&mut self, status: Status, fence: Option<Fence>, out: &mut Vec<Action<R>>) {
        if let Some(fence) = fence {
            for wait in self.fences.drain(..) {
                out.push(Action::Release(wait.records, fence));
            }
        }
        if self.connection != Connection::GivenUp {
            self.connection = Connection::GivenUp;
            self.unask();
            out.push(Action::GiveUp(status));
        }
    }

    /// Forgets questions on a connection that is lost: they are not answered any more.
    fn unask(&mut self) {
        self.ping = None;
        self.fences.retain(|wait| !wait.records.is_empty());
        self.fences.iter_mut().for_each(|wait| wait.asked_ns = None);
    }

    /// Starts the drain of a struck transfer that has posted slices.
    pub fn drain(&mut self, now_ns: Monotonic, transfer: TransferId) {
        self.drains.insert((now_ns + self.timing.drain_ns, transfer));
    }

    /// Continues the drain of a transfer whose lanes are closed and that is not final. Its fence is pending, or a
    /// thread had pulled slices and not posted them yet. The next check closes the lanes of such slices.
    pub fn drain_on(&mut self, now_ns: Monotonic, transfer: TransferId) {
        self.drains.insert((now_ns + self.timing.drain_ns.max(RECHECK_NS_MIN), transfer));
    }

    /// Sends a Ping, unless one is unanswered. Returns the nonce of the Ping, and when it was sent.
    pub fn ping(&mut self, now_ns: Monotonic, out: &mut Vec<Action<R>>) -> (u64, Monotonic) {
        if let Some(asked) = self.ping {
            return asked;
        }
        let nonce = self.next_nonce;
        self.next_nonce += 1;
        if self.is_connected() {
            self.ping = Some((nonce, now_ns));
            out.push(Action::Send(Message::Ping { nonce }));
        }
        (nonce, now_ns)
    }

    /// Returns when `timer` is to be called next.
    pub fn next_timer(&self) -> Option<Monotonic> {
        let answer = self.timing.answer_ns;
        let connection = match self.connection {
            Connection::Down { give_up_ns, redial_ns, dialing, .. } => {
                Some(if dialing { give_up_ns } else { give_up_ns.min(redial_ns) })
            }
            Connection::Starting { since_ns, .. } => Some(since_ns + answer),
            _ => None,
        };
        let fences = self.fences.iter().flat_map(|wait| {
            let records = wait.records.iter().filter(|r| r.is_struck()).map(|r| r.lease_until_ns());
            let whole = wait.records.iter().map(|r| r.lease_until_ns()).max();
            records.chain(whole).chain(wait.asked_ns.map(|asked| asked + answer))
        });
        let drains = self.drains.first().map(|(at_ns, _)| *at_ns);
        connection.into_iter().chain(fences).chain(drains).chain(self.pong_ns()).chain(self.asks_ns()).min()
    }

    pub fn timer(&mut self, now_ns: Monotonic, out: &mut Vec<Action<R>>) {
        if self.asks_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.ping(now_ns, out);
        }
        self.time_connection(now_ns, out);
        self.time_fences(now_ns, out);
        // If drains are left, `next_timer` is due at once.
        for _ in 0..DRAINS_PER_TURN {
            let Some(&(_, transfer)) = self.drains.first().filter(|(at_ns, _)| *at_ns <= now_ns) else {
                break;
            };
            self.drains.pop_first();
            out.push(Action::DrainOver(transfer));
        }
    }

    fn time_connection(&mut self, now_ns: Monotonic, out: &mut Vec<Action<R>>) {
        let silent = |asked_ns: Monotonic| asked_ns + self.timing.answer_ns <= now_ns;
        let unanswered = self.fences.iter().filter_map(|wait| wait.asked_ns).any(silent)
            || self.pong_ns().is_some_and(|until_ns| until_ns <= now_ns);
        match &mut self.connection {
            Connection::Down { give_up_ns, redial_ns, dialing, .. } => {
                if *give_up_ns <= now_ns {
                    self.give_up(Status::PeerLost, None, out);
                } else if *redial_ns <= now_ns && !*dialing {
                    *dialing = true;
                    out.push(Action::Dial);
                }
            }
            Connection::Starting { since_ns, .. } if silent(*since_ns) || unanswered => {
                out.push(Action::DropControl)
            }
            Connection::Up if unanswered => out.push(Action::DropControl),
            _ => {}
        }
    }

    fn time_fences(&mut self, now_ns: Monotonic, out: &mut Vec<Action<R>>) {
        // Contract 4: without CONFIRMED or DEAD, a record is released only when its lease is over.
        for wait in &mut self.fences {
            let over = wait.records.iter().all(|record| record.lease_until_ns() <= now_ns);
            let is_over = |record: &R| over || (record.is_struck() && record.lease_until_ns() <= now_ns);
            let records = take_where(&mut wait.records, is_over);
            if !records.is_empty() {
                out.push(Action::Release(records, Fence::Lease));
            }
        }
        // A fence without records stays until it is answered: the missing answer reveals a dead connection.
        self.fences.retain(|wait| !wait.records.is_empty() || wait.asked_ns.is_some());
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
