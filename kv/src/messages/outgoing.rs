//! Messages that wait to be submitted, by peer: a peer that takes none holds up nobody else's, and takes no more of the
//! engine's room than its own. The owner submits them part by part.

use std::collections::{BTreeMap, VecDeque};

use ferry::limits::NOTIFY_BYTES_MAX;
use ferry::types::PeerId;

use super::parts::part;

/// Parts of messages that are under way to one peer.
const PARTS_OF_PEER_MAX: usize = 64;

/// A message, and what counts it.
type Message<Of> = (Vec<u8>, Option<Of>);

#[derive(Debug)]
pub struct Outgoing<Of> {
    peers: BTreeMap<PeerId, Waiting<Of>>,
    /// The peers that have messages and room of their own, in turn.
    ready: VecDeque<PeerId>,
    /// Parts that are under way to all peers, and at how many a peer that has one under way gets no more.
    under_way: usize,
    parts_max: usize,
}

#[derive(Debug)]
struct Waiting<Of> {
    messages: VecDeque<Message<Of>>,
    /// Parts of the first message that are submitted.
    parts_sent: usize,
    under_way: usize,
    is_ready: bool,
}

/// The next part of a message.
#[derive(Debug)]
pub struct MessagePart<Of> {
    pub peer: PeerId,
    pub bytes: Vec<u8>,
    pub of: Option<Of>,
    pub is_last: bool,
}

impl<Of> Default for Waiting<Of> {
    fn default() -> Waiting<Of> {
        Waiting { messages: VecDeque::new(), parts_sent: 0, under_way: 0, is_ready: false }
    }
}

impl<Of: Copy> Outgoing<Of> {
    pub fn new(parts_max: usize) -> Outgoing<Of> {
        Outgoing { peers: BTreeMap::new(), ready: VecDeque::new(), under_way: 0, parts_max }
    }

    pub fn add(&mut self, peer: PeerId, message: Vec<u8>, of: Option<Of>) {
        self.peers.entry(peer).or_default().messages.push_back((message, of));
        self.make_ready(peer);
    }

    /// Returns the next part that has room: peers take turns.
    pub fn next_part(&mut self) -> Option<MessagePart<Of>> {
        for _ in 0..self.ready.len() {
            let peer = self.ready.pop_front()?;
            let Some(waiting) = self.peers.get_mut(&peer) else { continue };
            if waiting.under_way > 0 && self.under_way >= self.parts_max {
                self.ready.push_back(peer);
                continue;
            }
            waiting.is_ready = false;
            let Some((message, of)) = waiting.messages.front() else { continue };
            let (bytes, is_last) = part(message, waiting.parts_sent, NOTIFY_BYTES_MAX);
            return Some(MessagePart { peer, bytes, of: *of, is_last });
        }
        None
    }

    /// The part that `next_part` returned last is submitted; `is_awaited` if `ended` will be called for it.
    pub fn submitted(&mut self, part: &MessagePart<Of>, is_awaited: bool) {
        let Some(waiting) = self.peers.get_mut(&part.peer) else { return };
        waiting.parts_sent += 1;
        if part.is_last {
            waiting.messages.pop_front();
            waiting.parts_sent = 0;
        }
        waiting.under_way += usize::from(is_awaited);
        self.under_way += usize::from(is_awaited);
        self.make_ready(part.peer);
    }

    /// The engine has no room for the part that `next_part` returned last.
    pub fn refused(&mut self, part: &MessagePart<Of>) {
        self.make_ready(part.peer);
    }

    /// The message of the part that `next_part` returned last cannot be sent.
    pub fn failed(&mut self, part: &MessagePart<Of>) {
        let Some(waiting) = self.peers.get_mut(&part.peer) else { return };
        waiting.messages.pop_front();
        waiting.parts_sent = 0;
        self.make_ready(part.peer);
    }

