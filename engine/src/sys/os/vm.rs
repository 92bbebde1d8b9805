//! Copies between this process's memory and another's by one system call, without the other's help.

use super::socket::IoVec;
use crate::sys::pages::Pages;
use std::io;
use std::os::fd::AsRawFd;

/// Copies from the local vectors, one after the other, to the remote ones. Returns how many bytes; fewer
/// than all when a page is not there, on either side. ESRCH: no such process; EPERM: not allowed.
///
/// # Safety
/// Each local vector is readable memory until the call returns, and the process is the one meant.
pub unsafe fn write(pid: i32, local: &[IoVec], remote: &[IoVec]) -> io::Result<usize> {
    // SAFETY: IoVec is a transparent iovec; the local memory is vouched for, the remote one is checked
    // by the kernel.
    counted(unsafe {
        libc::process_vm_writev(
            pid,
            local.as_ptr().cast(),
            local.len() as libc::c_ulong,
            remote.as_ptr().cast(),
            remote.len() as libc::c_ulong,
            0,
        )
    })
}

/// Copies from the remote vectors to the local ones. Results as for `write`.
///
/// # Safety
/// Each local vector is writable memory that nothing in this process holds a reference to, until the
/// call returns.
pub unsafe fn read(pid: i32, local: &[IoVec], remote: &[IoVec]) -> io::Result<usize> {
    // SAFETY: as above.
    counted(unsafe {
        libc::process_vm_readv(
            pid,
            local.as_ptr().cast(),
            local.len() as libc::c_ulong,
            remote.as_ptr().cast(),
            remote.len() as libc::c_ulong,
            0,
        )
    })
}

/// True if the first and the last byte of a range can be read. False for unmapped memory and for memory of a device,
/// which the kernel does not read. True if the call is forbidden. The range must not be empty, and must end below
/// 2^64. Waits for no page of this process, whose `pages` are given, on Linux 6.11 and later.
pub fn has_ends(pages: &Pages, address: u64, length: u64) -> bool {
    let has = |at| {
        let is_mapped = pages.is_there(at).filter(|is_there| !is_there).and_then(|_| is_mapped(pages, at));
        is_mapped.unwrap_or_else(|| is_readable(at))
    };
    let last = address + length - 1;
    has(address) && (pages.are_one(address, last) || has(last))
}

fn is_readable(address: u64) -> bool {
    let mut byte = 0u8;
    let into = [IoVec::new(&raw mut byte as u64, 1)];
    // SAFETY: the byte is this function's own.
    match unsafe { read(std::process::id() as i32, &into, &[IoVec::new(address, 1)]) } {
        Ok(count) => count == 1,
        Err(error) => error.raw_os_error() != Some(libc::EFAULT),
    }
}

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const READABLE: u64 = 1;

/// Returns whether the address lies in a mapping that can be read. None if the kernel does not tell.
fn is_mapped(pages: &Pages, address: u64) -> Option<bool> {
    let maps = pages.maps()?;
    let mut query =
        MapQuery { size: size_of::<MapQuery>() as u64, query_address: address, ..MapQuery::default() };
    // SAFETY: the kernel writes the struct, which lives on this stack, and nothing else: no name is asked for.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } == 0 {
        return Some(query.flags & READABLE != 0);
    }
    (io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)).then_some(false)
}

/// Allows every process of this user to copy from and to this process, where the Yama security module would allow only
/// ancestors. Returns false if the kernel has no such limit.
pub fn allow_any_tracer() -> bool {
    // SAFETY: PR_SET_PTRACER takes an integer and no pointers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) == 0 }
}

fn counted(result: isize) -> io::Result<usize> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::Mapping;
    use crate::sys::memory::page_bytes;

    #[test]
    fn ends_are_found_whether_or_not_their_pages_were_touched() {
        let (page, pages) = (page_bytes() as u64, Pages::of(None));
        let memory = Mapping::private(8 * page as usize).unwrap();
        let at = memory.address() as u64;
        for touched in [false, true] {
            if touched {
                (0..8).for_each(|nth| memory.write((nth * page) as usize, &[1]));
            }
            assert!(has_ends(&pages, at, 8 * page) && has_ends(&pages, at + 7 * page, 1));
            // SAFETY: a page of this mapping, to which no reference exists.
            let protect = |rights| unsafe {
                libc::mprotect((at + 7 * page) as *mut libc::c_void, page as usize, rights)
            };
            assert_eq!(protect(libc::PROT_NONE), 0);
            assert!(!has_ends(&pages, at, 8 * page) && has_ends(&pages, at, 7 * page), "{touched}");
            // Where the kernel does not tell.
            assert!(is_readable(at + 7 * page - 1) && !is_readable(at + 7 * page), "{touched}");
            assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), 0);
        }
        assert!(!has_ends(&pages, page, 1) && !has_ends(&pages, u64::MAX - 2 * page, page));
    }
}
