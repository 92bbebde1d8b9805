//! Endpoints that neither side uses: given up when both say so, made again by the dialer for whoever wants
//! them. On the service's thread; `session` keeps who rests, `path` says who is wanted.

use super::service::Service;
use super::wire::Word;
use crate::sys::clock;
use crate::types::PeerId;

impl Service {
    /// The other side has had nothing to post for a while. If that is so here, too, the endpoints go; the
    /// dialer hears that it is.
    pub(super) fn heard_idle(&self, peer: PeerId, id: [u8; 16]) {
        let now = clock::now();
        let lanes = self.with(peer, id, |session| {
            if !session.is_idle(now, self.settings.idle) {
                return Vec::new();
            }
            if session.session_info.dialer {
                return session.rest();
            }
            self.tell(session, &Word::Idle);
            session.rest();
            Vec::new()
        });
        lanes.into_iter().flatten().for_each(|lane| self.give_up(peer, lane));
    }

    /// Endpoints that were given up are wanted: the dialer makes them.
    pub(super) fn wake(&self, peer: PeerId, id: [u8; 16]) {
        self.with(peer, id, |session| {
            if session.wake(&self.devices) && !session.session_info.dialer {
                self.tell(session, &Word::Wake);
            }
        });
        self.say_state(peer);
    }

    /// The session, if something is queued for endpoints that it had given up.
    pub(super) fn wanted(&self, peer: PeerId) -> Option<[u8; 16]> {
        let sessions = self.lock();
        let session = sessions.all.get(&peer).filter(|session| session.is_wanted())?;
        Some(session.session_info.session_id)
    }
}
