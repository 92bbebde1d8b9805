//! Takes of peers that came before their offer: bounded for each peer, in all, and in blocks. A take that its consumer
//! ends in the meantime is remembered without its blocks, so that its offer does not wait for it.

use std::collections::{BTreeMap, VecDeque};

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use super::id::HandoffId;
use super::limits::{
    WAITING_BLOCKS_MAX, WAITING_BLOCKS_OF_PEER_MAX, WAITING_ENDED_MAX, WAITING_ENDED_OF_PEER_MAX,
    WAITING_MAX, WAITING_OF_PEER_MAX,
};
use super::wire::{Key, Take};

#[derive(Clone, Debug, Default)]
pub struct Waiting {
    takes: BTreeMap<HandoffId, Vec<(PeerId, Take)>>,
    count: usize,
    blocks: usize,
    of_peers: BTreeMap<PeerId, OfPeer>,
    ended: BTreeMap<HandoffId, Vec<Ended>>,
    ended_count: usize,
}

/// The room that one peer takes.
#[derive(Clone, Debug, Default)]
struct OfPeer {
    count: usize,
    blocks: usize,
    /// Its takes that have ended, oldest first.
    ended: VecDeque<Key>,
}

/// A take that ended before the offer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub peer: PeerId,
    pub take: Take,
    pub status: Status,
    pub why: String,
}

