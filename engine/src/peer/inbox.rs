//! Incoming notifications of one peer, put back into the order in which they were submitted.
//! Lanes hand them in as they arrive; what is next goes to the hub at once, the rest is held. Bounded by
//! the credits that the peer was granted.

use crate::limits::{LANES_MAX, LANE_FRAMES_MAX, NOTIFY_CREDITS};
use crate::status::Status;
use std::collections::BTreeMap;

/// A notification's bytes, or None for one that will never come.
type Body = Option<Box<[u8]>>;

#[derive(Debug, Default)]
pub struct Inbox {
    next: u64,
    held: BTreeMap<u64, Body>,
    /// How many the application has taken, the skipped ones included.
    taken: u64,
    granted: u64,
    /// Frames whose data was refused in part, by their notification: the descriptors, and why. Should
    /// the acknowledgement be lost, the repetition is answered from here.
    refused: BTreeMap<u64, Box<[(u16, Status)]>>,
}

/// As many frames as a peer can have posted without an acknowledgement, and so may repeat.
const REFUSED_MAX: usize = LANE_FRAMES_MAX * (LANES_MAX as usize + 1);

#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Now deliverable, in order.
    Deliver(Vec<Box<[u8]>>),
    /// Seen before: neither the notification nor the data it came with may be applied again.
    Duplicate,
    /// Beyond the credits granted: the peer breaks the protocol.
    Overrun,
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox { granted: NOTIFY_CREDITS as u64, ..Inbox::default() }
    }

    pub fn is_duplicate(&self, sequence: u64) -> bool {
        sequence < self.next || self.held.contains_key(&sequence)
    }

    /// The data that came with this notification was refused in part.
    pub fn remember_refusal(&mut self, sequence: u64, faults: Box<[(u16, Status)]>) {
        self.refused.insert(sequence, faults);
        if self.refused.len() > REFUSED_MAX {
            self.refused.pop_first();
        }
    }

    /// What was refused of the data that came with this notification.
    pub fn refusal(&self, sequence: u64) -> Box<[(u16, Status)]> {
        self.refused.get(&sequence).cloned().unwrap_or_default()
    }

    pub fn accept(&mut self, sequence: u64, body: Body) -> Accepted {
        if self.is_duplicate(sequence) {
            return Accepted::Duplicate;
        }
        if sequence >= self.granted {
            return Accepted::Overrun;
        }
        self.held.insert(sequence, body);
        let mut ready = Vec::new();
        while let Some(body) = self.held.remove(&self.next) {
            self.next += 1;
            match body {
                Some(bytes) => ready.push(bytes),
                None => self.taken += 1,
            }
        }
        Accepted::Deliver(ready)
    }

    /// The application took one. The new limit to grant, when it is worth a message.
    pub fn take(&mut self) -> Option<u64> {
        self.taken += 1;
        self.grant()
    }

    /// The limit to tell the peer, once a quarter of the credits has come free.
    pub fn grant(&mut self) -> Option<u64> {
        let limit = self.taken + NOTIFY_CREDITS as u64;
        if limit - self.granted >= NOTIFY_CREDITS as u64 / 4 {
            self.granted = limit;
            return Some(limit);
        }
        None
    }
    /// The limit last granted; told again to a peer that reconnects.
    pub fn granted(&self) -> u64 {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Body {
        Some(text.as_bytes().into())
    }

    #[test]
    fn order_is_restored_and_skips_are_stepped_over() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.accept(2, bytes("c")), Accepted::Deliver(vec![]));
        assert_eq!(inbox.accept(1, None), Accepted::Deliver(vec![]));
        assert_eq!(
            inbox.accept(0, bytes("a")),
            Accepted::Deliver(vec![b"a".as_slice().into(), b"c".as_slice().into()])
        );
        assert_eq!(inbox.accept(1, bytes("late")), Accepted::Duplicate);
    }

    #[test]
    fn credits_bound_what_is_held_and_come_back() {
        let mut inbox = Inbox::new();
        let last = NOTIFY_CREDITS as u64 - 1;
        assert_eq!(inbox.accept(last, bytes("edge")), Accepted::Deliver(vec![]));
        assert_eq!(inbox.accept(last + 1, bytes("over")), Accepted::Overrun);
        let grants: Vec<u64> = (0..NOTIFY_CREDITS / 4).filter_map(|_| inbox.take()).collect();
        assert_eq!(grants, [NOTIFY_CREDITS as u64 * 5 / 4]);
        assert_eq!(inbox.accept(last + 1, bytes("now")), Accepted::Deliver(vec![]));
    }
}
