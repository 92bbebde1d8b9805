//! Structs that carry their size. A program and a library of different versions therefore agree on the
//! layout.
//!
//! ```text
//! in    [struct_size][ known to v1 ][ known to this library ][ unknown ]
//!        below v1: INVALID            missing: defaults (0)    must be zero, else UNSUPPORTED
//! out   min(the caller's size, this library's) bytes are written, and struct_size says how many
//! ```

use crate::pointers::is_usable;
use engine::{Error, Status};
use std::any::type_name;
use std::mem::{size_of, MaybeUninit};
use std::ptr;

/// No version has a struct above this size; a larger value means that the field was not set.
const SIZE_MAX: usize = 4096;

/// A struct of the ABI that begins with `struct_size`.
///
/// # Safety
/// `repr(C)`, the first field is the u32 `struct_size`, no implicit padding, and every bit pattern is
/// valid; pointers in it are raw.
pub unsafe trait Versioned: Copy {
    /// Size of the struct in the first version of the ABI; it never changes.
    const SIZE_MIN: usize;
}

fn name<T>() -> &'static str {
    let path = type_name::<T>();
    path.rsplit("::").next().unwrap_or(path)
}

fn check_size<T: Versioned>(size: usize, what: &str) -> Result<(), Error> {
    if (T::SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Ok(());
    }
    let expected = size_of::<T>();
    Err(Error::invalid(format!("{what} is {size}, but sizeof({}) is {expected}", name::<T>())))
}

/// Reads an input struct. Returns None for NULL.
///
/// # Safety
/// `pointer` is NULL or points to as many bytes as its `struct_size` says, at least four.
pub unsafe fn read<T: Versioned>(pointer: *const T, what: &str) -> Result<Option<T>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    if !is_usable(pointer) {
        return Err(Error::invalid(format!("{what} is misaligned")));
    }
    // SAFETY: not NULL, aligned; the struct begins with its size, which the caller has set.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    check_size::<T>(size, &format!("{what}.struct_size"))?;
    let known = size.min(size_of::<T>());
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `size` bytes are readable by the caller's promise, and `known` is neither above that nor
    // above T's size.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    for offset in known..size {
        // SAFETY: below `size`, as above.
        if unsafe { *pointer.cast::<u8>().add(offset) } != 0 {
            let message =
                format!("{what} sets a field at offset {offset} that this version of ferry doesn't know");
            return Err(Error::new(Status::Unsupported, message));
        }
    }
    // SAFETY: every bit pattern of a Versioned is valid, and all bytes are initialised.
    Ok(Some(unsafe { value.assume_init() }))
}

/// A caller's struct that the call fills; checked before the work.
pub struct Out<T: Versioned> {
    pointer: *mut T,
    size: usize,
}

impl<T: Versioned> Out<T> {
    /// Returns INVALID for NULL, a misaligned pointer, or a struct_size below that of the first version.
    ///
    /// # Safety
    /// `pointer` is NULL or points to as many bytes as its `struct_size` says, which the caller owns
    /// for as long as this lives.
    pub unsafe fn new(pointer: *mut T, what: &str) -> Result<Out<T>, Error> {
        if pointer.is_null() {
            return Err(Error::invalid(format!("{what} is NULL")));
        }
        if !is_usable(pointer) {
            return Err(Error::invalid(format!("{what} is misaligned")));
        }
        // SAFETY: not NULL, aligned; the struct begins with its size, which the caller has set.
        let size = unsafe { pointer.cast::<u32>().read() } as usize;
        check_size::<T>(size, &format!("{what}.struct_size"))?;
        Ok(Out { pointer, size })
    }

    /// The same for a struct whose struct_size the caller has left 0: it has what the first version has.
    ///
    /// # Safety
    /// `pointer` is not NULL, aligned, and points to a T of the first version or a later one, which the caller
    /// owns for as long as this lives.
    pub unsafe fn of_first_version(pointer: *mut T) -> Out<T> {
        Out { pointer, size: T::SIZE_MIN }
    }

    pub fn set(self, value: &T) {
        // SAFETY: the promise of `new`: `size` bytes are the caller's.
        unsafe { fill(self.pointer.cast(), self.size, value) };
    }
}

/// A caller's array of structs that the call fills; elements are `element_size` bytes apart.
pub struct OutArray<T: Versioned> {
    pointer: *mut T,
    element_size: usize,
    capacity: usize,
}

