//! Text keys of other pools, each of which names a chunk and the rank whose share of the chunk it is. Users of those
//! pools keep their keys: a binding reads the rank out of the text, and the rest becomes a chunk's own hash.
//!
//! A value of another program's text is checked where it is read; `check` does the same for one that was built here.

use super::digest::{parse_hex, write_hex};
use crate::limits::FORM_BYTES_MAX;
use ferry::status::Result;
use ferry::Error;
use std::fmt;
use std::str::{FromStr, Split};

/// AscendStore: `{model}@pcp{n}@dcp{n}@head_or_tp_rank:{n}@pp_rank:{n}@{hex}`. Newer versions put
/// `@group:{n}@cache_role:{role}@cache_family:{family}` before the hash. The key of a single layer has
/// `@layer_id:{n}` before the hash, and no `pp_rank`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AscendKey {
    pub model: String,
    pub pcp_rank: u32,
    pub dcp_rank: u32,
    pub head_or_tp_rank: u32,
    /// None in the key of a layer.
    pub pp_rank: Option<u32>,
    pub group: Option<AscendGroup>,
    pub layer: Option<u32>,
    pub hash: Vec<u8>,
}

/// The cache group of an [`AscendKey`]: `kv` and `default`, unless the model mixes caches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AscendGroup {
    pub group: u32,
    pub role: String,
    pub family: String,
}

/// LMCache: `vllm@{model}@{world}@{worker}@{hash:016x}`, and `@{layer}` after it in the key of a single layer. The
/// text has "_" for each "/" of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LmcacheKey {
    pub model: String,
    pub world: u32,
    pub worker: u32,
    pub hash: u64,
    pub layer: Option<u32>,
}

/// LMCache's server: `{model}@{kv_rank:08x}@{object_group_id:x}@{hex}`, and `@{cache_salt}` where there is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    pub model: String,
    /// World size, rank in the world, size and rank in the host, a byte each: [`ObjectKey::ranks`].
    pub kv_rank: u32,
    pub group: u32,
    pub hash: Vec<u8>,
    /// Empty: none.
    pub salt: String,
}

impl AscendKey {
    pub fn check(&self) -> Result<()> {
        check_text("model", &self.model, "")?;
        if self.pp_rank.is_some() == self.layer.is_some() {
            return Err(Error::invalid("pp_rank: a key has either pp_rank or layer_id"));
        }
        if let Some(group) = &self.group {
            check_text("cache_role", &group.role, "@")?;
            check_text("cache_family", &group.family, "@")?;
        }
        check_hash(&self.hash)
    }
}

impl fmt::Display for AscendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@pcp{}@dcp{}", self.model, self.pcp_rank, self.dcp_rank)?;
        write!(f, "@head_or_tp_rank:{}", self.head_or_tp_rank)?;
        self.pp_rank.map_or(Ok(()), |rank| write!(f, "@pp_rank:{rank}"))?;
        if let Some(AscendGroup { group, role, family }) = &self.group {
            write!(f, "@group:{group}@cache_role:{role}@cache_family:{family}")?;
        }
        self.layer.map_or(Ok(()), |layer| write!(f, "@layer_id:{layer}"))?;
        f.write_str("@")?;
        write_hex(f, &self.hash)
    }
}

impl FromStr for AscendKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<AscendKey> {
        check_text("key", text, "")?;
        // A model's name may contain "@", and the fields before the rank do not.
        let Some(ranks) = text.rfind("@pcp") else { return Err(wrong("pcp", text)) };
        let mut fields = Fields(text[ranks + 1..].split('@').peekable());
        let key = AscendKey {
            model: text[..ranks].into(),
            pcp_rank: fields.number("pcp", "pcp")?,
            dcp_rank: fields.number("dcp", "dcp")?,
            head_or_tp_rank: fields.number("head_or_tp_rank", "head_or_tp_rank:")?,
            pp_rank: fields
                .next_begins("pp_rank:")
                .then(|| fields.number("pp_rank", "pp_rank:"))
                .transpose()?,
            group: fields.next_begins("group:").then(|| fields.group()).transpose()?,
            layer: fields
                .next_begins("layer_id:")
                .then(|| fields.number("layer_id", "layer_id:"))
                .transpose()?,
            hash: fields.hash()?,
        };
        fields.end()?;
        key.check().map(|()| key)
    }
}

impl LmcacheKey {
    pub fn check(&self) -> Result<()> {
        check_text("model", &self.model, "@")
    }
}

impl fmt::Display for LmcacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.model.replace('/', "_");
        write!(f, "vllm@{model}@{}@{}@{:016x}", self.world, self.worker, self.hash)?;
        self.layer.map_or(Ok(()), |layer| write!(f, "@{layer}"))
    }
}