    /// A part is not under way any more.
    pub fn ended(&mut self, peer: PeerId) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(waiting) = self.peers.get_mut(&peer) else { return };
        waiting.under_way = waiting.under_way.saturating_sub(1);
        if waiting.under_way == 0 && waiting.messages.is_empty() {
            drop(self.peers.remove(&peer))
        } else {
            self.make_ready(peer)
        }
    }

    /// Takes out what waits for a peer.
    pub fn forget(&mut self, peer: PeerId) -> Vec<Option<Of>> {
        let Some(waiting) = self.peers.get_mut(&peer) else { return Vec::new() };
        let messages = std::mem::take(&mut waiting.messages);
        waiting.parts_sent = 0;
        if waiting.under_way == 0 {
            self.peers.remove(&peer);
        }
        messages.into_iter().map(|(_, of)| of).collect()
    }

    /// Takes out all that waits.
    pub fn forget_all(&mut self) -> Vec<(PeerId, Option<Of>)> {
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        peers.into_iter().flat_map(|peer| self.forget(peer).into_iter().map(move |of| (peer, of))).collect()
    }

    /// Whether a message waits for room that is not its peer's own.
    pub fn is_waiting(&self) -> bool {
        !self.ready.is_empty()
    }

    fn make_ready(&mut self, peer: PeerId) {
        let Some(waiting) = self.peers.get_mut(&peer) else { return };
        let has_room = waiting.under_way < PARTS_OF_PEER_MAX && !waiting.messages.is_empty();
        if has_room && !std::mem::replace(&mut waiting.is_ready, true) {
            self.ready.push_back(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u64) -> PeerId {
        PeerId::from_raw(number)
    }

    fn all(outgoing: &mut Outgoing<u8>) -> Vec<u64> {
        let next = || {
            let part = outgoing.next_part()?;
            outgoing.submitted(&part, true);
            Some(part.peer.raw())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn peers_take_turns_and_each_has_room_of_its_own() {
        let mut outgoing = Outgoing::new(100);
        for _ in 0..200 {
            outgoing.add(peer(1), vec![1], None);
        }
        outgoing.add(peer(2), vec![2], None);
        assert_eq!(all(&mut outgoing).len(), PARTS_OF_PEER_MAX + 1);
        assert!(!outgoing.is_waiting());
        outgoing.ended(peer(1));
        assert_eq!(all(&mut outgoing), [1]);
        // Little room is left in all, and each peer has one part of it.
        (0..100).for_each(|_| outgoing.add(peer(2), vec![2], None));
        (3..6).for_each(|number| outgoing.add(peer(number), vec![3], None));
        let sent = all(&mut outgoing);
        assert_eq!((outgoing.under_way, sent.len()), (100, 35));
        assert!((3..6).all(|number| sent.contains(&number)), "{sent:?}");
        (6..9).for_each(|number| (0..2).for_each(|_| outgoing.add(peer(number), vec![3], None)));
        assert_eq!(all(&mut outgoing), [6, 7, 8]);
        assert!(outgoing.is_waiting());
        // A message that has ended makes room for those that wait, whoever sent it.
        (0..5).for_each(|_| outgoing.ended(peer(1)));
        assert!(!all(&mut outgoing).is_empty());
    }

    #[test]
    fn a_long_message_goes_in_parts_and_is_forgotten_whole() {
        let mut outgoing = Outgoing::new(1_000);
        outgoing.add(peer(1), vec![7; 2 * NOTIFY_BYTES_MAX], Some(1));
        outgoing.add(peer(1), vec![8], None);
        let first = outgoing.next_part().unwrap();
        assert_eq!((first.bytes.len(), first.bytes[0], first.is_last), (NOTIFY_BYTES_MAX, 1, false));
        outgoing.refused(&first);
        let again = outgoing.next_part().unwrap();
        assert_eq!(again.bytes, first.bytes);
        outgoing.submitted(&again, true);
        let second = outgoing.next_part().unwrap();
        outgoing.submitted(&second, true);
        let third = outgoing.next_part().unwrap();
        assert_eq!((third.bytes.len(), third.is_last), (3, true));
        outgoing.failed(&third);
        assert_eq!(outgoing.next_part().unwrap().bytes, [0, 8]);
        assert_eq!(outgoing.forget_all(), [(peer(1), None)]);
        (0..2).for_each(|_| outgoing.ended(peer(1)));
        assert_eq!((outgoing.under_way, outgoing.peers.len()), (0, 0));
    }
}
