//! The events that wait in a queue, first in, first out. Plain data under `queue`'s lock.
//!
//! The number of events of each kind is bounded: transfers and connects by reserved room, notifications by the senders'
//! credits, peer events because a newer event replaces the waiting event of the same subject. The newer event goes to
//! the end, so that the last event about a peer is the newest:
//! ```text
//! waiting  up(1) lost(1) bytes(2)      + up(1)      becomes      ---- lost(1) bytes(2) up(1)
//! ```
//! A late apply that replaces another one in the same region names the bytes of both and those between them. A gap is
//! skipped when its turn comes. Gaps never outnumber events for long.

use super::event::{Event, EventBody};
use crate::sys::map::HashMap;
use crate::types::{PeerId, RegionId};
use std::collections::VecDeque;

/// Gaps that are tolerated even if the events are fewer.
const GAPS_MIN: usize = 64;

/// Whether room was reserved for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Reserved,
    Unreserved,
}

/// What a peer event is about; a newer event with the same subject replaces the older event.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Up(PeerId),
    State(PeerId),
    Lost(PeerId),
    Late(PeerId, RegionId),
}

#[derive(Default)]
pub(super) struct Pending {
    entries: VecDeque<Option<(Event, Room)>>,
    /// Number of the front entry. Entries are numbered in order, and no number is reused.
    front: u64,
    gaps: usize,
    /// The number of the waiting event of each subject.
    subjects: HashMap<Subject, u64>,
}

