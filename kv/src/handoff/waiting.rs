//! Takes of peers that came before their offer: bounded for each peer, in all, and in blocks. A take that its consumer
//! ends in the meantime is remembered without its blocks, so that its offer does not wait for it.

use std::collections::{BTreeMap, VecDeque};

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use super::id::HandoffId;
use super::limits::{WAITING_BLOCKS_MAX, WAITING_ENDED_MAX, WAITING_MAX, WAITING_OF_PEER_MAX};
use super::wire::{Key, Take};

#[derive(Clone, Debug, Default)]
pub struct Waiting {
    takes: BTreeMap<HandoffId, Vec<(PeerId, Take)>>,
    count: usize,
    blocks: usize,
    of_peers: BTreeMap<PeerId, usize>,
    /// Oldest first.
    ended: VecDeque<Ended>,
}

/// A take that its consumer ended before the offer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub peer: PeerId,
    pub take: Take,
    pub status: Status,
    pub why: String,
}

impl Waiting {
    /// Keeps a take; the same take again changes nothing. LIMIT names the bound.
    pub fn add(&mut self, peer: PeerId, take: Take) -> Result<()> {
        let same = |(of, waits): &(PeerId, Take)| *of == peer && waits.key == take.key;
        if self.takes.get(&take.key.id).is_some_and(|takes| takes.iter().any(same)) {
            return Ok(());
        }
        let (of_peer, blocks) = (self.of_peers.get(&peer).copied().unwrap_or(0), blocks_of(&take));
        let full = match () {
            _ if of_peer >= WAITING_OF_PEER_MAX => format!("{WAITING_OF_PEER_MAX} takes of the peer"),
            _ if self.count >= WAITING_MAX => format!("{WAITING_MAX} takes"),
            _ if self.blocks + blocks > WAITING_BLOCKS_MAX => {
                format!("takes with {WAITING_BLOCKS_MAX} blocks")
            }
            _ => {
                self.count += 1;
                self.blocks += blocks;
                *self.of_peers.entry(peer).or_default() += 1;
                self.takes.entry(take.key.id).or_default().push((peer, take));
                return Ok(());
            }
        };
        Err(Error::new(Status::Limit, format!("{full} wait for their offers")))
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Takes out those that wait for this id.
    pub fn come(&mut self, id: HandoffId) -> Vec<(PeerId, Take)> {
        let come = self.takes.remove(&id).unwrap_or_default();
        come.iter().for_each(|(peer, take)| self.uncount(*peer, take));
        come
    }

    /// Takes out those of this id that their consumers have ended.
    pub fn come_ended(&mut self, id: HandoffId) -> Vec<Ended> {
        let mut come = Vec::new();
        while let Some(at) = self.ended.iter().position(|ended| ended.take.key.id == id) {
            come.extend(self.ended.remove(at));
        }
        come
    }

    /// The consumer ends a take. If it waits, it is remembered as long as there is room. Returns whether it waited.
    pub fn end(&mut self, peer: PeerId, key: Key, status: Status, why: &str) -> bool {
        let Some(mut take) = self.remove(peer, key) else { return false };
        take.blocks.iter_mut().for_each(|list| list.ids = Vec::new());
        if self.ended.len() >= WAITING_ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { peer, take, status, why: why.into() });
        true
    }

    fn remove(&mut self, peer: PeerId, key: Key) -> Option<Take> {
        let takes = self.takes.get_mut(&key.id)?;
        let at = takes.iter().position(|(of, take)| *of == peer && take.key == key)?;
        let (_, take) = takes.remove(at);
        if takes.is_empty() {
            self.takes.remove(&key.id);
        }
        self.uncount(peer, &take);
        Some(take)
    }

    pub fn remove_peer(&mut self, peer: PeerId) {
        self.ended.retain(|ended| ended.peer != peer);
        let keys = self.takes.values().flatten().filter(|(of, _)| *of == peer).map(|(_, take)| take.key);
        let keys: Vec<Key> = if self.of_peers.contains_key(&peer) { keys.collect() } else { Vec::new() };
        for key in keys {
            self.remove(peer, key);
        }
    }

    /// Takes out all.
    pub fn drain(&mut self) -> Vec<(PeerId, Take)> {
        std::mem::take(self).takes.into_values().flatten().collect()
    }

    fn uncount(&mut self, peer: PeerId, take: &Take) {
        self.count -= 1;
        self.blocks -= blocks_of(take);
        if let Some(count) = self.of_peers.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.of_peers.remove(&peer);
            }
        }
    }
}

