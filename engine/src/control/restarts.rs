//! Engines that were restarted. Finds the peer that a new engine replaces (its forerunner), and learns whether the
//! forerunner's process has ended.
//!
//! ```text
//! a new engine at the place and IP address of a known engine, or at the address of a lost engine: the old engine
//! is lost, its records wait for their leases
//!   HasEnded{pid, started} ─▶   if both engines count pids and times alike and are proven
//!                          ◀─ Ended{pid, started}: DEAD          no answer: LEASE
//! ```
//! A host that crashed comes back as another place. A new engine at the address and IP address of a known engine makes
//! this engine ask the known engine whether it is there.
//!
//! A taken place proves that a listener was closed, not that a process has ended: the process may still hold lanes
//! and write. Only its host can say that the process has ended. The new engine runs there and asks the kernel.

use super::conn::ControlConn;
use super::ending::PROCESS_ENDED;
use super::names::Name;
use super::sessions::PeerSession;
use super::Control;
use crate::complete::Fence;
use crate::loss::{Cause, Loss};
use crate::session::message::Message;
use crate::status::Status;
use crate::sys::host::{self, Process};
use crate::types::PeerId;

pub(super) const IN_ITS_PLACE: &str = "another engine is in the peer's place";

impl Control {
    /// Returns the peer that listened where the new engine listens now and was reached at the same IP address. Clones
    /// of a running machine differ only in that address.
    pub(super) fn forerunner(&self, control: &ControlConn) -> Option<PeerId> {
        let theirs = &control.identity;
        let known = self.sessions.at_place(&theirs.place?)?;
        let session = self.sessions.get(known)?;
        let is_other = session.identity.engine_id != theirs.engine_id;
        (is_other && session.remote.ip() == control.remote.ip()).then_some(known)
    }

    /// Returns the latest peer that claims the new engine's address and came from its IP address. The peer's host may
    /// have crashed and come back as another place, so the caller pings the peer. The peer is not given up: it may
    /// still run, as a clone behind one translated address. Each new engine causes one Ping, however many clones exist.
    pub(super) fn namesake(&self, control: &ControlConn) -> Option<PeerId> {
        let name = Name::Claimed(control.identity.address.clone(), control.remote.ip());
        self.sessions.latest(&name)
    }

    /// Replaces `old` by `peer`, whose engine is at the same place: callers that wait for `old` get `peer`, and `old`
    /// is lost.
    pub(super) fn succeed(&mut self, old: PeerId, peer: PeerId) {
        let waiting = self.take_waiting(old);
        self.join(peer, waiting);
        if let Some(session) = self.sessions.get_mut(peer) {
            if !session.forerunners.contains(&old) {
                session.forerunners.push(old);
            }
        }
        self.lose(old, Status::PeerLost, None, Loss::of(Cause::Ended, IN_ITS_PLACE));
    }

    /// Asks a new peer whether the processes of its forerunners have ended.
    pub(super) fn ask_for_forerunners(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get(peer) else { return };
        let asked: Vec<Process> = self.attested(session).map(|(_, process)| process).collect();
        for Process { pid, started, .. } in asked {
            self.send(peer, Message::HasEnded { pid, started });
        }
    }

    /// Returns the forerunners whose sessions still wait and whose processes this peer's host can identify.
    fn attested<'a>(&'a self, session: &'a PeerSession) -> impl Iterator<Item = (PeerId, Process)> + 'a {
        let olds = session.forerunners.iter().filter_map(|old| self.sessions.get(*old));
        olds.filter(move |old| old.is_proven && session.is_proven && old.remote.ip() == session.remote.ip())
            .filter_map(move |old| {
                let (before, now) = (old.identity.process?, session.identity.process?);
                now.counts_like(&before).then_some((old.peer.handle, before))
            })
    }

    /// Answers a peer's question whether a process of this host has ended. A process that runs is not answered.
    pub(super) fn tell_if_ended(&mut self, peer: PeerId, pid: u32, started: u64) {
        let is_proven = self.sessions.get(peer).is_some_and(|session| session.is_proven);
        if is_proven && host::has_ended(pid, started) {
            self.answer(peer, Message::Ended { pid, started });
        }
    }

    /// Handles the host's answer: the process has ended and accesses no memory any more.
    pub(super) fn ended(&mut self, peer: PeerId, pid: u32, started: u64) {
        // Contract 5: an answer counts only from a proven engine on the old peer's host (`attested`).
        let Some(session) = self.sessions.get(peer) else { return };
        let is_it = |process: &Process| (process.pid, process.started) == (pid, started);
        let olds = self.attested(session).filter(|(_, process)| is_it(process)).map(|(old, _)| old);
        for old in olds.collect::<Vec<PeerId>>() {
            self.lose(old, Status::PeerLost, Some(Fence::Dead), Loss::of(Cause::Ended, PROCESS_ENDED));
        }
    }
}
