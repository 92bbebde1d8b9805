//! The addresses of the other nodes: which are connected, and when the others are dialed again.

use std::time::Duration;

use ferry::types::PeerId;

/// Attempts to call a peer back: it may have to be alive again first.
const CALLS_BACK_MAX: u32 = 240;

pub struct Dials {
    list: Vec<Dial>,
    pause_ns: u64,
}

pub struct Dial {
    pub address: String,
    pub peer: Option<PeerId>,
    /// Why the last attempt failed; empty if none has.
    pub why: String,
    is_dialing: bool,
    /// The address is this node's own, or was called back in vain: it is not dialed.
    pub is_mine: bool,
    /// For an address that is called back: attempts that are left.
    left: Option<u32>,
    next_ns: u64,
}

impl Dials {
    pub fn new(addresses: &[String], own: &str, pause: Duration) -> Dials {
        let dial = |address: &String| Dial {
            address: address.clone(),
            peer: None,
            why: "is being dialed".into(),
            is_dialing: false,
            is_mine: address == own,
            left: None,
            next_ns: 0,
        };
        Dials { list: addresses.iter().map(dial).collect(), pause_ns: pause.as_nanos() as u64 }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Dial> {
        self.list.iter().filter(|dial| !dial.is_mine)
    }

    /// Addresses to dial now, with their numbers; each is being dialed from now on.
    pub fn due(&mut self, now: u64) -> Vec<(usize, String)> {
        let due =
            |dial: &Dial| !dial.is_mine && dial.peer.is_none() && !dial.is_dialing && dial.next_ns <= now;
        let list = self.list.iter_mut().enumerate().filter(|(_, dial)| due(dial));
        list.map(|(at, dial)| {
            dial.is_dialing = true;
            (at, dial.address.clone())
        })
        .collect()
    }

    /// When the next address is to be dialed.
    pub fn next_ns(&self) -> Option<u64> {
        let waits = self.list.iter().filter(|dial| !dial.is_mine && dial.peer.is_none() && !dial.is_dialing);
        waits.map(|dial| dial.next_ns).min()
    }

    pub fn connected(&mut self, at: usize, peer: PeerId) {
        if let Some(dial) = self.list.get_mut(at) {
            (dial.peer, dial.is_dialing) = (Some(peer), false);
            dial.why.clear();
        }
    }

    /// Dials a peer that had dialed this node, for a bounded number of times.
    pub fn call_back(&mut self, address: &str, peer: PeerId) {
        if address.is_empty() || self.iter().any(|dial| dial.peer == Some(peer) || dial.address == address) {
            return;
        }
        let dial = Dial {
            address: address.to_owned(),
            peer: None,
            why: "is called back".into(),
            is_dialing: false,
            is_mine: false,
            left: Some(CALLS_BACK_MAX),
            next_ns: 0,
        };
        match self.list.iter_mut().find(|other| other.left == Some(0)) {
            Some(place) => *place = dial,
            None => self.list.push(dial),
        }
    }

    pub fn is_dialing(&self) -> bool {
        self.list.iter().any(|dial| dial.is_dialing)
    }

    pub fn failed(&mut self, at: usize, why: &str, is_mine: bool, now: u64) {
        let pause = self.pause_ns;
        if let Some(dial) = self.list.get_mut(at) {
            (dial.is_dialing, dial.is_mine, dial.next_ns) = (false, is_mine, now.saturating_add(pause));
            dial.why = why.into();
            dial.left = dial.left.map(|left| left.saturating_sub(1));
            dial.is_mine |= dial.left == Some(0);
        }
    }

    /// A peer is gone: it is dialed again.
    pub fn lost(&mut self, peer: PeerId, why: &str, now: u64) {
        for dial in self.list.iter_mut().filter(|dial| dial.peer == Some(peer)) {
            (dial.peer, dial.next_ns) = (None, now);
            dial.why = why.into();
        }
    }
}
