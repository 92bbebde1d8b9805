//! The system calls of `transport::file`: opens what a program's descriptor names, and reads, writes and syncs ranges
//! of it. `file_ring` makes the same calls by io_uring.

use super::fd::OwnedFd;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};

/// Where the kernel does not tell the alignment (before Linux 6.1): this one suits every disk.
const ALIGN: u64 = 4096;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

/// What an open file is. `NotPlain` names what can't be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    /// With its size.
    BlockDevice(u64),
    NotPlain(&'static str),
}

/// What the kernel says of a program's descriptor.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts {
    pub kind: FileKind,
    pub readable: bool,
    pub writable: bool,
    pub appends: bool,
    /// The number of the block device or file system that holds the bytes.
    pub device: u64,
}

/// The alignment that I/O past the page cache needs: of memory, and of offsets and lengths.
#[derive(Clone, Copy, Debug)]
pub struct DirectAlign {
    pub memory: u64,
    pub offset: u64,
}

/// Descriptors of one file, which this process alone has.
#[derive(Debug)]
pub struct FileDescriptors {
    pub buffered: OwnedFd,
    /// For I/O past the page cache.
    pub direct: Option<(OwnedFd, DirectAlign)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp {
    Read,
    Write,
    /// fdatasync.
    Sync,
}

/// One call. `memory` stays valid until the call has returned.
#[derive(Clone, Copy, Debug)]
pub struct FileCall {
    pub fd: RawFd,
    pub op: FileOp,
    pub memory: u64,
    pub offset: u64,
    pub length: u32,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn stat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: zeros are a valid stat, which the call fills and which lives on this stack.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::fstat(fd, &mut stat) })?;
    Ok(stat)
}

pub fn facts(fd: BorrowedFd<'_>) -> io::Result<FileFacts> {
    let fd = fd.as_raw_fd();
    let stat = stat(fd)?;
    // SAFETY: no memory is involved.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let kind = match stat.st_mode & libc::S_IFMT {
        _ if flags & libc::O_PATH != 0 => FileKind::NotPlain("only a path (O_PATH)"),
        libc::S_IFREG => FileKind::Regular,
        libc::S_IFBLK => FileKind::BlockDevice(block_bytes(fd)?),
        libc::S_IFDIR => FileKind::NotPlain("a directory"),
        libc::S_IFIFO => FileKind::NotPlain("a pipe"),
        libc::S_IFSOCK => FileKind::NotPlain("a socket"),
        libc::S_IFCHR => FileKind::NotPlain("a character device"),
        _ => FileKind::NotPlain("no file of a file system"),
    };
    let mode = flags & libc::O_ACCMODE;
    Ok(FileFacts {
        kind,
        readable: mode != libc::O_WRONLY,
        writable: mode != libc::O_RDONLY,
        appends: flags & libc::O_APPEND != 0,
        device: if matches!(kind, FileKind::BlockDevice(_)) { stat.st_rdev } else { stat.st_dev },
    })
}

fn block_bytes(fd: RawFd) -> io::Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: the call writes one u64, which lives on this stack.
    check(unsafe { libc::ioctl(fd, BLKGETSIZE64 as _, &raw mut bytes) })?;
    Ok(bytes)
}

/// Opens the file of a program's descriptor anew, so that later changes of the program's flags don't matter; where the
/// kernel refuses that, the descriptor is duplicated.
pub fn open(fd: BorrowedFd<'_>) -> io::Result<FileDescriptors> {
    let direct = reopen(fd, libc::O_DIRECT).ok().and_then(|own| direct_align(&own).map(|align| (own, align)));
    let buffered = match reopen(fd, 0) {
        Ok(own) => own,
        Err(_) => OwnedFd::from(fd.try_clone_to_owned()?),
    };
    Ok(FileDescriptors { buffered, direct })
}

fn reopen(fd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let before = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    let kept = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME;
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    // SAFETY: the path is a C string, borrowed for the call.
    let own = check(unsafe { libc::open(path.as_ptr(), before & kept | flags | libc::O_CLOEXEC) })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

/// Returns the alignment for I/O past the page cache; None if the file system has no such I/O.
fn direct_align(fd: &OwnedFd) -> Option<DirectAlign> {
    use libc::STATX_DIOALIGN as DIOALIGN;
    // SAFETY: zeros are a valid statx, which the call fills and which lives on this stack.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the path is empty.
    let asked = check(unsafe {
        libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, DIOALIGN, &mut found)
    });
    if asked.is_err() || found.stx_mask & DIOALIGN == 0 {
        return Some(DirectAlign { memory: ALIGN, offset: ALIGN });
    }
    let (memory, offset) = (u64::from(found.stx_dio_mem_align), u64::from(found.stx_dio_offset_align));
    (memory > 0 && offset > 0).then_some(DirectAlign { memory, offset })
}

/// Makes the call. Returns the bytes moved, or the negative number of the error.
///
/// # Safety
/// The memory of the call is mapped and nothing of Rust's while the call lasts.
pub unsafe fn call(call: &FileCall) -> i32 {
    let FileCall { fd, op, memory, offset, length } = *call;
    let memory = memory as usize as *mut libc::c_void;
    // SAFETY: the caller's promise; the kernel checks descriptor, offset and memory.
    let result = unsafe {
        match op {
            FileOp::Read => libc::pread(fd, memory, length as usize, offset as libc::off_t),
            FileOp::Write => libc::pwrite(fd, memory, length as usize, offset as libc::off_t),
            FileOp::Sync => libc::fdatasync(fd) as isize,
        }
    };
    if result < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    result as i32
}
