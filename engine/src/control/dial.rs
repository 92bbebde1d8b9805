//! Connections that this engine opens: control connections to engines, and connections to their proof sockets, where
//! this engine proves that it runs as the same user.

use super::conn::{ConnState, ControlConn, Dialing};
use super::dials::{Found, RepeatedDial, Target};
use super::Control;
use crate::command::Reply;
use crate::session::handshake::{
    Dialer, Established, HandshakeError, HandshakeResult, HandshakeStep, Next, Nonce, Proof, RefusalCode,
};
use crate::status::{Error, Result, Status};
use crate::sys::fd::AsFd;
use crate::sys::poller::Ready;
use crate::sys::stream::{Input, Stream};
use crate::sys::{clock, tcp, unix};
use crate::types::{Incarnation, Monotonic, PeerId};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a dial failed at its addresses: the error, and the peer's reason if a peer refused.
pub(super) struct Failed {
    error: Error,
    refusal: Option<RefusalCode>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, refusal: None }
    }
}

impl Failed {
    /// The failure of a dial that has not begun.
    pub fn nowhere() -> Failed {
        Error::new(Status::Unreachable, "no address").into()
    }

    /// Chooses between two failures, of which `before` came first: a peer's answer says more than silence, and a later
    /// failure says more than an earlier one.
    fn after(self, before: Failed) -> Failed {
        let is_answer = |failed: &Failed| {
            !matches!(failed.error.status, Status::Unreachable | Status::Timeout | Status::System)
        };
        if is_answer(&before) && !is_answer(&self) {
            return before;
        }
        self
    }
}

/// Returns the error for a connection that the system could not make, or has ended.
fn unreachable(remote: SocketAddr, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => Error::unreachable(format!("{remote}: {}", tcp::NO_PORT), error),
        Some(libc::ECONNREFUSED) => {
            let refused = Error::unreachable(remote.to_string(), error);
            Error { message: format!("{}: nothing listens there", refused.message), ..refused }
        }
        _ => Error::unreachable(remote.to_string(), error),
    }
}

/// Returns whether the peer had no room for another handshake: it said so, or the backlog of its proof socket was
/// full.
pub(super) fn lacks_room(error: &Error, refusal: Option<RefusalCode>) -> bool {
    refusal == Some(RefusalCode::TooMany) || error.os_error == libc::EAGAIN
}

impl Control {
    /// Connects to `address` for a caller. `resolved` as in `Command::Dial`. A name is not looked up for a peer that is
    /// connected by this name.
    pub(super) fn connect(
        &mut self,
        address: String,
        resolved: Option<Vec<SocketAddr>>,
        deadline: Monotonic,
        reply: Reply<PeerId>,
    ) {
        let caller = self.dials.add_caller(&address, deadline, reply);
        let asked = self.fenced.count();
        if let Some(resolved) = resolved {
            let target = Target::New { address, asked, waiting: vec![caller] };
            return self.dial(target, resolved, deadline);
        }
        let connected = self.sessions.at_address(&address, &[]).filter(|peer| !self.sessions.is_down(*peer));
        if let Some(peer) = connected {
            return self.join_by_name(peer, address, &[], vec![caller]);
        }
        if self.wait_with(&address, &[], asked, deadline, vec![caller]).is_some() {
            self.dials.look_up(address, deadline, caller, asked);
        }
    }

    /// Dials for the callers that still wait for a look-up.
    pub(super) fn name_found(&mut self, address: String, found: io::Result<Vec<SocketAddr>>) {
        if let Some(Found { target, addresses, deadline }) = self.dials.name_found(address, found) {
            self.dial(target, addresses, deadline);
        }
    }

    /// Dials for callers of `connect`, unless a session or a dial in progress already leads to their address.
    fn dial(&mut self, target: Target, resolved: Vec<SocketAddr>, deadline: Monotonic) {
        let Target::New { address, asked, waiting } = target else { return };
        if let Some(peer) = self.sessions.at_address(&address, &resolved) {
            return self.join_by_name(peer, address, &resolved, waiting);
        }
        if let Some(waiting) = self.wait_with(&address, &resolved, asked, deadline, waiting) {
            let none = Error::new(Status::Unreachable, format!("{address}: the name has no address"));
            self.dial_next(Target::New { address, asked, waiting }, resolved, deadline, none.into());
        }
    }

