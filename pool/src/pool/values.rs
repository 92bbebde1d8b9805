//! The values of a call: keys, and the caller's registered memory.

use ferry::status::{Error, Result};
use ferry::types::MemoryKind;
use ferry::{Access, Engine, Status};

use crate::key::Digest;
use crate::limits::SEGMENTS_OF_VALUE_MAX;
use crate::node::SumOf;
use crate::sum::Sum;
use crate::wire::{Segment, Wanted};

use super::calls::check_count;
use super::Shared;

/// A key, and the memory of its value: pieces (address, bytes) of registered memory, in the order of the value's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub key: Digest,
    pub memory: Vec<(u64, u64)>,
}

/// Values whose sums are being taken, a bounded number of bytes at a time.
pub(super) struct Summing {
    pub of: SumOf,
    values: Vec<Vec<(u64, u64)>>,
    /// The sums of the first values. None: the memory could not be read.
    pub sums: Vec<Option<u64>>,
    /// Of the next value: its pieces that are summed, the bytes of the next piece that are, and their sum.
    piece: usize,
    offset: u64,
    sum: Sum,
}

impl Summing {
    pub fn new(of: SumOf, values: Vec<Vec<(u64, u64)>>) -> Summing {
        Summing { of, values, sums: Vec::new(), piece: 0, offset: 0, sum: Sum::default() }
    }

    /// Sums up to `left` bytes, and takes them off. Returns whether all values are summed.
    pub fn go_on(&mut self, engine: &Engine, left: &mut u64) -> bool {
        while let Some(value) = self.values.get(self.sums.len()) {
            let Some((address, bytes)) = value.get(self.piece).copied() else {
                let sum = self.sum.value();
                self.end_value(Some(sum));
                continue;
            };
            if *left == 0 {
                return false;
            }
            let part = (bytes - self.offset).min(*left);
            let sum = &mut self.sum;
            if part > 0 && engine.look_at(address + self.offset, part, |bytes| sum.add(bytes)).is_err() {
                self.end_value(None);
                continue;
            }
            (self.offset, *left) = (self.offset + part, *left - part);
            if self.offset == bytes {
                (self.piece, self.offset) = (self.piece + 1, 0);
            }
        }
        true
    }

    fn end_value(&mut self, sum: Option<u64>) {
        self.sums.push(sum);
        (self.piece, self.offset) = (0, 0);
        self.sum = Sum::default();
    }
}

impl Shared {
    /// Looks the memory of values up. Returns for each whether the CPU can read it. The error names the value whose
    /// memory is not registered (NOT_REGISTERED), or whose region does not grant `access` to peers (ACCESS). `sum`: the
    /// values are summed, where the CPU can read them.
    pub(super) fn wanted(
        &self,
        values: &[Value],
        access: Access,
        sum: bool,
    ) -> Result<(Vec<Wanted>, Vec<bool>)> {
        check_count(values.len())?;
        let mut on_host = Vec::with_capacity(values.len());
        let wanted = values.iter().enumerate().map(|(nth, value)| {
            if value.memory.len() > SEGMENTS_OF_VALUE_MAX {
                let pieces = value.memory.len();
                let message = format!(
                    "values[{nth}].memory: {pieces} pieces, and at most {SEGMENTS_OF_VALUE_MAX} can be"
                );
                return Err(Error { request_index: Some(nth as u64), ..Error::new(Status::Limit, message) });
            }
            let (mut segments, mut is_host) = (Vec::with_capacity(value.memory.len()), true);
            for (at, (address, bytes)) in value.memory.iter().copied().enumerate() {
                let named = |error: Error| {
                    let message = format!("values[{nth}].memory[{at}]: {}", error.message);
                    Error { message, request_index: Some(nth as u64), ..error }
                };
                if bytes == 0 {
                    continue;
                }
                let region = self.engine.region_at(address, bytes).map_err(named)?;
                if region.access.0 & access.0 != access.0 {
                    let right = if access == Access::REMOTE_WRITE { "REMOTE_WRITE" } else { "REMOTE_READ" };
                    let text =
                        format!("its region grants peers no {right}: the value's owner moves the bytes");
                    return Err(named(Error::new(Status::Access, text)));
                }
                is_host &= matches!(region.kind, MemoryKind::Host | MemoryKind::Pinned);
                segments.push(Segment { address, bytes, region: region.region.raw() });
            }
            on_host.push(is_host);
            let ranges = segments.iter().map(|segment| (segment.address, segment.bytes));
            let checksum = if sum && is_host { Some(self.sum(ranges)?) } else { None };
            Ok(Wanted { digest: value.key, checksum, segments })
        });
        Ok((wanted.collect::<Result<_>>()?, on_host))
    }

    /// Sums ranges of registered host memory.
    pub(super) fn sum(&self, ranges: impl Iterator<Item = (u64, u64)>) -> Result<u64> {
        let mut sum = Sum::default();
        for (address, bytes) in ranges.filter(|(_, bytes)| *bytes > 0) {
            self.engine.look_at(address, bytes, |part| sum.add(part))?;
        }
        Ok(sum.value())
    }
}
