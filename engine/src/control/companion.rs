//! Transports that live beside a session: begun when the session's connection stands, ended with it. What
//! they are and how they are proven is behind `peer::Companion`.

use super::announce;
use super::Control;
use crate::command::Reply;
use crate::loss::{Cause, Loss};
use crate::notify::EventBody;
use crate::peer::{Closed, Companion, Peer, Way};
use crate::status::Status;
use crate::types::Transport;
use std::sync::Arc;

/// A lost peer of which something may still land here.
pub struct Fading {
    peer: Arc<Peer>,
    why: Status,
    /// Who asked that nothing of it lands here any more.
    waiting: Vec<Reply<()>>,
}

impl Control {
    fn companion(&self, transport: Transport) -> Option<Arc<dyn Companion>> {
        let beside = self.companions.iter().find(|beside| beside.transport == transport)?;
        beside.companion.as_ref().ok().cloned()
    }

    pub(super) fn each_companion(&self) -> impl Iterator<Item = (Transport, &dyn Companion)> {
        self.companions.iter().filter_map(|it| Some((it.transport, &**it.companion.as_ref().ok()?)))
    }

    /// The companions and TCP.
    fn each_transport(&self) -> impl Iterator<Item = &dyn Companion> {
        let tcp: &dyn Companion = &*self.tcp;
        self.each_companion().map(|(_, companion)| companion).chain([tcp])
    }

    /// Closes a lane of whichever transport. None: there is no such lane.
    pub(super) fn close_lane(&self, peer: u64, lane: u32) -> Option<Closed> {
        self.each_transport().find_map(|transport| transport.close_lane(peer, lane))
    }

    /// The session's connection stands: begin, or say that there is no use in waiting.
    pub(super) fn begin_companions(&mut self, peer: u64, dialer: bool) {
        let Some(session) = self.sessions.get(&peer) else { return };
        self.tcp.begin(session.ticket(dialer));
        for at in 0..self.companions.len() {
            let Some(session) = self.sessions.get(&peer) else { return };
            let beside = &self.companions[at];
            match &beside.companion {
                Ok(companion) => companion.begin(session.ticket(dialer)),
                Err(why) => {
                    let (transport, why) = (beside.transport, why.clone());
                    self.say(peer, announce::beside(transport, Vec::new(), format!("at the peer: {why}")));
                    self.companion_settled(peer, transport, Some(why), false);
                }
            }
        }
    }

    /// A companion's word, if the session is still the one that it was meant for.
    pub(super) fn tell_beside(
        &mut self,
        peer: u64,
        session_id: [u8; 16],
        transport: Transport,
        body: Vec<u8>,
        why: String,
    ) {
        if self.sessions.get(&peer).is_some_and(|session| session.session_id == session_id) {
            self.say_beside(peer, transport, body, why);
        }
    }

    /// The other side's companion says something, or that there is none.
    pub(super) fn companion_said(&mut self, peer: u64, transport: u8, why: String, body: Vec<u8>) {
        let Some(companion) = self.companion(Transport::from_number(transport as u32)) else { return };
        let taken = match why.is_empty() {
            true => companion.message(peer, &body),
            false => companion.refused(peer, why),
        };
        if !taken {
            self.misbehaved(peer);
        }
    }

    pub(super) fn companion_settled(
        &mut self,
        peer: u64,
        transport: Transport,
        why: Option<String>,
        pending: bool,
    ) {
        let link = match (&why, self.companion(transport)) {
            (None, Some(companion)) => companion.link(peer),
            _ => None,
        };
        let Some(session) = self.sessions.get_mut(&peer).filter(|session| session.conn.is_some()) else {
            return;
        };
        session.companions_settled |= transport.bit();
        let object = session.peer.clone();
        object.set_way(
            transport,
            match (link, why) {
                (Some((link, how)), None) => Way::Open(link, how),
                (_, Some(why)) if pending => Way::Pending(why),
                (_, Some(why)) => Way::Shut(why),
                // It has ended since that was said; what became of it is being said.
                (None, None) => Way::Pending("it has just ended".into()),
            },
        );
        self.foresee_lanes(peer);
        self.answer_connects(peer);
    }