impl Pending {
    pub fn len(&self) -> usize {
        self.entries.len() - self.gaps
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an event. Returns the event that it replaces, for the caller to drop outside its lock.
    pub fn push(&mut self, mut event: Event, room: Room) -> Option<Event> {
        let number = self.front + self.entries.len() as u64;
        let older = subject(&event).and_then(|subject| self.subjects.insert(subject, number));
        let replaced = older.and_then(|number| self.entries[(number - self.front) as usize].take());
        if let Some((older, _)) = &replaced {
            event.body.include(&older.body);
        }
        self.entries.push_back(Some((event, room)));
        self.gaps += usize::from(replaced.is_some());
        if self.gaps > GAPS_MIN.max(self.len()) {
            self.close_gaps();
        }
        replaced.map(|(event, _)| event)
    }

    pub fn pop(&mut self) -> Option<(Event, Room)> {
        while let Some(entry) = self.entries.pop_front() {
            self.front += 1;
            let Some((event, room)) = entry else {
                self.gaps -= 1;
                continue;
            };
            if let Some(subject) = subject(&event) {
                self.subjects.remove(&subject);
            }
            return Some((event, room));
        }
        None
    }

    /// Runs once for as many replacements as there are events, so the cost per event is constant.
    fn close_gaps(&mut self) {
        self.entries.retain(Option::is_some);
        self.gaps = 0;
        for (position, entry) in self.entries.iter().enumerate() {
            if let Some(subject) = entry.as_ref().and_then(|(event, _)| subject(event)) {
                self.subjects.insert(subject, self.front + position as u64);
            }
        }
    }
}

fn subject(event: &Event) -> Option<Subject> {
    match event.body {
        // Every connect has its own caller, which waits for the event.
        EventBody::Transfer { .. } | EventBody::Notification { .. } | EventBody::PeerConnect { .. } => None,
        EventBody::PeerUp { again: false } => Some(Subject::Up(event.peer)),
        EventBody::PeerUp { again: true } | EventBody::PeerDown { .. } => Some(Subject::State(event.peer)),
        EventBody::PeerLost { .. } => Some(Subject::Lost(event.peer)),
        EventBody::LateApply { region, .. } => Some(Subject::Late(event.peer, region)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    fn lost(peer: PeerId, status: Status) -> Event {
        Event::new(peer, EventBody::PeerLost { status, os_error: 0, why: "gone".into() })
    }

    fn bodies(pending: &mut Pending) -> Vec<(PeerId, EventBody)> {
        std::iter::from_fn(|| pending.pop()).map(|(event, _)| (event.peer, event.body)).collect()
    }

    #[test]
    fn the_newest_event_about_a_peer_comes_last() {
        let mut pending = Pending::default();
        let bytes = EventBody::Notification { channel: 0, bytes: [5].into() };
        assert!(pending
            .push(Event::new(PeerId::from_raw(1), EventBody::PeerUp { again: false }), Room::Unreserved)
            .is_none());
        pending.push(lost(PeerId::from_raw(1), Status::Timeout), Room::Unreserved);
        pending.push(Event::new(PeerId::from_raw(2), bytes.clone()), Room::Unreserved);
        let replaced = pending
            .push(Event::new(PeerId::from_raw(1), EventBody::PeerUp { again: false }), Room::Unreserved);
        assert_eq!(replaced.unwrap().body, EventBody::PeerUp { again: false });
        assert_eq!(pending.len(), 3);
        let lost = EventBody::PeerLost { status: Status::Timeout, os_error: 0, why: "gone".into() };
        assert_eq!(
            bodies(&mut pending),
            [
                (PeerId::from_raw(1), lost),
                (PeerId::from_raw(2), bytes),
                (PeerId::from_raw(1), EventBody::PeerUp { again: false })
            ]
        );
        assert!(pending.is_empty() && pending.subjects.is_empty());
    }

    #[test]
    fn of_the_states_of_a_connection_the_newest_is_told() {
        let mut pending = Pending::default();
        let peer = PeerId::from_raw(1);
        let down = || EventBody::PeerDown { status: Status::Timeout, os_error: 0, why: "silent".into() };
        let (first, again) = (EventBody::PeerUp { again: false }, EventBody::PeerUp { again: true });
        let told = |bodies: &[EventBody], pending: &mut Pending| {
            for body in bodies {
                pending.push(Event::new(peer, body.clone()), Room::Unreserved);
            }
            self::bodies(pending).into_iter().map(|(_, body)| body).collect::<Vec<_>>()
        };
        assert_eq!(
            told(&[first.clone(), down(), again.clone()], &mut pending),
            [first.clone(), again.clone()]
        );
        assert_eq!(told(&[down(), again, down()], &mut pending), [down()]);
        assert_eq!(told(&[first.clone(), down()], &mut pending), [first, down()], "it came up before");
    }

    #[test]
    fn no_late_bytes_are_forgotten() {
        let mut pending = Pending::default();
        let late = |region, address, length| {
            let region = RegionId::from_raw(region);
            Event::new(PeerId::from_raw(1), EventBody::LateApply { region, address, length })
        };
        assert!(pending.push(late(5, 1000, 10), Room::Unreserved).is_none());
        assert!(pending.push(late(6, 50, 1), Room::Unreserved).is_none());
        assert!(pending.push(late(5, 4000, 100), Room::Unreserved).is_some());
        assert!(pending.push(late(5, 2000, 10), Room::Unreserved).is_some());
        let all: Vec<_> = bodies(&mut pending).into_iter().map(|(_, body)| body).collect();
        assert_eq!(all, [late(6, 50, 1).body, late(5, 1000, 3100).body]);
    }

    #[test]
    fn what_was_taken_is_not_replaced() {
        let mut pending = Pending::default();
        pending.push(lost(PeerId::from_raw(1), Status::Timeout), Room::Unreserved);
        pending.pop().unwrap();
        assert!(pending.push(lost(PeerId::from_raw(1), Status::Refused), Room::Unreserved).is_none());
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn connects_of_different_callers_are_all_kept() {
        let mut pending = Pending::default();
        for _ in 0..3 {
            let body = EventBody::PeerConnect {
                user_data: 7,
                status: Status::Refused,
                os_error: 0,
                why: "wrong".into(),
            };
            assert!(pending.push(Event::new(PeerId::NONE, body), Room::Reserved).is_none());
        }
        assert_eq!(pending.len(), 3);
    }

    #[test]
    fn a_flapping_peer_takes_bounded_memory_and_disturbs_no_order() {
        let mut pending = Pending::default();
        for round in 0..10_000u64 {
            if round % 1000 == 0 {
                let bytes = Box::from(round.to_le_bytes());
                pending.push(
                    Event::new(PeerId::from_raw(9), EventBody::Notification { channel: 0, bytes }),
                    Room::Unreserved,
                );
            }
            pending.push(lost(PeerId::from_raw(round % 3), Status::PeerLost), Room::Unreserved);
            assert!(pending.entries.len() <= 13 + 2 * GAPS_MIN);
        }
        let order = bodies(&mut pending);
        assert_eq!(order.len(), 13);
        for (position, (_, body)) in order[..10].iter().enumerate() {
            let bytes = Box::from((position as u64 * 1000).to_le_bytes());
            assert_eq!(*body, EventBody::Notification { channel: 0, bytes });
        }
        assert_eq!(order[10..].iter().map(|(peer, _)| peer.raw()).collect::<Vec<_>>(), [1, 2, 0]);
    }
}
