//! The dials of an engine: who waits in `connect` and until when, the names that are looked up for these callers, the
//! names of connections that have no session yet, and the dials that are repeated after a pause. `Dials` knows a
//! connection by its token and opens none: `Control` dials (`dial`), and gives sessions to callers (`waiting`).

mod callers;
mod look_ups;
mod repeated;

pub(super) use look_ups::Found;
pub(super) use repeated::RepeatedDial;

use super::names::{address_names, Name, Names};
use crate::command::{Commands, Reply};
use crate::status::{Error, Result};
use crate::types::{Incarnation, Monotonic, PeerId};
use callers::Callers;
use look_ups::LookUps;
use repeated::RepeatedDials;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// The purpose of a dial.
pub(super) enum Target {
    /// A call of `connect`: the callers get the peer's handle. `asked`: the application's count of fences when the
    /// last caller came.
    New { address: String, asked: u64, waiting: Vec<u64> },
    /// A session that lost its connection, by its peer.
    Again { peer: PeerId },
}

pub(super) struct Dials {
    callers: Callers,
    look_ups: LookUps,
    /// Connections that have no session yet, by the names under which callers of `connect` find them.
    pending: Names<u64>,
    repeated: RepeatedDials,
}

impl Dials {
    /// `commands` take the results of look-ups.
    pub fn new(commands: &Arc<Commands>) -> Dials {
        let (callers, pending, repeated) = Default::default();
        Dials { callers, look_ups: LookUps::new(commands), pending, repeated }
    }

    /// Adds a caller, which gets TIMEOUT if it is not answered before `until`. Returns its number.
    pub fn add_caller(&mut self, address: &str, until: Monotonic, reply: Reply<PeerId>) -> u64 {
        self.callers.add(address, until, reply)
    }

    pub fn answer(&mut self, callers: Vec<u64>, result: &Result<PeerId>) {
        callers.into_iter().for_each(|caller| self.callers.answer(caller, result.clone()));
    }

    pub fn fail(&mut self, callers: Vec<u64>, error: &Error) {
        self.answer(callers, &Err(error.clone()));
    }

    /// Returns the callers that still wait, with the address that each asked for, and until when.
    pub fn asked(&self, callers: Vec<u64>) -> Vec<(u64, String, Monotonic)> {
        let asked = |caller| self.callers.asked(caller).map(|(address, until)| (caller, address, until));
        callers.into_iter().filter_map(asked).collect()
    }

    /// Looks up the address for a caller. `fences`: as `asked` in `Target::New`.
    pub fn look_up(&mut self, address: String, deadline: Monotonic, caller: u64, fences: u64) {
        self.look_ups.add(&mut self.callers, address, (deadline, caller, fences));
    }

    /// Returns the dial that the result of a look-up leads to, for the callers that still wait for it.
    pub fn name_found(&mut self, address: String, found: io::Result<Vec<SocketAddr>>) -> Option<Found> {
        self.look_ups.end(&mut self.callers, address, found)
    }

    /// Sets the names of a connection. A connection that has a session, or has ended, has none.
    pub fn set_names(&mut self, token: u64, names: Vec<Name>) {
        self.pending.set(token, names);
    }

    /// Returns the connections without a session that callers of this address may wait for.
    pub fn pending_at(&self, address: &str, resolved: &[SocketAddr]) -> Vec<u64> {
        let names = address_names(address, resolved);
        names.flat_map(|name| self.pending.find(&name).collect::<Vec<_>>()).collect()
    }

    /// Returns whether a dial to this engine is in progress and was answered. A dial that nobody answers may lead
    /// nowhere.
    pub fn is_answered_by(&self, (engine_id, incarnation): Incarnation) -> bool {
        self.pending.find(&Name::Engine(engine_id, incarnation)).next().is_some()
    }

    /// Repeats a dial after its pause: `due` returns it then, or `take_awaiting` before.
    pub fn repeat(&mut self, dial: RepeatedDial) {
        self.repeated.push(dial);
    }

    /// Returns the dials to be repeated now.
    pub fn due(&mut self, now: Monotonic) -> Vec<RepeatedDial> {
        self.repeated.take_due(now)
    }

    /// Returns the dials that wait for this engine, which dials us.
    pub fn take_awaiting(&mut self, engine: Incarnation) -> Vec<RepeatedDial> {
        self.repeated.take_awaiting(engine)
    }

    /// Returns when to call `due` or `expire` next.
    pub fn next_timer(&self) -> Option<Monotonic> {
        self.callers.next().into_iter().chain(self.repeated.next()).min()
    }

    /// Answers the callers whose time has passed.
    pub fn expire(&mut self, now: Monotonic) {
        self.callers.expire(now);
    }

    /// Repeats no further dial, because the engine closes.
    pub fn stop(&mut self) {
        self.repeated.clear();
    }
}
