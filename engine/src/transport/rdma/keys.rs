//! The keys of one peer's regions, which its devices demand of ours. The service adds and removes keys as the peer's
//! messages say; posting threads look them up in a snapshot.

use super::wire::KeysOffer;
use crate::limits::{DEVICES_MAX, PEER_RKEYS_MAX, SPLIT_BYTES_MIN};
use crate::region::range_contains;
use crate::region::tree::{Order, Tree};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::lock::{Mutex, RwLock};
use crate::types::{end_of, RegionId};
use std::sync::Arc;

/// A remote region, with the keys known so far.
#[derive(Clone, Debug, Default)]
pub struct RegionKeys {
    region: RegionId,
    pub address: u64,
    pub length: u64,
    /// Whether peers may READ the region, so that a READ of it can prove a WRITE visible.
    pub readable: bool,
    /// By the number of the peer's device.
    devices: Vec<(u8, Pieces)>,
}

/// A region as it is registered with one device, in pieces.
#[derive(Clone, Debug)]
struct Pieces {
    bytes: u64,
    detour: u8,
    rkeys: Vec<u32>,
}

/// Keys by region. A change costs little, however many keys there are and whether or not a snapshot is in use.
pub type KeyMap = Tree<ByRegion>;

pub struct ByRegion;

impl Order for ByRegion {
    type Item = Arc<RegionKeys>;
    type Key = RegionId;
    fn key(keys: &Arc<RegionKeys>) -> RegionId {
        keys.region
    }
}

#[derive(Debug, Default)]
pub struct Keys {
    map: RwLock<Arc<KeyMap>>,
    /// The number of keys of all regions. Changed under the map's lock.
    count: Mutex<usize>,
    /// Whether any region came in several pieces.
    splits: AtomicBool,
}

impl RegionKeys {
    fn pieces(&self, device: usize) -> Option<&Pieces> {
        self.devices.iter().find(|(number, _)| usize::from(*number) == device).map(|(_, pieces)| pieces)
    }

    /// Returns the key for `remote` on a device of the peer, and the number of bytes from there that the key covers.
    pub fn find(&self, device: usize, remote: u64) -> Option<(u32, u64)> {
        let pieces = self.pieces(device)?;
        let offset = remote.checked_sub(self.address)?;
        let piece = offset.checked_div(pieces.bytes)?;
        let rkey = *pieces.rkeys.get(usize::try_from(piece).ok()?)?;
        let end = ((piece + 1).saturating_mul(pieces.bytes)).min(self.length);
        Some((rkey, end.checked_sub(offset)?))
    }

    /// Returns the number of keys on all devices.
    fn count(&self) -> usize {
        self.devices.iter().map(|(_, pieces)| pieces.rkeys.len()).sum()
    }

    /// Returns how much farther this device of the peer is from the region than the nearest could be (`locality`).
    pub fn detour(&self, device: usize) -> u8 {
        self.pieces(device).map_or(0, |pieces| pieces.detour)
    }

    /// True if this device reaches the whole range.
    pub fn covers(&self, device: usize, remote: u64, length: u64) -> bool {
        range_contains(self.address, self.length, remote, length)
            && length > 0
            && self.find(device, remote).is_some()
            && self.find(device, remote + (length - 1)).is_some()
    }
}

impl Keys {
    pub fn snapshot(&self) -> Arc<KeyMap> {
        Arc::clone(&self.map.read())
    }

    pub fn splits(&self) -> bool {
        self.splits.load(Ordering::Relaxed)
    }

    /// Takes in keys from the peer. Invalid keys and keys beyond the bound for a peer are ignored: the region is then
    /// not reachable over RDMA.
    pub fn add(&self, offer: KeysOffer) {
        if !is_sane(&offer) {
            return;
        }
        if offer.length > offer.piece_bytes {
            self.splits.store(true, Ordering::Relaxed);
        }
        self.change(|map, count| {
            let known = map.get(offer.region).and_then(|region| region.pieces(offer.device.into()));
            // Parts come in order; a first part replaces the region's keys on this device.
            let (kept, gone) = match known {
                Some(pieces) if offer.first > 0 && pieces.bytes == offer.piece_bytes => {
                    (pieces.rkeys.len(), 0)
                }
                Some(pieces) => (0, pieces.rkeys.len()),
                None => (0, 0),
            };
            let after = *count + offer.rkeys.len() - gone;
            if kept != offer.first as usize || after > PEER_RKEYS_MAX {
                return;
            }
            *count = after;
            // Removed from the map first, so that a region in no snapshot is changed in place.
            let mut taken = map.remove(offer.region).unwrap_or_default();
            let region = Arc::make_mut(&mut taken);
            region.region = offer.region;
            (region.address, region.length, region.readable) = (offer.address, offer.length, offer.readable);
            let (bytes, detour) = (offer.piece_bytes, offer.detour);
            match region.devices.iter_mut().find(|(device, _)| *device == offer.device) {
                Some((_, pieces)) if offer.first > 0 => pieces.rkeys.extend(offer.rkeys),
                Some((_, pieces)) => *pieces = Pieces { bytes, detour, rkeys: offer.rkeys },
                None => region.devices.push((offer.device, Pieces { bytes, detour, rkeys: offer.rkeys })),
            }
            map.insert(taken);
        });
    }

