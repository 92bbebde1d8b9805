//! The keys of one peer's regions, by which its devices let ours in. The service adds and removes them as
//! the peer says; who posts looks them up in a snapshot.

use super::wire::KeysOffer;
use crate::limits::SPLIT_BYTES_MIN;
use crate::region::range_contains;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// One remote region, as far as its keys are known.
#[derive(Clone, Debug, Default)]
pub struct RegionKeys {
    pub address: u64,
    pub length: u64,
    /// Whether peers may READ it, so that a READ of it can prove a WRITE visible.
    pub readable: bool,
    /// By the number of the peer's device.
    devices: Vec<Option<Pieces>>,
}

/// A region as registered with one device, piece by piece.
#[derive(Clone, Debug)]
struct Pieces {
    bytes: u64,
    detour: u8,
    rkeys: Vec<u32>,
}

/// Keys by region.
pub type KeyMap = HashMap<u64, Arc<RegionKeys>>;

#[derive(Debug, Default)]
pub struct Keys {
    map: RwLock<Arc<KeyMap>>,
    /// Whether any region came in several pieces.
    splits: AtomicBool,
}

impl RegionKeys {
    /// The key for `remote` on a device of the peer's, and how many bytes from there on it is good for.
    pub fn find(&self, device: usize, remote: u64) -> Option<(u32, u64)> {
        let pieces = self.devices.get(device)?.as_ref()?;
        let offset = remote.checked_sub(self.address)?;
        let piece = offset / pieces.bytes;
        let rkey = *pieces.rkeys.get(usize::try_from(piece).ok()?)?;
        let end = ((piece + 1).saturating_mul(pieces.bytes)).min(self.length);
        Some((rkey, end.checked_sub(offset)?))
    }

    /// How much longer than the shortest the way from this device of the peer's to the region is.
    pub fn detour(&self, device: usize) -> u8 {
        self.devices.get(device).and_then(Option::as_ref).map_or(0, |pieces| pieces.detour)
    }

    /// Whether all of a range can be reached through this device.
    pub fn covers(&self, device: usize, remote: u64, length: u64) -> bool {
        range_contains(self.address, self.length, remote, length)
            && length > 0
            && self.find(device, remote).is_some()
            && self.find(device, remote + (length - 1)).is_some()
    }
}

impl Keys {
    pub fn snapshot(&self) -> Arc<KeyMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn splits(&self) -> bool {
        self.splits.load(Ordering::Relaxed)
    }

    /// Takes in what the peer says; nonsense is ignored: it costs the peer's region this path.
    pub fn add(&self, offer: KeysOffer) {
        if offer.piece_bytes < SPLIT_BYTES_MIN.min(offer.length) {
            return;
        }
        if offer.length > offer.piece_bytes {
            self.splits.store(true, Ordering::Relaxed);
        }
        self.change(|map| {
            let known = map.entry(offer.region).or_default();
            let region = Arc::make_mut(known);
            (region.address, region.length, region.readable) = (offer.address, offer.length, offer.readable);
            let device = offer.device as usize;
            if region.devices.len() <= device {
                region.devices.resize(device + 1, None);
            }
            let (bytes, detour) = (offer.piece_bytes, offer.detour);
            let pieces = region.devices[device].get_or_insert(Pieces { bytes, detour, rkeys: Vec::new() });
            // Parts come in order; a first part begins anew.
            if offer.first == 0 {
                *pieces = Pieces { bytes, detour, rkeys: offer.rkeys };
            } else if pieces.bytes == offer.piece_bytes && pieces.rkeys.len() == offer.first as usize {
                pieces.rkeys.extend(offer.rkeys);
            }
        });
    }

    pub fn remove(&self, regions: &[u64]) {
        self.change(|map| regions.iter().for_each(|region| drop(map.remove(region))));
    }

    fn change(&self, edit: impl FnOnce(&mut KeyMap)) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        edit(Arc::make_mut(&mut map));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn offer(first: u32, rkeys: &[u32]) -> KeysOffer {
        KeysOffer {
            region: 9,
            address: MIB,
            length: 2 * MIB + MIB / 2,
            readable: true,
            device: 1,
            detour: 3,
            piece_bytes: MIB,
            first,
            rkeys: rkeys.into(),
        }
    }

    #[test]
    fn each_piece_has_its_key_up_to_its_end() {
        let keys = Keys::default();
        keys.add(offer(0, &[7, 8]));
        keys.add(offer(2, &[9]));
        let region = keys.snapshot()[&9].clone();
        assert_eq!(region.find(1, MIB), Some((7, MIB)));
        assert_eq!(region.find(1, 3 * MIB - 1), Some((8, 1)));
        assert_eq!(region.find(1, 3 * MIB), Some((9, MIB / 2)));
        assert_eq!(region.find(1, MIB - 1), None);
        assert_eq!(region.find(1, 4 * MIB), None);
        assert_eq!(region.find(0, MIB), None);
        assert_eq!([0, 1, 2].map(|device| region.detour(device)), [0, 3, 0]);
        let all = 2 * MIB + MIB / 2;
        assert!(region.covers(1, MIB, all) && !region.covers(1, MIB, all + 1) && !region.covers(1, MIB, 0));
        assert!(keys.splits());
        keys.remove(&[9]);
        assert!(keys.snapshot().is_empty());
    }

    #[test]
    fn a_part_out_of_order_is_no_key_and_a_first_part_begins_anew() {
        let keys = Keys::default();
        keys.add(offer(0, &[7]));
        keys.add(offer(2, &[9]));
        assert_eq!(keys.snapshot()[&9].find(1, 2 * MIB), None);
        assert!(!keys.snapshot()[&9].covers(1, MIB, 2 * MIB + MIB / 2));
        keys.add(offer(0, &[1, 2, 3]));
        assert_eq!(keys.snapshot()[&9].find(1, 2 * MIB), Some((2, MIB)));
        keys.add(KeysOffer { piece_bytes: MIB - 1, ..offer(0, &[5]) });
        assert_eq!(keys.snapshot()[&9].find(1, MIB), Some((1, MIB)));
    }
}