    /// Dials a peer whose session lost its connection.
    pub(super) fn redial(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get(peer) else { return };
        let addresses = session.dial_at.clone();
        let deadline = clock::monotonic_ns() + Duration::from_millis(self.context.config.connect_timeout_ms);
        let target = Target::Again { peer };
        self.dial_next(target, addresses, deadline, Failed::nowhere());
    }

    /// Dials the first of these addresses to which a connection can be started. `failed`: the failure of the addresses
    /// that were tried before.
    pub(super) fn dial_next(
        &mut self,
        target: Target,
        mut addresses: Vec<SocketAddr>,
        deadline: Monotonic,
        mut failed: Failed,
    ) {
        while !addresses.is_empty() {
            let remote = addresses.remove(0);
            match self.try_dial(remote) {
                Ok((token, stream, dialer)) => {
                    // An address that does not answer leaves time for the others.
                    let share = deadline.saturating_sub(clock::monotonic_ns()) / (addresses.len() as u64 + 1);
                    let until = clock::monotonic_ns() + share;
                    let dialing = Dialing {
                        stream,
                        dialer,
                        target,
                        remote,
                        others: addresses,
                        failed,
                        connected: false,
                        nonce: None,
                        pidfd: None,
                        deadline,
                    };
                    return self.insert(token, ConnState::Dialing(Box::new(dialing)), Some(until));
                }
                Err(error) => failed = Failed::from(error).after(failed),
            }
        }
        self.dial_failed(target, failed.error, failed.refusal);
    }

    /// Tries the next address after a failure at this one. A secret that is wrong here is sent to no further address.
    fn leave_address(&mut self, dialing: Dialing, failed: Failed) {
        let Dialing { target, mut others, deadline, failed: before, .. } = dialing;
        if failed.refusal == Some(RefusalCode::BadSecret) {
            others.clear();
        }
        self.dial_next(target, others, deadline, failed.after(before));
    }

    fn try_dial(&mut self, remote: SocketAddr) -> Result<(u64, Stream, Dialer)> {
        let (dialer, first) = Dialer::start(&self.context.local)?;
        let what = |error: io::Error| unreachable(remote, &error);
        let socket = tcp::dial(remote, self.context.config.socket_buffer_bytes as usize).map_err(what)?;
        let token = self.token();
        let mut stream = Stream::new(socket, token, &self.poller, true).map_err(what)?;
        stream.out().extend_from_slice(&first);
        Ok((token, stream, dialer))
    }

    /// Tries the next address: this one did not answer in its share of the time.
    pub(super) fn dial_expired(&mut self, dialing: Dialing, now: Monotonic) {
        // `connect` adds the time.
        let remote = dialing.remote;
        let text = if dialing.connected {
            format!("something listens at {remote} but did not answer ferry's handshake")
        } else {
            format!("no answer from {remote}")
        };
        let error = Error::new(Status::Timeout, text);
        let mut dialing = dialing;
        if dialing.others.is_empty() && dialing.deadline > now {
            // Callers that joined later have time left. This connection may lead to a host that is gone: dial again.
            dialing.others.push(dialing.remote);
        }
        self.leave_address(dialing, error.into());
    }

    /// Reports a failed dial to its callers or to its session's machine.
    pub(super) fn dial_failed(&mut self, target: Target, error: Error, refusal: Option<RefusalCode>) {
        match target {
            Target::New { waiting, .. } => self.dials.fail(waiting, &error),
            Target::Again { peer } => {
                let fatal = !matches!(error.status, Status::Unreachable | Status::System | Status::Timeout)
                    && !refusal.is_some_and(RefusalCode::passes)
                    && !lacks_room(&error, refusal);
                let mut actions = Vec::new();
                if let Some(session) = self.sessions.get_mut(peer) {
                    session.machine.dial_failed(clock::monotonic_ns(), Status::PeerLost, fatal, &mut actions);
                }
                self.act(peer, actions);
            }
        }
    }

    pub(super) fn dialing(
        &mut self,
        token: u64,
        mut dialing: Box<Dialing>,
        event: &Ready,
        deadline: Option<Monotonic>,
    ) {
        if !dialing.connected {
            if let Some(error) = dialing.stream.connect_error() {
                let error = unreachable(dialing.remote, &error);
                return self.leave_address(*dialing, error.into());
            }
            if !event.writable {
                return self.insert(token, ConnState::Dialing(dialing), deadline);
            }
            dialing.connected = true;
        }
        if let Err(error) = dialing.stream.flush() {
            return self.dial_cut(*dialing, Some(error));
        }
        let step = match dialing.stream.read(usize::MAX) {
            Ok(Input::Bytes(bytes)) => dialing.dialer.input(&bytes, clock::boottime_ns()),
            Ok(Input::Nothing) => return self.insert(token, ConnState::Dialing(dialing), deadline),
            Ok(Input::End) => return self.dial_cut(*dialing, None),
            Err(error) => return self.dial_cut(*dialing, Some(error)),
        };
        self.dial_step(token, dialing, step, deadline);
    }

