//! Maps bytes back to requests: which requests of the caller's list a slice carries, and how many bytes of each.
//! `route` uses the cursor to cut slices; `complete`, which lies below `plan`, uses it for the results of requests.

use crate::types::{Request, Slice};

/// The place of a byte in the plan's order: the position of a request, and an offset within it.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    order: &'a [u32],
    requests: &'a [Request],
    pub(crate) position: u32,
    pub(crate) offset: u64,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor. An empty `order` is the caller's own order. `offset` may run past the request.
    pub(crate) fn new(order: &'a [u32], requests: &'a [Request], position: u32, offset: u64) -> Cursor<'a> {
        Cursor { order, requests, position, offset }
    }

    /// Returns the index in the caller's list of the request that the cursor is in.
    pub(crate) fn index(&self) -> u32 {
        if self.order.is_empty() {
            self.position
        } else {
            self.order[self.position as usize]
        }
    }

    /// Returns the bytes from the cursor to the end of its request. Call `settle` first.
    pub(crate) fn left(&self) -> u64 {
        self.requests[self.index() as usize].length - self.offset
    }

    /// Moves a cursor whose offset runs past its request into the request where that byte lies. Panics if no such
    /// request exists: the slice or range is not of this plan.
    pub(crate) fn settle(&mut self) {
        // Most offsets are 0 and need no look at the request, since no request is empty.
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

/// Returns the requests that a slice covers, in the slice's order: (index in the caller's list, byte offset within the
/// request, bytes). The bytes add up to the slice's length. `plan_order` is `Plan::order`.
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
