//! What callers of `connect` wait for: a session to be up, a door that is less crowded, a peer that dials us at the
//! same time. `callers` has the callers, `dial` brings them here.

use super::conn::Target;
use super::Control;
use crate::session::handshake::RefusalCode;
use crate::status::{Error, Status};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The least pause before a door that was crowded is tried again.
const CROWD_PAUSE_MS: u64 = 50;

/// A dial that found too many others at the door.
pub struct Later {
    pub at: Instant,
    target: Target,
    addresses: Vec<SocketAddr>,
    deadline: Instant,
    error: Error,
}

/// Callers of `connect` whose peer was dialing us when they dialed it.
pub struct Expected {
    address: String,
    pub until: Instant,
    waiting: Vec<u64>,
}

impl Control {
    /// These callers of `connect` get the session's peer, now or when it is up.
    pub(super) fn join(&mut self, peer: u64, waiting: Vec<u64>) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.waiting.extend(waiting);
        self.answer_connects(peer);
    }

    /// Who waits for the session gets it when transfers can be submitted, by the path that is to carry them.
    pub(super) fn answer_connects(&mut self, peer: u64) {
        let mask = self.companions_mask();
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        if session.machine.is_up() && session.companions_settled & mask == mask {
            session.waiting.drain(..).for_each(|caller| self.callers.answer(caller, Ok(peer)));
        }
    }

    /// Callers of `connect` that asked for whoever is at an address, not for the session they found there.
    pub(super) fn take_waiting(&mut self, peer: u64) -> Vec<u64> {
        self.sessions.get_mut(&peer).map(|session| std::mem::take(&mut session.waiting)).unwrap_or_default()
    }

    /// Tries again in a moment, if the caller still waits then.
    pub(super) fn dial_later(
        &mut self,
        target: Target,
        addresses: Vec<SocketAddr>,
        deadline: Instant,
        error: Error,
    ) {
        // Not all in step.
        let pause_ms = CROWD_PAUSE_MS + crate::sys::random_u64() % CROWD_PAUSE_MS;
        let at = Instant::now() + Duration::from_millis(pause_ms);
        if at >= deadline {
            return self.dial_failed(target, error, None);
        }
        self.crowded.push(Later { at, target, addresses, deadline, error });
    }

    pub(super) fn dial_again(&mut self, now: Instant) {
        let due: Vec<Later> = self.crowded.extract_if(.., |later| later.at <= now).collect();
        for Later { target, addresses, deadline, error, .. } in due {
            self.dial_next(target, addresses, deadline, error);
        }
    }

    /// A simultaneous dial lost the tie: the callers wait for the peer's own session, which may be here
    /// already or on its way.
    pub(super) fn wait_for_inbound(&mut self, address: String, waiting: Vec<u64>) {
        let found = self
            .sessions
            .values()
            .find(|session| session.identity.address == address && !session.machine.is_given_up());
        match found.map(|session| session.peer.handle) {
            Some(peer) => self.join(peer, waiting),
            None => {
                let patience = Duration::from_millis(self.context.config.connect_timeout_ms);
                self.expected.push(Expected { address, until: Instant::now() + patience, waiting });
            }
        }
    }

    /// Who waits for this engine to come by itself.
    pub(super) fn take_expected(&mut self, address: &str) -> Vec<u64> {
        let came = self.expected.extract_if(.., |expected| expected.address == address);
        came.flat_map(|expected| expected.waiting).collect()
    }

    /// The peer said that it dials us, and never came.
    pub(super) fn expire_expected(&mut self, now: Instant) {
        for late in self.expected.extract_if(.., |expected| expected.until <= now) {
            let text = format!("{}: it dials us at the same time, but does not come through", late.address);
            self.callers.fail(late.waiting, &Error::new(Status::Unreachable, text));
        }
    }
}

/// Whether the peer had no room for one more at this moment: it said so, or the backlog of its socket for
/// proofs was full.
pub(super) fn is_crowded(error: &Error, refusal: Option<RefusalCode>) -> bool {
    refusal == Some(RefusalCode::TooMany) || error.os_error == libc::EAGAIN
}