    /// Tries the next address: this connection ended during the handshake.
    fn dial_cut(&mut self, dialing: Dialing, cause: Option<io::Error>) {
        let closed = || {
            let text = format!("{}: the connection was closed during the handshake", dialing.remote);
            Error::new(Status::Unreachable, text)
        };
        let mut error = cause.map_or_else(closed, |error| unreachable(dialing.remote, &error));
        if dialing.dialer.other_end().is_none() {
            // An engine that is being closed is as silent, so the status is not NOT_FERRY.
            error.message += ": something listens there but does not speak ferry, or is being closed";
        }
        self.leave_address(dialing, error.into());
    }

    fn dial_step(
        &mut self,
        token: u64,
        mut dialing: Box<Dialing>,
        step: HandshakeResult<HandshakeStep>,
        deadline: Option<Monotonic>,
    ) {
        let step = match step {
            Ok(step) => step,
            Err(refused) => return self.dial_refused(dialing, refused),
        };
        dialing.stream.out().extend_from_slice(&step.output);
        if let Err(error) = dialing.stream.flush() {
            let error = unreachable(dialing.remote, &error);
            return self.leave_address(*dialing, error.into());
        }
        match step.next {
            Next::More => self.insert(token, ConnState::Dialing(dialing), deadline),
            Next::ProveSameUser { name, nonce } => {
                dialing.nonce = Some(nonce);
                self.insert(token, ConnState::Dialing(dialing), deadline);
                if let Err(error) = self.start_proof(token, &name, &nonce, deadline) {
                    self.proof_result(token, Err(error));
                }
            }
            Next::Done(established) => self.dialed(token, *dialing, established),
        }
    }

    fn dial_refused(&mut self, mut dialing: Box<Dialing>, refused: HandshakeError) {
        let HandshakeError { mut error, refusal, by, reply } = refused;
        dialing.stream.out().extend_from_slice(&reply);
        let _ = dialing.stream.flush();
        error.message = format!("{}: {}", dialing.remote, error.message);
        // The peer has fenced this engine. If this engine fenced the peer before, this `connect` lifts that fence.
        // Otherwise the `connect` by which the peer lifts its own fence would be refused here.
        if let (Some(theirs), Some(RefusalCode::Fenced)) = (by, refusal) {
            self.lift_fence(theirs, Some(&dialing.target));
        }
        // The peer dialed us at the same time, or before, and the session of its dial stays.
        let awaited = by.filter(|_| refusal == Some(RefusalCode::Duplicate));
        if let Some(theirs) = awaited {
            let target = self.instead_of_a_clone(dialing.target, theirs, dialing.remote);
            let Some(target) = target else { return };
            dialing.target = target;
        }
        let is_new = matches!(dialing.target, Target::New { .. });
        // A lack of room for another handshake is temporary.
        if !is_new || !(awaited.is_some() || lacks_room(&error, refusal)) {
            return self.leave_address(*dialing, Failed { error, refusal });
        }
        let addresses = [vec![dialing.remote], dialing.others].concat();
        let (target, deadline) = (dialing.target, dialing.deadline);
        self.repeat_dial(RepeatedDial::new(target, addresses, deadline, error, awaited));
    }

    /// The handshake of a dial has ended well.
    fn dialed(&mut self, token: u64, mut dialing: Dialing, established: Box<Established>) {
        let leftover = dialing.dialer.leftover();
        let Dialing { stream, target, remote, pidfd, .. } = dialing;
        // The engine may have connected meanwhile, by its own dial or under another name. That session stays. This
        // side sends no Start on this connection: the peer might give up the other connection for it.
        let theirs = (established.peer.engine_id, established.peer.incarnation);
        let connected = self.sessions.of(theirs).filter(|peer| !self.sessions.is_down(*peer));
        let Some(target) = self.instead_of_a_clone(target, theirs, remote) else { return };
        let target = match (target, connected) {
            (Target::New { address, waiting, .. }, Some(peer)) => {
                return self.join_by_name(peer, address, &[remote], waiting)
            }
            (Target::Again { peer }, _) if !self.sessions.is_down(peer) => return,
            (target, _) => target,
        };
        if let Err(error) = self.prepare() {
            return self.dial_failed(target, error, Some(RefusalCode::NoThread));
        }
        let offered = self.offer(&established.peer);
        let control =
            ControlConn::new(stream, leftover, *established, offered, (remote, pidfd), Some(target));
        self.begin_control(token, control);
    }

