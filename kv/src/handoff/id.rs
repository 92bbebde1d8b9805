//! The identity of one attempt to hand a sequence over.

use std::fmt;

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

impl fmt::Display for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}..")
    }
}

impl fmt::Debug for HandoffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No byte is the same in all of 64 ids, but for one run in 2^500.
    #[test]
    fn random_ids_differ_in_every_byte() {
        let ids: Vec<HandoffId> = (0..64).map(|_| HandoffId::random().unwrap()).collect();
        for byte in 0..16 {
            assert!(ids.iter().any(|id| id.bytes()[byte] != ids[0].bytes()[byte]), "byte {byte}");
        }
    }

    #[test]
    fn a_text_does_not_give_an_id_away() {
        let id = HandoffId::from_bytes(std::array::from_fn(|at| 0xa0 + at as u8));
        assert_eq!((format!("{id}"), format!("{id:?}")), ("a0a1a2a3..".into(), "a0a1a2a3..".into()));
    }
}
