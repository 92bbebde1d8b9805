//! The doors of an engine: its listeners, and the connections behind them that are not authenticated yet. `Doors`
//! bounds the number and the time of these connections. It knows their tokens; `Control` owns the connections.

use crate::limits::{HANDSHAKES_MAX, STRANGERS_SHARE};
use crate::status::{Error, Result};
use crate::sys::fd::{AsFd, OwnedFd};
use crate::sys::poller::{Interest, Poller};
use crate::sys::tcp::Listener;
use crate::sys::{clock, host, socket, unix};
use crate::types::Monotonic;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

pub(super) const LISTENER: u64 = 1;
pub(super) const PROOFS: u64 = 2;
/// Pause of a listener after the system ran out of descriptors or memory.
const EXHAUSTION_PAUSE_NS: u64 = 100_000_000;
/// Pause of the listener while the maximum number of strangers is open.
const STRANGERS_PAUSE_NS: u64 = 5_000_000;
/// How long a stranger keeps its place while the maximum is reached; then the next connection takes that place.
const STRANGER_PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct Doors {
    poller: Arc<Poller>,
    listener: Option<Listener>,
    /// The socket on which processes of this host prove the user that they run as.
    proofs: Option<OwnedFd>,
    /// Connections that are not yet authenticated, by deadline.
    half_open: BTreeSet<(Monotonic, u64)>,
    /// The half-open connections that other processes opened.
    strangers: BTreeSet<(Monotonic, u64)>,
    /// When the paused listeners accept again; ZERO while none is paused.
    paused_until_ns: Monotonic,
}

/// The result of an accept.
pub(super) enum Knock<T> {
    /// A connection that is not authenticated yet.
    Came(T),
    /// A connection that had ended before it was accepted.
    Gone,
    Nobody,
}

/// Whether another stranger may come in.
pub(super) enum Room {
    Free,
    /// The connection with this token has had its time, and makes room.
    Refuse(u64),
    None,
}

impl Doors {
    pub fn new(poller: Arc<Poller>, listener: Option<Listener>, proofs: Option<OwnedFd>) -> Result<Doors> {
        let system = |error| Error::system("watching the listener", &error);
        let read = Interest { read: true, write: false };
        if let Some(listener) = &listener {
            poller.add(listener.as_raw_fd(), LISTENER, read).map_err(system)?;
        }
        if let Some(proofs) = &proofs {
            poller.add(proofs.as_raw_fd(), PROOFS, read).map_err(system)?;
        }
        let (half_open, strangers) = Default::default();
        Ok(Doors { poller, listener, proofs, half_open, strangers, paused_until_ns: Monotonic::ZERO })
    }

    /// Accepts a connection of an engine or of a lane.
    pub fn accept(&mut self) -> Knock<(OwnedFd, SocketAddr)> {
        let Some(listener) = &self.listener else { return Knock::Nobody };
        match listener.accept() {
            Ok(came) => Knock::Came(came),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Knock::Nobody,
            Err(error) if unix::is_exhaustion(&error) => {
                self.pause(LISTENER, EXHAUSTION_PAUSE_NS);
                Knock::Nobody
            }
            Err(_) => Knock::Gone,
        }
    }

    /// Accepts a connection of a process that proves its user.
    pub fn accept_proof(&mut self) -> Knock<OwnedFd> {
        let Some(listener) = &self.proofs else { return Knock::Nobody };
        match unix::accept(listener.as_fd()) {
            Ok(socket) => Knock::Came(socket),
            Err(error) => {
                if unix::is_exhaustion(&error) {
                    // An immediate retry would fail again.
                    self.pause(PROOFS, EXHAUSTION_PAUSE_NS);
                }
                Knock::Nobody
            }
        }
    }

