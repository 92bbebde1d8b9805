//! The dynamic loader: opens libraries, and counts those that were opened and closed. Counting reads no file.

use libc::{c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;

/// How many libraries were opened and closed so far. Equal counts mean that none was opened or closed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    opened: u64,
    closed: u64,
}

/// Opens a library. Null if it is not installed, or, with RTLD_NOLOAD, not open.
///
/// # Safety
/// The library's constructors may run in this process.
pub unsafe fn open(name: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: the name is a C string; the caller answers for the library.
    unsafe { libc::dlopen(name.as_ptr(), flags) }
}

/// Returns None if the loader does not count.
pub fn changes() -> Option<Changes> {
    let mut changes: Option<Changes> = None;
    // SAFETY: `look` is called before this returns, and gets the place that lives until then.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut changes).cast()) };
    changes
}

/// Takes the counts from the first library, and stops the iteration.
unsafe extern "C" fn look(info: *mut dl_phdr_info, size: size_t, place: *mut c_void) -> c_int {
    let counted = std::mem::offset_of!(dl_phdr_info, dlpi_subs) + size_of::<libc::c_ulonglong>();
    if size >= counted {
        // SAFETY: the loader's own, of `size` bytes; `place` is what `changes` gave.
        let (info, place) = unsafe { (&*info, &mut *place.cast::<Option<Changes>>()) };
        *place = Some(Changes { opened: info.dlpi_adds, closed: info.dlpi_subs });
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests may open libraries meanwhile, but not so often that no two looks agree.
    #[test]
    fn a_library_that_is_opened_is_counted() {
        let before = changes().unwrap();
        // SAFETY: a system library, whose constructors may run at any time.
        let library = unsafe { libc::dlopen(c"libanl.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "a library of glibc's is missing");
        assert_ne!(changes().unwrap(), before);
        let (mut last, mut agreed) = (changes().unwrap(), false);
        for _ in 0..1000 {
            let now = changes().unwrap();
            agreed |= std::mem::replace(&mut last, now) == now;
        }
        assert!(agreed);
        // SAFETY: opened above.
        unsafe { libc::dlclose(library) };
    }
}
