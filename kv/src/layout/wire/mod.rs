//! A layout as bytes, for peers: `export` and `import`. Neighbours: `check`, which has the last word on both;
//! `wire/layers`, which has the fields shapes and layers; `wire/bytes`, which reads and writes numbers.
//!
//! Numbers are little-endian. At most 64 KiB in all.
//!
//! | bytes | |
//! |---|---|
//! | 4 | "FKVL" |
//! | 2 | version: 1. A change that a reader of this version would misread has another |
//! | 2 | 0 |
//! | 4 | length of all, from the first byte |
//! | | the fields, in any order, each once |
//!
//! A field:
//!
//! | bytes | |
//! |---|---|
//! | 2 | tag |
//! | 2 | flags: 1 if a reader that does not know the tag must refuse the layout. Others are refused |
//! | 4 | length of the rest |
//!
//! | tag | field | contents |
//! |---|---|---|
//! | 1, 2, 3, 4 | model, revision, cache, rope | UTF-8 |
//! | 5 | shard | 8 u32: tp_rank, tp_size, pp_rank, pp_size, pcp_rank, pcp_size, dcp_size, turn_tokens |
//! | 6 | groups | each 3 u32: kind (0 Full, 1 Window, 2 Latent, 3 State), block_tokens, a window's tokens or 0 |
//! | 7 | shapes | each what layers have in common, see below; at most 1,024 |
//! | 8 | layers | in order, see below |
//!
//! | of a shape | |
//! |---|---|
//! | 6 u32 | group, stage, heads, pairs, elements, element_bytes |
//! | u8 | has_memory: 0 or 1. Only with 1: |
//! | 6 u64 | blocks, and the strides of block, pair, head, token, element |
//!
//! | of a layer | |
//! |---|---|
//! | u16 | index into shapes |
//! | u8 | how many bytes the name shares with the start of the name before |
//! | u8 | length of the name's rest |
//! | | the rest; the whole is UTF-8 |
//! | u64 | only with memory: its address less that of the layer before that has memory, modulo 2^64 |

mod bytes;
mod layers;

use super::limits::EXPORT_BYTES_MAX;
use super::{Group, GroupKind, Layout, ModelKey, Shard};
use bytes::{grow, limit, text, Reader, Writer};
use ferry::status::{Error, Result};
use ferry::Status;
use layers::{layers_in, layers_out, shapes_in};

const MAGIC: [u8; 4] = *b"FKVL";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 12;
const REQUIRED: u16 = 1;

/// The names of the fields; a field's tag is its index + 1.
const FIELDS: [&str; 8] = ["model", "revision", "cache", "rope", "shard", "groups", "shapes", "layers"];