    /// Returns whether another stranger can be accepted; if none can soon, the listener pauses. An honest handshake
    /// takes a few round trips, so a thousand dialers at once are all served: the rest waits in the backlog. If the
    /// maximum is reached, the oldest connection is refused once it has had STRANGER_PATIENCE, so idle connections
    /// cannot block others for long. `longest`: the time of a handshake.
    pub fn room(&mut self, longest: Duration) -> Room {
        let share = host::descriptors_max() / STRANGERS_SHARE;
        if self.strangers.len() < HANDSHAKES_MAX.min(share.max(1)) {
            return Room::Free;
        }
        let patient_until = clock::monotonic_ns() + longest.saturating_sub(STRANGER_PATIENCE);
        match self.strangers.first() {
            None => Room::Free,
            Some((deadline, oldest)) if *deadline <= patient_until => Room::Refuse(*oldest),
            Some(_) => {
                self.pause(LISTENER, STRANGERS_PAUSE_NS);
                Room::None
            }
        }
    }

    /// Returns whether a process may prove its user: every stranger on the listener opens at most one such connection.
    pub fn has_room_for_proof(&self) -> bool {
        self.strangers.len() < 2 * HANDSHAKES_MAX
    }

    /// Stops accepting for a while, for lack of descriptors, memory or room. The backlog waits; peers are still served.
    fn pause(&mut self, door: u64, pause_ns: u64) {
        self.paused_until_ns = clock::monotonic_ns() + pause_ns;
        self.watch(door, false);
    }

    fn watch(&self, door: u64, read: bool) {
        let (listener, proofs) = (self.listener.as_ref().map(AsRawFd::as_raw_fd), &self.proofs);
        let fd = if door == LISTENER { listener } else { proofs.as_ref().map(AsRawFd::as_raw_fd) };
        if let Some(fd) = fd {
            // If the poller fails, connections time out at their dialers.
            let _ = self.poller.set(fd, door, Interest { read, write: false });
        }
    }

    /// Ends a pause that is over.
    pub fn timer(&mut self, now_ns: Monotonic) {
        if self.paused_until_ns > Monotonic::ZERO && self.paused_until_ns <= now_ns {
            self.paused_until_ns = Monotonic::ZERO;
            self.watch(LISTENER, true);
            self.watch(PROOFS, true);
        }
    }

    /// Returns when to call `timer`, or to look for a connection whose time is over.
    pub fn next_timer(&self) -> Option<Monotonic> {
        let pause = (self.paused_until_ns > Monotonic::ZERO).then_some(self.paused_until_ns);
        pause.into_iter().chain(self.half_open.first().map(|(at, _)| *at)).min()
    }

    pub fn enter(&mut self, deadline: Monotonic, token: u64, is_stranger: bool) {
        self.half_open.insert((deadline, token));
        if is_stranger {
            self.strangers.insert((deadline, token));
        }
    }

    pub fn leave(&mut self, deadline: Monotonic, token: u64) {
        self.half_open.remove(&(deadline, token));
        self.strangers.remove(&(deadline, token));
    }

    /// Returns a connection whose time is over.
    pub fn expired(&self, now_ns: Monotonic) -> Option<u64> {
        self.half_open.first().filter(|(at, _)| *at <= now_ns).map(|(_, token)| *token)
    }

    /// Returns the connections that are not authenticated yet.
    pub fn half_open(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.half_open.iter().map(|(_, token)| *token)
    }

    pub fn are_all_strangers(&self) -> bool {
        self.half_open.len() == self.strangers.len()
    }

    /// Accepts no further engine. Processes may still prove their user.
    pub fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.poller.remove(listener.as_raw_fd(), LISTENER);
            socket::shutdown(listener.as_raw_fd());
        }
    }

    /// Ends the last listener. A forked child may hold a copy of its socket: closing ours would not end that, and peers
    /// would still connect to a listener that no thread serves.
    pub fn end(&mut self) {
        self.proofs.as_ref().map(AsRawFd::as_raw_fd).into_iter().for_each(socket::shutdown);
    }
}