    pub fn remove(&self, regions: &[RegionId]) {
        self.change(|map, count| {
            let gone = regions.iter().filter_map(|region| map.remove(*region));
            *count -= gone.map(|region| region.count()).sum::<usize>();
        });
    }

    fn change(&self, edit: impl FnOnce(&mut KeyMap, &mut usize)) {
        let mut map = self.map.write();
        let mut count = self.count.lock();
        edit(Arc::make_mut(&mut map), &mut count);
    }
}

/// True if the keys can be those of a region on a device, in pieces.
fn is_sane(offer: &KeysOffer) -> bool {
    let KeysOffer { address, length, piece_bytes, first, .. } = *offer;
    let end = u64::from(first) + offer.rkeys.len() as u64;
    length > 0
        && end_of(address, length).is_some()
        && piece_bytes >= SPLIT_BYTES_MIN.min(length)
        && usize::from(offer.device) < DEVICES_MAX
        && !offer.rkeys.is_empty()
        && end <= length.div_ceil(piece_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn offer(first: u32, rkeys: &[u32]) -> KeysOffer {
        KeysOffer {
            region: RegionId::from_raw(9),
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
        let region = keys.snapshot().get(RegionId::from_raw(9)).unwrap().clone();
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
        keys.remove(&[RegionId::from_raw(9)]);
        assert!(keys.snapshot().is_empty());
    }

    #[test]
    fn a_part_out_of_order_is_no_key_and_a_first_part_begins_anew() {
        let keys = Keys::default();
        keys.add(offer(0, &[7]));
        keys.add(offer(2, &[9]));
        assert_eq!(keys.snapshot().get(RegionId::from_raw(9)).unwrap().find(1, 2 * MIB), None);
        assert!(!keys.snapshot().get(RegionId::from_raw(9)).unwrap().covers(1, MIB, 2 * MIB + MIB / 2));
        keys.add(offer(0, &[1, 2, 3]));
        assert_eq!(keys.snapshot().get(RegionId::from_raw(9)).unwrap().find(1, 2 * MIB), Some((2, MIB)));
        keys.add(KeysOffer { piece_bytes: MIB - 1, ..offer(0, &[5]) });
        assert_eq!(keys.snapshot().get(RegionId::from_raw(9)).unwrap().find(1, MIB), Some((1, MIB)));
    }

    #[test]
    fn offers_that_make_no_sense_are_no_keys_and_divide_by_nothing() {
        let keys = Keys::default();
        let whole = || KeysOffer { length: 9, piece_bytes: 9, ..offer(0, &[7]) };
        for nonsense in [
            KeysOffer { length: 0, piece_bytes: 0, ..whole() },
            KeysOffer { length: 0, piece_bytes: MIB, ..whole() },
            KeysOffer { piece_bytes: 0, ..whole() },
            KeysOffer { piece_bytes: 8, ..whole() },
            KeysOffer { address: u64::MAX - 7, ..whole() },
            KeysOffer { device: DEVICES_MAX as u8, ..whole() },
            KeysOffer { rkeys: Vec::new(), ..whole() },
            KeysOffer { rkeys: vec![1, 2], ..whole() },
            KeysOffer { first: u32::MAX, ..whole() },
        ] {
            keys.add(nonsense.clone());
            assert!(keys.snapshot().is_empty(), "{nonsense:?}");
            // A region with such keys in the map does not divide by zero either.
            let pieces = Pieces { bytes: nonsense.piece_bytes, detour: 0, rkeys: nonsense.rkeys };
            let region =
                RegionKeys { length: nonsense.length, devices: vec![(1, pieces)], ..RegionKeys::default() };
            let _ = region.find(1, 0);
        }
        keys.add(whole());
        assert_eq!(keys.snapshot().get(RegionId::from_raw(9)).unwrap().find(1, MIB + 8), Some((7, 1)));
    }

    #[test]
    fn keys_are_counted_and_bounded() {
        let keys = Keys::default();
        let many = |region| KeysOffer {
            region: RegionId::from_raw(region),
            length: 8192 * MIB,
            rkeys: vec![1; 8192],
            ..offer(0, &[])
        };
        let most = (PEER_RKEYS_MAX / 8192) as u64;
        let has = |region| keys.snapshot().get(RegionId::from_raw(region)).is_some();
        (0..most).for_each(|region| keys.add(many(region)));
        keys.add(many(0)); // replaces, so it does not count twice
        keys.add(many(most));
        assert!(has(0) && has(most - 1) && !has(most));
        keys.remove(&[RegionId::from_raw(3)]);
        keys.add(many(most));
        assert!(has(most) && !has(3));
    }
}
