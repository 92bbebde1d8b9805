//! Incoming notifications of one peer, restored to the order of submission in each channel. Lanes enter them as they
//! arrive. The next in order is delivered to the hub at once, the others are held. The credits granted to the peer
//! bound their number.

use crate::limits::{CHANNELS_MAX, NOTIFY_CREDITS};
use crate::types::numbers::{channel_of, number, place_of};
use std::collections::BTreeMap;

/// A notification's bytes; None for a number that was skipped.
type Body = Option<Box<[u8]>>;

/// The inboxes of the channels, up to the highest that was used.
#[derive(Debug, Default)]
pub struct Inboxes(Vec<Inbox>);

/// The notifications of one channel, by their places in its order.
#[derive(Debug, Default)]
pub struct Inbox {
    next: u64,
    held: BTreeMap<u64, Body>,
    /// How many the application has taken, including skips.
    taken: u64,
    granted: u64,
    /// The notification numbers of frames that are being received, at most one for each lane.
    arriving: Vec<u64>,
}

/// The state of a notification whose data begins to arrive.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Neither data nor notification has arrived. Call `departs` when the frame is done.
    Fresh,
    /// Both arrived before. The application may have reused the memory since.
    Duplicate,
    /// Another lane is receiving the same data. Its late bytes could overwrite what the application does after the
    /// notification.
    Busy,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// These notifications can be delivered now, in this order.
    Deliver(Vec<Box<[u8]>>),
    /// Received before, or skipped.
    Duplicate,
    /// Above the granted limit: the peer violates the protocol.
    Overrun,
}

impl Inboxes {
    /// Returns the inbox of this number's channel, and the number's place there. None if there is no such channel.
    pub fn of(&mut self, number: u64) -> Option<(&mut Inbox, u64)> {
        let channel = channel_of(number);
        if channel >= CHANNELS_MAX {
            return None;
        }
        let at = usize::from(channel);
        for _ in self.0.len()..=at {
            self.0.push(Inbox::new());
        }
        Some((&mut self.0[at], place_of(number)))
    }

    /// Returns the limits that were last granted, as numbers. The first is channel 0's, even if it was not used.
    pub fn granted(&mut self) -> Vec<u64> {
        let _ = self.of(0);
        (0..CHANNELS_MAX).zip(&self.0).map(|(channel, inbox)| number(channel, inbox.granted())).collect()
    }
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox { granted: NOTIFY_CREDITS as u64, ..Inbox::default() }
    }

    /// Begins to receive a frame with data and this notification.
    pub fn arrives(&mut self, sequence: u64) -> Arrival {
        if self.is_duplicate(sequence) {
            return Arrival::Duplicate;
        }
        if self.arriving.contains(&sequence) {
            return Arrival::Busy;
        }
        self.arriving.push(sequence);
        Arrival::Fresh
    }

    /// The frame was received, or its lane has ended.
    pub fn departs(&mut self, sequence: u64) {
        self.arriving.retain(|other| *other != sequence);
    }

    fn is_duplicate(&self, sequence: u64) -> bool {
        sequence < self.next || self.held.contains_key(&sequence)
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

    /// Counts a notification that the application took. Returns the new limit if it is worth a message.
    pub fn take(&mut self) -> Option<u64> {
        self.taken += 1;
        self.grant()
    }

    /// Returns the limit to grant to the peer, once a quarter of the credits is free again.
    pub fn grant(&mut self) -> Option<u64> {
        let limit = self.taken + NOTIFY_CREDITS as u64;
        if limit - self.granted >= NOTIFY_CREDITS as u64 / 4 {
            self.granted = limit;
            return Some(limit);
        }
        None
    }
    /// Returns the limit that was last granted; a peer that reconnects is granted it again.
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
    fn data_with_a_number_is_taken_in_by_one_lane_and_once() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.arrives(1), Arrival::Fresh);
        assert_eq!((inbox.arrives(0), inbox.arrives(1)), (Arrival::Fresh, Arrival::Busy));
        // Its lane has ended, or its data was refused in part: nothing is decided.
        inbox.departs(1);
        assert_eq!(inbox.arrives(1), Arrival::Fresh);
        assert_eq!(inbox.accept(1, bytes("b")), Accepted::Deliver(vec![]));
        inbox.departs(1);
        assert_eq!((inbox.arrives(1), inbox.arrives(0)), (Arrival::Duplicate, Arrival::Busy));
    }

    #[test]
    fn channels_do_not_know_of_each_other() {
        let mut inboxes = Inboxes::default();
        assert_eq!(inboxes.granted(), [NOTIFY_CREDITS.into()]);
        let (inbox, place) = inboxes.of(number(2, 1)).unwrap();
        assert_eq!(place, 1);
        assert_eq!(inbox.accept(place, bytes("b")), Accepted::Deliver(vec![]));
        let (other, place) = inboxes.of(0).unwrap();
        assert_eq!(other.accept(place, bytes("x")), Accepted::Deliver(vec![b"x".as_slice().into()]));
        let credits = u64::from(NOTIFY_CREDITS);
        assert_eq!(inboxes.granted(), [0, 1, 2].map(|channel| number(channel, credits)));
        assert!(
            inboxes.of(number(CHANNELS_MAX - 1, 0)).is_some()
                && inboxes.of(number(CHANNELS_MAX, 0)).is_none()
        );
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
