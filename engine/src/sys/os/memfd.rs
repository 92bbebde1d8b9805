//! Nameless memory that processes of one host can share: memfds with a sealed size, so that no process can shrink one
//! under a mapping and raise SIGBUS in another process. `mapping` maps them, `packet` passes them.

use super::fd::OwnedFd;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};

const FIXED_SIZE: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Creates a zeroed memfd of this length without allocating its pages. Close-on-exec, with a sealed size; `name` shows
/// in /proc.
pub fn create(name: &CStr, length: usize) -> io::Result<OwnedFd> {
    check_file_limit(length)?;
    // SAFETY: the name is a C string, borrowed for the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(length).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: no memory is involved.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    add_seals(&fd, FIXED_SIZE)?;
    Ok(fd)
}

/// Refuses a length above the process's limit of file sizes (`ulimit -f`): the kernel would answer `ftruncate` by
/// SIGXFSZ, which ends the program.
fn check_file_limit(length: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives on this stack for the duration of the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur == libc::RLIM_INFINITY || length as u64 <= limit.rlim_cur {
        return Ok(());
    }
    let text = format!(
        "{length} bytes are above this process's limit of file sizes, {} (ulimit -f)",
        limit.rlim_cur
    );
    Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
}

/// Seals the memfd against new writable mappings (Linux 5.1); existing ones stay. No seal can be added afterwards.
pub fn seal_writes(fd: &OwnedFd) -> io::Result<()> {
    add_seals(fd, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
}

/// Seals the seals: none can be added afterwards.
pub fn seal(fd: &OwnedFd) -> io::Result<()> {
    add_seals(fd, libc::F_SEAL_SEAL)
}

fn add_seals(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Checks that a descriptor from another process is a memfd of at least this length that can't shrink.
pub fn check(fd: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` lives on this stack for the duration of the call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if seals & libc::F_SEAL_SHRINK == 0 || (stat.st_size as u64) < length as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a sealed memfd of the size announced"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_size_is_fixed_and_checked() {
        let fd = create(c"ferry-test", 8192).unwrap();
        assert!(check(fd.as_fd(), 8192).is_ok());
        assert!(check(fd.as_fd(), 8193).is_err());
        let file = File::from(fd);
        assert!(file.set_len(4096).is_err() && file.set_len(16384).is_err());
    }

    #[test]
    fn what_could_shrink_is_refused() {
        let plain = File::open("/proc/self/exe").unwrap();
        assert!(check(plain.as_fd(), 1).is_err());
        // SAFETY: the name is a constant C string.
        let fd = unsafe { libc::memfd_create(c"ferry-test".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: a fresh descriptor that nobody else owns.
        let unsealed = unsafe { OwnedFd::from_raw_fd(fd) };
        File::from(unsealed.try_clone().unwrap()).set_len(4096).unwrap();
        assert!(check(unsealed.as_fd(), 4096).is_err());
        add_seals(&unsealed, libc::F_SEAL_SHRINK).unwrap();
        assert!(check(unsealed.as_fd(), 4096).is_ok());
    }
}
