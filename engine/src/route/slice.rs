//! Cuts ranges into slices that a path can post. This is the last step before `transport`, and the first step that is
//! repeated when slices move to another path.

use crate::request_map::Cursor;
use crate::status::{Error, Result, Status};
use crate::try_reserve::reserve;
use crate::types::{Range, Request, Slice};

/// Returns slices that cover `ranges` in order, none longer than `slice_bytes_max`. Each names the request it begins
/// in. `order` is the plan's and `requests` the caller's. INVALID if `slice_bytes_max` is 0, NO_MEMORY.
pub fn slice(
    ranges: &[Range],
    order: &[u32],
    requests: &[Request],
    slice_bytes_max: u32,
) -> Result<Vec<Slice>> {
    if slice_bytes_max == 0 {
        return Err(Error::invalid("slice_bytes_max is 0"));
    }
    let mut slices = Vec::new();
    reserve(&mut slices, count(ranges, slice_bytes_max)?)?;
    for range in ranges {
        let mut cursor = Cursor::new(order, requests, range.first, 0);
        let mut done = 0;
        while done < range.length {
            cursor.settle();
            let length = (range.length - done).min(u64::from(slice_bytes_max)) as u32;
            slices.push(Slice {
                local: range.local + done,
                remote: range.remote + done,
                region: range.region,
                first_offset: cursor.offset,
                length,
                first: cursor.position,
            });
            done += u64::from(length);
            cursor.offset += u64::from(length);
        }
    }
    Ok(slices)
}

/// Returns the number of slices, so that they are allocated once.
fn count(ranges: &[Range], slice_bytes_max: u32) -> Result<usize> {
    let slices_of = |range: &Range| range.length.div_ceil(u64::from(slice_bytes_max));
    let count = ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(slices_of(range)));
    count
        .and_then(|count| usize::try_from(count).ok())
        .ok_or_else(|| Error::new(Status::NoMemory, "the transfer has too many slices"))
}
