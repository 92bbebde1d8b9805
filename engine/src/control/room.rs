//! The bounds of tables that grow with the peers that an engine has known: the table of peers, and the incarnations
//! that the application fenced. `inbound` and `beginning` ask before they add a peer, `ending` before it fences.

use super::conn::ConnState;
use super::Control;
use crate::complete::table;
use crate::limits::{FENCED_MAX, NOTIFY_CREDITS};
use crate::session::handshake::Identity;
use crate::status::{Error, Result, Status};
use crate::sys::map::HashMap;
use crate::types::{Incarnation, PeerId};

/// The incarnations that the application fenced. Contract 6: none is forgotten before the application connects to it,
/// so a full table refuses further fences.
#[derive(Default)]
pub(super) struct Fenced {
    /// The count of fences at the time of each incarnation's latest fence.
    at: HashMap<Incarnation, u64>,
    count: u64,
}

impl Fenced {
    /// Adds an incarnation. LIMIT if FENCED_MAX others are fenced.
    pub fn add(&mut self, theirs: Incarnation) -> Result<()> {
        if self.at.len() >= FENCED_MAX && !self.at.contains_key(&theirs) {
            let text = format!("{FENCED_MAX} incarnations of peers are fenced, the most at a time");
            return Err(Error::new(Status::Limit, text));
        }
        self.count += 1;
        self.at.insert(theirs, self.count);
        Ok(())
    }

    /// Returns the count of fences so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn has(&self, theirs: &Incarnation) -> bool {
        self.at.contains_key(theirs)
    }

    /// Lifts an incarnation's fence if a connect that was asked for at this count came after it. Returns whether the
    /// incarnation is not fenced now.
    pub fn lift(&mut self, theirs: &Incarnation, asked: Option<u64>) -> bool {
        let Some(&fence) = self.at.get(theirs) else { return true };
        let lifts = asked.is_some_and(|asked| asked >= fence);
        if lifts {
            self.at.remove(theirs);
        }
        lifts
    }
}

impl Control {
    /// Returns the reason why no further peer can be added: `peers_max` peers are known, or as many events wait for the
    /// application as `peers_max` peers may leave, some of them from lost peers. A known engine that connects again has
    /// a place. Connections whose handshake is over and that have no peer yet count as peers, so that a crowd is
    /// refused with the reason.
    pub(super) fn full_for(&self, theirs: &Identity) -> Option<String> {
        let peers_max = self.context.config.peers_max as usize;
        if self.sessions.of_engine(&theirs.engine_id).is_some() {
            return None;
        }
        let events_max = peers_max * NOTIFY_CREDITS as usize;
        if self.context.hub.unreserved() >= events_max {
            return Some(format!(
                "{events_max} events wait for the application (1024 for each of peers_max)"
            ));
        }
        let known = self.context.peers.count().saturating_sub(self.sessions.lost.kept());
        if known + self.doors.half_open().len() < peers_max {
            return None;
        }
        let has_no_peer = |token: &u64| match self.conns.get(token).map(|conn| &conn.state) {
            Some(ConnState::Control(control)) => control.peer.is_none(),
            _ => false,
        };
        let begun = self.doors.half_open().filter(has_no_peer).count();
        (known + begun >= peers_max).then(|| table::full::<PeerId>(peers_max))
    }

    /// Forgets the handle that was lost first if the table of peers is full: lost peers take no place from others.
    pub(super) fn make_room_for_a_peer(&mut self) {
        if self.context.peers.count() >= self.context.config.peers_max as usize {
            if let Some(oldest) = self.sessions.lost.take_oldest() {
                let _ = self.context.peers.remove(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EngineId;

    #[test]
    fn as_many_incarnations_are_fenced_as_the_limit_says() {
        let mut fenced = Fenced::default();
        let one = |incarnation| (EngineId([7; 16]), incarnation as u64);
        (0..FENCED_MAX).for_each(|nth| fenced.add(one(nth)).unwrap());
        let error = fenced.add(one(FENCED_MAX)).unwrap_err();
        assert_eq!(error.status, Status::Limit);
        assert!(error.message.contains(&FENCED_MAX.to_string()), "{}", error.message);
        assert!(!fenced.has(&one(FENCED_MAX)) && fenced.has(&one(0)));
        fenced.add(one(3)).expect("a fence that is repeated takes no room");
        assert!(!fenced.lift(&one(3), Some(4)), "the connect was asked for before the latest fence");
        assert!(fenced.lift(&one(3), Some(fenced.count())));
        fenced.add(one(FENCED_MAX)).expect("room is usable again");
    }
}
