//! Names and entries, and the form in which an entry lies in etcd. `url` and `table` use them. Pure.
//!
//! ```text
//! /ferry/prefill/0   ▶   ferry 1 <engine id, 32 hex digits> <incarnation, 16 hex digits> <host:port>
//! ```
//! A reader ignores what follows the address, so later versions may say more.

use crate::limits::{NAME_BYTES_MAX, VALUE_BYTES_MAX};
use ferry::config::check_address;
use ferry::status::{Error, Result};
use ferry::types::EngineId;
use ferry::{Descriptor, Status};

const MAGIC: &str = "ferry";
const VERSION: u32 = 1;

/// One start of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub engine_id: EngineId,
    pub incarnation: u64,
}

/// A directory's entry for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// "host:port".
    pub address: String,
    /// Who registered the name. None in a `static:` directory, which cannot know it.
    pub identity: Option<Identity>,
}

/// Where a name is found: an entry without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: String,
    pub identity: Option<Identity>,
}

impl Place {
    pub fn of(descriptor: &Descriptor) -> Place {
        let Descriptor { engine_id, incarnation, address } = descriptor.clone();
        Place { address, identity: Some(Identity { engine_id, incarnation }) }
    }

    pub fn named(self, name: &str) -> Entry {
        Entry { name: name.to_owned(), address: self.address, identity: self.identity }
    }

    /// Who is there, in words.
    pub fn words(&self) -> String {
        match self.identity {
            Some(Identity { incarnation, .. }) => {
                format!("{} (incarnation {incarnation:016x})", self.address)
            }
            None => self.address.clone(),
        }
    }
}

/// Writes the value of an engine's entry.
pub fn encode(descriptor: &Descriptor) -> String {
    let id = u128::from_be_bytes(descriptor.engine_id.0);
    format!("{MAGIC} {VERSION} {id:032x} {:016x} {}", descriptor.incarnation, descriptor.address)
}

/// Reads a value that anyone may have written. None if it is no entry, or one of a later version.
pub fn decode(value: &[u8]) -> Option<Place> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let mut words = std::str::from_utf8(value).ok()?.split(' ');
    if words.next()? != MAGIC || words.next()?.parse::<u32>().ok()? != VERSION {
        return None;
    }
    let engine_id = EngineId(u128::from_str_radix(hex(words.next()?, 32)?, 16).ok()?.to_be_bytes());
    let incarnation = u64::from_str_radix(hex(words.next()?, 16)?, 16).ok()?;
    let address = words.next()?;
    check_address(address, "").ok()?;
    Some(Place { address: address.to_owned(), identity: Some(Identity { engine_id, incarnation }) })
}

/// `from_str_radix` would take a sign.
fn hex(word: &str, digits: usize) -> Option<&str> {
    (word.len() == digits && word.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(word)
}

/// INVALID unless the text may be a name: letters, digits and `. _ : -`, in parts that `/` divides.
pub fn check_name(name: &str, what: &str) -> Result<()> {
    check_path(name, what)?;
    if name.is_empty() {
        Err(Error::invalid(format!("{what} is empty")))
    } else {
        Ok(())
    }
}

/// As `check_name`, but the text may be empty.
pub fn check_path(path: &str, what: &str) -> Result<()> {
    if path.len() > NAME_BYTES_MAX {
        let text = format!("{what} has {} bytes, and at most {NAME_BYTES_MAX} are allowed", path.len());
        return Err(Error::new(Status::Limit, text));
    }
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if path.split('/').all(|part| !part.is_empty() && part.bytes().all(is_part)) || path.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} is {path:?}, but may have only letters, digits and . _ : -, in parts separated by /"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(address: &str) -> Descriptor {
        Descriptor {
            engine_id: EngineId(std::array::from_fn(|at| at as u8)),
            incarnation: 0xabc,
            address: address.into(),
        }
    }

    const VALUE: &str = "ferry 1 000102030405060708090a0b0c0d0e0f 0000000000000abc 10.0.0.1:7000";

    #[test]
    fn a_value_says_what_the_descriptor_says() {
        assert_eq!(encode(&descriptor("10.0.0.1:7000")), VALUE);
        for address in ["10.0.0.1:7000", "[fe80::1]:1", "host.example:65535"] {
            let descriptor = descriptor(address);
            assert_eq!(decode(encode(&descriptor).as_bytes()), Some(Place::of(&descriptor)));
        }
        // Words that follow are a later version's.
        assert_eq!(decode(format!("{VALUE} more words").as_bytes()), decode(VALUE.as_bytes()));
    }

    #[test]
    fn values_that_are_no_entries_are_refused() {
        let long = |bytes: usize| format!("{VALUE} {}", "x".repeat(bytes - VALUE.len() - 1));
        assert!(decode(long(512).as_bytes()).is_some());
        assert!(decode(long(513).as_bytes()).is_none());
        for (from, to) in [
            ("ferry 1", "ferry 2"),
            ("ferry 1", "ferry"),
            ("ferry 1", "fairy 1"),
            ("0001", "001"),
            ("0001", "+001"),
            ("0abc", "0abg"),
            ("0abc", "00abc"),
            ("10.0.0.1:7000", "10.0.0.1"),
            ("10.0.0.1:7000", ":7000"),
            ("10.0.0.1:7000", "10.0.0.1:0"),
            ("10.0.0.1:7000", "10.0.0.1:+7"),
            ("10.0.0.1:7000", "10.0.0.1:65536"),
            (" 10.0.0.1:7000", ""),
            ("10.0.0.1", "10.0\n0.1"),
        ] {
            assert!(VALUE.contains(from));
            assert_eq!(decode(VALUE.replace(from, to).as_bytes()), None, "{from} {to}");
        }
        for bytes in [&b""[..], b" ", b"ferry 1 \xff", b"\xff\xfe"] {
            assert_eq!(decode(bytes), None);
        }
    }

    /// Any change of one byte gives an entry or nothing, and never a panic; so does any cut.
    #[test]
    fn damaged_values_do_no_harm() {
        for at in 0..VALUE.len() {
            for byte in 0..=255u8 {
                let mut value = VALUE.as_bytes().to_vec();
                value[at] = byte;
                if let Some(place) = decode(&value) {
                    assert!(check_address(&place.address, "").is_ok());
                }
            }
            decode(&VALUE.as_bytes()[..at]);
        }
    }

    #[test]
    fn names_have_parts() {
        for name in ["a", "prefill/0", "A.b_c:d-9", &"n".repeat(127)] {
            assert!(check_name(name, "name").is_ok(), "{name}");
        }
        for name in ["/a", "a/", "a//b", "a b", "a=b", "a,b", "ä", "a\0"] {
            let error = check_name(name, "name").unwrap_err();
            assert!(error.status == Status::Invalid && error.message.starts_with("name is "), "{error}");
        }
        assert_eq!(check_name("", "name").unwrap_err().status, Status::Invalid);
        assert!(check_path("", "prefix").is_ok());
        assert_eq!(check_name(&"n".repeat(128), "name").unwrap_err().status, Status::Limit);
    }
}
