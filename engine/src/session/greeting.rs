//! The greeting of a TCP lane: one message in each direction with a MAC under the session's lane key. So a foreign
//! connection is never taken for a lane of the session. Pure.
//!
//! ```text
//! dialer → acceptor   preamble(LANE)  session 16  lane 4  slot 4  mac 16
//! acceptor → dialer   mac 16
//! ```
//! A lane number is used once in a session, so a recorded greeting cannot be used again.

use crate::session::handshake::{preamble, KIND_LANE};
use crate::types::{LaneId, SessionId};

pub const PREAMBLE_BYTES: usize = 7;
pub const GREETING_BYTES: usize = PREAMBLE_BYTES + 16 + 4 + 4 + 16;
pub const WELCOME_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub session_id: SessionId,
    pub lane: LaneId,
    pub slot: u32,
}

fn mac(key: &[u8; 32], what: &[u8], greeting: &Greeting) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(what).update(&greeting.session_id.0);
    hasher.update(&greeting.lane.raw().to_le_bytes()).update(&greeting.slot.to_le_bytes());
    let mut mac = [0; 16];
    mac.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    mac
}

impl Greeting {
    pub fn encode(&self, key: &[u8; 32]) -> Vec<u8> {
        let mut out = preamble(KIND_LANE).to_vec();
        out.extend_from_slice(&self.session_id.0);
        out.extend_from_slice(&self.lane.raw().to_le_bytes());
        out.extend_from_slice(&self.slot.to_le_bytes());
        out.extend_from_slice(&mac(key, b"lane greeting", self));
        out
    }

    /// Reads a greeting and its MAC. `verify` checks the MAC once the session is found.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> (Greeting, [u8; 16]) {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut session_id = SessionId::default();
        session_id.0.copy_from_slice(&bytes[7..23]);
        let mut mac = [0; 16];
        mac.copy_from_slice(&bytes[31..47]);
        (Greeting { session_id, lane: LaneId::from_raw(number(23)), slot: number(27) }, mac)
    }

    pub fn verify(&self, key: &[u8; 32], claimed: &[u8; 16]) -> bool {
        same(&mac(key, b"lane greeting", self), claimed)
    }

    /// Returns the answer to a genuine greeting.
    pub fn welcome(&self, key: &[u8; 32]) -> [u8; WELCOME_BYTES] {
        mac(key, b"lane welcome", self)
    }

    pub fn is_welcome(&self, key: &[u8; 32], answer: &[u8; WELCOME_BYTES]) -> bool {
        same(&self.welcome(key), answer)
    }
}

/// Compares in constant time.
fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_bound_to_its_key_and_to_every_bit() {
        let greeting = Greeting { session_id: SessionId([9; 16]), lane: LaneId::from_raw(3), slot: 1 };
        let bytes = greeting.encode(&[1; 32]);
        let (read, mac) = Greeting::decode(bytes[..].try_into().unwrap());
        assert_eq!(read, greeting);
        assert!(read.verify(&[1; 32], &mac) && !read.verify(&[2; 32], &mac));
        for bit in PREAMBLE_BYTES * 8..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let (read, mac) = Greeting::decode(bad[..].try_into().unwrap());
            assert!(!read.verify(&[1; 32], &mac));
        }
        assert!(greeting.is_welcome(&[1; 32], &greeting.welcome(&[1; 32])));
        assert!(!greeting.is_welcome(&[1; 32], &mac), "a greeting is no welcome");
    }
}
