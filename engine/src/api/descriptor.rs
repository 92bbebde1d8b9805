//! Descriptors: what one engine passes to another out of band, so that they find each other. A descriptor is a hint for
//! where to connect and what to expect; only the authenticated session is trusted.
//!
//! ```text
//! "FERRYDSC"  version 2  engine id 16  incarnation 8  address length 2, bytes  crc32 4
//! ```
//! Numbers above are sizes in bytes; values are little-endian. The checksum catches damage, not malice: nothing in a
//! descriptor is trusted.

use super::Engine;
use crate::limits::ADDRESS_BYTES_MAX;
use crate::status::{Error, Result, Status};
use crate::types::{EngineId, PeerId};
use std::time::Duration;

const MAGIC: &[u8; 8] = b"FERRYDSC";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 8 + 2 + 16 + 8 + 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub engine_id: EngineId,
    pub incarnation: u64,
    pub address: String,
}

impl Descriptor {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.engine_id.0);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&(self.address.len() as u16).to_le_bytes());
        out.extend_from_slice(self.address.as_bytes());
        let checksum = crc32fast::hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads a descriptor. INVALID if the bytes are no descriptor, VERSION for another version, CORRUPT for damage.
    pub fn decode(bytes: &[u8]) -> Result<Descriptor> {
        let corrupt = |what: &str| Error::new(Status::Corrupt, format!("descriptor: {what}"));
        if bytes.len() < MAGIC.len() || &bytes[..MAGIC.len()] != MAGIC {
            return Err(Error::invalid("descriptor: these bytes are not a ferry descriptor"));
        }
        if bytes.len() < FIXED_BYTES + 4 {
            return Err(corrupt("the bytes are cut short"));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        let (body, sum) = bytes.split_at(bytes.len() - 4);
        if crc32fast::hash(body) != u32::from_le_bytes(sum.try_into().unwrap_or_default()) {
            return Err(corrupt("the checksum does not match"));
        }
        if version != VERSION {
            let text =
                format!("the descriptor has version {version}, and this engine reads version {VERSION}");
            return Err(Error::new(Status::Version, text));
        }
        let mut engine_id = EngineId([0; 16]);
        engine_id.0.copy_from_slice(&body[10..26]);
        let incarnation = u64::from_le_bytes(body[26..34].try_into().unwrap_or_default());
        let length = u16::from_le_bytes([body[34], body[35]]) as usize;
        let address = &body[FIXED_BYTES..];
        if address.len() != length || length > ADDRESS_BYTES_MAX {
            return Err(corrupt("the address does not have the stated length"));
        }
        let address =
            std::str::from_utf8(address).map_err(|_| corrupt("the address is not UTF-8"))?.to_owned();
        Ok(Descriptor { engine_id, incarnation, address })
    }
}

impl Engine {
    /// Returns this engine's descriptor. UNAVAILABLE if the engine does not listen: a descriptor would be of no use.
    pub fn descriptor(&self) -> Result<Descriptor> {
        let local = &self.context()?.local;
        if local.address.is_empty() {
            return Err(Error::new(
                Status::Unavailable,
                "the engine does not listen and has no advertise_address, so it cannot be described",
            ));
        }
        Ok(Descriptor {
            engine_id: local.engine_id,
            incarnation: local.incarnation,
            address: local.address.clone(),
        })
    }

    /// Connects to the engine that `descriptor` names. STALE if another engine or incarnation answers at the address.
    pub fn import(&self, descriptor: &Descriptor, timeout: Option<Duration>) -> Result<PeerId> {
        let peer = self.connect(&descriptor.address, timeout)?;
        let info = self.peer_info(peer)?;
        if (info.engine_id, info.incarnation) != (descriptor.engine_id, descriptor.incarnation) {
            let text = format!("descriptor: {} is another engine or incarnation now", descriptor.address);
            return Err(Error::new(Status::Stale, text));
        }
        Ok(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let descriptor =
            Descriptor { engine_id: EngineId([7; 16]), incarnation: 9, address: "10.0.0.1:7000".into() };
        let bytes = descriptor.encode();
        assert_eq!(Descriptor::decode(&bytes).unwrap(), descriptor);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let status = Descriptor::decode(&bad).unwrap_err().status;
            assert!(matches!(status, Status::Corrupt | Status::Invalid), "bit {bit}: {status}");
        }
        for end in 0..bytes.len() {
            assert!(Descriptor::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes =
            Descriptor { engine_id: EngineId([1; 16]), incarnation: 1, address: "h:1".into() }.encode();
        bytes[8] = 2;
        let end = bytes.len() - 4;
        let checksum = crc32fast::hash(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        assert_eq!(Descriptor::decode(&bytes).unwrap_err().status, Status::Version);
    }
}
