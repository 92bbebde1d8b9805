//! Connections that other processes open: handshakes of engines, lanes of sessions, and proofs that a process runs as
//! our user. Unauthenticated connections (strangers) are bounded in number, memory and time.

use super::conn::{ConnState, ControlConn};
use super::doors::{Knock, Room};
use super::Control;
use crate::session::greeting::GREETING_BYTES;
use crate::session::handshake::{
    peek_kind, refusal, refusal_with, Acceptor, Auth, Established, HandshakeError, Next, Peek, Proof,
    RefusalCode,
};
use crate::session::machine::Role;
use crate::sys::atomic::Ordering;
use crate::sys::fd::{AsFd, OwnedFd};
use crate::sys::stream::{Input, Stream};
use crate::sys::{clock, socket, unix};
use crate::types::Monotonic;
use std::net::SocketAddr;
use std::time::Duration;

/// Connections accepted in one turn, before other events are handled.
const ACCEPTS_PER_TURN: usize = 64;

impl Control {
    pub(super) fn accept(&mut self) {
        let longest = Duration::from_millis(self.context.config.handshake_timeout_ms);
        for _ in 0..ACCEPTS_PER_TURN {
            match self.doors.room(longest) {
                Room::Free => {}
                Room::Refuse(oldest) => self.refuse_stranger(oldest),
                Room::None => return,
            }
            match self.doors.accept() {
                Knock::Came((socket, remote)) => self.add_stranger(socket, remote),
                Knock::Gone => {}
                Knock::Nobody => return,
            }
        }
    }

    fn add_stranger(&mut self, socket: OwnedFd, remote: SocketAddr) {
        let token = self.token();
        let Ok(stream) = Stream::new(socket, token, &self.poller, false) else { return };
        let deadline = Some(self.handshake_deadline());
        self.insert(token, ConnState::Fresh { stream, seen: Vec::new(), remote }, deadline);
    }

    /// Refuses a stranger that has had its time, because another stranger waits for its place.
    fn refuse_stranger(&mut self, token: u64) {
        let Some(conn) = self.take(token) else { return };
        self.count_refusal();
        if let ConnState::Fresh { mut stream, .. } | ConnState::Accepting { mut stream, .. } = conn.state {
            stream.out().extend_from_slice(&refusal(RefusalCode::TooMany));
            let _ = stream.flush();
        }
    }

