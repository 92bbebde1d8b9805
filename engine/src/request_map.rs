//! From bytes back to requests: which requests of the caller's list a slice carries, and how many bytes
//! of each. `route` walks forward with it while cutting; `complete`, which lies below `plan`, uses it
//! for per-request results.

use crate::types::{Request, Slice};

/// A byte's place in the plan's order: position of a request, and offset within it.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    order: &'a [u32],
    requests: &'a [Request],
    pub(crate) position: u32,
    pub(crate) offset: u64,
}

impl<'a> Cursor<'a> {
    /// `order` empty is the caller's own order. `offset` may run past the request.
    pub(crate) fn new(order: &'a [u32], requests: &'a [Request], position: u32, offset: u64) -> Cursor<'a> {
        Cursor { order, requests, position, offset }
    }

    /// Index in the caller's list of the request that the cursor is in.
    pub(crate) fn index(&self) -> u32 {
        if self.order.is_empty() {
            self.position
        } else {
            self.order[self.position as usize]
        }
    }

    /// Bytes from the cursor to the end of its request. Call `settle` first.
    pub(crate) fn left(&self) -> u64 {
        self.requests[self.index() as usize].length - self.offset
    }

    /// Brings an offset that runs past its request into the request that it leads to. Panics when
    /// there is none: a slice or range that is not of this plan.
    pub(crate) fn settle(&mut self) {
        // Most offsets are 0: no need to look at the request then, since none is empty.
        while self.offset != 0 {
            let length = self.requests[self.index() as usize].length;
            if self.offset < length {
                return;
            }
            self.offset -= length;
            self.position += 1;
        }
    }
}

/// Which requests a slice covers: (index in the caller's list, byte offset within the request, bytes),
/// in the slice's order; the bytes add up to the slice's length. `plan_order` is `Plan::order`.
pub fn requests_of<'a>(
    plan_order: &'a [u32],
    requests: &'a [Request],
    slice: &Slice,
) -> impl Iterator<Item = (u32, u64, u64)> + 'a {
    let mut cursor = Cursor::new(plan_order, requests, slice.first, slice.first_offset);
    let mut left = u64::from(slice.length);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        cursor.settle();
        let part = (cursor.index(), cursor.offset, cursor.left().min(left));
        left -= part.2;
        cursor.offset += part.2;
        Some(part)
    })
}
