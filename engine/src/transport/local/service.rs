//! The service of the same-host transport: one thread that meets other engines over AF_UNIX. The control loop reports
//! sessions (`TransportService`). For each session the service establishes a path, or reports why none exists, and it
//! watches the process of the path. It copies nothing.

use super::attach::Packet;
use super::draining::Draining;
use super::listener::Listener;
use super::path::LocalPath;
use super::proof::Ended;
use super::session::{self, Session, Why};
use super::sessions::Sessions;
use crate::command::{Command, Commands};
use crate::limits::{HANDSHAKES_MAX, LOCAL_PACKETS_PER_TURN};
use crate::peer::{Closed, Path, SessionInfo, TransportService};
use crate::region::grants::Grants;
use crate::region::Registry;
use crate::status::{reason, Error, Result};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::clock;
use crate::sys::fd::{AsFd, OwnedFd};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::poller::{Interest, Poller, PollerKind, Ready};
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Next, Turns};
use crate::sys::{unix, vm};
use crate::types::{LaneId, Monotonic, PeerId, RegionId, Transport};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Delay before a retry of what could not be done at once: a full backlog, a process that still copies here.
pub(super) const RETRY: Duration = Duration::from_millis(2);
/// Time to establish a path. Two processes of one machine need microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for the acceptor's message about its listener. The acceptor sends it when its session is up.
const OFFER_PATIENCE: Duration = Duration::from_secs(5);
/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
const LISTENER: u64 = 1;
const READ: Interest = Interest { read: true, write: false };

pub struct LocalSettings {
    /// How many threads may copy for one peer at one time.
    pub threads: usize,
    pub spin_ns: u64,
    pub any_tracer: bool,
    /// False: this engine connects to others but does not listen.
    pub listen: bool,
}

pub struct LocalService {
    settings: LocalSettings,
    registry: Arc<Registry>,
    pub(super) grants: Arc<Grants>,
    pub(super) commands: Arc<Commands>,
    listener: Option<Listener>,
    pub(super) poller: Arc<Poller>,
    stopping: AtomicBool,
    /// A leaf lock, except that the grants are locked under it.
    sessions: Mutex<Sessions>,
    /// Every path on which a thread may still copy.
    pub(super) all_paths: Mutex<Vec<Weak<LocalPath>>>,
    /// The service's thread locks it under `sessions`, a `ferry-proof` thread without another lock.
    pub(super) proofs_ended: Ended,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// How many times a session was looked after.
    #[cfg(test)]
    served: crate::sys::atomic::AtomicU64,
}

