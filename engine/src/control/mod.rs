//! The control loop: one thread of the engine that accepts and dials connections, authenticates peers, and drives
//! each peer's session. The control loop moves no payload.
//!
//! Four owners keep the state. None knows another, and each tells `Control` what follows:
//! ```text
//! Doors      the listeners, and the connections behind them that are not authenticated
//! Dials      the callers of `connect`, look-ups of names, connections without a session by name, repeated dials
//! Sessions   the sessions by peer, engine, place and name; their timers; late lanes; lost peers
//! Announcer  the log of regions, and what was announced of it to each peer
//! ```
//! `Control` has the connections, and does what its owners, the machines of the sessions and the transports ask for:
//! `inbound` and `dial` open and authenticate connections, `beginning` and `ending` begin and end sessions,
//! `messages` carries out what peers say, `announce` sends the regions, `transports` connects the transports to the
//! sessions, `deadlines` handles timers. `own` is this engine as a peer of itself.

mod announce;
pub mod announcer;
mod beginning;
mod conn;
mod deadlines;
mod dial;
mod dials;
mod doors;
mod ending;
mod inbound;
mod late_lanes;
mod messages;
mod names;
mod own;
mod reading;
mod restarts;
mod room;
mod sessions;
#[cfg(test)]
mod tests;
mod transports;
mod waiting;

use crate::command::Command;
use crate::complete::Fence;
use crate::context::Context;
use crate::loss::{Cause, Loss};
use crate::peer::transport::{LaneService, LANE_TOKENS};
use crate::peer::Installed;
use crate::session::handshake::ProofTable;
use crate::session::machine::Timing;
use crate::session::message::Message;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::fd::OwnedFd;
use crate::sys::health;
use crate::sys::map::{HashMap, HashSet};
use crate::sys::poller::{Poller, Ready};
use crate::sys::tcp::Listener;
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Next, Turns};
use crate::types::{Monotonic, PeerId};
use announcer::Announcer;
use conn::{Conn, ConnState};
use dials::Dials;
use doors::{Doors, LISTENER, PROOFS};
use names::names_of;
use room::Fenced;
use sessions::Sessions;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const FIRST_TOKEN: u64 = 16;
/// The pause between two looks at the lane threads, while they work. A thread that two looks find in the same call is
/// replaced.
const WATCH_NS: u64 = 100_000_000;

/// The parts that the control loop is made of.
pub struct Parts {
    pub context: Arc<Context>,
    pub poller: Arc<Poller>,
    pub listener: Option<Listener>,
    pub proofs: Option<OwnedFd>,
    pub lanes: Arc<dyn LaneService>,
    /// The transports other than TCP.
    pub services: Vec<Installed>,
}

pub struct Control {
    context: Arc<Context>,
    poller: Arc<Poller>,
    doors: Doors,
    dials: Dials,
    lanes: Arc<dyn LaneService>,
    services: Vec<Installed>,
    conns: HashMap<u64, Conn>,
    sessions: Sessions,
    /// Peers that have transfers to end, in turns. A peer may be queued twice.
    sweeping: VecDeque<PeerId>,
    /// Peers that have newly draining transfers: `touch` runs once for all transfers of a peer.
    drained: HashSet<PeerId>,
    /// The peers' processes, by the token of their pidfd: readable when the process has ended.
    pidfds: HashMap<u64, (OwnedFd, PeerId)>,
    fenced: Fenced,
    issued: ProofTable,
    /// Received messages, with their connection and its peer. Handled when the connection is back in `conns`.
    inbox: VecDeque<(u64, PeerId, Message)>,
    /// Connections of sessions that are over, by peer; only the Bye is still to be sent.
    partings: HashMap<PeerId, (u64, Message)>,
    announcer: Announcer,
    next_token: u64,
    /// When to look at the lane threads again; NEVER while none works.
    watch_at_ns: Monotonic,
    stopping: bool,
}

