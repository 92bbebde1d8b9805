//! The service of the same-host transport: one thread that meets other engines over AF_UNIX. The control loop reports
//! sessions (`TransportService`). For each session the service establishes a path, or reports why none exists, and it
//! watches the process of the path. It copies nothing.

use super::attach::Packet;
use super::draining::Draining;
use super::listener::Listener;
use super::path::LocalPath;
use super::session::{self, Session, Step, Why};
use super::sessions::Sessions;
use crate::command::{Command, Commands};
use crate::limits::{HANDSHAKES_MAX, LOCAL_PACKETS_PER_TURN};
use crate::peer::{Closed, Path, SessionInfo, TransportService};
use crate::region::grants::Grants;
use crate::region::Registry;
use crate::status::{Error, Result};
use crate::sys::clock;
use crate::sys::health;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::pause;
use crate::sys::poller::{Interest, Poller, PollerKind, Ready};
use crate::sys::{unix, vm};
use crate::types::{PeerId, Transport};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
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

pub struct Settings {
    /// How many threads may copy for one peer at one time.
    pub threads: usize,
    pub spin_ns: u64,
    pub any_tracer: bool,
    /// False: this engine connects to others but does not listen.
    pub listen: bool,
}

pub struct Service {
    settings: Settings,
    registry: Arc<Registry>,
    pub(super) grants: Arc<Grants>,
    pub(super) commands: Arc<Commands>,
    listener: Option<Listener>,
    poller: Poller,
    stopping: AtomicBool,
    /// A leaf lock, except that the grants are locked under it.
    paths: Mutex<Sessions>,
    /// Every path on which a thread may still copy.
    pub(super) links: Mutex<Vec<Weak<LocalPath>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// How many times a session was looked after.
    #[cfg(test)]
    looked: std::sync::atomic::AtomicU64,
}

