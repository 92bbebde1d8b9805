//! Checks of pointers that a C caller passes: NULL, alignment, text, slices, output buffers. Each error names
//! the argument. The caller promises that a pointer stays valid for the length of the call.

use engine::status::Result;
use engine::{Error, Status};
use std::ffi::{c_char, CStr};
use std::mem::size_of;
use std::ptr::{self, NonNull};

/// True if the pointer is neither NULL nor misaligned.
pub fn is_usable<T>(pointer: *const T) -> bool {
    !pointer.is_null() && pointer.is_aligned()
}

fn check<T>(pointer: *const T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{what} is misaligned")));
    }
    Ok(())
}

/// Returns a reference to the caller's T.
///
/// # Safety
/// `pointer` is NULL or points to a T that stays and is not written to for `'a`.
pub unsafe fn reference<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    check(pointer, what)?;
    // SAFETY: not NULL, aligned, and the caller's promise.
    Ok(unsafe { &*pointer })
}

/// Returns an exclusive reference to the caller's T.
///
/// # Safety
/// `pointer` is NULL or points to a T that nobody else uses for `'a`.
pub unsafe fn exclusive<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    check(pointer, what)?;
    // SAFETY: not NULL, aligned, and the caller's promise.
    Ok(unsafe { &mut *pointer })
}

/// Returns `count` values as a slice; an empty list may be NULL.
///
/// # Safety
/// `pointer` is NULL or points to `count` values that stay and are not written to for `'a`.
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, what)?;
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Error::invalid(format!("{what} has {count} entries, more than memory can hold")));
    }
    // SAFETY: not NULL, aligned, of a possible size, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Returns terminated UTF-8 text.
///
/// # Safety
/// `pointer` is NULL or points to a terminated string that stays for `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    check(pointer, what)?;
    // SAFETY: not NULL, and the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// The place of a single output: checked before the work, written after it.
#[derive(Debug)]
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// `pointer` is NULL or may be written to for as long as this lives.
    pub unsafe fn new(pointer: *mut T, what: &str) -> Result<Out<T>> {
        check(pointer, what)?;
        NonNull::new(pointer).map(Out).ok_or_else(|| Error::invalid(format!("{what} is NULL")))
    }

    pub fn set(self, value: T) {
        // SAFETY: not NULL, aligned, and writable by the promise of `new`. The old value is plain data.
        unsafe { self.0.as_ptr().write(value) };
    }
}

/// The place of a list of plain values; `fill` writes as many as fit.
pub struct OutList<T> {
    pointer: *mut T,
    capacity: usize,
}

impl<T> OutList<T> {
    /// # Safety
    /// `pointer` is NULL or may be written to for `capacity` values as long as this lives.
    pub unsafe fn new(pointer: *mut T, capacity: usize, what: &str) -> Result<OutList<T>> {
        if capacity > 0 {
            check(pointer, what)?;
        }
        Ok(OutList { pointer, capacity })
    }

    pub fn fill(&self, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().take(self.capacity).enumerate() {
            // SAFETY: `index` is below the capacity that `new` was promised.
            unsafe { self.pointer.add(index).write(value) };
        }
    }
}

/// A buffer for bytes whose length the caller may not know. With a capacity of 0 the caller gets the length
/// only.
pub struct BytesOut {
    buffer: *mut u8,
    capacity: usize,
    length: Out<usize>,
}

impl BytesOut {
    /// # Safety
    /// `buffer` is NULL or may be written to for `capacity` bytes, and `out_length` as in `Out::new`.
    pub unsafe fn new(buffer: *mut u8, capacity: usize, out_length: *mut usize) -> Result<BytesOut> {
        if capacity > 0 && buffer.is_null() {
            return Err(Error::invalid(format!("buffer is NULL, but capacity is {capacity}")));
        }
        // SAFETY: the caller's promise.
        let length = unsafe { Out::new(out_length, "out_length") }?;
        Ok(BytesOut { buffer, capacity, length })
    }

    /// Writes the bytes. Returns LIMIT and writes nothing if the bytes do not fit.
    pub fn put(self, bytes: &[u8]) -> Result<()> {
        self.put_with_end(bytes, &[])
    }

    /// Writes the text and a terminating zero. The length does not count the zero.
    pub fn put_text(self, text: &str) -> Result<()> {
        self.put_with_end(text.as_bytes(), &[0])
    }

    fn put_with_end(self, bytes: &[u8], end: &[u8]) -> Result<()> {
        if self.capacity > 0 {
            let needed = bytes.len() + end.len();
            if needed > self.capacity {
                let message = format!("buffer needs {needed} bytes, but capacity is {}", self.capacity);
                return Err(Error::new(Status::Limit, message));
            }
            // SAFETY: `needed` bytes fit into what `new` was promised; the sources are ours.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer, bytes.len());
                ptr::copy_nonoverlapping(end.as_ptr(), self.buffer.add(bytes.len()), end.len());
            }
        }
        self.length.set(bytes.len());
        Ok(())
    }
}

/// Copies text into a field of fixed size. Cuts a long text between characters and always terminates it.
pub fn copy_text(text: &str, field: &mut [c_char]) {
    let room = text.len().min(field.len().saturating_sub(1));
    let end = (0..=room).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    field.fill(0);
    for (to, from) in field.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_sized_fitted_and_refused() {
        let put = |capacity: usize, text: bool| {
            let (mut buffer, mut length) = ([9u8; 4], 77);
            // SAFETY: four bytes, and no capacity used below is larger.
            let out = unsafe { BytesOut::new(buffer.as_mut_ptr(), capacity, &mut length) }.unwrap();
            let done = if text { out.put_text("abc") } else { out.put(b"abc") };
            (done.map_err(|error| error.status), length, buffer)
        };
        assert_eq!(put(0, true), (Ok(()), 3, [9; 4]));
        assert_eq!(put(4, true), (Ok(()), 3, *b"abc\0"));
        assert_eq!(put(3, true), (Err(Status::Limit), 77, [9; 4]));
        assert_eq!(put(3, false), (Ok(()), 3, *b"abc\x09"));
        assert_eq!(put(2, false), (Err(Status::Limit), 77, [9; 4]));
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let two = [1u32, 2];
        // SAFETY: refused before anything is read, or two values.
        unsafe {
            assert!(slice(ptr::null::<u32>(), 0, "list").unwrap().is_empty());
            assert_eq!(slice(two.as_ptr(), 2, "list").unwrap(), two);
            assert!(slice(ptr::null::<u32>(), 1, "list").is_err());
            assert!(slice(two.as_ptr(), usize::MAX / 4, "list").is_err());
            assert!(slice(two.as_ptr().byte_add(1), 1, "list").is_err());
        }
    }
}
