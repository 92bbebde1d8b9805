//! The addresses of the other nodes: which are connected, and when the others are dialed again.

use std::collections::BTreeMap;
use std::time::Duration;

use ferry::types::PeerId;
use ferry_directory::Entry;

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
    /// The address is this node's own, was called back in vain, or is listed no more: it is not dialed.
    is_off: bool,
    /// For an address that is called back: attempts that are left.
    left: Option<u32>,
    /// For an address that the directory lists.
    entry: Option<Entry>,
    next_ns: u64,
}

impl Dial {
    fn new(address: &str, why: &str) -> Dial {
        Dial {
            address: address.to_owned(),
            peer: None,
            why: why.into(),
            is_dialing: false,
            is_off: false,
            left: None,
            entry: None,
            next_ns: 0,
        }
    }
}

impl Dials {
    pub fn new(addresses: &[String], own: &str, pause: Duration) -> Dials {
        let others = addresses.iter().filter(|address| *address != own);
        let list = others.map(|address| Dial::new(address, "is being dialed")).collect();
        Dials { list, pause_ns: pause.as_nanos() as u64 }
    }

    /// Takes what the directory lists now. A node that it lists no more is not dialed again, and one that it lists with
    /// another address or incarnation is dialed anew.
    pub fn follow(&mut self, entries: Vec<Entry>) {
        let mut new: BTreeMap<String, Entry> =
            entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for dial in &mut self.list {
            let Some(entry) = dial.entry.take() else { continue };
            if new.get(&entry.name) == Some(&entry) {
                dial.entry = new.remove(&entry.name);
            } else {
                (dial.is_off, dial.left, dial.peer) = (true, Some(0), None);
            }
        }
        for entry in new.into_values() {
            match self.list.iter_mut().find(|dial| !dial.is_off && dial.address == entry.address) {
                Some(dial) if dial.left.is_some() => (dial.left, dial.entry) = (None, Some(entry)),
                // The program lists it too, or another name has the address.
                Some(_) => {}
                None => {
                    let dial = Dial::new(&entry.address, "is being dialed");
                    self.add(Dial { entry: Some(entry), ..dial });
                }
            }
        }
    }

    fn add(&mut self, dial: Dial) {
        match self.list.iter_mut().find(|other| other.left == Some(0) && !other.is_dialing) {
            Some(place) => *place = dial,
            None => self.list.push(dial),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Dial> {
        self.list.iter().filter(|dial| !dial.is_off)
    }

    /// Addresses to dial now, with their numbers; each is being dialed from now on.
    pub fn due(&mut self, now: u64) -> Vec<(usize, String)> {
        let due =
            |dial: &Dial| !dial.is_off && dial.peer.is_none() && !dial.is_dialing && dial.next_ns <= now;
        let list = self.list.iter_mut().enumerate().filter(|(_, dial)| due(dial));
        list.map(|(at, dial)| {
            dial.is_dialing = true;
            (at, dial.address.clone())
        })
        .collect()
    }

    /// When the next address is to be dialed.
    pub fn next_ns(&self) -> Option<u64> {
        let waits = self.list.iter().filter(|dial| !dial.is_off && dial.peer.is_none() && !dial.is_dialing);
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
        self.add(Dial { left: Some(CALLS_BACK_MAX), ..Dial::new(address, "is called back") });
    }

    pub fn is_dialing(&self) -> bool {
        self.list.iter().any(|dial| dial.is_dialing)
    }

    pub fn failed(&mut self, at: usize, why: &str, is_own: bool, now: u64) {
        let pause = self.pause_ns;
        if let Some(dial) = self.list.get_mut(at) {
            (dial.is_dialing, dial.next_ns) = (false, now.saturating_add(pause));
            dial.why = why.into();
            dial.left = dial.left.map(|left| left.saturating_sub(1));
            dial.is_off |= is_own || dial.left == Some(0);
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

#[cfg(test)]
#[path = "dials_tests.rs"]
mod tests;