impl Waiting {
    /// Keeps a take; the same take again changes nothing. LIMIT names the bound, and the take has ended.
    pub fn add(&mut self, peer: PeerId, take: Take) -> Result<()> {
        let same = |(of, waits): &(PeerId, Take)| *of == peer && waits.key == take.key;
        if self.takes.get(&take.key.id).is_some_and(|takes| takes.iter().any(same)) {
            return Ok(());
        }
        let (of_peer, blocks) = (self.of_peers.entry(peer).or_default(), blocks_of(&take));
        let full = match () {
            _ if of_peer.count >= WAITING_OF_PEER_MAX => format!("{WAITING_OF_PEER_MAX} takes of the peer"),
            _ if of_peer.blocks + blocks > WAITING_BLOCKS_OF_PEER_MAX => {
                format!("takes of the peer with {WAITING_BLOCKS_OF_PEER_MAX} blocks")
            }
            _ if self.count >= WAITING_MAX => format!("{WAITING_MAX} takes"),
            _ if self.blocks + blocks > WAITING_BLOCKS_MAX => {
                format!("takes with {WAITING_BLOCKS_MAX} blocks")
            }
            _ => {
                self.count += 1;
                self.blocks += blocks;
                of_peer.count += 1;
                of_peer.blocks += blocks;
                self.takes.entry(take.key.id).or_default().push((peer, take));
                return Ok(());
            }
        };
        let why = format!("{full} wait for their offers");
        self.remember(Ended { peer, take, status: Status::Limit, why: why.clone() });
        Err(Error::new(Status::Limit, why))
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

    /// Takes out those of this id that have ended.
    pub fn come_ended(&mut self, id: HandoffId) -> Vec<Ended> {
        let come = self.ended.remove(&id).unwrap_or_default();
        self.ended_count -= come.len();
        for ended in &come {
            if let Some(of_peer) = self.of_peers.get_mut(&ended.peer) {
                of_peer.ended.retain(|key| *key != ended.take.key);
                self.drop_empty(ended.peer);
            }
        }
        come
    }

    /// The consumer ends a take. If it waits, it is remembered as long as there is room. Returns whether it waited.
    pub fn end(&mut self, peer: PeerId, key: Key, status: Status, why: &str) -> bool {
        let Some(take) = self.remove(peer, key) else { return false };
        self.remember(Ended { peer, take, status, why: why.into() });
        true
    }

    /// Keeps how a take ended, without its blocks. A peer that ends many forgets its own oldest ones.
    fn remember(&mut self, mut ended: Ended) {
        ended.take.blocks.iter_mut().for_each(|list| list.ids = Vec::new());
        let (peer, key) = (ended.peer, ended.take.key);
        let of_peer = self.of_peers.entry(peer).or_default();
        if of_peer.ended.contains(&key) {
            return;
        }
        of_peer.ended.push_back(key);
        self.ended.entry(key.id).or_default().push(ended);
        self.ended_count += 1;
        let is_full = of_peer.ended.len() > WAITING_ENDED_OF_PEER_MAX || self.ended_count > WAITING_ENDED_MAX;
        if let Some(oldest) = is_full.then(|| of_peer.ended.pop_front()).flatten() {
            self.forget(peer, oldest);
        }
    }

    fn forget(&mut self, peer: PeerId, key: Key) {
        let Some(all) = self.ended.get_mut(&key.id) else { return };
        let before = all.len();
        all.retain(|ended| ended.peer != peer || ended.take.key != key);
        self.ended_count -= before - all.len();
        if all.is_empty() {
            self.ended.remove(&key.id);
        }
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
        let Some(of_peer) = self.of_peers.get_mut(&peer) else { return };
        for key in std::mem::take(&mut of_peer.ended) {
            self.forget(peer, key);
        }
        let keys = self.takes.values().flatten().filter(|(of, _)| *of == peer).map(|(_, take)| take.key);
        for key in keys.collect::<Vec<Key>>() {
            self.remove(peer, key);
        }
        self.drop_empty(peer);
    }

    /// Takes out all, and forgets those that have ended.
    pub fn drain(&mut self) -> Vec<(PeerId, Take)> {
        std::mem::take(self).takes.into_values().flatten().collect()
    }

    fn uncount(&mut self, peer: PeerId, take: &Take) {
        let blocks = blocks_of(take);
        self.count -= 1;
        self.blocks -= blocks;
        if let Some(of_peer) = self.of_peers.get_mut(&peer) {
            of_peer.count -= 1;
            of_peer.blocks -= blocks;
            self.drop_empty(peer);
        }
    }

    fn drop_empty(&mut self, peer: PeerId) {
        if self.of_peers.get(&peer).is_some_and(|of_peer| of_peer.count == 0 && of_peer.ended.is_empty()) {
            self.of_peers.remove(&peer);
        }
    }
}

fn blocks_of(take: &Take) -> usize {
    take.blocks.iter().map(|list| list.ids.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::types::BlockList;

    fn take(number: u64, blocks: u32) -> Take {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let key = Key { id: HandoffId::from_bytes(bytes), take: number };
        let blocks = vec![BlockList { first_token: 0, ids: (0..blocks).collect() }];
        let (is_push, wanted) = (true, 1);
        Take { key, incarnation: 1, group: 1, rank: 0, is_push, skip: 0, tokens: 1, wanted, blocks }
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
        // A take that waits already needs no room of its own.
        waiting.add(peer(1), take(0, 1)).unwrap();
        let refused = |waiting: &mut Waiting, of, number| {
            waiting.add(peer(of), take(u64::MAX - number, 1)).unwrap_err().message
        };
        assert_eq!(refused(&mut waiting, 1, 1), "1024 takes of the peer wait for their offers");
        assert_eq!(refused(&mut waiting, 99, 1), "16384 takes wait for their offers");
        assert_eq!(waiting.come(take(0, 1).key.id), [(peer(1), take(0, 1))]);
        waiting.add(peer(99), take(u64::MAX, 1)).unwrap();
        assert_eq!(waiting.remove(peer(99), take(u64::MAX, 1).key), Some(take(u64::MAX, 1)));
        assert_eq!(waiting.remove(peer(98), take(1, 1).key), None);
        assert_eq!((waiting.count, waiting.blocks), (WAITING_MAX - 1, WAITING_MAX - 1));
        waiting.remove_peer(peer(2));
        assert_eq!(waiting.count, WAITING_MAX - 1 - WAITING_OF_PEER_MAX);
        assert!(!waiting.of_peers.contains_key(&peer(2)) && waiting.takes.len() == waiting.count);
        assert_eq!(waiting.drain().len(), WAITING_MAX - 1 - WAITING_OF_PEER_MAX);
        assert_eq!((waiting.count, waiting.blocks, waiting.takes.len()), (0, 0, 0));
    }

    #[test]
    fn their_blocks_are_bounded() {
        let mut waiting = Waiting::default();
        for number in 0..4 {
            waiting.add(peer(number), take(number, WAITING_BLOCKS_OF_PEER_MAX as u32)).unwrap();
        }
        for (of, text) in [(1, "takes of the peer with 1000000 blocks"), (9, "takes with 4000000 blocks")] {
            let refused = waiting.add(peer(of), take(9, 1)).unwrap_err();
            let text = format!("{text} wait for their offers");
            assert_eq!((refused.status, refused.message), (Status::Limit, text));
        }
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
        waiting.add(peer(2), take(1, 1)).unwrap();
        assert!(waiting.end(peer(2), take(1, 1).key, Status::Timeout, "late"));
        for number in 0..=WAITING_ENDED_OF_PEER_MAX as u64 {
            waiting.add(peer(1), take(number, 1)).unwrap();
            assert!(waiting.end(peer(1), take(number, 1).key, Status::Timeout, "late"));
        }
        assert!(!waiting.end(peer(1), take(9_999, 1).key, Status::Timeout, "it does not wait"));
        let most = WAITING_ENDED_OF_PEER_MAX + 1;
        assert_eq!((waiting.count, waiting.blocks, waiting.ended_count), (0, 0, most));
        assert_eq!(waiting.come_ended(take(0, 1).key.id), []);
        // Another peer's is remembered whatever the first one does.
        assert_eq!(waiting.come_ended(take(1, 1).key.id), [Ended { peer: peer(2), ..ended(1) }, ended(1)]);
        assert_eq!((waiting.come_ended(take(1, 1).key.id), waiting.ended_count), (vec![], most - 2));
        waiting.remove_peer(peer(2));
        assert_eq!(waiting.ended_count, most - 2);
        waiting.remove_peer(peer(1));
        assert_eq!((waiting.ended_count, waiting.ended.len(), waiting.of_peers.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_refused_is_remembered_for_its_offer() {
        let mut waiting = Waiting::default();
        let refused = waiting.add(peer(1), take(3, WAITING_BLOCKS_OF_PEER_MAX as u32 + 1)).unwrap_err();
        let [ended] = &waiting.come_ended(take(3, 0).key.id)[..] else { panic!("not remembered") };
        assert_eq!((ended.status, &ended.why), (Status::Limit, &refused.message));
        assert!(waiting.of_peers.is_empty());
    }

    #[test]
    fn those_of_all_peers_that_are_ended_are_bounded() {
        let mut waiting = Waiting::default();
        for number in 0..=WAITING_ENDED_MAX as u64 {
            let of = peer(1 + number / 1_000);
            waiting.add(of, take(number, 1)).unwrap();
            assert!(waiting.end(of, take(number, 1).key, Status::Timeout, "late"));
        }
        assert_eq!(waiting.ended_count, WAITING_ENDED_MAX);
        assert_eq!(waiting.come_ended(take(0, 1).key.id).len(), 1, "the peer that ends more forgets its own");
    }
}
