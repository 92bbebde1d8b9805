//! Endpoints that neither side uses: both sides agree to give them up, and the dialer makes them again when either
//! side wants them. Runs on the service's thread. `session` keeps the state, and `path` notes when endpoints are
//! wanted.

use super::service::RdmaService;
use super::wire::Message;
use crate::sys::clock;
use crate::types::{PeerId, SessionId};

impl RdmaService {
    /// Handles IDLE: the peer has posted nothing for a while. If this side is idle, too, the dialer gives up the
    /// endpoints, and an acceptor answers IDLE.
    pub(super) fn peer_is_idle(&self, peer: PeerId, id: SessionId) {
        let now = clock::monotonic_ns();
        let lanes = self.with(peer, id, |session| {
            if !session.note_idle(now, self.settings.idle) {
                return Vec::new();
            }
            if session.session_info.dialer {
                return session.give_up_idle();
            }
            self.send(session, &Message::Idle);
            session.give_up_idle();
            Vec::new()
        });
        lanes.into_iter().flatten().for_each(|lane| self.give_up(peer, lane));
    }

    /// Makes given-up endpoints again; an acceptor asks the dialer for them.
    pub(super) fn wake(&self, peer: PeerId, id: SessionId) {
        self.with(peer, id, |session| {
            if session.wake(&self.devices) && !session.session_info.dialer {
                self.send(session, &Message::Wake);
            }
        });
        self.report_state(peer);
    }

    /// Returns the session's id if something is queued while the session's endpoints are given up.
    pub(super) fn wanted(&self, peer: PeerId) -> Option<SessionId> {
        let sessions = self.lock();
        let session = sessions.all.get(&peer).filter(|session| session.is_wanted())?;
        Some(session.session_info.session_id)
    }
}
