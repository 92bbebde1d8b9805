//! Tracks which peers hold keys of which regions, so that unregister can revoke them. A peer gives its keys up when
//! asked, or loses its endpoints if it does not answer.

use super::device::Device;
use super::direct::Direct;
use super::memory::{self, Pinned};
use super::service::RdmaService;
use super::wire::{KeysOffer, Message};
use crate::limits::{REGIONS_PER_MESSAGE, RKEYS_PER_MESSAGE};
use crate::region::holder::{Holder, Pin};
use crate::region::{Region, RegionSpec};
use crate::status::Result;
use crate::sys::clock;
use crate::sys::health;
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::sys::map::{Entry, HashMap, HashSet};
use crate::sys::once::OnceLock;
use crate::types::{Access, PeerId, RegionId};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct KeyHolders {
    devices: Vec<Arc<Device>>,
    direct: Direct,
    state: Mutex<HeldKeys>,
    released: Condvar,
    /// Asks the holders of a region to give up its keys. Set once, before the first session.
    ask: OnceLock<Box<dyn Fn(RegionId) + Send + Sync>>,
}

#[derive(Default)]
struct HeldKeys {
    /// Peers by region.
    holders: HashMap<RegionId, HashSet<PeerId>>,
    /// Regions by peer, the inverse of `holders`. Neither map keeps empty sets.
    regions: HashMap<PeerId, HashSet<RegionId>>,
    /// Regions whose keys are given to no further peer.
    revoked: HashSet<RegionId>,
}

impl KeyHolders {
    pub fn new(devices: Vec<Arc<Device>>, direct: Direct) -> KeyHolders {
        KeyHolders {
            devices,
            direct,
            state: Mutex::default(),
            released: Condvar::new(),
            ask: OnceLock::new(),
        }
    }

    pub fn set_ask(&self, ask: impl Fn(RegionId) + Send + Sync + 'static) {
        let _ = self.ask.set(Box::new(ask));
    }

    fn lock(&self) -> MutexGuard<'_, HeldKeys> {
        self.state.lock()
    }

    /// Enters the peer as a holder of the region's keys. Returns false if the peer must not get them.
    pub fn give(&self, region: RegionId, peer: PeerId) -> bool {
        let mut state = self.lock();
        let may = !state.revoked.contains(&region);
        if may {
            state.holders.entry(region).or_default().insert(peer);
            state.regions.entry(peer).or_default().insert(region);
        }
        may
    }

    /// Notes that the peer can't reach these regions any more.
    pub fn release(&self, regions: &[RegionId], peer: PeerId) {
        let mut state = self.lock();
        for region in regions {
            take(&mut state.holders, *region, peer);
            take(&mut state.regions, peer, *region);
        }
        self.released.notify_all();
    }

    /// Notes that the peer can't reach any region any more.
    pub fn release_all(&self, peer: PeerId) {
        let mut state = self.lock();
        for region in state.regions.remove(&peer).unwrap_or_default() {
            take(&mut state.holders, region, peer);
        }
        self.released.notify_all();
    }
}

/// Removes `what` from the set of `of`, and the set once it is empty.
fn take<A: Eq + std::hash::Hash, B: Eq + std::hash::Hash>(sets: &mut HashMap<A, HashSet<B>>, of: A, what: B) {
    if let Entry::Occupied(mut set) = sets.entry(of) {
        set.get_mut().remove(&what);
        if set.get().is_empty() {
            set.remove();
        }
    }
}

impl HeldKeys {
    fn is_held(&self, region: RegionId) -> bool {
        self.holders.contains_key(&region)
    }
}

impl Holder for KeyHolders {
    fn pin(&self, specs: &[RegionSpec]) -> Result<Vec<Pin>> {
        let pinned = memory::pin(&self.devices, &self.direct, specs)?;
        Ok(pinned.into_iter().map(|pinned| pinned as Pin).collect())
    }

