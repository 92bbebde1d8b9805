//! The packets that two same-host services exchange over AF_UNIX, and the proof that the other end is the engine of the
//! session. Pure; `session` drives it.
//!
//! Both sides send ATTACH: the session's id, a MAC under a key that only the session's two ends know, and the address
//! at which the sender keeps a value derived from that key. If the receiver can read that value at that address, in the
//! process that the kernel names as the other end, the receiver reaches the right memory.

use crate::sys::packet::DESCRIPTORS_MAX;
use crate::types::{RegionId, SessionId};

pub const PACKET_BYTES_MAX: usize = 96;
pub const PROOF_BYTES: usize = 32;
const _: () = assert!(DESCRIPTORS_MAX >= 2, "ATTACH carries two descriptors");

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The first packet of each side; carries the board and the receiver's tally.
    Attach { session: SessionId, mac: [u8; PROOF_BYTES], value_at: u64 },
    /// A region that can be mapped; carries its memfd.
    Region { id: RegionId, address: u64, length: u64 },
    /// The region is not registered any more.
    Gone { id: RegionId },
    /// All regions that exist so far were announced.
    Settled,
}

impl Packet {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PACKET_BYTES_MAX);
        match self {
            Packet::Attach { session, mac, value_at } => {
                out.push(1);
                out.extend_from_slice(&session.0);
                out.extend_from_slice(mac);
                out.extend_from_slice(&value_at.to_le_bytes());
            }
            Packet::Region { id, address, length } => {
                out.push(2);
                [id.raw(), *address, *length]
                    .into_iter()
                    .for_each(|it| out.extend_from_slice(&it.to_le_bytes()));
            }
            Packet::Gone { id } => {
                out.push(3);
                out.extend_from_slice(&id.raw().to_le_bytes());
            }
            Packet::Settled => out.push(4),
        }
        out
    }

    /// Returns the session that an ATTACH names.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Packet::Attach { session, .. } => Some(*session),
            _ => None,
        }
    }

    /// Decodes a packet. None for all bytes that `encode` does not produce.
    pub fn decode(bytes: &[u8]) -> Option<Packet> {
        let (kind, rest) = bytes.split_first()?;
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        match (kind, rest.len()) {
            (1, 56) => Some(Packet::Attach {
                session: SessionId(rest[..16].try_into().ok()?),
                mac: rest[16..48].try_into().ok()?,
                value_at: number(&rest[48..])?,
            }),
            (2, 24) => Some(Packet::Region {
                id: RegionId::from_raw(number(&rest[..8])?),
                address: number(&rest[8..16])?,
                length: number(&rest[16..])?,
            }),
            (3, 8) => Some(Packet::Gone { id: RegionId::from_raw(number(rest)?) }),
            (4, 0) => Some(Packet::Settled),
            _ => None,
        }
    }
}

/// The secret of the two ends of a session.
pub struct Keys {
    key: [u8; 32],
    session: SessionId,
}

impl Keys {
    pub fn new(session_key: &[u8; 32], session: SessionId) -> Keys {
        Keys { key: blake3::derive_key("ferry same-host path v2", session_key), session }
    }

    /// Returns the value that a side keeps in its memory as its proof. `dialer`: the side that dialed the session.
    pub fn value(&self, dialer: bool) -> [u8; PROOF_BYTES] {
        self.hash(b"value", dialer, 0)
    }

    pub fn attach(&self, dialer: bool, value_at: u64) -> Packet {
        Packet::Attach { session: self.session, mac: self.hash(b"attach", dialer, value_at), value_at }
    }

    /// Returns the address in an ATTACH if its MAC is the given side's.
    pub fn check(&self, packet: &Packet, dialer: bool) -> Option<u64> {
        let Packet::Attach { session, mac, value_at } = packet else { return None };
        if *session != self.session {
            return None;
        }
        let expected = blake3::Hash::from_bytes(self.hash(b"attach", dialer, *value_at));
        // Compared in constant time.
        (expected == blake3::Hash::from_bytes(*mac)).then_some(*value_at)
    }

    fn hash(&self, what: &[u8], dialer: bool, number: u64) -> [u8; PROOF_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.session.0).update(&[dialer as u8]).update(&number.to_le_bytes()).update(what);
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> Vec<Packet> {
        let keys = Keys::new(&[1; 32], SessionId([2; 16]));
        vec![
            keys.attach(true, 77),
            Packet::Region { id: RegionId::from_raw(5), address: 1 << 40, length: 9 },
            Packet::Gone { id: RegionId::from_raw(u64::MAX) },
            Packet::Settled,
        ]
    }

    #[test]
    fn packets_survive_the_way_and_nothing_else_does() {
        for packet in packets() {
            let bytes = packet.encode();
            assert!(bytes.len() <= PACKET_BYTES_MAX);
            assert_eq!(Packet::decode(&bytes), Some(packet));
            for length in 0..bytes.len() {
                assert_eq!(Packet::decode(&bytes[..length]), None);
            }
            assert_eq!(Packet::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_what_would_be_encoded(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(packet.encode(), bytes);
            }
        }
    }

    #[test]
    fn an_attach_proves_session_side_and_address() {
        let keys = Keys::new(&[1; 32], SessionId([2; 16]));
        let attach = keys.attach(true, 4096);
        assert_eq!(keys.check(&attach, true), Some(4096));
        assert_eq!(keys.check(&attach, false), None, "its own ATTACH, sent back");
        assert_eq!(Keys::new(&[1; 32], SessionId([3; 16])).check(&attach, true), None);
        assert_eq!(Keys::new(&[9; 32], SessionId([2; 16])).check(&attach, true), None);
        let Packet::Attach { session, mac, .. } = attach else { unreachable!() };
        assert_eq!(keys.check(&Packet::Attach { session, mac, value_at: 4097 }, true), None);
        assert_ne!(keys.value(true), keys.value(false));
        assert_eq!(keys.check(&Packet::Settled, true), None);
    }
}