impl Layout {
    /// Returns the layout as bytes, which `import` takes. LIMIT if they are more than 64 KiB, which takes long names
    /// without common starts or as many shapes as layers; otherwise the errors of `check`, but that layers share memory.
    pub fn export(&self) -> Result<Vec<u8>> {
        self.check_each()?;
        let mut out = Writer(Vec::new());
        out.0.extend(MAGIC);
        out.u16(VERSION);
        out.u16(0);
        out.u32(0);
        let (shapes, layers) = layers_out(&self.layers);
        let [model, revision, cache, rope] = self.key.fields().map(|(_, value)| value.as_bytes());
        let (shard, groups) = (shard_out(&self.shard), groups_out(&self.groups));
        let contents = [model, revision, cache, rope, &shard, &groups, &shapes, &layers];
        for (tag, content) in (1..).zip(contents) {
            out.u16(tag);
            out.u16(REQUIRED);
            out.u32(content.len() as u32);
            out.0.extend(content);
        }
        let length = out.0.len();
        if length > EXPORT_BYTES_MAX {
            return Err(limit(format!("the layout takes {length} bytes; at most {EXPORT_BYTES_MAX}")));
        }
        out.0[8..HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(out.0)
    }

    /// Reads what `export` wrote, and checks it. The bytes may be anyone's: INVALID if they make no sense, VERSION if a
    /// later ferry wrote them, LIMIT if something is too large, NO_MEMORY, or an error of `check`.
    pub fn import(bytes: &[u8]) -> Result<Layout> {
        let layout = Layout::import_of_peer(bytes)?;
        layout.check()?;
        Ok(layout)
    }

    /// As `import`; the layout is checked by `check_each` alone.
    pub(crate) fn import_of_peer(bytes: &[u8]) -> Result<Layout> {
        let fields = fields_in(bytes)?;
        let [model, revision, cache, rope, shard, groups, shapes, layers] = fields;
        let key = ModelKey {
            model: text(&[model.rest()], "model")?,
            revision: text(&[revision.rest()], "revision")?,
            cache: text(&[cache.rest()], "cache")?,
            rope: text(&[rope.rest()], "rope")?,
        };
        let layers = layers_in(layers, &shapes_in(shapes)?)?;
        let layout = Layout { key, shard: shard_in(shard)?, groups: groups_in(groups)?, layers };
        layout.check_each()?;
        Ok(layout)
    }
}

/// Finds the fields' contents, in the order of their tags.
fn fields_in(bytes: &[u8]) -> Result<[Reader<'_>; 8]> {
    if bytes.len() > EXPORT_BYTES_MAX {
        return Err(limit(format!("the layout has {} bytes; at most {EXPORT_BYTES_MAX}", bytes.len())));
    }
    let mut input = Reader::new("header", bytes);
    if input.array()? != MAGIC {
        return Err(Error::invalid("these are not the bytes of a layout: they do not start with FKVL"));
    }
    let version = input.u16()?;
    if version != VERSION {
        let text = format!("the layout has version {version}; this ferry reads {VERSION}");
        return Err(Error::new(Status::Version, text));
    }
    if input.u16()? != 0 {
        return Err(Error::invalid("the layout's reserved bytes are not 0"));
    }
    let length = input.u32()?;
    if length as usize != bytes.len() {
        return Err(Error::invalid(format!("the layout says {length} bytes, but has {}", bytes.len())));
    }
    let mut found = [None; 8];
    while !input.is_empty() {
        let (tag, flags, length) = (input.u16()?, input.u16()?, input.u32()?);
        let content = input.take(length as usize)?;
        let index = usize::from(tag).wrapping_sub(1);
        let is_known = index < found.len();
        if flags & !REQUIRED != 0 || (flags == REQUIRED && !is_known) {
            let text = format!("the layout needs a later ferry: its field {tag} has the flags {flags}");
            return Err(Error::new(Status::Version, text));
        }
        let Some(place) = found.get_mut(index) else { continue };
        if place.replace(content).is_some() {
            return Err(Error::invalid(format!("the layout's field {} is there twice", FIELDS[index])));
        }
    }
    let mut readers = [Reader::new("", &[]); 8];
    for ((reader, content), name) in readers.iter_mut().zip(found).zip(FIELDS) {
        let content =
            content.ok_or_else(|| Error::invalid(format!("the layout's field {name} is missing")))?;
        *reader = Reader::new(name, content);
    }
    Ok(readers)
}

fn shard_out(shard: &Shard) -> Vec<u8> {
    let Shard { tp_rank, tp_size, pp_rank, pp_size, pcp_rank, pcp_size, dcp_size, turn_tokens } = *shard;
    let mut out = Writer(Vec::new());
    for value in [tp_rank, tp_size, pp_rank, pp_size, pcp_rank, pcp_size, dcp_size, turn_tokens] {
        out.u32(value);
    }
    out.0
}

fn shard_in(mut input: Reader) -> Result<Shard> {
    let shard = Shard {
        tp_rank: input.u32()?,
        tp_size: input.u32()?,
        pp_rank: input.u32()?,
        pp_size: input.u32()?,
        pcp_rank: input.u32()?,
        pcp_size: input.u32()?,
        dcp_size: input.u32()?,
        turn_tokens: input.u32()?,
    };
    input.end()?;
    Ok(shard)
}

fn groups_out(groups: &[Group]) -> Vec<u8> {
    let mut out = Writer(Vec::new());
    for group in groups {
        let (kind, window) = match group.kind {
            GroupKind::Full => (0, 0),
            GroupKind::Window { tokens } => (1, tokens),
            GroupKind::Latent => (2, 0),
            GroupKind::State => (3, 0),
        };
        out.u32(kind);
        out.u32(group.block_tokens);
        out.u32(window);
    }
    out.0
}

fn groups_in(mut input: Reader) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    while !input.is_empty() {
        let (kind, block_tokens, window) = (input.u32()?, input.u32()?, input.u32()?);
        let kind = match (kind, window) {
            (0, 0) => GroupKind::Full,
            (1, tokens) => GroupKind::Window { tokens },
            (2, 0) => GroupKind::Latent,
            (3, 0) => GroupKind::State,
            _ => {
                let index = groups.len();
                return Err(Error::invalid(format!(
                    "groups[{index}] has kind {kind} with a window of {window}"
                )));
            }
        };
        grow(&mut groups, Group { kind, block_tokens })?;
    }
    Ok(groups)
}

#[cfg(test)]
mod tests;