impl Control {
    pub fn new(parts: Parts) -> Result<Control> {
        let poller = parts.poller;
        let doors = Doors::new(poller.clone(), parts.listener, parts.proofs)?;
        let dials = Dials::new(&parts.context.commands);
        let wake = poller.clone();
        parts.context.commands.set_wake(move || wake.wake());
        let handshake_ns = parts.context.config.handshake_timeout_ms * 1_000_000;
        Ok(Control {
            context: parts.context,
            poller,
            doors,
            dials,
            lanes: parts.lanes,
            services: parts.services,
            conns: HashMap::default(),
            sessions: Sessions::default(),
            partings: HashMap::default(),
            sweeping: VecDeque::new(),
            drained: HashSet::default(),
            pidfds: HashMap::default(),
            fenced: Fenced::default(),
            issued: ProofTable::new(handshake_ns),
            inbox: VecDeque::new(),
            announcer: Announcer::default(),
            next_token: FIRST_TOKEN,
            watch_at_ns: Monotonic::NEVER,
            stopping: false,
        })
    }

    pub fn start(self) -> Result<JoinHandle<()>> {
        let poller = self.poller.clone();
        turns::start("ferry-control", "starting", poller, move || Some(self))
            .map_err(|error| Error::system("starting the control thread", &error))
    }

    fn next_turn(&self) -> Next {
        if self.sweeping.is_empty() {
            Next::at(self.next_timer_ns().into_iter().chain(self.announcer.next_ns()).min())
        } else {
            Next::AFTER_A_LOOK
        }
    }

    fn end(&mut self) {
        self.conns.clear();
        self.doors.end();
    }