impl Service {
    pub fn new(
        settings: Settings,
        registry: Arc<Registry>,
        grants: Arc<Grants>,
        commands: Arc<Commands>,
    ) -> Result<Arc<Service>> {
        let system = |error: std::io::Error| Error::system("the socket for peers on this host", &error);
        let poller = Poller::new(PollerKind::Epoll)?;
        let listener =
            settings.listen.then(|| Listener::open(&poller, LISTENER)).transpose().map_err(system)?;
        if settings.any_tracer {
            vm::allow_any_tracer();
        }
        Ok(Arc::new(Service {
            settings,
            registry,
            grants,
            commands,
            listener,
            poller,
            stopping: AtomicBool::new(false),
            paths: Mutex::new(Sessions::new(LISTENER + 1)),
            links: Mutex::default(),
            thread: Mutex::new(None),
            #[cfg(test)]
            looked: Default::default(),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.paths.lock()
    }

    fn run(&self) {
        let mut ready: Vec<Ready> = Vec::new();
        while !self.stopping.load(Ordering::SeqCst) {
            let door = self.listener.as_ref().and_then(|listener| listener.accept_again(&self.poller));
            let timeout = [self.next_timer(), door].into_iter().flatten().min();
            ready.clear();
            if self.poller.wait(&mut ready, timeout.map(|left| left.as_nanos() as u64)).is_err() {
                pause::yield_now();
            }
            let mut paths = self.lock();
            for event in &ready {
                self.event(&mut paths, event.token);
            }
            self.look_around(&mut paths);
        }
    }

    /// Returns the time until the next timer.
    fn next_timer(&self) -> Option<Duration> {
        let paths = self.lock();
        let now = clock::now();
        let next = paths.next_look(now)?;
        Some(next.saturating_duration_since(now))
    }

    fn event(&self, paths: &mut Sessions, token: u64) {
        if token == LISTENER {
            return self.accept(paths);
        }
        if let Some(socket) = paths.strangers.remove(&token) {
            let said = session::receive(socket.as_fd());
            if matches!(said, Ok(None)) {
                paths.strangers.insert(token, socket);
                return;
            }
            paths.strangers_times.set(token, None);
            return match said {
                Ok(Some((packet, descriptors))) => self.admit(paths, token, socket, packet, descriptors),
                _ => self.poller.remove(socket.as_raw_fd(), token),
            };
        }
        let Some(peer) = paths.tokens.get(&token).copied() else { return };
        match paths.processes.get(&peer) {
            Some((its, _)) if *its == token => {
                self.forget_process(paths, peer);
                self.commands.push(Command::ProcessEnded { peer });
            }
            _ => self.look_after(paths, peer),
        }
    }

    fn forget_process(&self, paths: &mut Sessions, peer: PeerId) {
        if let Some((token, path)) = paths.processes.remove(&peer) {
            paths.tokens.remove(&token);
            self.poller.remove(path.copier().process.pidfd().as_raw_fd(), token);
        }
    }

    fn accept(&self, paths: &mut Sessions) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(socket) = listener.accept(&self.poller) else { return };
            // The kernel knows the other end's user before any packet: other users of this host are
            // refused.
            if session::check_user(socket.as_fd()).is_err() {
                continue;
            }
            if paths.strangers.len() == HANDSHAKES_MAX {
                continue; // refused: its session has no same-host path
            }
            let token = paths.token();
            if self.poller.add(socket.as_raw_fd(), token, READ).is_ok() {
                paths.strangers.insert(token, socket);
                paths.strangers_times.set(token, Some(clock::now() + PATIENCE));
            }
        }
    }

    /// Admits a connection to the session that its first packet names.
    fn admit(
        &self,
        paths: &mut Sessions,
        token: u64,
        socket: OwnedFd,
        packet: Packet,
        descriptors: Vec<OwnedFd>,
    ) {
        let named = packet.session().and_then(|id| paths.by_id.get(&id));
        let named = named.and_then(|peer| paths.sessions.get_mut(peer));
        let Some(session) = named.filter(|session| session.expects(&packet)) else {
            return self.poller.remove(socket.as_raw_fd(), token);
        };
        let peer = session.session_info.peer.handle;
        let user = session::check_user(socket.as_fd());
        session.socket = Some(socket);
        session.socket_token = token;
        let attached = user.and_then(|()| {
            session.attach(&self.grants)?;
            session.tell_all(&self.registry.snapshot());
            session.handle(packet, descriptors).map(|_| ())
        });
        paths.tokens.insert(token, peer);
        match attached {
            Ok(()) => self.look_after(paths, peer),
            Err(why) => self.fail(paths, peer, why),
        }
    }

    /// Does the work of timers, and looks after sessions that have work.
    fn look_around(&self, paths: &mut Sessions) {
        let now = clock::now();
        for token in paths.strangers_times.take_due(now) {
            if let Some(socket) = paths.strangers.remove(&token) {
                self.poller.remove(socket.as_raw_fd(), token);
            }
        }
        paths.tell_gone();
        let mut due = std::mem::take(&mut paths.work);
        due.extend(paths.times.take_due(now));
        due.into_iter().for_each(|peer| self.look_after(paths, peer));
        for peer in paths.fading_times.take_due(now) {
            self.let_go(paths, peer, now);
        }
    }

    fn look_after(&self, paths: &mut Sessions, peer: PeerId) {
        #[cfg(test)]
        self.looked.fetch_add(1, Ordering::Relaxed);
        match self.advance(paths, peer) {
            Ok(false) => {}
            Ok(true) => self.settle(paths, peer),
            Err(why) => self.fail(paths, peer, why),
        }
        let next = paths.sessions.get(&peer).and_then(|session| {
            let retries = session.wants_to_connect() || session.is_stalled;
            let retry = retries.then(|| clock::now() + RETRY);
            retry.into_iter().chain(session.deadline).min()
        });
        paths.times.set(peer, next);
    }

    /// Sends and receives what the socket allows. Returns true when the path can be opened.
    fn advance(&self, paths: &mut Sessions, peer: PeerId) -> std::result::Result<bool, Why> {
        let path = paths.open.get(&peer).cloned();
        self.connect(paths, peer)?;
        let Some(session) = paths.sessions.get_mut(&peer) else { return Ok(false) };
        session.flush()?;
        if let Some(socket) = &session.socket {
            let interest = Interest { read: true, write: session.has_outgoing() && !session.is_stalled };
            let _ = self.poller.set(socket.as_raw_fd(), session.socket_token, interest);
        }
        for _ in 0..LOCAL_PACKETS_PER_TURN {
            let Some((packet, descriptors)) = session.receive()? else { break };
            match (session.handle(packet, descriptors)?, &path) {
                (Step::Settled, _) => return Ok(true),
                (Step::Mapped(id, mapped), Some(path)) => {
                    let has_room = path.copier().mappings.add(id, mapped);
                    session.session_info.peer.note_change();
                    has_room.then_some(()).ok_or(session::TOO_MANY)?;
                }
                (Step::Unmapped(id), Some(path)) => {
                    path.copier().mappings.remove(id);
                    session.session_info.peer.note_change();
                }
                _ => {}
            }
        }
        match session.deadline {
            Some(deadline) if clock::now() >= deadline => Err(session.late()),
            _ => Ok(false),
        }
    }

    /// Connects to the acceptor, if this side dials and has not connected yet.
    fn connect(&self, paths: &mut Sessions, peer: PeerId) -> std::result::Result<(), Why> {
        let token = paths.token();
        let Some(session) = paths.sessions.get_mut(&peer).filter(|session| session.wants_to_connect()) else {
            return Ok(());
        };
        if !session.connect(&self.grants)? {
            return Ok(());
        }
        session.tell_all(&self.registry.snapshot());
        session.socket_token = token;
        let Some(socket) = &session.socket else { return Ok(()) };
        let watched = self.poller.add(socket.as_raw_fd(), token, READ);
        paths.tokens.insert(token, peer);
        watched.map_err(|error| format!("epoll: {error}"))
    }

    fn settle(&self, paths: &mut Sessions, peer: PeerId) {
        let token = paths.token();
        let Some(session) = paths.sessions.get_mut(&peer) else { return };
        let Some(copier) = session.copier.take() else { return };
        session.deadline = None;
        let how = match &copier.by_call {
            Ok(()) => "process_vm calls, and copies where ferry allocated the peer's memory".to_string(),
            Err(why) => format!("only where ferry allocated the peer's memory: {why}"),
        };
        let watched = self.poller.add(copier.process.pidfd().as_raw_fd(), token, READ);
        let commands = self.commands.clone();
        let path = LocalPath::new(
            session.session_info.peer.clone(),
            copier,
            self.settings.threads,
            self.settings.spin_ns,
            Box::new(move || commands.push(Command::PathBroken { peer, transport: Transport::Local })),
        );
        {
            let mut links = self.links.lock();
            links.retain(|path| path.strong_count() > 0);
            links.push(Arc::downgrade(&path));
        }
        paths.tokens.insert(token, peer);
        paths.processes.insert(peer, (token, path.clone()));
        paths.open.insert(peer, path);
        paths.how.insert(peer, how);
        match watched {
            Ok(()) => self.settled(peer, None),
            Err(error) => self.fail(paths, peer, format!("epoll: {error}")),
        }
    }

    /// Ends the path of a session, or the attempt to establish it.
    fn fail(&self, paths: &mut Sessions, peer: PeerId, why: Why) {
        let Some(session) = self.take(paths, peer) else { return };
        if session.deadline.is_none() {
            return self.commands.push(Command::PathBroken { peer, transport: Transport::Local });
        }
        if session.session_info.dialer {
            // The acceptor waits for this side.
            session.session_info.tell(Transport::Local, Vec::new(), why.clone());
        }
        self.settled(peer, Some(why));
    }

    fn settled(&self, peer: PeerId, why: Option<Why>) {
        let transport = Transport::Local;
        self.commands.push(Command::PathSettled { peer, transport, why, pending: false });
    }

    /// Ends a path: nothing is posted on it from here on, and no new access of the peer is admitted. Copies in progress
    /// drain.
    fn take(&self, paths: &mut Sessions, peer: PeerId) -> Option<Session> {
        let mut session = paths.sessions.remove(&peer)?;
        paths.by_id.remove(&session.session_info.session_id);
        paths.times.set(peer, None);
        let path = paths.open.remove(&peer);
        paths.how.remove(&peer);
        if let Some(socket) = session.socket.take() {
            self.poller.remove(socket.as_raw_fd(), session.socket_token);
        }
        if let Some(path) = &path {
            paths.leaving.retain(|thread| !thread.is_finished());
            paths.leaving.extend(path.close());
        }
        paths.tokens.remove(&session.socket_token);
        if let Some(tally) = &session.tally {
            self.grants.close(tally);
            let mut draining = Draining { tally: tally.clone(), path, quiet: false };
            if !self.is_over(&mut draining) {
                paths.draining.entry(peer).or_default().push(draining);
                paths.fading_times.lower(peer, clock::now() + RETRY);
            }
        }
        Some(session)
    }
}

impl TransportService for Service {
    fn start(self: Arc<Self>) -> Result<()> {
        let service = self.clone();
        let thread = crate::sys::thread::spawn("ferry-local", move || {
            health::doing("keeping paths on this host");
            health::woken_by(&|| service.poller.wake(), || service.run());
        })
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
        let leaving = std::mem::take(&mut self.lock().leaving);
        leaving.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn shut(&self) {
        self.grants.close_all();
    }

    fn is_still(&self) -> bool {
        Service::is_still(self)
    }

    fn begin(&self, session_info: SessionInfo) {
        let (peer, dialer) = (session_info.peer.handle, session_info.dialer);
        let mut paths = self.lock();
        self.take(&mut paths, peer);
        self.forget_process(&mut paths, peer);
        let patience = if dialer { OFFER_PATIENCE } else { PATIENCE };
        let session = Session::new(session_info, clock::now() + patience);
        // The dialer connects to the acceptor, so only the acceptor names its listener.
        match &self.listener {
            Some(listener) if !dialer => {
                session.session_info.tell(Transport::Local, listener.name.clone().into_bytes(), String::new())
            }
            None if !dialer => {
                session.session_info.tell(Transport::Local, Vec::new(), "the peer does not listen".into())
            }
            _ => {}
        }
        paths.by_id.insert(session.session_info.session_id, peer);
        paths.sessions.insert(peer, session);
        paths.work.insert(peer);
        if !dialer && self.listener.is_none() {
            self.fail(&mut paths, peer, "this engine has no AF_UNIX listener".into());
        }
        drop(paths);
        self.poller.wake();
    }

    /// An invalid message costs the peer this path, not the session.
    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        let mut paths = self.lock();
        let waits = |session: &&mut Session| session.session_info.dialer && session.name.is_empty();
        let Some(session) = paths.sessions.get_mut(&peer).filter(waits) else { return true };
        if unix::is_proof_name(body) {
            session.name = String::from_utf8_lossy(body).into_owned();
            session.deadline = Some(clock::now() + PATIENCE);
            paths.work.insert(peer);
        } else {
            self.fail(&mut paths, peer, "the peer sent an invalid name of its AF_UNIX listener".into());
        }
        drop(paths);
        self.poller.wake();
        true
    }