    fn count_refusal(&self) {
        self.context.stats.handshakes_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fresh(
        &mut self,
        token: u64,
        mut stream: Stream,
        mut seen: Vec<u8>,
        remote: SocketAddr,
        deadline: Option<Monotonic>,
    ) {
        // Nothing beyond the greeting may be read here: the bytes that follow belong to the lane.
        match stream.read(GREETING_BYTES - seen.len()) {
            Ok(Input::Bytes(bytes)) => seen.extend_from_slice(&bytes),
            Ok(Input::Nothing) => {}
            Ok(Input::End) | Err(_) => return self.count_refusal(),
        }
        match peek_kind(&seen) {
            Peek::NotFerry => self.count_refusal(),
            Peek::Control => {
                let Ok(acceptor) = Acceptor::new(&self.context.local) else { return };
                self.feed_acceptor(token, stream, Box::new(acceptor), remote, deadline, &seen);
            }
            Peek::Lane if seen.len() == GREETING_BYTES => {
                self.lanes.greeted(stream, &seen).into_iter().for_each(|peer| self.answer_connects(peer))
            }
            Peek::Lane | Peek::NeedMore => {
                self.insert(token, ConnState::Fresh { stream, seen, remote }, deadline)
            }
        }
    }

    pub(super) fn accepting(
        &mut self,
        token: u64,
        mut stream: Stream,
        acceptor: Box<Acceptor>,
        remote: SocketAddr,
        deadline: Option<Monotonic>,
    ) {
        match stream.read(usize::MAX) {
            Ok(Input::Bytes(bytes)) => self.feed_acceptor(token, stream, acceptor, remote, deadline, &bytes),
            Ok(Input::Nothing) => {
                if stream.flush().is_ok() {
                    self.insert(token, ConnState::Accepting { stream, acceptor, remote }, deadline);
                }
            }
            Ok(Input::End) | Err(_) => self.count_refusal(),
        }
    }

    fn feed_acceptor(
        &mut self,
        token: u64,
        mut stream: Stream,
        mut acceptor: Box<Acceptor>,
        remote: SocketAddr,
        deadline: Option<Monotonic>,
        bytes: &[u8],
    ) {
        let now_ns = clock::monotonic_ns();
        let issued = &mut self.issued;
        let step = acceptor.input(bytes, &mut |nonce| issued.take(nonce, now_ns), clock::boottime_ns());
        match step {
            Ok(step) => match step.next {
                Next::Done(established) => {
                    let leftover = acceptor.leftover();
                    self.accepted(token, stream, *established, step.output, leftover, remote);
                }
                _ => {
                    stream.out().extend_from_slice(&step.output);
                    if stream.flush().is_ok() {
                        self.insert(token, ConnState::Accepting { stream, acceptor, remote }, deadline);
                    }
                }
            },
            Err(HandshakeError { reply, .. }) => self.refuse(token, stream, &reply, deadline),
        }
    }

    /// Sends the refusal. The connection is closed when the other side has closed it or its deadline has passed.
    fn refuse(&mut self, token: u64, mut stream: Stream, reply: &[u8], deadline: Option<Monotonic>) {
        self.count_refusal();
        stream.out().extend_from_slice(reply);
        if stream.flush().is_ok() && !reply.is_empty() {
            self.insert(token, ConnState::Ending { stream, is_refused: true }, deadline);
        }
    }

    pub(super) fn ending(
        &mut self,
        token: u64,
        mut stream: Stream,
        is_refused: bool,
        deadline: Option<Monotonic>,
    ) {
        // Closing a socket with unread input sends a reset, which could overtake the last bytes. So read until the end.
        match stream.read(usize::MAX) {
            Ok(Input::Bytes(_)) | Ok(Input::Nothing) => {
                if stream.flush().is_ok() {
                    if stream.backlog() == 0 {
                        // Both sides may say farewell at once: each waits for the other's end of writing.
                        socket::shutdown_writes(stream.fd());
                    }
                    self.insert(token, ConnState::Ending { stream, is_refused }, deadline);
                }
            }
            Ok(Input::End) | Err(_) => {}
        }
    }

    fn accepted(
        &mut self,
        token: u64,
        mut stream: Stream,
        established: Established,
        output: Vec<u8>,
        leftover: Vec<u8>,
        remote: SocketAddr,
    ) {
        let deadline = Some(self.handshake_deadline());
        if let Some(code) = self.objection(&established) {
            return self.refuse(token, stream, &refusal(code), deadline);
        }
        if let Some(text) = self.full_for(&established.peer) {
            let reply = refusal_with(RefusalCode::NoRoom, &text);
            return self.refuse(token, stream, &reply, deadline);
        }
        if let Err(error) = self.prepare() {
            let reply = refusal_with(RefusalCode::NoThread, &error.message);
            return self.refuse(token, stream, &reply, deadline);
        }
        stream.out().extend_from_slice(&output);
        let pidfd = match established.auth {
            Auth::SameUser { pid, .. } => unix::pidfd_of(pid).ok(),
            _ => None,
        };
        let offered = self.offer(&established.peer);
        let control = ControlConn::new(stream, leftover, established, offered, (remote, pidfd), None);
        self.begin_control(token, control);
    }

    /// Returns the reason why an authenticated engine gets no session, if any.
    fn objection(&mut self, established: &Established) -> Option<RefusalCode> {
        let theirs = &established.peer;
        if self.fenced.has(&(theirs.engine_id, theirs.incarnation)) {
            return Some(RefusalCode::Fenced);
        }
        // If both dialed at once, the session that the engine with the smaller id dialed stays.
        let ours_stays = self.context.local.engine_id < theirs.engine_id;
        if ours_stays && self.dials.is_answered_by((theirs.engine_id, theirs.incarnation)) {
            return Some(RefusalCode::Duplicate);
        }
        let ours = self.sessions.of((theirs.engine_id, theirs.incarnation)).filter(|_| ours_stays)?;
        if self.sessions.is_down(ours) || !self.sessions.has_role(ours, Role::Dialer) {
            return None;
        }
        // The peer may know of a loss that this side has not noticed.
        self.ping(ours, None);
        Some(RefusalCode::Duplicate)
    }

    pub(super) fn accept_proof(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Knock::Came(socket) = self.doors.accept_proof() else { return };
            // The kernel names the user before any byte is read. Other users of this host are refused.
            if unix::same_user_credentials(socket.as_fd()).is_err() {
                self.count_refusal();
                continue;
            }
            if !self.doors.has_room_for_proof() {
                continue;
            }
            let token = self.token();
            let Ok(stream) = Stream::new(socket, token, &self.poller, false) else { return };
            let deadline = Some(self.handshake_deadline());
            self.insert(token, ConnState::ProofIn { stream, seen: Vec::new() }, deadline);
        }
    }

    pub(super) fn proof_in(
        &mut self,
        token: u64,
        mut stream: Stream,
        mut seen: Vec<u8>,
        deadline: Option<Monotonic>,
    ) {
        match stream.read(32 - seen.len()) {
            Ok(Input::Bytes(bytes)) => seen.extend_from_slice(&bytes),
            Ok(Input::Nothing) => {}
            Ok(Input::End) | Err(_) => return,
        }
        let Ok(nonce) = seen.as_slice().try_into() else {
            return self.insert(token, ConnState::ProofIn { stream, seen }, deadline);
        };
        let Ok(credentials) = unix::same_user_credentials(stream.as_fd()) else {
            return self.count_refusal();
        };
        let Ok(key) = crate::session::handshake::Key::random() else { return };
        let bytes = *key.bytes();
        let proof = Proof { key, pid: credentials.pid, uid: credentials.uid };
        if self.issued.insert(nonce, proof, clock::monotonic_ns()).is_ok() {
            stream.out().extend_from_slice(&bytes);
            let _ = stream.flush();
        }
    }
}
