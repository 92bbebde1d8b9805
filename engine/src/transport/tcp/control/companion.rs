//! The same-host path beside a session: offered when the session's connection stands, ended with it. What
//! it is and how it is proven is behind `peer::Companion`.

use super::Control;
use crate::command::Reply;
use crate::notify::EventBody;
use crate::peer::{Peer, Ticket, Way};
use crate::session::machine::Role;
use crate::session::message::Message;
use crate::status::Status;
use std::sync::Arc;

/// A lost peer whose process may still be copying here.
pub struct Fading {
    peer: Arc<Peer>,
    why: Status,
    /// Who asked that nothing of it lands here any more.
    waiting: Vec<Reply<()>>,
}

impl Control {
    /// The session's connection stands: say how to come here, or that there is no use in it.
    pub(super) fn offer_companion(&mut self, peer: u64, role: Role) {
        let offer = self.companion.as_ref().map_err(String::clone).and_then(|companion| companion.offer());
        match (offer, role) {
            (Ok(name), Role::Acceptor) => {
                self.begin_companion(peer, role, String::new());
                self.say(peer, Message::Local { name, why: String::new() });
            }
            (Err(why), Role::Acceptor) => {
                self.say(peer, Message::Local { name: String::new(), why: format!("at the peer: {why}") });
                self.companion_settled(peer, Some(why));
            }
            // The dialer goes to the acceptor, so where it listens itself does not matter.
            (_, Role::Dialer) => {
                if let Err(why) = self.companion.as_ref().map(|_| ()).map_err(String::clone) {
                    self.say(
                        peer,
                        Message::Local { name: String::new(), why: format!("at the peer: {why}") },
                    );
                    self.companion_settled(peer, Some(why));
                }
            }
        }
    }

    fn begin_companion(&mut self, peer: u64, role: Role, name: String) {
        let (Ok(companion), Some(session)) = (&self.companion, self.sessions.get(&peer)) else { return };
        companion.begin(Ticket {
            peer: session.peer.clone(),
            dialer: role == Role::Dialer,
            session_id: session.session_id,
            key: session.lane_key,
            name,
        });
    }

    /// The peer's offer, or its word that there is none.
    pub(super) fn companion_offered(&mut self, peer: u64, name: String, why: String) {
        let Some(session) = self.sessions.get(&peer) else { return };
        let role = session.machine.role();
        let Ok(companion) = self.companion.clone() else { return };
        match (role, name.is_empty()) {
            (Role::Dialer, false) if crate::sys::unix::is_proof_name(name.as_bytes()) => {
                self.begin_companion(peer, role, name)
            }
            (Role::Dialer, _) => self.companion_settled(peer, Some(why)),
            (Role::Acceptor, _) => companion.refused(peer, why),
        }
    }

    pub(super) fn companion_settled(&mut self, peer: u64, why: Option<String>) {
        let link = match (&why, &self.companion) {
            (None, Ok(companion)) => companion.link(peer),
            _ => None,
        };
        let Some(session) = self.sessions.get_mut(&peer).filter(|session| session.conn.is_some()) else {
            return;
        };
        session.companion_settled = true;
        let tell = why.is_some() && session.machine.role() == Role::Dialer;
        let object = session.peer.clone();
        match (link, why.clone()) {
            (Some((link, how)), None) => object.set_local(Way::Open(link, how)),
            (_, why) => object.set_local(Way::Shut(why.unwrap_or_else(|| "it has ended".into()))),
        }
        if let (true, Some(why), true) = (tell, why, self.companion.is_ok()) {
            self.say(peer, Message::Local { name: String::new(), why });
        }
        self.answer_connects(peer);
    }

    /// The path was there and is not any more, and nobody has said why. The session may be about to end,
    /// and the word for that be on its way: only when the peer still answers is the session connected
    /// anew, which makes a new path if there can be one.
    pub(super) fn companion_broken(&mut self, peer: u64) {
        let Some(session) = self.sessions.get_mut(&peer).filter(|session| session.companion_settled) else {
            return;
        };
        session.companion_broken = true;
        let object = session.peer.clone();
        object.set_local(Way::Pending("it broke, and is being made again".into()));
        self.ping(peer, None);
    }

    /// The peer answers.
    pub(super) fn companion_mended(&mut self, peer: u64) {
        if self.sessions.get(&peer).is_some_and(|session| session.companion_broken) {
            self.drop_connection(peer);
        }
    }

    /// The session is over, or its connection is lost: so is the path.
    pub(super) fn end_companion(&mut self, peer: u64) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.companion_settled = false;
        session.companion_broken = false;
        let object = session.peer.clone();
        if let Ok(companion) = &self.companion {
            companion.end(peer);
        }
        object.set_local(Way::Pending("the session is being established again".into()));
    }

    /// A peer is lost; the application hears of it when nothing of it can land here any more.
    pub(super) fn tell_lost(&mut self, peer: Arc<Peer>, why: Status) {
        let handle = peer.handle;
        if let Ok(companion) = &self.companion {
            companion.forget(handle);
        }
        peer.set_local(Way::Shut("the peer is lost".into()));
        self.fading.insert(handle, Fading { peer, why, waiting: Vec::new() });
        if self.companion.as_ref().map_or(true, |companion| companion.is_quiet(handle)) {
            self.faded(handle);
        }
    }

    /// Answers when nothing of this peer can land here any more. Its session is over.
    pub(super) fn answer_when_faded(&mut self, peer: u64, reply: Reply<()>) {
        match self.fading.get_mut(&peer) {
            Some(fading) => fading.waiting.push(reply),
            None => reply.send(Ok(())),
        }
    }

    pub(super) fn faded(&mut self, peer: u64) {
        let Some(fading) = self.fading.remove(&peer) else { return };
        fading.peer.event(EventBody::PeerLost { status: fading.why });
        fading.waiting.into_iter().for_each(|reply| reply.send(Ok(())));
    }
}