    fn refused(&self, peer: PeerId, why: String) -> bool {
        let mut paths = self.lock();
        if paths.sessions.get(&peer).is_some_and(|session| session.deadline.is_some()) {
            self.fail(&mut paths, peer, why);
        }
        true
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        let paths = self.lock();
        let path: Arc<dyn Path> = paths.open.get(&peer)?.clone();
        Some((path, paths.how.get(&peer).cloned().unwrap_or_default()))
    }

    fn regions_added(&self, peer: PeerId, ids: &[u64]) -> Vec<Vec<u8>> {
        let map = self.registry.snapshot();
        let mut paths = self.lock();
        if let Some(session) = paths.sessions.get_mut(&peer) {
            ids.iter().filter_map(|id| map.get(*id)).for_each(|region| session.tell(region));
            if session.has_outgoing() {
                paths.work.insert(peer);
                self.poller.wake();
            }
        }
        Vec::new()
    }

    /// The service's thread tells the peers: the caller is the control loop, which has other work.
    fn regions_removed(&self, ids: &[u64]) {
        let mut paths = self.lock();
        if !paths.sessions.is_empty() {
            paths.gone.extend(ids);
            self.poller.wake();
        }
    }

    fn end(&self, peer: PeerId) -> Vec<(u32, Closed)> {
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
        !self.lock().fades(peer)
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