impl<T: Versioned> OutArray<T> {
    /// Returns INVALID if `pointer` is NULL although capacity is not 0, if it is misaligned, or if
    /// element_size is below that of the first version or is not a multiple of the struct's alignment.
    ///
    /// # Safety
    /// `pointer` is NULL or points to `capacity * element_size` bytes that the caller owns for as long
    /// as this lives.
    pub unsafe fn new(
        pointer: *mut T,
        element_size: usize,
        capacity: usize,
        what: &str,
    ) -> Result<OutArray<T>, Error> {
        check_size::<T>(element_size, "element_size")?;
        if element_size % align_of::<T>() != 0 {
            return Err(Error::invalid(format!(
                "element_size is {element_size}, not a multiple of the struct's alignment"
            )));
        }
        if capacity > 0 && pointer.is_null() {
            return Err(Error::invalid(format!("{what} is NULL, but capacity is {capacity}")));
        }
        if !pointer.is_null() && !is_usable(pointer) {
            return Err(Error::invalid(format!("{what} is misaligned")));
        }
        if element_size.checked_mul(capacity).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::invalid(format!("capacity is {capacity}, more than memory can hold")));
        }
        Ok(OutArray { pointer, element_size, capacity })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Fills the first elements, as many as fit. Returns the number of filled elements.
    pub fn fill(&self, values: impl IntoIterator<Item = T>) -> usize {
        let mut count = 0;
        for value in values.into_iter().take(self.capacity) {
            // SAFETY: `count` is below the capacity, so the element lies in the array that `new` was
            // promised.
            unsafe {
                let element = self.pointer.cast::<u8>().add(count * self.element_size);
                fill(element, self.element_size, &value);
            }
            count += 1;
        }
        count
    }
}

/// Writes the part of `value` that fits, and its size into struct_size.
///
/// # Safety
/// `pointer` is aligned for T and `size` bytes there may be written.
unsafe fn fill<T: Versioned>(pointer: *mut u8, size: usize, value: &T) {
    let known = size.min(size_of::<T>());
    // SAFETY: `known` is within both; T begins with a u32.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), pointer, known);
        pointer.cast::<u32>().write(known as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct in its second version; the first version lacks `late`.
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

    /// Reads a struct of this size from a buffer that has `tail` behind the known part.
    fn reading(size: u32, tail: u64) -> Result<Sample, Status> {
        #[repr(C)]
        struct Longer(Sample, u64);
        let longer = Longer(Sample { struct_size: size, early: 5, late: 6 }, tail);
        // SAFETY: the sizes used below are at most Longer's.
        let read = unsafe { read::<Sample>(ptr::from_ref(&longer).cast(), "options") };
        read.map(|value| value.unwrap()).map_err(|error| error.status)
    }

    #[test]
    fn shorter_inputs_take_defaults_and_longer_ones_must_be_zero() {
        assert_eq!(reading(16, 1), Ok(Sample { struct_size: 16, early: 5, late: 6 }));
        assert_eq!(reading(8, 1), Ok(Sample { struct_size: 8, early: 5, late: 0 }));
        assert_eq!(reading(24, 0), Ok(Sample { struct_size: 24, early: 5, late: 6 }));
        assert_eq!(reading(24, 1 << 63), Err(Status::Unsupported));
        assert_eq!(reading(7, 0), Err(Status::Invalid));
        assert_eq!(reading(0, 0), Err(Status::Invalid));
        assert_eq!(reading(4097, 0), Err(Status::Invalid));
    }

    #[test]
    fn outputs_get_what_fits_and_say_how_much() {
        let value = Sample { struct_size: 0, early: 1, late: 2 };
        for (size, filled) in [(8, 8), (12, 12), (16, 16), (24, 16)] {
            let mut buffer = [u64::MAX; 4];
            buffer[0] = u64::MAX << 32 | size;
            // SAFETY: 32 aligned bytes, and size is at most 24.
            unsafe { Out::new(buffer.as_mut_ptr().cast::<Sample>(), "out") }.unwrap().set(&value);
            assert_eq!(buffer[0], 1 << 32 | filled);
            let late = [u64::MAX, u64::MAX << 32 | 2, 2, 2][(filled as usize - 8) / 4];
            assert_eq!(buffer[1], late, "size {size}");
            assert_eq!(buffer[2..], [u64::MAX; 2]);
        }
    }

    #[test]
    fn an_output_of_the_first_version_gets_no_more_than_that_has() {
        let mut buffer = [0, u64::MAX];
        // SAFETY: 16 aligned bytes.
        let out = unsafe { Out::of_first_version(buffer.as_mut_ptr().cast::<Sample>()) };
        out.set(&Sample { struct_size: 0, early: 1, late: 2 });
        assert_eq!(buffer, [1 << 32 | 8, u64::MAX]);
    }

    #[test]
    fn array_elements_stand_element_size_apart() {
        let mut buffer = [7u64; 6];
        let samples = (1..).map(|n| Sample { struct_size: 0, early: n, late: n as u64 });
        // SAFETY: two elements of 24 bytes.
        let array = unsafe { OutArray::new(buffer.as_mut_ptr().cast::<Sample>(), 24, 2, "out") }.unwrap();
        assert_eq!(array.fill(samples), 2);
        assert_eq!(buffer, [1 << 32 | 16, 1, 7, 2 << 32 | 16, 2, 7]);
        let wrong = |size, capacity| {
            // SAFETY: never filled.
            unsafe { OutArray::new(ptr::null_mut::<Sample>(), size, capacity, "out") }.err().unwrap().status
        };
        assert_eq!([wrong(4, 0), wrong(20, 0), wrong(16, 1)], [Status::Invalid; 3]);
    }
}
