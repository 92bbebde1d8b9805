//! Descriptors of engines, with a right checksum over any contents.

use arbitrary::{Arbitrary, Unstructured};
use ferry::types::EngineId;
use ferry::{Descriptor, Status};

#[derive(Arbitrary, Debug)]
enum Input {
    Bytes(Vec<u8>),
    /// The fields, and whether the checksum is right.
    Made {
        magic: bool,
        version: u8,
        id: [u8; 16],
        incarnation: u64,
        length: i8,
        address: Vec<u8>,
        sum: bool,
    },
    Valid {
        id: [u8; 16],
        incarnation: u64,
        address: String,
        at: u16,
        change: u8,
    },
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    match input {
        Input::Bytes(bytes) => check(&bytes),
        Input::Made { magic, version, id, incarnation, length, address, sum } => {
            let mut bytes = if magic { b"FERRYDSC".to_vec() } else { b"FERRYDSK".to_vec() };
            bytes.extend(u16::from(version % 3).to_le_bytes());
            bytes.extend(id);
            bytes.extend(incarnation.to_le_bytes());
            let said = (address.len() as i64 + i64::from(length / 32)).max(0);
            bytes.extend(&said.to_le_bytes()[..2]);
            bytes.extend(&address);
            let crc = crc32fast::hash(&bytes) ^ u32::from(!sum);
            bytes.extend(crc.to_le_bytes());
            let is_good = magic
                && version % 3 == 1
                && said == address.len() as i64
                && sum
                && address.len() <= 255
                && std::str::from_utf8(&address).is_ok();
            assert_eq!(Descriptor::decode(&bytes).is_ok(), is_good, "{bytes:?}");
            check(&bytes);
        }
        Input::Valid { id, incarnation, address, at, change } => {
            let address: String = address.chars().take(60).collect();
            let made = Descriptor { engine_id: EngineId(id), incarnation, address };
            let mut bytes = made.encode();
            assert_eq!(Descriptor::decode(&bytes).as_ref().ok(), Some(&made));
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= change;
            assert_eq!(Descriptor::decode(&bytes).is_ok(), change == 0);
        }
    }
}

fn check(bytes: &[u8]) {
    match Descriptor::decode(bytes) {
        Ok(descriptor) => {
            assert_eq!(descriptor.encode(), bytes);
            assert!(descriptor.address.len() <= 255);
        }
        Err(error) => {
            let known = matches!(error.status, Status::Invalid | Status::Corrupt | Status::Version);
            assert!(known, "{error}");
            assert_eq!(error.status == Status::Invalid, !bytes.starts_with(b"FERRYDSC"));
        }
    }
}
