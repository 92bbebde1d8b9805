//! Messages that have arrived and are not handled yet. Peers take turns, message by message, so one peer's many or long
//! messages do not hold up another's. A HELLO whose layout has no plans yet waits for the single planning thread, and so
//! does everything its peer sends after it; a peer that sends layout after layout gets a tenth of that thread's time.

use std::collections::{BTreeMap, VecDeque};

use ferry::notify::Event;
use ferry::types::PeerId;

use crate::handoff::wire::Message;

/// A peer's next plan waits this many times as long as its last one took.
const PAUSE: u64 = 9;

#[derive(Default)]
pub struct Inbox {
    peers: BTreeMap<PeerId, Heard>,
    /// The peers that may be heard, in turn.
    turns: VecDeque<PeerId>,
    /// The peers that wait for plans, and the one that is planned for.
    to_plan: VecDeque<PeerId>,
    planning: Option<PeerId>,
}

#[derive(Default)]
struct Heard {
    /// The notifications, and that the peer is lost.
    events: VecDeque<Event>,
    /// The HELLO that waits for plans, or is being planned for.
    hello: Option<Message>,
    may_plan_at: u64,
}

impl Inbox {
    pub fn add(&mut self, event: Event) {
        let heard = self.peers.entry(event.peer).or_default();
        if heard.events.is_empty() && heard.hello.is_none() {
            self.turns.push_back(event.peer);
        }
        heard.events.push_back(event);
    }

    /// Returns the next event of the peer whose turn it is.
    pub fn next(&mut self) -> Option<Event> {
        let peer = self.turns.pop_front()?;
        let heard = self.peers.get_mut(&peer)?;
        let event = heard.events.pop_front();
        if !heard.events.is_empty() {
            self.turns.push_back(peer);
        }
        event
    }

    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// The last message of a peer waits for plans.
    pub fn hold(&mut self, peer: PeerId, hello: Message) {
        self.peers.entry(peer).or_default().hello = Some(hello);
        self.turns.retain(|turn| *turn != peer);
        self.to_plan.push_back(peer);
    }

    /// Returns the next HELLO to plan for, if nothing is planned now. `planned` follows.
    pub fn next_plan(&mut self, now: u64) -> Option<(PeerId, Message)> {
        if self.planning.is_some() {
            return None;
        }
        let may = |peer: &PeerId| self.peers.get(peer).is_some_and(|heard| heard.may_plan_at <= now);
        let at = self.to_plan.iter().position(may)?;
        self.planning = self.to_plan.remove(at);
        let peer = self.planning?;
        Some((peer, self.peers.get_mut(&peer)?.hello.clone()?))
    }

    /// When the next HELLO can be planned for.
    pub fn next_plan_at(&self) -> Option<u64> {
        let waiting = self.to_plan.iter().filter_map(|peer| self.peers.get(peer));
        waiting.map(|heard| heard.may_plan_at).min().filter(|_| self.planning.is_none())
    }

    /// The plans exist; the peer's messages are handled again.
    pub fn planned(&mut self, took: u64, now: u64) {
        let Some(peer) = self.planning.take() else { return };
        let Some(heard) = self.peers.get_mut(&peer) else { return };
        heard.hello = None;
        heard.may_plan_at = now.saturating_add(took.saturating_mul(PAUSE));
        if !heard.events.is_empty() {
            self.turns.push_back(peer);
        }
    }

    /// The plan that was begun could not be made now.
    pub fn plan_later(&mut self, at: u64) {
        let Some(peer) = self.planning.take() else { return };
        if let Some(heard) = self.peers.get_mut(&peer) {
            heard.may_plan_at = at;
            self.to_plan.push_back(peer);
        }
    }

    /// The peers whose HELLO waits for plans.
    pub fn unplanned(&self) -> Vec<PeerId> {
        self.to_plan.iter().chain(&self.planning).copied().collect()
    }

    /// Whether nothing waits to be heard or planned.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.to_plan.is_empty() && self.planning.is_none()
    }

    /// A peer is lost; later events of it only repeat that.
    pub fn forget(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.turns.retain(|turn| *turn != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry::notify::EventBody;

    fn event(peer: u64, word: u8) -> Event {
        let body = EventBody::Notification { channel: 1, bytes: [word].into() };
        Event { peer: PeerId::from_raw(peer), body, credit: None }
    }

    fn next(inbox: &mut Inbox) -> Option<(u64, u8)> {
        let event = inbox.next()?;
        let EventBody::Notification { bytes, .. } = event.body else { return None };
        Some((event.peer.raw(), bytes[0]))
    }

    #[test]
    fn peers_are_heard_in_turn() {
        let mut inbox = Inbox::default();
        (0..3).for_each(|word| inbox.add(event(1, word)));
        inbox.add(event(2, 9));
        let heard: Vec<_> = std::iter::from_fn(|| next(&mut inbox)).collect();
        assert_eq!(heard, [(1, 0), (2, 9), (1, 1), (1, 2)]);
        assert!(!inbox.has_turns());
    }

    #[test]
    fn a_peer_that_is_lost_twice_holds_up_nobody() {
        let mut inbox = Inbox::default();
        (0..2).for_each(|word| inbox.add(event(1, word)));
        (0..2).for_each(|word| inbox.add(event(2, word)));
        assert_eq!(next(&mut inbox), Some((1, 0)));
        inbox.forget(PeerId::from_raw(1));
        assert_eq!([next(&mut inbox), next(&mut inbox)], [Some((2, 0)), Some((2, 1))]);
        assert!(inbox.is_idle());
    }

    #[test]
    fn a_peer_whose_layout_is_planned_waits_and_the_others_are_heard() {
        let mut inbox = Inbox::default();
        let (one, two) = (PeerId::from_raw(1), PeerId::from_raw(2));
        for word in 0..2 {
            inbox.add(event(1, word));
            inbox.add(event(2, word));
        }
        assert_eq!(next(&mut inbox), Some((1, 0)));
        inbox.hold(one, Message::Ping(1));
        assert_eq!(inbox.next_plan(0), Some((one, Message::Ping(1))));
        assert_eq!(next(&mut inbox), Some((2, 0)));
        inbox.hold(two, Message::Pong(1));
        assert_eq!(inbox.unplanned(), [two, one]);
        assert_eq!((next(&mut inbox), inbox.next_plan(0), inbox.next_plan_at()), (None, None, None));
        inbox.planned(10, 50);
        assert_eq!(next(&mut inbox), Some((1, 1)));
        // Its next plan waits nine times as long; another peer's does not.
        inbox.hold(one, Message::Ping(1));
        assert_eq!(inbox.next_plan(50), Some((two, Message::Pong(1))));
        inbox.planned(1, 51);
        assert_eq!((inbox.next_plan(139), inbox.next_plan_at()), (None, Some(140)));
        assert_eq!(inbox.next_plan(140), Some((one, Message::Ping(1))));
        inbox.add(event(1, 7));
        assert!(inbox.turns == [two]);
        inbox.planned(1, 141);
        assert!(inbox.turns == [two, one]);
    }
}
