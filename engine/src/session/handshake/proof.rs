//! Keeps same-user proofs between their two halves. On the AF_UNIX socket the acceptor's driver has checked the
//! dialer's user, and answered the dialer's nonce with a one-time key. On the TCP connection the `Acceptor` asks for
//! the key of the nonce in the HELLO. Pure: `sys::unix` has the sockets.
//!
//! ```text
//! dialer                                   acceptor
//!   connect to the abstract name, check uid
//!   nonce:32  ------------ AF_UNIX -------->  check uid, draw key, insert(nonce, key, pid, uid)
//!             <------------------------ key:32
//!   OPEN, encrypted with key  --- TCP ----->  take(nonce) -> key
//! ```

use super::key::Key;
use crate::limits::HANDSHAKES_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::map::HashMap;
use crate::types::Monotonic;

/// The nonce in the dialer's HELLO, which identifies its proof.
pub type Nonce = [u8; 32];

/// The one-time key, and the process at the other end of the AF_UNIX connection, as the kernel reports it. `pid` is 0
/// if the process is not visible in our pid namespace.
#[derive(Clone, Debug)]
pub struct Proof {
    pub key: Key,
    pub pid: i32,
    pub uid: u32,
}

/// Proofs that the acceptor's driver issued and no handshake has used yet. Each engine has one table. Proofs are
/// bounded in number (`HANDSHAKES_MAX`) and time.
#[derive(Debug)]
pub struct ProofTable {
    issued: HashMap<Nonce, (Proof, Monotonic)>,
    lifetime_ns: u64,
}

impl ProofTable {
    /// Creates a table whose proofs are valid for `lifetime_ns` after insertion: the time limit of a handshake.
    pub fn new(lifetime_ns: u64) -> ProofTable {
        ProofTable { issued: HashMap::default(), lifetime_ns }
    }

    /// Adds a proof. Call it before the key is written to the dialer, which may use the key at once. INVALID if the
    /// nonce is taken: a second proof must not replace the first key. LIMIT if the table is full.
    pub fn insert(&mut self, nonce: Nonce, proof: Proof, now_ns: Monotonic) -> Result<()> {
        self.expire(now_ns);
        if self.issued.contains_key(&nonce) {
            return Err(Error::invalid("a same-user proof with this nonce is waiting already"));
        }
        if self.issued.len() >= HANDSHAKES_MAX {
            return Err(Error::new(Status::Limit, format!("{HANDSHAKES_MAX} same-user proofs are waiting")));
        }
        self.issued.insert(nonce, (proof, now_ns.saturating_add(self.lifetime_ns)));
        Ok(())
    }

    /// Removes and returns the proof for this nonce, if it is still valid.
    pub fn take(&mut self, nonce: &Nonce, now_ns: Monotonic) -> Option<Proof> {
        let (proof, expires_ns) = self.issued.remove(nonce)?;
        (now_ns < expires_ns).then_some(proof)
    }

    /// Removes expired proofs. `insert` does so too; a timer may call this function to drop keys sooner.
    pub fn expire(&mut self, now_ns: Monotonic) {
        self.issued.retain(|_, (_, expires_ns)| now_ns < *expires_ns);
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.issued.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(pid: i32) -> Proof {
        Proof { key: Key::from([pid as u8; 32]), pid, uid: 1000 }
    }

    fn nonce(n: usize) -> Nonce {
        let mut nonce = [0; 32];
        nonce[..8].copy_from_slice(&n.to_le_bytes());
        nonce
    }

    #[test]
    fn a_proof_is_found_once_and_not_replaced() {
        let mut table = ProofTable::new(10);
        table.insert(nonce(1), proof(1), Monotonic::ZERO).unwrap();
        assert_eq!(
            table.insert(nonce(1), proof(2), Monotonic::from_ns(1)).unwrap_err().status,
            Status::Invalid
        );
        assert_eq!(table.take(&nonce(1), Monotonic::from_ns(2)).unwrap().pid, 1);
        assert!(table.take(&nonce(1), Monotonic::from_ns(2)).is_none());
    }

    #[test]
    fn a_proof_expires_at_its_time() {
        let mut table = ProofTable::new(10);
        table.insert(nonce(1), proof(1), Monotonic::from_ns(5)).unwrap();
        table.insert(nonce(2), proof(2), Monotonic::from_ns(5)).unwrap();
        assert!(table.take(&nonce(1), Monotonic::from_ns(14)).is_some());
        assert!(table.take(&nonce(2), Monotonic::from_ns(15)).is_none());
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn the_table_is_bounded_and_expiry_makes_room() {
        let mut table = ProofTable::new(10);
        for n in 0..HANDSHAKES_MAX {
            table.insert(nonce(n), proof(1), Monotonic::ZERO).unwrap();
        }
        let full = table.insert(nonce(HANDSHAKES_MAX), proof(1), Monotonic::from_ns(9)).unwrap_err();
        assert_eq!((full.status, table.count()), (Status::Limit, HANDSHAKES_MAX));
        table.insert(nonce(HANDSHAKES_MAX), proof(1), Monotonic::from_ns(10)).unwrap();
        assert_eq!(table.count(), 1);
    }
}
