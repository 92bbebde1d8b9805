//! The 32 bytes that name a chunk, and their hexadecimal digits.

use super::TenantTag;
use ferry::status::Result;
use ferry::Error;
use std::fmt;
use std::str::FromStr;

/// The key of a chunk, made by [`Keyspace`](super::Keyspace): 24 bytes of a SHA-256 digest, and the tag of the tenant. Its
/// text form is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the first 8 bytes, little-endian: what the index keeps. Two keys may share a fingerprint.
    pub fn fingerprint(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns the last 8 bytes: whose key it is. In a key that no keyspace has made they are its tag all the same.
    pub fn tag(&self) -> TenantTag {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        TenantTag([a, b, c, d, e, f, g, h])
    }

    /// The key that a hash makes for a tenant.
    pub(crate) fn tagged(mut hash: [u8; 32], tag: TenantTag) -> Digest {
        hash[24..].copy_from_slice(&tag.0);
        Digest(hash)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Digest> {
        let bytes = parse_hex(text).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Digest)
            .ok_or_else(|| Error::invalid(format!("digest: {text:?} is not 64 hexadecimal digits")))
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Returns the bytes that an even number of hexadecimal digits stands for.
fn parse_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() % 2 != 0 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.as_bytes().chunks_exact(2).map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let bytes: [u8; 32] = std::array::from_fn(|at| (at * 9 + 1) as u8);
        let digest = Digest(bytes);
        let text = digest.to_string();
        assert!(text.starts_with("010a131c25"), "{text}");
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        assert_eq!(text.to_uppercase().parse::<Digest>().unwrap(), digest);
        assert_eq!(digest.fingerprint(), 0x4037_2e25_1c13_0a01);
        assert_eq!(digest.tag().0, bytes[24..]);
        for wrong in
            ["", &text[1..], &text[2..], &format!("{text}00"), &format!("+1{}", &text[2..]), &"é".repeat(32)]
        {
            let error = wrong.parse::<Digest>().unwrap_err();
            assert!(error.message.starts_with("digest: "), "{error}");
        }
    }
}