    fn revoke(&self, region: RegionId) {
        let held = {
            let mut state = self.lock();
            state.revoked.insert(region);
            state.is_held(region)
        };
        if let Some(ask) = self.ask.get().filter(|_| held) {
            ask(region);
        }
    }

    fn revoke_if_unheld(&self, region: RegionId, revoke: &mut dyn FnMut() -> bool) -> bool {
        let mut state = self.lock();
        if state.is_held(region) || !revoke() {
            return false;
        }
        state.revoked.insert(region);
        true
    }

    fn wait_unheld(&self, region: RegionId, deadline: Option<Instant>) -> bool {
        let wait = || {
            let mut state = self.lock();
            while state.is_held(region) {
                let left = deadline
                    .map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(clock::now()));
                if left.is_zero() {
                    return false;
                }
                state = self.released.wait_timeout(state, left).0;
            }
            true
        };
        let released = &self.released;
        health::woken_by(&|| released.notify_all(), wait)
    }

    fn holders(&self, region: RegionId) -> Vec<PeerId> {
        self.lock().holders.get(&region).map(|peers| peers.iter().copied().collect()).unwrap_or_default()
    }

    fn unpin(&self, region: &Region) {
        if let Some(pinned) = Pinned::of(region) {
            pinned.unpin();
        }
        let mut state = self.lock();
        for peer in state.holders.remove(&region.id).unwrap_or_default() {
            take(&mut state.regions, peer, region.id);
        }
        state.revoked.remove(&region.id);
    }
}

impl RdmaService {
    /// Returns the keys of a region as messages for a peer; none if the region is being unregistered.
    pub(super) fn keys_of(&self, region: &Region, peer: PeerId) -> Vec<Message> {
        let Some(pinned) = Pinned::of(region) else { return Vec::new() };
        if region.is_revoked() || !self.key_holders.give(region.id, peer) {
            return Vec::new();
        }
        // If the region was revoked between the two checks, it may be gone already, and nobody would ask for these
        // keys.
        if region.is_revoked() {
            self.key_holders.release(&[region.id], peer);
            return Vec::new();
        }
        let mut messages = Vec::new();
        for (device, pieces) in pinned.devices.iter().enumerate() {
            for (part, keys) in pieces.keys.chunks(RKEYS_PER_MESSAGE).enumerate() {
                messages.push(Message::Keys(KeysOffer {
                    region: region.id,
                    address: region.address,
                    length: region.length,
                    readable: region.access.0 & Access::REMOTE_READ.0 != 0,
                    device: device as u8,
                    detour: pieces.detour,
                    piece_bytes: pieces.bytes,
                    first: (part * RKEYS_PER_MESSAGE) as u32,
                    rkeys: keys.iter().map(|key| key.rkey).collect(),
                }));
            }
        }
        messages
    }

