//! Copies from and to registered memory that may fault: a page that the program has unmapped or made read-only, or
//! whose file was truncated. The kernel copies, because an access of this process would end in SIGSEGV or SIGBUS.
//! `racing` has the copies for memory that ferry allocated itself.
//!
//! `process_vm_writev` on this process is one call. A range that it can't copy is tried again through a pipe: the pages
//! of some mappings of devices can't be pinned, and sandboxes may forbid the call. The kernel's copy between a pipe and
//! memory is the access that a socket makes, so its failure is final.

use super::copy::Piece;
use super::fd::above_standard;
use super::socket::IoVec;
use super::vm;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// No more than an empty pipe holds, so that a write needs no reader.
const PIPE_BYTES: usize = 4096;

/// Ranges of one system call of `copy_all`. As many as of a copy to another process.
const VECTORS: usize = 64;

/// A page of the range faults. A part of the range may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted;

/// Copies to registered memory.
///
/// # Safety
/// Nothing in this process holds a reference to the `from.len()` bytes from `to` on, and `from` does not overlap them.
pub unsafe fn put(to: *mut u8, from: &[u8]) -> Result<(), Faulted> {
    // SAFETY: the caller's promise; `from` is borrowed.
    unsafe { put_shared(to, from.as_ptr(), from.len()) }
}

/// As `put`, from memory that others may write meanwhile.
///
/// # Safety
/// As for `put`. `from` is mapped until the call returns.
pub unsafe fn put_shared(to: *mut u8, from: *const u8, length: usize) -> Result<(), Faulted> {
    let (local, memory) = ([IoVec::new(from as u64, length)], [IoVec::new(to as u64, length)]);
    // SAFETY: `from` is mapped. The kernel checks the memory, which is this process's own.
    let done = unsafe { vm::write(std::process::id() as i32, &local, &memory) }.unwrap_or(0);
    // SAFETY: as above, and for the memory the caller vouches.
    unsafe { by_pipe(from, to, done, length) }
}

/// Copies from registered memory.
///
/// # Safety
/// `into` does not overlap the bytes from `from` on.
pub unsafe fn get(from: *const u8, into: &mut [u8]) -> Result<(), Faulted> {
    // SAFETY: the caller's promise; `into` is borrowed by nobody else.
    unsafe { get_shared(from, into.as_mut_ptr(), into.len()) }
}

/// As `get`, into memory that others may access meanwhile.
///
/// # Safety
/// As for `get`. Nothing in this process holds a reference to the bytes from `to` on, which stay mapped until the call
/// returns.
pub unsafe fn get_shared(from: *const u8, to: *mut u8, length: usize) -> Result<(), Faulted> {
    let (local, memory) = ([IoVec::new(to as u64, length)], [IoVec::new(from as u64, length)]);
    // SAFETY: as in `put_shared`.
    let done = unsafe { vm::read(std::process::id() as i32, &local, &memory) }.unwrap_or(0);
    // SAFETY: as above.
    unsafe { by_pipe(from, to, done, length) }
}

/// Copies the pieces in order, with both sides in registered memory. Err: the index of the first piece that faults, of
/// which a part may have been copied. Pieces that overlap get bytes of the sources in an undefined order.
///
/// # Safety
/// Nothing in this process holds a reference to the bytes at any `to`. The kernel checks all ranges.
pub unsafe fn copy_all(pieces: impl Iterator<Item = Piece>) -> Result<(), usize> {
    let (mut first, mut pieces) = (0, pieces.peekable());
    while pieces.peek().is_some() {
        let mut batch =
            [const { Piece { from: std::ptr::null(), to: std::ptr::null_mut(), length: 0 } }; VECTORS];
        let mut vectors = [const { [const { IoVec::nothing() }; VECTORS] }; 2];
        let mut count = 0;
        for piece in pieces.by_ref().take(VECTORS) {
            vectors[0][count] = IoVec::new(piece.from as u64, piece.length);
            vectors[1][count] = IoVec::new(piece.to as u64, piece.length);
            batch[count] = piece;
            count += 1;
        }
        let [from, to] = &vectors;
        // SAFETY: the caller's promise. The kernel also checks the local side.
        let mut left =
            unsafe { vm::write(std::process::id() as i32, &from[..count], &to[..count]) }.unwrap_or(0);
        for (at, piece) in batch[..count].iter().enumerate() {
            let done = left.min(piece.length);
            left -= done;
            // SAFETY: as above.
            unsafe { by_pipe(piece.from, piece.to, done, piece.length) }.map_err(|Faulted| first + at)?;
        }
        first += count;
    }
    Ok(())
}

