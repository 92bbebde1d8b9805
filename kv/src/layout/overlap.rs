//! Whether two layers of a group share a byte: then blocks with different ids would overwrite each other. Layers may lie
//! in each other's gaps, as in a tensor of [blocks][layers][...], so places are compared, and not extents.
//! Neighbours: `check`, which asks; `memory`, which has the dimensions, and has checked that they nest.

use super::Layout;

/// Steps of the comparison, for all pairs of layers. 1,024 layers in the gaps of each other take half of them. Layers
/// with strides that do not divide each other may take a step for each block; pairs beyond the bound pass unseen.
const STEPS_MAX: u32 = 1 << 20;

/// Two layers of one group that have a byte in common, by their index, and the byte's address.
pub(super) struct Shared {
    pub layers: [usize; 2],
    pub address: u64,
}

impl Layout {
    /// Finds two layers of a group that share a byte. For layers whose own bytes are checked.
    pub(super) fn shared(&self) -> Option<Shared> {
        let mut dimensions = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if let Some(memory) = &layer.memory {
                let (bytes, outer) = layer.runs(memory, self);
                dimensions.push((layer.group, memory.address, index, bytes, outer));
            }
        }
        dimensions.sort_by_key(|(group, address, ..)| (*group, *address));
        let sets: Vec<(u32, usize, Set)> = dimensions
            .iter()
            .map(|(group, start, index, bytes, outer)| (*group, *index, Set::new(*start, *bytes, outer)))
            .collect();
        let mut steps = STEPS_MAX;
        for (at, (group, index, set)) in sets.iter().enumerate() {
            let behind = sets.get(at + 1..).unwrap_or_default();
            let near = behind.iter().take_while(|(of, _, it)| of == group && it.start < set.end());
            for (_, other, it) in near {
                if let Some(address) = set.meets(it, &mut steps) {
                    let layers = [*index.min(other), *index.max(other)];
                    return Some(Shared { layers, address });
                }
            }
        }
        None
    }
}

/// Equal runs of bytes, repeated in dimensions that nest.
#[derive(Clone, Copy)]
struct Set<'a> {
    start: u64,
    /// The length of one run.
    bytes: u64,
    /// The outermost dimension; of size 1 only if there is none.
    stride: u64,
    size: u64,
    /// (stride, size) of the others, outermost first.
    inner: &'a [(u64, u64)],
}

impl<'a> Set<'a> {
    fn new(start: u64, bytes: u64, dimensions: &'a [(u64, u64)]) -> Set<'a> {
        match dimensions {
            [] => Set { start, bytes, stride: 0, size: 1, inner: &[] },
            [(stride, size), inner @ ..] => Set { start, bytes, stride: *stride, size: *size, inner },
        }
    }

    /// One element of the outermost dimension.
    fn element(&self, start: u64) -> Set<'a> {
        Set::new(start, self.bytes, self.inner)
    }

    /// As many elements of the outermost dimension, from this address on.
    fn part(&self, start: u64, size: u64) -> Set<'a> {
        if size == 1 {
            self.element(start)
        } else {
            Set { start, size, ..*self }
        }
    }

    fn extent(&self) -> u64 {
        let inner = self.inner.iter().map(|(stride, size)| stride * (size - 1)).sum::<u64>();
        self.bytes + self.stride * (self.size - 1) + inner
    }

    fn end(&self) -> u64 {
        self.start + self.extent()
    }

    /// Returns the address of a byte that both have.
    fn meets(&self, other: &Set, steps: &mut u32) -> Option<u64> {
        *steps = steps.checked_sub(1)?;
        if self.end() <= other.start || other.end() <= self.start {
            return None;
        }
        let (wide, narrow) = if self.stride < other.stride { (other, self) } else { (self, other) };
        let Set { start, stride, size, .. } = *narrow;
        if wide.size == 1 {
            return Some(wide.start.max(start));
        }
        let is_divided = stride > 0 && wide.stride % stride == 0 && narrow.extent() > wide.stride;
        if !is_divided {
            return wide.elements_meet(narrow, 1, steps);
        }
        // The narrow one as copies, a wide stride apart, of as many elements as have room in it, and a rest of fewer.
        let room = wide.stride / stride;
        let (copies, rest) = (size / room, size % room);
        let found = wide.elements_meet(&narrow.part(start, room), copies, steps);
        if rest == 0 {
            return found; // the rest would begin behind the set's end, perhaps above a u64
        }
        let start = start + copies * wide.stride;
        found.or_else(|| wide.elements_meet(&narrow.part(start, rest), 1, steps))
    }

    /// Compares this set's elements with copies of another set, which lie this set's stride apart.
    ///
    /// ```text
    /// element i of this set, copy j of the other:  their distance depends on i - j alone
    /// ```
    fn elements_meet(&self, copy: &Set, copies: u64, steps: &mut u32) -> Option<u64> {
        let (element, stride) = (self.element(self.start), i128::from(self.stride));
        let apart = i128::from(copy.start) - i128::from(self.start);
        let least = (apart - i128::from(element.extent())).div_euclid(stride) + 1;
        let most = (apart + i128::from(copy.extent()) - 1).div_euclid(stride);
        for number in least.max(1 - i128::from(copies))..=most.min(i128::from(self.size) - 1) {
            if *steps == 0 {
                break;
            }
            let ahead = number.unsigned_abs() as u64 * self.stride;
            let (one, other) = if number < 0 { (0, ahead) } else { (ahead, 0) };
            let copy = Set { start: copy.start + other, ..*copy };
            if let Some(address) = self.element(self.start + one).meets(&copy, steps) {
                return Some(address);
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "overlap_tests.rs"]
mod tests;