    pub(super) fn ask_holders(&self) {
        let sessions = &mut *self.lock();
        let regions = std::mem::take(&mut sessions.revoking);
        let mut by_peer: HashMap<PeerId, Vec<RegionId>> = HashMap::default();
        for region in regions {
            self.key_holders
                .holders(region)
                .into_iter()
                .for_each(|peer| by_peer.entry(peer).or_default().push(region));
        }
        let now = clock::monotonic_ns();
        for (peer, regions) in by_peer {
            let Some(session) = sessions.all.get_mut(&peer) else {
                // Its session has ended. It has no endpoint once its closed endpoints are gone.
                if !sessions.flushing.has(peer) {
                    self.key_holders.release(&regions, peer);
                }
                continue;
            };
            for part in regions.chunks(REGIONS_PER_MESSAGE) {
                self.send(session, &Message::Revoke(part.to_vec()));
            }
            session.asked.extend(regions.into_iter().map(|region| (now, region)));
            sessions.all.changed(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::atomic::{AtomicU64, Ordering};

    fn region(number: u64) -> RegionId {
        RegionId::from_raw(number)
    }

    fn held() -> (Arc<KeyHolders>, Arc<AtomicU64>) {
        let (held, asked) =
            (Arc::new(KeyHolders::new(Vec::new(), Direct::new(None))), Arc::new(AtomicU64::new(0)));
        let counter = asked.clone();
        held.set_ask(move |region| {
            counter.fetch_add(region.raw(), Ordering::SeqCst);
        });
        (held, asked)
    }

    #[test]
    fn keys_that_are_held_are_waited_for() {
        let (held, asked) = held();
        assert!(
            held.give(region(7), PeerId::from_raw(1))
                && held.give(region(7), PeerId::from_raw(2))
                && held.give(region(8), PeerId::from_raw(1))
        );
        assert!(!held.revoke_if_unheld(region(7), &mut || true), "two peers hold it");
        held.revoke(region(7));
        assert_eq!(asked.load(Ordering::SeqCst), 7);
        assert!(!held.give(region(7), PeerId::from_raw(3)), "nobody gets it any more");
        held.release(&[region(7)], PeerId::from_raw(1));
        assert!(!held.wait_unheld(region(7), Some(Instant::now())));
        let waiter = held.clone();
        let waiting = std::thread::spawn(move || waiter.wait_unheld(region(7), None));
        held.release_all(PeerId::from_raw(2));
        assert!(waiting.join().unwrap());
        assert_eq!(held.holders(region(8)), [PeerId::from_raw(1)]);
    }

    /// A lost peer costs as much as it holds, not as much as there is.
    #[test]
    fn a_peer_is_found_by_what_it_holds() {
        let (held, _) = held();
        for number in 1..=10 {
            (1..=number).for_each(|peer| assert!(held.give(region(number), PeerId::from_raw(peer))));
        }
        let of = |peer: PeerId| held.lock().regions.get(&peer).map_or(0, HashSet::len);
        assert_eq!((of(PeerId::from_raw(1)), of(PeerId::from_raw(10)), of(PeerId::from_raw(11))), (10, 1, 0));
        held.release(&[3, 4].map(RegionId::from_raw), PeerId::from_raw(1));
        held.release_all(PeerId::from_raw(2));
        assert_eq!(
            (of(PeerId::from_raw(1)), of(PeerId::from_raw(2)), held.holders(region(2))),
            (8, 0, vec![PeerId::from_raw(1)])
        );
        (1..=10).for_each(|peer| held.release_all(PeerId::from_raw(peer)));
        let state = held.lock();
        assert!(state.holders.is_empty() && state.regions.is_empty(), "nothing is left");
    }

    /// If the engine closes while a peer holds keys, unpinned regions leave both maps.
    #[test]
    fn a_region_that_is_gone_is_held_by_nobody() {
        let (held, _) = held();
        let registry = crate::region::Registry::new(crate::handle::Tag::from_random(1), None);
        let spec = RegionSpec { address: 4096, length: 64, ..RegionSpec::default() };
        let gone = registry.register(&[spec]).unwrap().remove(0);
        assert!(
            held.give(gone.id, PeerId::from_raw(1))
                && held.give(gone.id, PeerId::from_raw(2))
                && held.give(region(8), PeerId::from_raw(2))
        );
        held.unpin(&gone);
        let state = held.lock();
        assert_eq!(
            state.holders,
            HashMap::from_iter([(region(8), HashSet::from_iter([PeerId::from_raw(2)]))])
        );
        assert_eq!(
            state.regions,
            HashMap::from_iter([(PeerId::from_raw(2), HashSet::from_iter([region(8)]))])
        );
    }

    #[test]
    fn what_nobody_holds_goes_at_once_if_it_is_idle() {
        let (held, asked) = held();
        assert!(!held.revoke_if_unheld(region(7), &mut || false));
        assert!(held.give(region(7), PeerId::from_raw(1)), "nothing has changed");
        held.release(&[region(7)], PeerId::from_raw(1));
        assert!(held.revoke_if_unheld(region(7), &mut || true));
        assert!(!held.give(region(7), PeerId::from_raw(1)));
        assert_eq!(asked.load(Ordering::SeqCst), 0);
    }
}