impl LocalService {
    pub fn new(
        settings: LocalSettings,
        registry: Arc<Registry>,
        grants: Arc<Grants>,
        commands: Arc<Commands>,
    ) -> Result<Arc<LocalService>> {
        let system = |error: std::io::Error| Error::system("the socket for peers on this host", &error);
        let poller = Arc::new(Poller::new(PollerKind::Epoll)?);
        let listener =
            settings.listen.then(|| Listener::open(&poller, LISTENER)).transpose().map_err(system)?;
        if settings.any_tracer {
            vm::allow_any_tracer();
        }
        Ok(Arc::new(LocalService {
            settings,
            registry,
            grants,
            commands,
            listener,
            poller,
            stopping: AtomicBool::new(false),
            sessions: Mutex::new(Sessions::new(LISTENER + 1)),
            all_paths: Mutex::default(),
            proofs_ended: Ended::default(),
            thread: Mutex::new(None),
            #[cfg(test)]
            served: Default::default(),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    fn event(&self, sessions: &mut Sessions, token: u64) {
        if token == LISTENER {
            return self.accept(sessions);
        }
        if let Some(socket) = sessions.strangers.remove(&token) {
            let received = session::receive(socket.as_fd());
            if matches!(received, Ok(None)) {
                sessions.strangers.insert(token, socket);
                return;
            }
            sessions.strangers_times.set(token, None);
            return match received {
                Ok(Some((packet, descriptors))) => self.admit(sessions, token, socket, packet, descriptors),
                _ => self.poller.remove(socket.as_raw_fd(), token),
            };
        }
        let Some(peer) = sessions.tokens.get(&token).copied() else { return };
        match sessions.processes.get(&peer) {
            Some((its, _)) if *its == token => {
                self.forget_process(sessions, peer);
                self.commands.push(Command::ProcessEnded { peer });
            }
            _ => self.serve(sessions, peer),
        }
    }

    fn forget_process(&self, sessions: &mut Sessions, peer: PeerId) {
        if let Some((token, path)) = sessions.processes.remove(&peer) {
            sessions.tokens.remove(&token);
            self.poller.remove(path.copier().process.pidfd().as_raw_fd(), token);
        }
    }

    fn accept(&self, sessions: &mut Sessions) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(socket) = listener.accept(&self.poller) else { return };
            // The kernel knows the other end's user before any packet: other users of this host are
            // refused.
            if session::check_user(socket.as_fd()).is_err() {
                continue;
            }
            if sessions.strangers.len() == HANDSHAKES_MAX {
                continue; // refused: its session has no same-host path
            }
            let token = sessions.token();
            if self.poller.add(socket.as_raw_fd(), token, READ).is_ok() {
                sessions.strangers.insert(token, socket);
                sessions.strangers_times.set(token, Some(clock::monotonic_ns() + PATIENCE));
            }
        }
    }

    /// Admits a connection to the session that its first packet names.
    fn admit(
        &self,
        sessions: &mut Sessions,
        token: u64,
        socket: OwnedFd,
        packet: Packet,
        descriptors: Vec<OwnedFd>,
    ) {
        let named = packet.session().and_then(|id| sessions.by_id.get(&id));
        let named = named.and_then(|peer| sessions.all.get_mut(peer));
        let Some(session) = named.filter(|session| session.expects(&packet)) else {
            return self.poller.remove(socket.as_raw_fd(), token);
        };
        let peer = session.session_info.peer.handle;
        let user = session::check_user(socket.as_fd());
        session.socket = Some(Arc::new(socket));
        session.socket_token = token;
        let attached = user.and_then(|()| {
            session.attach(&self.grants)?;
            session.announce_all(&self.registry.snapshot());
            session.handle(packet, descriptors)
        });
        sessions.tokens.insert(token, peer);
        match attached {
            Ok(_) => self.serve(sessions, peer),
            Err(why) => self.fail(sessions, peer, why),
        }
    }

    /// Does the work of timers, and looks after sessions that have work.
    fn work_off(&self, sessions: &mut Sessions, now: Monotonic) {
        for token in sessions.strangers_times.take_due(now) {
            if let Some(socket) = sessions.strangers.remove(&token) {
                self.poller.remove(socket.as_raw_fd(), token);
            }
        }
        sessions.announce_gone();
        sessions.all.take_due(now).into_iter().for_each(|peer| self.serve(sessions, peer));
        for peer in sessions.draining_times.take_due(now) {
            self.let_go(sessions, peer, now);
        }
    }

    fn serve(&self, sessions: &mut Sessions, peer: PeerId) {
        #[cfg(test)]
        self.served.fetch_add(1, Ordering::Relaxed);
        match self.advance(sessions, peer) {
            Ok(false) => {}
            Ok(true) => self.settle(sessions, peer),
            Err(why) => self.fail(sessions, peer, why),
        }
        let next = sessions.all.get(&peer).and_then(|session| {
            let retries = session.wants_to_connect() || session.is_stalled;
            let retry = retries.then(|| clock::monotonic_ns() + RETRY);
            retry.into_iter().chain(session.deadline).min()
        });
        sessions.all.plan(peer, next);
    }

    /// Sends and receives what the socket allows. Returns true when the path can be opened.
    fn advance(&self, sessions: &mut Sessions, peer: PeerId) -> std::result::Result<bool, Why> {
        self.connect(sessions, peer)?;
        self.prove(sessions, peer);
        let Some(session) = sessions.all.get_mut(&peer) else { return Ok(false) };
        session.flush()?;
        if let Some(socket) = &session.socket {
            let interest = Interest { read: true, write: session.has_outgoing() && !session.is_stalled };
            let _ = self.poller.set(socket.as_raw_fd(), session.socket_token, interest);
        }
        for _ in 0..LOCAL_PACKETS_PER_TURN {
            let Some(session) = sessions.all.get_mut(&peer) else { return Ok(false) };
            let Some((packet, descriptors)) = session.receive()? else { break };
            let effect = session.handle(packet, descriptors)?;
            self.follow(sessions, peer, effect)?;
        }
        let Some(session) = sessions.all.get_mut(&peer) else { return Ok(false) };
        let is_late = session.deadline.is_some_and(|deadline| clock::monotonic_ns() >= deadline);
        let is_ready = session.take_findings(is_late);
        if is_late && !is_ready {
            return Err(session.late());
        }
        Ok(is_ready)
    }

    /// Connects to the acceptor, if this side dials and has not connected yet.
    fn connect(&self, sessions: &mut Sessions, peer: PeerId) -> std::result::Result<(), Why> {
        let token = sessions.token();
        let Some(session) = sessions.all.get_mut(&peer).filter(|session| session.wants_to_connect()) else {
            return Ok(());
        };
        if !session.connect(&self.grants)? {
            return Ok(());
        }
        session.announce_all(&self.registry.snapshot());
        session.socket_token = token;
        let Some(socket) = &session.socket else { return Ok(()) };
        let watched = self.poller.add(socket.as_raw_fd(), token, READ);
        sessions.tokens.insert(token, peer);
        watched.map_err(|error| format!("the peer can't be watched by epoll: {}", reason(&error)))
    }

    fn settle(&self, sessions: &mut Sessions, peer: PeerId) {
        let token = sessions.token();
        let Some(session) = sessions.all.get_mut(&peer) else { return };
        let Some(copier) = session.copier.take() else { return };
        if let Err(error) = self.poller.add(copier.process.pidfd().as_raw_fd(), token, READ) {
            let why = format!("the peer can't be watched by epoll: {}", reason(&error));
            return self.fail(sessions, peer, why);
        }
        session.deadline = None;
        let how = match &copier.by_call {
            Ok(()) => "process_vm calls, and copies where ferry allocated the peer's memory".to_string(),
            Err(why) => format!("only where ferry allocated the peer's memory: {why}"),
        };
        let commands = self.commands.clone();
        let path = LocalPath::new(
            session.session_info.peer.clone(),
            copier,
            self.settings.threads,
            self.settings.spin_ns,
            Box::new(move || commands.push(Command::PathBroken { peer, transport: Transport::Local })),
        );
        {
            let mut all_paths = self.all_paths.lock();
            all_paths.retain(|path| path.strong_count() > 0);
            all_paths.push(Arc::downgrade(&path));
        }
        sessions.tokens.insert(token, peer);
        sessions.processes.insert(peer, (token, path.clone()));
        sessions.open.insert(peer, (path, how));
        session.session_info.settled(Transport::Local, None);
    }

    /// Ends the path of a session, or the attempt to establish it.
    fn fail(&self, sessions: &mut Sessions, peer: PeerId, why: Why) {
        let Some(session) = self.take(sessions, peer) else { return };
        if session.deadline.is_none() {
            return self.commands.push(Command::PathBroken { peer, transport: Transport::Local });
        }
        if session.session_info.dialer {
            // The acceptor waits for this side.
            session.session_info.send(Transport::Local, Vec::new(), why.clone());
        }
        session.session_info.settled(Transport::Local, Some(why));
    }

    /// Ends a path: nothing is posted on it from here on, and no new access of the peer is admitted. Copies in progress
    /// drain.
    fn take(&self, sessions: &mut Sessions, peer: PeerId) -> Option<Session> {
        let mut session = sessions.all.end(peer)?;
        sessions.by_id.remove(&session.session_info.session_id);
        let path = sessions.open.remove(&peer).map(|(path, _)| path);
        let socket = session.socket.take();
        if let Some(socket) = &socket {
            self.poller.remove(socket.as_raw_fd(), session.socket_token);
        }
        if let Some(path) = &path {
            sessions.ending_threads.retain(|thread| !thread.is_finished());
            sessions.ending_threads.extend(path.close());
            path.copier().grant.close();
        }
        sessions.tokens.remove(&session.socket_token);
        if let Some(admitted) = session.admitted.clone() {
            self.grants.close(&admitted.tally);
            let mut draining = Draining::new(admitted, path, socket);
            if !self.wind_up(&mut draining) {
                sessions.draining.entry(peer).or_default().push(draining);
                sessions.draining_times.lower(peer, clock::monotonic_ns() + RETRY);
            }
        }
        Some(session)
    }
}

impl TransportService for LocalService {
    fn start(self: Arc<Self>) -> Result<()> {
        let service = self.clone();
        let poller = self.poller.clone();
        let thread = turns::start("ferry-local", "keeping paths on this host", poller, move || Some(service))
            .map_err(|error| Error::system("starting the thread for peers on this host", &error))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.poller.wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        let ending_threads = std::mem::take(&mut self.lock().ending_threads);
        ending_threads.into_iter().for_each(|thread| drop(thread.join()));
        self.end_looks();
    }

    fn shut(&self) {
        self.grants.close_all();
    }

    fn bury(&self) -> bool {
        LocalService::bury(self)
    }

    fn begin(&self, session_info: SessionInfo) {
        let (peer, dialer) = (session_info.peer.handle, session_info.dialer);
        let mut sessions = self.lock();
        self.take(&mut sessions, peer);
        self.forget_process(&mut sessions, peer);
        let patience = if dialer { OFFER_PATIENCE } else { PATIENCE };
        let session = Session::new(session_info, clock::monotonic_ns() + patience);
        // The dialer connects to the acceptor, so only the acceptor names its listener.
        match &self.listener {
            Some(listener) if !dialer => {
                session.session_info.send(Transport::Local, listener.name.clone().into_bytes(), String::new())
            }
            None if !dialer => {
                session.session_info.send(Transport::Local, Vec::new(), "the peer does not listen".into())
            }
            _ => {}
        }
        sessions.by_id.insert(session.session_info.session_id, peer);
        sessions.all.begin(peer, session);
        if !dialer && self.listener.is_none() {
            self.fail(&mut sessions, peer, "this engine has no AF_UNIX listener".into());
        }
        drop(sessions);
        self.poller.wake();
    }

    /// An invalid message costs the peer this path, not the session.
    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        let mut sessions = self.lock();
        let waits = |session: &&mut Session| session.session_info.dialer && session.name.is_empty();
        let Some(session) = sessions.all.get_mut(&peer).filter(waits) else { return true };
        if unix::is_proof_name(body) {
            session.name = String::from_utf8_lossy(body).into_owned();
            session.deadline = Some(clock::monotonic_ns() + PATIENCE);
            sessions.all.changed(peer);
        } else {
            self.fail(&mut sessions, peer, "the peer sent an invalid name of its AF_UNIX listener".into());
        }
        drop(sessions);
        self.poller.wake();
        true
    }

    fn refused(&self, peer: PeerId, why: String) -> bool {
        let mut sessions = self.lock();
        if sessions.all.get(&peer).is_some_and(|session| session.deadline.is_some()) {
            self.fail(&mut sessions, peer, why);
        }
        true
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        let sessions = self.lock();
        let (path, how) = sessions.open.get(&peer)?;
        Some((path.clone(), how.clone()))
    }

    fn regions_added(&self, peer: PeerId, ids: &[RegionId]) -> Vec<Vec<u8>> {
        let map = self.registry.snapshot();
        let mut sessions = self.lock();
        if let Some(session) = sessions.all.get_mut(&peer) {
            ids.iter().filter_map(|id| map.get(*id)).for_each(|region| session.announce(region));
            if session.has_outgoing() {
                sessions.all.changed(peer);
                self.poller.wake();
            }
        }
        Vec::new()
    }

    /// The service's thread tells the peers: the caller is the control loop, which has other work.
    fn regions_removed(&self, ids: &[RegionId]) {
        let mut sessions = self.lock();
        if sessions.all.values().len() > 0 {
            sessions.gone.extend(ids);
            self.poller.wake();
        }
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        let ended = self.take(&mut self.lock(), peer);
        // Close the session's descriptors outside the lock.
        drop(ended);
        self.poller.wake();
        Vec::new()
    }

    fn forget(&self, peer: PeerId) {
        self.forget_process(&mut self.lock(), peer);
    }

    fn is_quiet(&self, peer: PeerId) -> bool {
        !self.lock().is_draining(peer)
    }

    fn unrest(&self, peer: PeerId) -> Option<String> {
        let sessions = self.lock();
        let copying = sessions.draining.get(&peer).into_iter().flatten().filter(|it| !it.quiet);
        let whose = |it: &Draining| {
            if it.we_copy() {
                "this process".to_owned()
            } else {
                format!("its process {}", it.admitted.tally.pid())
            }
        };
        let whose: Vec<String> = copying.map(whose).collect();
        (!whose.is_empty()).then(|| format!("{} has not ended a copy here", whose.join(", ")))
    }
}

impl Turns for Arc<LocalService> {
    fn turn(&mut self, now: Monotonic, ready: &[Ready]) -> Next {
        let mut sessions = self.lock();
        let proofs_ended = std::mem::take(&mut *self.proofs_ended.lock());
        sessions.proofs_ended(proofs_ended);
        ready.iter().for_each(|event| self.event(&mut sessions, event.token));
        self.work_off(&mut sessions, now);
        if self.stopping.load(Ordering::SeqCst) {
            return Next::Over;
        }
        let accepts = self.listener.as_ref().and_then(|listener| listener.accept_again(&self.poller, now));
        Next::at(sessions.next_due(now).into_iter().chain(accepts).min())
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
