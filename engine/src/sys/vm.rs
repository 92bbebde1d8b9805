//! Copies between this process's memory and another's by one system call, without the other's help.

use super::socket::IoVec;
use std::io;

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
/// 2^64.
pub fn has_ends(address: u64, length: u64) -> bool {
    let mut bytes = [0u8; 2];
    let ends = [IoVec::new(address, 1), IoVec::new(address + length - 1, 1)];
    let into = [IoVec::new(bytes.as_mut_ptr() as u64, bytes.len())];
    // SAFETY: the two bytes are this function's own.
    match unsafe { read(std::process::id() as i32, &into, &ends) } {
        Ok(count) => count == bytes.len(),
        Err(error) => error.raw_os_error() != Some(libc::EFAULT),
    }
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