/// Copies the bytes after the first `done` bytes.
///
/// # Safety
/// As for `through`.
unsafe fn by_pipe(from: *const u8, to: *mut u8, mut done: usize, length: usize) -> Result<(), Faulted> {
    if done == length {
        return Ok(());
    }
    let (read, write) = pipe().map_err(|_| Faulted)?;
    while done < length {
        let part = (length - done).min(PIPE_BYTES);
        // SAFETY: the caller's promise.
        unsafe { through(&read, &write, from.wrapping_add(done), to.wrapping_add(done), part) }?;
        done += part;
    }
    Ok(())
}

fn pipe() -> io::Result<(File, File)> {
    let mut ends = [-1; 2];
    // SAFETY: the two descriptors live on this stack.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh descriptors that nobody else owns.
    let [read, write] = ends.map(|fd| File::from(above_standard(unsafe { OwnedFd::from_raw_fd(fd) })));
    Ok((read, write))
}

/// Copies at most PIPE_BYTES through an empty pipe.
///
/// # Safety
/// Nothing in this process holds a reference to the bytes at `to`. The kernel checks both ranges.
unsafe fn through(
    read: &File,
    write: &File,
    from: *const u8,
    to: *mut u8,
    length: usize,
) -> Result<(), Faulted> {
    // SAFETY: the caller's promise.
    let moved = unsafe {
        libc::write(write.as_raw_fd(), from.cast(), length) == length as isize
            && libc::read(read.as_raw_fd(), to.cast(), length) == length as isize
    };
    if moved {
        Ok(())
    } else {
        Err(Faulted)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::sys::mapping::Mapping;
    use crate::sys::memory::page_bytes;

    fn protect(mapping: &Mapping, page: usize, rights: libc::c_int) {
        let at = mapping.address().wrapping_add(page * page_bytes());
        // SAFETY: a page of the test's own mapping.
        assert_eq!(unsafe { libc::mprotect(at.cast(), page_bytes(), rights) }, 0);
    }

    #[test]
    fn a_page_that_faults_ends_a_copy_without_a_signal() {
        let page = page_bytes();
        let mapping = Mapping::private(4 * page).unwrap();
        let at = |offset: usize| mapping.address().wrapping_add(offset);
        let bytes: Vec<u8> = (0..3 * page).map(|at| at as u8 ^ 0x5a).collect();
        let mut back = vec![0; bytes.len()];
        // SAFETY: inside the mapping, of which no reference exists.
        unsafe {
            assert_eq!((put(at(9), &bytes), get(at(9), &mut back)), (Ok(()), Ok(())));
            assert!(back == bytes);
            protect(&mapping, 2, libc::PROT_READ);
            assert_eq!((put(at(9), &bytes), get(at(9), &mut back)), (Err(Faulted), Ok(())));
            protect(&mapping, 2, libc::PROT_NONE);
            assert_eq!((put(at(2 * page), &[1]), get(at(9), &mut back)), (Err(Faulted), Err(Faulted)));
            assert_eq!((put(at(page), &bytes[..page]), get(at(page), &mut back[..page])), (Ok(()), Ok(())));
        }
    }

    #[test]
    fn pieces_before_one_that_faults_are_copied_and_it_is_named() {
        let page = page_bytes();
        let mapping = Mapping::private(4 * page).unwrap();
        let at = |offset: usize| mapping.address().wrapping_add(offset);
        let count = VECTORS + 3;
        mapping.write(0, &[7; VECTORS + 3]);
        protect(&mapping, 3, libc::PROT_NONE);
        let pieces = |bad: usize| {
            let to = move |nth| if nth == bad { 3 * page } else { page + nth };
            (0..count).map(move |nth| Piece { from: at(nth), to: at(to(nth)), length: 1 })
        };
        let copied = || {
            let mut found = [0; VECTORS + 3];
            mapping.read(page, &mut found);
            mapping.write(page, &[0; VECTORS + 3]);
            found.iter().take_while(|byte| **byte == 7).count()
        };
        // SAFETY: inside the mapping, of which no reference exists.
        unsafe {
            for bad in [0, 5, VECTORS, count - 1] {
                assert_eq!((copy_all(pieces(bad)), copied()), (Err(bad), bad));
            }
            assert_eq!((copy_all(pieces(count)), copied()), (Ok(()), count));
        }
    }

    /// The pipe alone, which serves ranges that `process_vm_writev` can't copy.
    #[test]
    fn a_pipe_copies_the_same() {
        let (read, write) = pipe().unwrap();
        let (from, mut into) = (*b"twelve bytes", [0u8; 12]);
        // SAFETY: both arrays are this function's own.
        unsafe { through(&read, &write, from.as_ptr(), into.as_mut_ptr(), from.len()) }.unwrap();
        assert_eq!(from, into);
        // SAFETY: no memory can be at this address.
        assert_eq!(unsafe { through(&read, &write, 8 as *const u8, into.as_mut_ptr(), 4) }, Err(Faulted));
    }
}