    /// Returns true when the loop was told to stop, no lost peer can still copy, every transfer is final, and each peer
    /// has taken its Bye or let FAREWELL_NS pass. A transfer that was submitted while the engine began to close may
    /// still wait for its fence.
    fn is_over(&self) -> bool {
        self.stopping
            && !self.sessions.lost.is_any_draining()
            // Since the loop was told to stop, only strangers and connections with a Bye are half open.
            && self.doors.are_all_strangers()
            && self.sessions.all().all(|(_, session)| session.peer.active() == 0)
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn timing(&self) -> Timing {
        let config = &self.context.config;
        Timing {
            drain_ns: config.drain_ms * 1_000_000,
            answer_ns: self.context.progress_ns(),
            keepalive_ns: config.keepalive_ms * 1_000_000,
            reconnect_ns: config.reconnect_timeout_ms * 1_000_000,
            backoff_min_ns: config.reconnect_backoff_ms * 1_000_000,
            backoff_max_ns: 1_000_000_000,
        }
    }

    fn handshake_deadline(&self) -> Monotonic {
        clock::monotonic_ns() + Duration::from_millis(self.context.config.handshake_timeout_ms)
    }

    fn insert(&mut self, token: u64, state: ConnState, deadline: Option<Monotonic>) {
        self.take(token);
        if let Some(at) = deadline {
            self.doors.enter(at, token, state.is_stranger());
        }
        self.dials.set_names(token, names_of(&state));
        self.conns.insert(token, Conn { state, deadline });
    }

    fn take(&mut self, token: u64) -> Option<Conn> {
        let conn = self.conns.remove(&token)?;
        self.dials.set_names(token, Vec::new());
        if let Some(at) = conn.deadline {
            self.doors.leave(at, token);
        }
        Some(conn)
    }

    fn event(&mut self, event: &Ready) {
        match event.token {
            LISTENER => self.accept(),
            PROOFS => self.accept_proof(),
            token if token & LANE_TOKENS != 0 => {
                self.lanes.event(token).into_iter().for_each(|peer| self.answer_connects(peer))
            }
            token if self.pidfds.contains_key(&token) => self.process_ended(token),
            token => self.connection(token, event),
        }
    }

    fn connection(&mut self, token: u64, event: &Ready) {
        let Some(conn) = self.take(token) else { return };
        let deadline = conn.deadline;
        match conn.state {
            ConnState::Fresh { stream, seen, remote } => self.fresh(token, stream, seen, remote, deadline),
            ConnState::Accepting { stream, acceptor, remote } => {
                self.accepting(token, stream, acceptor, remote, deadline)
            }
            ConnState::Ending { stream, is_refused } => self.ending(token, stream, is_refused, deadline),
            ConnState::ProofIn { stream, seen } => self.proof_in(token, stream, seen, deadline),
            ConnState::Dialing(dialing) => self.dialing(token, dialing, event, deadline),
            ConnState::ProofOut { stream, dial, seen } => self.proof_out(token, stream, dial, seen, deadline),
            ConnState::Control(control) => self.control(token, control, deadline),
            ConnState::Parting(control) => self.parting(token, control, deadline),
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            // The dropped reply answers CLOSED.
            Command::Dial { .. } | Command::NameFound { .. } if self.stopping => {}
            Command::Dial { address, resolved, deadline, reply } => {
                self.connect(address, resolved, deadline, reply)
            }
            Command::NameFound { address, found } => self.name_found(address, found),
            Command::RegionsAdded(ids) => self.note_added(&ids),
            Command::RegionsRemoved(ids) => self.note_removed(&ids),
            Command::Drain { peer, transfer } => {
                let now_ns = clock::monotonic_ns();
                if let Some(session) = self.sessions.get_mut(peer) {
                    session.machine.drain(now_ns, transfer.handle);
                    // Once for all transfers that drain together: `touch` visits every fenced record.
                    self.drained.insert(peer);
                }
            }
            Command::LaneParted { peer, lane } => self.lane_parted(peer, lane),
            Command::WatchWorkers => self.watch_at_ns = clock::monotonic_ns() + WATCH_NS,
            Command::PathWants { peer, transport } => self.path_wants(peer, transport),
            Command::LaneLost { peer, lane, loss } => self.lane_lost(peer, lane, loss),
            Command::PathSettled { peer, transport, why, pending } => {
                self.path_settled(peer, transport, why, pending)
            }
            Command::PathBroken { peer, transport } => self.path_broken(peer, transport),
            Command::ServiceMessage { peer, session_id, transport, body, why } => {
                self.send_service_message(peer, session_id, transport, body, why)
            }
            Command::Misbehaved { peer, session_id } => {
                if self.sessions.is_current(peer, session_id) {
                    self.misbehaved(peer);
                }
            }
            Command::TransportQuiet { peer } => self.drained(peer),
            Command::ProcessEnded { peer } => self.lose(
                peer,
                Status::PeerLost,
                Some(Fence::Dead),
                Loss::of(Cause::Ended, ending::PROCESS_ENDED),
            ),
            Command::Grant { peer, limit } => self.send(peer, Message::Grant { limit }),
            Command::Ask { peer } => self.ask(peer),
            Command::PeerIdle { peer } => self.touch(peer),
            Command::Check { peer, at_ns } => self.sessions.check_by(peer, at_ns),
            Command::Sweep { peer } => self.sweeping.push_back(peer),
            Command::Probe { peer, reply } => self.ping(peer, Some(reply)),
            Command::FencePeer { peer, reply } => self.fence_peer(peer, reply),
            Command::ClosePeer { peer, reply } => self.close_peer(peer, reply),
            Command::Stop => self.end_sessions(),
        }
    }

    /// Ends every session with a Bye and accepts no new sessions.
    fn end_sessions(&mut self) {
        self.stopping = true;
        self.dials.stop();
        self.doors.close();
        let parts = |state: &ConnState| {
            matches!(state, ConnState::Parting(_) | ConnState::Ending { is_refused: false, .. })
        };
        let is_parting = |token: &u64| self.conns.get(token).is_some_and(|conn| parts(&conn.state));
        let half_open: Vec<u64> = self.doors.half_open().filter(|token| !is_parting(token)).collect();
        half_open.into_iter().for_each(|token| drop(self.take(token)));
        let peers: Vec<PeerId> = self.sessions.all().map(|(peer, _)| peer).collect();
        for peer in peers {
            self.farewell(peer, Status::Closed, Loss::of(Cause::Ours, "this engine is closed"));
        }
    }
}

impl Turns for Control {
    fn turn(&mut self, now: Monotonic, ready: &[Ready]) -> Next {
        health::doing("working off commands");
        for command in self.context.commands.take() {
            if let Some(command) = self.command_to_own(command) {
                self.command(command);
            }
        }
        for peer in std::mem::take(&mut self.drained) {
            self.touch(peer);
        }
        // Regions are announced before messages are read: a peer's Ping is answered after the regions that
        // existed before it were announced.
        health::doing("announcing regions");
        self.announce();
        health::doing("reading what peers say");
        for event in ready {
            self.event(event);
        }
        health::doing("looking at the time");
        self.timers(now);
        health::doing("ending transfers");
        self.sweep();
        if self.is_over() {
            self.end();
            return Next::Over;
        }
        self.next_turn()
    }
}
