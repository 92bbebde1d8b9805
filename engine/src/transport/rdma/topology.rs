//! Chooses the address of a port, and pairs the devices of two hosts. Pure.

use super::wire::DeviceOffer;
use crate::sys::verbs::{Gid, GidKind};

/// Why a port has no address at which peers reach it.
#[derive(Clone, Debug)]
pub enum NoAddress {
    /// The setting `rdma_gid_index` names an address that the port does not have.
    Setting(String),
    /// The port is down, or has no address yet.
    Port(String),
}

impl NoAddress {
    /// Adds the port's name to the sentence.
    pub fn of(self, port: &str) -> NoAddress {
        match self {
            NoAddress::Setting(why) => NoAddress::Setting(format!("{port}: {why}")),
            NoAddress::Port(why) => NoAddress::Port(format!("{port}: {why}")),
        }
    }
}

impl From<NoAddress> for String {
    fn from(why: NoAddress) -> String {
        match why {
            NoAddress::Setting(why) | NoAddress::Port(why) => why,
        }
    }
}

/// Chooses one of a port's addresses: the one with index `wanted`, or else the first of the best kind.
pub fn choose_gid(gids: &[Gid], is_ethernet: bool, wanted: Option<u32>) -> Result<Gid, NoAddress> {
    if let Some(index) = wanted {
        let found = gids.iter().find(|gid| gid.index == index);
        return found.copied().ok_or_else(|| {
            let there: Vec<String> = gids.iter().map(|gid| gid.index.to_string()).collect();
            let there = there.join(", ");
            NoAddress::Setting(format!("rdma_gid_index: the port has no GID {index}, only {there}"))
        });
    }
    let best = gids.iter().min_by_key(|gid| (rank(gid, is_ethernet), gid.index));
    best.copied().ok_or_else(|| NoAddress::Port("the port has no address (GID) yet".into()))
}

/// Ranks an address; smaller is better.
fn rank(gid: &Gid, is_ethernet: bool) -> u32 {
    if !is_ethernet {
        return 0;
    }
    let mapped = gid.raw[..10] == [0; 10] && gid.raw[10..12] == [0xff, 0xff];
    let link_local =
        (gid.raw[0] == 0xfe && gid.raw[1] & 0xc0 == 0x80) || (mapped && gid.raw[12..14] == [169, 254]);
    let version = if gid.kind == GidKind::RoceV2 { 0 } else { 4 };
    version + 2 * u32::from(link_local) + u32::from(!mapped)
}

/// Counts the leading bits that two addresses share.
fn shared_bits(a: &[u8; 16], b: &[u8; 16]) -> u32 {
    (u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b)).leading_zeros()
}

/// Pairs our devices with the peer's, as positions in the two lists. Each device gets a partner. Devices in one
/// network (with the longest common prefix) are paired first; among equals, the order of the lists decides.
pub fn pair(ours: &[DeviceOffer], theirs: &[DeviceOffer]) -> Vec<(usize, usize)> {
    let mut all: Vec<(u32, usize, usize, usize)> = Vec::new();
    for (a, our) in ours.iter().enumerate() {
        for (b, their) in theirs.iter().enumerate().filter(|(_, it)| it.is_ethernet == our.is_ethernet) {
            // Fewer differing bits first, then closer positions, then order.
            all.push((128 - shared_bits(&our.gid, &their.gid), a.abs_diff(b), a, b));
        }
    }
    all.sort_unstable();
    let (mut used_a, mut used_b) = (vec![false; ours.len()], vec![false; theirs.len()]);
    let mut pairs = Vec::new();
    for both in [true, false] {
        for &(_, _, a, b) in &all {
            let free = if both { !used_a[a] && !used_b[b] } else { !used_a[a] || !used_b[b] };
            if free {
                (used_a[a], used_b[b]) = (true, true);
                pairs.push((a, b));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    fn gid(index: u32, raw: [u8; 16], kind: GidKind) -> Gid {
        Gid { index, raw, kind }
    }

    fn device(gid: [u8; 16]) -> DeviceOffer {
        DeviceOffer {
            index: 0,
            is_ethernet: true,
            gid,
            lid: 0,
            mtu: 1024,
            reads_max: 1,
            flush_address: 0,
            flush_rkey: 0,
            name: String::new(),
        }
    }

    #[test]
    fn roce_v2_over_ipv4_first_and_link_local_last() {
        let mut v6 = [0x20; 16];
        let mut local = [0; 16];
        (local[0], local[1]) = (0xfe, 0x80);
        v6[15] = 1;
        let all = [
            gid(0, local, GidKind::RoceV1),
            gid(1, local, GidKind::RoceV2),
            gid(2, v4(169, 254, 0, 1), GidKind::RoceV2),
            gid(3, v6, GidKind::RoceV2),
            gid(4, v4(10, 0, 0, 1), GidKind::RoceV1),
            gid(5, v4(10, 0, 0, 1), GidKind::RoceV2),
        ];
        for (count, best) in [(6, 5), (4, 3), (3, 2), (2, 1), (1, 0)] {
            assert_eq!(choose_gid(&all[..count], true, None).unwrap().index, best);
        }
        assert_eq!(choose_gid(&all, true, Some(4)).unwrap().index, 4);
        let Err(NoAddress::Setting(why)) = choose_gid(&all[..2], true, Some(9)) else {
            panic!("it has none")
        };
        assert!(why.contains("rdma_gid_index") && why.contains("0, 1"), "{why}");
        assert!(choose_gid(&[], true, None).is_err());
        assert_eq!(choose_gid(&all, false, None).unwrap().index, 0, "InfiniBand takes the first");
    }

    #[test]
    fn devices_of_one_network_find_each_other_and_nobody_is_left_alone() {
        let ours = [device(v4(10, 1, 0, 1)), device(v4(10, 2, 0, 1))];
        let theirs = [device(v4(10, 2, 0, 2)), device(v4(10, 1, 0, 2))];
        let mut pairs = pair(&ours, &theirs);
        pairs.sort_unstable();
        assert_eq!(pairs, [(0, 1), (1, 0)]);
        assert_eq!(pair(&ours[..1], &theirs), [(0, 1), (0, 0)]);
        assert_eq!(pair(&ours, &theirs[..1]), [(1, 0), (0, 0)]);
        assert!(pair(&[], &theirs).is_empty());
        // All addresses are equally close: devices are paired by position.
        let same = [device(v4(10, 0, 0, 1)), device(v4(10, 0, 0, 1))];
        assert_eq!(pair(&same, &same), [(0, 0), (1, 1)]);
        let infiniband = [DeviceOffer { is_ethernet: false, ..device([0; 16]) }];
        assert!(pair(&infiniband, &theirs).is_empty());
    }
}