    /// The path was there and is not any more, and nobody has said why. The session may be about to end,
    /// and the word for that be on its way: only when the peer still answers is the session connected
    /// anew, which makes a new path if there can be one.
    pub(super) fn companion_broken(&mut self, peer: u64, transport: Transport) {
        let Some(session) =
            self.sessions.get_mut(&peer).filter(|session| session.companions_settled & transport.bit() != 0)
        else {
            return;
        };
        session.companion_broken = true;
        let object = session.peer.clone();
        object.set_way(transport, Way::Pending("it broke, and is being made again".into()));
        self.foresee_lanes(peer);
        self.ping(peer, None);
    }

    /// The peer answers.
    pub(super) fn companion_mended(&mut self, peer: u64) {
        if self.sessions.get(&peer).is_some_and(|session| session.companion_broken) {
            let text = "the session is connected anew, to make a broken path again";
            self.drop_connection(peer, Loss::told(Cause::Ours, text));
        }
    }

    /// The lanes that carry this transfer.
    pub(super) fn carriers(&self, peer: u64, transfer: u64) -> Vec<u32> {
        self.each_transport().flat_map(|transport| transport.carriers(peer, transfer)).collect()
    }

    /// The session is over, or its connection is lost: so are the paths.
    pub(super) fn end_companions(&mut self, peer: u64) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.companions_settled = 0;
        session.companion_broken = false;
        let object = session.peer.clone();
        let mut lanes = Vec::new();
        for (transport, companion) in self.each_companion() {
            lanes.extend(companion.end(peer));
            object.set_way(transport, Way::Pending("the session is being established again".into()));
        }
        lanes.extend(self.tcp.end(peer));
        for (lane, closed) in lanes {
            self.lane_closed(peer, lane, closed, Loss::told(Cause::Ours, "the session's connection is over"));
        }
    }

    /// A peer is lost; the application hears of it when nothing of it can land here any more.
    pub(super) fn tell_lost(&mut self, peer: Arc<Peer>, why: Status) {
        let handle = peer.handle;
        for (transport, companion) in self.each_companion() {
            companion.forget(handle);
            peer.set_way(transport, Way::Shut("the peer is lost".into()));
        }
        self.tcp.forget(handle);
        self.fading.insert(handle, Fading { peer, why, waiting: Vec::new() });
        self.faded(handle);
    }

    /// Answers when nothing of this peer can land here any more. Its session is over.
    pub(super) fn answer_when_faded(&mut self, peer: u64, reply: Reply<()>) {
        match self.fading.get_mut(&peer) {
            Some(fading) => fading.waiting.push(reply),
            None => reply.send(Ok(())),
        }
    }

    /// A companion may be the last one to be quiet.
    pub(super) fn faded(&mut self, peer: u64) {
        // Its transfers are struck first: their events come before the loss's.
        if self.fading.get(&peer).is_some_and(|fading| !fading.peer.is_swept()) {
            return;
        }
        if !self.each_companion().all(|(_, companion)| companion.is_quiet(peer)) {
            return;
        }
        let Some(fading) = self.fading.remove(&peer) else { return };
        self.each_companion().for_each(|(_, companion)| companion.all_quiet(peer));
        let why = fading.peer.last_loss().map_or(String::new(), |loss| loss.text);
        fading.peer.event(EventBody::PeerLost { status: fading.why, why: why.into() });
        fading.waiting.into_iter().for_each(|reply| reply.send(Ok(())));
    }

    /// Whether each companion has said what becomes of its path.
    pub(super) fn companions_mask(&self) -> u64 {
        self.companions.iter().fold(0, |mask, beside| mask | beside.transport.bit())
    }
}