    /// Returns the purpose of a dial that the engine `theirs` has answered. If a redial meets another engine, and this
    /// side never reached the session's peer, the session waits on, because clones of a machine claim one address. The
    /// session's callers get the engine that answered. None if there are no such callers.
    fn instead_of_a_clone(
        &mut self,
        target: Target,
        theirs: Incarnation,
        remote: SocketAddr,
    ) -> Option<Target> {
        let Target::Again { peer } = target else { return Some(target) };
        let Some(session) = self.sessions.get(peer).filter(|_| self.sessions.is_down(peer)) else {
            return Some(target);
        };
        let is_it = (session.identity.engine_id, session.identity.incarnation) == theirs;
        if is_it || session.was_reached {
            return Some(target);
        }
        let address = match session.dialed.as_str() {
            "" => remote.to_string(),
            dialed => dialed.to_owned(),
        };
        let other = Error::new(Status::Unreachable, "another engine answers at the address");
        self.dial_failed(target, other, None);
        let waiting = self.take_waiting(peer);
        let waiting: Vec<u64> = self.dials.asked(waiting).into_iter().map(|(caller, ..)| caller).collect();
        // This dial lifts no fence: the times of its callers' calls are not known.
        (!waiting.is_empty()).then_some(Target::New { address, asked: 0, waiting })
    }

    /// Connects to the peer's proof socket, whose owner must be our user, and sends the nonce.
    fn start_proof(
        &mut self,
        dial: u64,
        name: &[u8],
        nonce: &Nonce,
        deadline: Option<Monotonic>,
    ) -> Result<()> {
        let refused = |error: io::Error| Error {
            status: Status::Refused,
            ..Error::system("the proof to run as the same user failed", &error)
        };
        let socket = unix::connect_abstract(name, unix::Type::STREAM).map_err(refused)?;
        unix::same_user_credentials(socket.as_fd()).map_err(refused)?;
        let pidfd = unix::pidfd(socket.as_fd()).ok();
        let token = self.token();
        let mut stream = Stream::new(socket, token, &self.poller, false).map_err(refused)?;
        stream.out().extend_from_slice(nonce);
        stream.flush().map_err(refused)?;
        if let Some(ConnState::Dialing(dialing)) = self.conns.get_mut(&dial).map(|conn| &mut conn.state) {
            dialing.pidfd = pidfd;
        }
        self.insert(token, ConnState::ProofOut { stream, dial, seen: Vec::new() }, deadline);
        Ok(())
    }

    pub(super) fn proof_out(
        &mut self,
        token: u64,
        mut stream: Stream,
        dial: u64,
        mut seen: Vec<u8>,
        deadline: Option<Monotonic>,
    ) {
        let ended = || Error::new(Status::Refused, "the peer did not accept the same-user proof");
        match stream.read(32 - seen.len()) {
            Ok(Input::Bytes(bytes)) => seen.extend_from_slice(&bytes),
            Ok(Input::Nothing) => {}
            Ok(Input::End) | Err(_) => return self.proof_result(dial, Err(ended())),
        }
        let Ok(key) = <[u8; 32]>::try_from(seen.as_slice()) else {
            return self.insert(token, ConnState::ProofOut { stream, dial, seen }, deadline);
        };
        let proof =
            unix::same_user_credentials(stream.as_fd()).map_err(|_| ended()).map(|credentials| Proof {
                key: crate::session::handshake::Key::from(key),
                pid: credentials.pid,
                uid: credentials.uid,
            });
        self.proof_result(dial, proof);
    }

    fn proof_result(&mut self, dial: u64, proof: Result<Proof>) {
        let Some(conn) = self.take(dial) else { return };
        let ConnState::Dialing(mut dialing) = conn.state else { return };
        let step = dialing.dialer.proof(proof, clock::boottime_ns());
        self.dial_step(dial, dialing, step, conn.deadline);
    }
}