impl FromStr for LmcacheKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<LmcacheKey> {
        check_text("key", text, "")?;
        let mut fields = Fields(text.split('@').peekable());
        fields.take("format", "vllm").and_then(|rest| {
            if rest.is_empty() {
                Ok(())
            } else {
                Err(wrong("format", rest))
            }
        })?;
        let key = LmcacheKey {
            model: fields.take("model", "")?.into(),
            world: fields.number("world", "")?,
            worker: fields.number("worker", "")?,
            hash: fields.take("hash", "").and_then(|digits| parse_radix16("hash", digits, 16))?,
            layer: fields.next_begins("").then(|| fields.number("layer", "")).transpose()?,
        };
        fields.end()?;
        key.check().map(|()| key)
    }
}

impl ObjectKey {
    /// Returns world size, rank in the world, size of the host's world and rank in it.
    pub fn ranks(&self) -> [u8; 4] {
        self.kv_rank.to_be_bytes()
    }

    pub fn check(&self) -> Result<()> {
        check_text("model", &self.model, "@")?;
        if !self.salt.is_empty() {
            check_text("salt", &self.salt, "@/\\\0")?;
        }
        check_hash(&self.hash)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:08x}@{:x}@", self.model, self.kv_rank, self.group)?;
        write_hex(f, &self.hash)?;
        if self.salt.is_empty() {
            Ok(())
        } else {
            write!(f, "@{}", self.salt)
        }
    }
}

impl FromStr for ObjectKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<ObjectKey> {
        check_text("key", text, "")?;
        let mut fields = Fields(text.split('@').peekable());
        let key = ObjectKey {
            model: fields.take("model", "")?.into(),
            kv_rank: fields.take("kv_rank", "").and_then(|digits| parse_radix16("kv_rank", digits, 8))?
                as u32,
            group: fields.hex_number("object_group_id")?,
            hash: fields.hash()?,
            salt: match fields.0.next() {
                Some("") => return Err(wrong("salt", "")),
                salt => salt.unwrap_or_default().into(),
            },
        };
        fields.end()?;
        key.check().map(|()| key)
    }
}

/// The fields of a text, which "@" separates.
struct Fields<'a>(std::iter::Peekable<Split<'a, char>>);

impl<'a> Fields<'a> {
    fn next_begins(&mut self, prefix: &str) -> bool {
        self.0.peek().is_some_and(|field| field.starts_with(prefix))
    }

    fn take(&mut self, name: &str, prefix: &str) -> Result<&'a str> {
        let field = self.0.next().ok_or_else(|| Error::invalid(format!("{name}: missing")))?;
        field.strip_prefix(prefix).ok_or_else(|| wrong(name, field))
    }

    fn number(&mut self, name: &str, prefix: &str) -> Result<u32> {
        let digits = self.take(name, prefix)?;
        // Only the text that a number would be written as: the parser of numbers takes "+1" and "01" too.
        digits
            .parse()
            .ok()
            .filter(|number: &u32| number.to_string() == digits)
            .ok_or_else(|| wrong(name, digits))
    }

    fn hex_number(&mut self, name: &str) -> Result<u32> {
        let digits = self.take(name, "")?;
        let number = u32::from_str_radix(digits, 16).ok().filter(|number| format!("{number:x}") == digits);
        number.ok_or_else(|| wrong(name, digits))
    }

    fn group(&mut self) -> Result<AscendGroup> {
        Ok(AscendGroup {
            group: self.number("group", "group:")?,
            role: self.take("cache_role", "cache_role:")?.into(),
            family: self.take("cache_family", "cache_family:")?.into(),
        })
    }

    fn hash(&mut self) -> Result<Vec<u8>> {
        let digits = self.take("hash", "")?;
        let bytes =
            if digits.bytes().any(|byte| byte.is_ascii_uppercase()) { None } else { parse_hex(digits) };
        bytes.ok_or_else(|| wrong("hash", digits))
    }

    fn end(&mut self) -> Result<()> {
        self.0.next().map_or(Ok(()), |field| Err(wrong("end", field)))
    }
}

fn wrong(name: &str, text: &str) -> Error {
    Error::invalid(format!("{name}: {text:?}"))
}

/// Reads exactly `digits` lower-case hexadecimal digits.
fn parse_radix16(name: &str, text: &str, digits: usize) -> Result<u64> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let number =
        (text.len() == digits && text.bytes().all(is_digit)).then(|| u64::from_str_radix(text, 16).ok());
    number.flatten().ok_or_else(|| wrong(name, text))
}

fn check_hash(hash: &[u8]) -> Result<()> {
    super::check_bytes("hash", hash, FORM_BYTES_MAX)
}

fn check_text(name: &str, text: &str, without: &str) -> Result<()> {
    super::check_bytes(name, text.as_bytes(), FORM_BYTES_MAX)?;
    if text.contains(|letter| without.contains(letter)) {
        Err(wrong(name, text))
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[path = "forms_tests.rs"]
mod tests;
