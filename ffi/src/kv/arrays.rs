//! Arrays of structs that the caller fills. Each element carries its struct_size, as single structs do (`versioned`),
//! and the elements lie that far apart.

use crate::versioned::{read, Versioned};
use engine::status::Result;
use engine::{Error, Status};
use std::mem::align_of;

/// Reads `count` elements, of which there may be at most `most`. The errors name the element.
///
/// # Safety
/// `pointer` is NULL, or points to `count` elements, each with as many bytes as the first one's struct_size says.
pub unsafe fn read_array<T: Versioned>(
    pointer: *const T,
    count: u64,
    most: usize,
    what: &str,
) -> Result<Vec<T>> {
    if count > most as u64 {
        return Err(Error::new(Status::Limit, format!("{what} has {count} entries; at most {most}")));
    }
    if count > 0 && pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL, but has {count} entries")));
    }
    let mut elements = Vec::new();
    let mut apart = 0;
    for index in 0..count as usize {
        let element = pointer.wrapping_byte_add(index * apart);
        let name = format!("{what}[{index}]");
        // SAFETY: the caller's promise; `apart` is the first element's struct_size.
        let value = unsafe { read(element, &name) }?;
        // SAFETY: read takes a struct whose size it could read.
        let size = unsafe { element.cast::<u32>().read() } as usize;
        if index == 0 {
            apart = size;
        }
        if size != apart || size % align_of::<T>() != 0 {
            return Err(Error::invalid(format!(
                "{name}.struct_size is {size}; the elements of an array have one size, a multiple of {}",
                align_of::<T>()
            )));
        }
        elements.extend(value);
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Sample {
        struct_size: u32,
        early: u32,
        late: u64,
    }

    // SAFETY: repr(C), begins with struct_size, integers only, no padding.
    unsafe impl Versioned for Sample {
        const SIZE_MIN: usize = 8;
    }

    fn reading(words: &[u64; 6], count: u64) -> std::result::Result<Vec<(u32, u64)>, String> {
        // SAFETY: the sizes used below reach at most 48 bytes.
        let read = unsafe { read_array::<Sample>(words.as_ptr().cast(), count, 5, "list") };
        read.map(|all| all.iter().map(|it| (it.early, it.late)).collect()).map_err(|error| error.message)
    }

    #[test]
    fn elements_stand_their_own_size_apart() {
        let word = |size: u64, early: u64| early << 32 | size;
        let known = [word(16, 1), 2, word(16, 3), 4, word(16, 5), 6];
        assert_eq!(reading(&known, 3), Ok(vec![(1, 2), (3, 4), (5, 6)]));
        assert_eq!(reading(&known, 0), Ok(vec![]));
        let older = [1, 2, 3, 4, 5, 6].map(|early| word(8, early));
        assert_eq!(reading(&older, 5), Ok((1..6).map(|early| (early, 0)).collect()));
        let newer = [word(24, 1), 2, 0, word(24, 3), 4, 0];
        assert_eq!(reading(&newer, 2), Ok(vec![(1, 2), (3, 4)]));
    }

    #[test]
    fn elements_of_other_sizes_are_refused_by_their_index() {
        let word = |size: u64| size;
        let refused = |words: [u64; 6], count| reading(&words, count).unwrap_err();
        assert!(refused([word(16), 0, word(8), 0, 0, 0], 2).starts_with("list[1].struct_size is 8; "));
        assert!(refused([word(16), 0, word(0), 0, 0, 0], 2).starts_with("list[1].struct_size is 0, "));
        assert!(refused([word(12), 0, 0, 0, 0, 0], 1).contains("a multiple of 8"));
        assert!(refused([word(24), 0, 1, 0, 0, 0], 1).starts_with("list[0] sets a field"));
        assert_eq!(refused([0; 6], 6), "list has 6 entries; at most 5");
    }
}