fn blocks_of(take: &Take) -> usize {
    take.blocks.iter().map(|list| list.ids.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::types::Blocks;

    fn take(number: u64, blocks: u32) -> Take {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let key = Key { id: HandoffId::from_bytes(bytes), take: number };
        let blocks = vec![Blocks { first_token: 0, ids: (0..blocks).collect() }];
        Take { key, incarnation: 1, group: 1, rank: 0, is_push: true, skip: 0, tokens: 1, blocks }
    }

    fn peer(number: u64) -> PeerId {
        PeerId::from_raw(number)
    }

    #[test]
    fn takes_are_bounded_for_each_peer_and_in_all() {
        let mut waiting = Waiting::default();
        let of_peer = WAITING_OF_PEER_MAX as u64;
        for number in 0..WAITING_MAX as u64 {
            waiting.add(peer(1 + number / of_peer), take(number, 1)).unwrap();
        }
        // One that waits already is no other.
        waiting.add(peer(1), take(0, 1)).unwrap();
        let refused =
            |waiting: &mut Waiting, of| waiting.add(peer(of), take(u64::MAX, 1)).unwrap_err().message;
        assert_eq!(refused(&mut waiting, 1), "1024 takes of the peer wait for their offers");
        assert_eq!(refused(&mut waiting, 99), "16384 takes wait for their offers");
        assert_eq!(waiting.come(take(0, 1).key.id), [(peer(1), take(0, 1))]);
        waiting.add(peer(99), take(u64::MAX, 1)).unwrap();
        assert_eq!(waiting.remove(peer(99), take(u64::MAX, 1).key), Some(take(u64::MAX, 1)));
        assert_eq!(waiting.remove(peer(98), take(1, 1).key), None);
        assert_eq!((waiting.count, waiting.blocks), (WAITING_MAX - 1, WAITING_MAX - 1));
        waiting.remove_peer(peer(2));
        assert_eq!(waiting.count, WAITING_MAX - 1 - WAITING_OF_PEER_MAX);
        assert!(!waiting.of_peers.contains_key(&peer(2)) && waiting.takes.len() == waiting.count);
        assert_eq!(waiting.drain().len(), WAITING_MAX - 1 - WAITING_OF_PEER_MAX);
        assert_eq!((waiting.count, waiting.blocks, waiting.of_peers.len()), (0, 0, 0));
    }

    #[test]
    fn their_blocks_are_bounded() {
        let mut waiting = Waiting::default();
        for number in 0..4 {
            waiting.add(peer(1), take(number, WAITING_BLOCKS_MAX as u32 / 4)).unwrap();
        }
        let refused = waiting.add(peer(1), take(9, 1)).unwrap_err();
        assert_eq!(
            (refused.status, &*refused.message),
            (Status::Limit, "takes with 4000000 blocks wait for their offers")
        );
        assert!(waiting.add(peer(1), take(9, 0)).is_ok());
    }

    #[test]
    fn those_that_are_ended_are_remembered_without_blocks_and_bounded() {
        let mut waiting = Waiting::default();
        let ended = |number| {
            let mut take = take(number, 0);
            take.blocks[0].ids.clear();
            Ended { peer: peer(1), take, status: Status::Timeout, why: "late".into() }
        };
        for number in 0..=WAITING_ENDED_MAX as u64 {
            waiting.add(peer(1), take(number, 1)).unwrap();
            assert!(waiting.end(peer(1), take(number, 1).key, Status::Timeout, "late"));
        }
        assert!(!waiting.end(peer(1), take(9_999, 1).key, Status::Timeout, "it does not wait"));
        assert_eq!((waiting.count, waiting.blocks, waiting.ended.len()), (0, 0, WAITING_ENDED_MAX));
        assert_eq!(waiting.come_ended(take(0, 1).key.id), []);
        assert_eq!(waiting.come_ended(take(1, 1).key.id), [ended(1)]);
        assert_eq!(
            (waiting.come_ended(take(1, 1).key.id), waiting.ended.len()),
            (vec![], WAITING_ENDED_MAX - 1)
        );
        waiting.remove_peer(peer(2));
        assert_eq!(waiting.ended.len(), WAITING_ENDED_MAX - 1);
        waiting.remove_peer(peer(1));
        assert!(waiting.ended.is_empty());
    }
}
