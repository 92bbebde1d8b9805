//! The identity of one attempt to hand a sequence over.

use std::fmt;
use std::str::FromStr;

use ferry::status::{Error, Result};

use crate::os;

/// 128 random bits, drawn once for each attempt by whoever routes the request, and never used again. Whoever knows an id
/// may take its offer, so texts show a part of it only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandoffId([u8; 16]);

impl HandoffId {
    /// Draws an id from the operating system's generator.
    pub fn random() -> Result<HandoffId> {
        let mut bytes = [0; 16];
        os::random(&mut bytes).map_err(|error| Error::system("drawing an id", &error))?;
        Ok(HandoffId(bytes))
    }

    pub const fn from_bytes(bytes: [u8; 16]) -> HandoffId {
        HandoffId(bytes)
    }

    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

/// The whole id, for the message that carries it to another process: 32 hexadecimal digits, as `FromStr` takes them.
impl fmt::Display for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The first four bytes, for logs and errors.
impl fmt::Debug for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}..")
    }
}

impl FromStr for HandoffId {
    type Err = Error;

    fn from_str(text: &str) -> Result<HandoffId> {
        let digits =
            Some(text).filter(|text| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let bits = digits.and_then(|text| u128::from_str_radix(text, 16).ok());
        bits.map(|bits| HandoffId(bits.to_be_bytes())).ok_or_else(|| {
            let length = text.len();
            Error::invalid(format!(
                "text: an id is 32 hexadecimal digits, as it prints; this text has {length} bytes"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry::Status;

    /// No byte is the same in all of 64 ids, but for one run in 2^500.
    #[test]
    fn random_ids_differ_in_every_byte() {
        let ids: Vec<HandoffId> = (0..64).map(|_| HandoffId::random().unwrap()).collect();
        for byte in 0..16 {
            assert!(ids.iter().any(|id| id.bytes()[byte] != ids[0].bytes()[byte]), "byte {byte}");
        }
    }

    #[test]
    fn an_id_is_read_as_it_is_written_and_logs_do_not_give_it_away() {
        let id = HandoffId::from_bytes(std::array::from_fn(|at| at as u8 * 0x11));
        assert_eq!(format!("{id:?}"), "00112233..");
        assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(id.to_string().to_uppercase().parse::<HandoffId>().unwrap(), id);
        for bad in [
            "",
            "0",
            "+0112233445566778899aabbccddeeff",
            "00112233445566778899aabbccddeef",
            "é0112233445566778899aabbccddeef",
        ] {
            assert_eq!(bad.parse::<HandoffId>().unwrap_err().status, Status::Invalid, "{bad}");
        }
        assert!(format!("{id}0").parse::<HandoffId>().is_err());
    }
}
