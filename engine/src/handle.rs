//! Handles: 64-bit names of regions, peers, transfers and queues that can be checked before they are followed. 0 is no
//! handle.
//!
//! ```text
//! 63   62 61              48 47                    20 19         0
//! [kind ][  engine tag: 14  ][   generation: 28     ][ index: 20 ]
//! ```
//! The tags of a process's engines follow one another through 16,383 values, so a handle of another engine is
//! recognised. The first tag is random, so a handle from before the program's restart is recognised too, except once
//! in 16,383 restarts. A generation rises with each reuse of its index. The first generation is 1; only for regions,
//! which peers name, it is random, because of that exception.

use crate::status::{Error, Result, Status};

pub const INDEX_BITS: u32 = 20;
pub const GENERATION_BITS: u32 = 28;
pub const TAG_BITS: u32 = 14;
pub const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;
pub const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Region = 0,
    Peer = 1,
    Transfer = 2,
    Queue = 3,
}

/// The engine's part of its handles; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u16);

impl Tag {
    /// Returns the tag of an engine with this number. Numbers in sequence have different tags.
    pub fn of_engine(number: u64) -> Tag {
        Tag(1 + (number % ((1 << TAG_BITS) - 1)) as u16)
    }

    /// Returns a tag from random bits. 0 is avoided so that no valid handle is small.
    pub fn from_random(bits: u16) -> Tag {
        Tag((bits & ((1 << TAG_BITS) - 1)).max(1))
    }

    pub fn number(self) -> u16 {
        self.0
    }

    pub fn of(handle: u64) -> Tag {
        Tag((handle >> (INDEX_BITS + GENERATION_BITS)) as u16 & ((1 << TAG_BITS) - 1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    pub index: u32,
    pub generation: u32,
}

/// The parts of the handle by which an engine names itself as a peer. A table would come to them after 2^28 peers in
/// its last row.
pub const OWN: Parts = Parts { index: INDEX_MAX, generation: GENERATION_MAX };

/// Returns whether a peer's handle names the engine itself.
pub fn is_own(peer: u64) -> bool {
    const MASK: u64 = (GENERATION_MAX as u64) << INDEX_BITS | INDEX_MAX as u64;
    peer & MASK == MASK
}

pub fn make(kind: Kind, tag: Tag, parts: Parts) -> u64 {
    debug_assert!(parts.index <= INDEX_MAX && (1..=GENERATION_MAX).contains(&parts.generation));
    (kind as u64) << 62
        | (tag.0 as u64) << (INDEX_BITS + GENERATION_BITS)
        | (parts.generation as u64) << INDEX_BITS
        | parts.index as u64
}

/// Returns the next generation; skips 0.
pub fn next_generation(generation: u32) -> u32 {
    if generation >= GENERATION_MAX {
        1
    } else {
        generation + 1
    }
}

/// Checks a handle and splits it. INVALID for 0 or another kind, STALE for another engine's tag.
pub fn parse(kind: Kind, tag: Tag, handle: u64) -> Result<Parts> {
    if handle == 0 {
        return Err(Error::invalid(format!("{} handle is 0", name(kind))));
    }
    if handle >> 62 != kind as u64 {
        return Err(Error::invalid(format!("handle {handle:#x} is not a {} handle", name(kind))));
    }
    // Contract 7: a handle of an earlier incarnation is recognised.
    if Tag::of(handle) != tag {
        return Err(Error::new(
            Status::Stale,
            format!(
                "the {} belongs to another engine, or to an earlier start of it ({handle:#x})",
                name(kind)
            ),
        ));
    }
    let generation = (handle >> INDEX_BITS) as u32 & GENERATION_MAX;
    if generation == 0 {
        return Err(Error::invalid(format!("{} handle {handle:#x} has no generation", name(kind))));
    }
    Ok(Parts { index: handle as u32 & INDEX_MAX, generation })
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Region => "region",
        Kind::Peer => "peer",
        Kind::Transfer => "transfer",
        Kind::Queue => "queue",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_round_trip_at_their_limits() {
        let tag = Tag::from_random(0xffff);
        for parts in
            [Parts { index: 0, generation: 1 }, Parts { index: INDEX_MAX, generation: GENERATION_MAX }]
        {
            let handle = make(Kind::Queue, tag, parts);
            assert_eq!(parse(Kind::Queue, tag, handle).unwrap(), parts);
        }
    }

    #[cfg(not(feature = "sim"))]
    #[test]
    fn no_two_of_many_engines_of_a_process_have_one_tag() {
        let tag = |_| Tag::of_engine(crate::sys::random::next_u64()).number();
        let tags: std::collections::BTreeSet<_> = (0..10_000).map(tag).collect();
        assert!(tags.len() == 10_000 && !tags.contains(&0));
    }

    #[test]
    fn wrong_kind_engine_and_zero_are_told_apart() {
        let (ours, theirs) = (Tag::from_random(5), Tag::from_random(6));
        let handle = make(Kind::Peer, ours, Parts { index: 7, generation: 9 });
        assert_eq!(parse(Kind::Region, ours, handle).unwrap_err().status, Status::Invalid);
        assert_eq!(parse(Kind::Peer, theirs, handle).unwrap_err().status, Status::Stale);
        assert_eq!(parse(Kind::Peer, ours, 0).unwrap_err().status, Status::Invalid);
    }
}
