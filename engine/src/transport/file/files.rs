//! The registered files of an engine. Each has a range of addresses of its own, above all addresses of memory, so that
//! requests, regions and slices name bytes of a file as they name bytes of memory.

use super::queue::FileQueue;
use crate::config::FileIo;
use crate::device::{Allocation, Driver, Hold, Library, Point, Queue, Start};
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sys::file::{self, DirectAlign, FileCall, FileDescriptors, FileKind, FileOp};
use crate::sys::hook::Hook;
use crate::sys::lock::Mutex;
use crate::sys::memory::page_bytes;
use crate::types::{Access, Location, MemoryKind, Op};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// No memory of a process or a device has an address from here on (Linux on x86-64 with five levels ends at 2^56).
const BASE: u64 = 1 << 62;
const END: u64 = u64::MAX;
/// Files begin at multiples of this, and are apart, so that no request reaches from one into the next.
const GAP: u64 = 1 << 21;

/// A registered range of a file.
#[derive(Debug)]
pub struct OpenFile {
    /// The address of the range's first byte.
    pub base: u64,
    pub location: Location,
    /// The range in the file.
    offset: u64,
    length: u64,
    descriptors: FileDescriptors,
    /// False once the file system has refused I/O past the page cache.
    direct_works: AtomicBool,
    /// The errno of the first fdatasync that failed. The kernel reports lost data once, but more than one batch may
    /// have written it.
    sync_error: AtomicU32,
    /// An fdatasync is under way.
    syncing: AtomicBool,
}

impl OpenFile {
    /// Returns whether these addresses lie in the range.
    pub fn contains(&self, address: u64, length: u64) -> bool {
        address >= self.base
            && address - self.base <= self.length
            && length <= self.length - (address - self.base)
    }

    /// Makes a call on the bytes at `address`, past the page cache where the alignment allows it.
    pub fn call(&self, op: FileOp, memory: u64, address: u64, length: u32) -> FileCall {
        let offset = self.offset + (address - self.base);
        let may_be = op != FileOp::Sync && self.direct_works.load(Ordering::Relaxed);
        let is_aligned = |align: &DirectAlign| is_aligned(align, op, memory, offset, length.into());
        let direct = self.descriptors.direct.as_ref().filter(|(_, align)| may_be && is_aligned(align));
        let fd = direct.map_or(self.descriptors.buffered.as_raw_fd(), |(fd, _)| fd.as_raw_fd());
        FileCall { fd, op, memory, offset, length }
    }

    /// Handles the errno of a call. Returns whether the call is to be made again: it was interrupted, or will now go
    /// through the page cache.
    pub fn retries(&self, call: &FileCall, errno: i32) -> bool {
        let is_refused = errno == libc::EINVAL && call.fd != self.descriptors.buffered.as_raw_fd();
        if is_refused {
            self.direct_works.store(false, Ordering::Relaxed);
        }
        is_refused || matches!(errno, libc::EINTR | libc::EAGAIN)
    }

    /// Begins an fdatasync; false while another is under way: the kernel may report lost data to that one alone.
    pub fn begin_sync(&self) -> bool {
        !self.syncing.swap(true, Ordering::SeqCst)
    }

    pub fn end_sync(&self) {
        self.syncing.store(false, Ordering::SeqCst);
    }

    /// Records the result of an fdatasync. Returns the errno of the first that failed; 0 if none has.
    pub fn synced(&self, errno: i32) -> i32 {
        if errno != 0 {
            let (first, order) = (errno as u32, Ordering::SeqCst);
            let _ = self.sync_error.compare_exchange(0, first, order, order);
        }
        self.sync_error.load(Ordering::SeqCst) as i32
    }
}

/// Returns whether a call may go past the page cache. A write covers whole pages: the kernel may lose the bytes of one
/// that shares its page with a write through the page cache.
fn is_aligned(align: &DirectAlign, op: FileOp, memory: u64, offset: u64, length: u64) -> bool {
    let unit = if op == FileOp::Write { align.offset.max(page_bytes() as u64) } else { align.offset };
    memory % align.memory == 0 && offset % unit == 0 && length % unit == 0
}

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, Arc<OpenFile>>,
    /// Where the search for free addresses begins: addresses are not soon used again.
    next: u64,
    /// The kernel's numbers of devices. A device's number here is its place.
    devices: Vec<u64>,
}

pub struct Files {
    pub io: FileIo,
    pub hooks: Hooks,
    table: Mutex<Table>,
}

/// The points at which tests act.
#[derive(Default)]
pub struct Hooks {
    /// A call begins. Without io_uring the hook runs on the thread that makes the call.
    pub begins: Hook<FileCall>,
    /// A call has ended with this result, which a test may replace.
    pub ended: Hook<(FileCall, Cell<i32>)>,
}

/// The library of files. No address of a program's memory is asked for: files are registered by their descriptors.
pub fn library(files: Arc<Files>) -> Library {
    Library {
        kind: MemoryKind::File,
        is_loaded: Box::new(|| false),
        open: Box::new(move || Ok(Arc::new(FileDriver(files.clone())))),
    }
}

/// Checks that this range can be registered with this access.
fn check(facts: &file::FileFacts, offset: u64, length: u64, access: Access) -> Result<()> {
    if length == 0 {
        return Err(Error::invalid("length is 0"));
    }
    let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64);
    let Some(end) = end else {
        return Err(Error::invalid(format!("offset {offset} + length {length} is beyond all files")));
    };
    match facts.kind {
        FileKind::NotPlain(what) => {
            let text = format!("fd: {what}; only a file or a block device can be registered");
            return Err(Error::invalid(text));
        }
        FileKind::BlockDevice(bytes) if end > bytes => {
            let text =
                format!("length: offset {offset} + length {length} is beyond the device's {bytes} bytes");
            return Err(Error::invalid(text));
        }
        _ => {}
    }
    let lacks = |op: Op, open: &str| {
        let text = format!("fd: is not open for {open}, which access for {} by peers needs", op.name());
        Err(Error { os_error: libc::EBADF, ..Error::new(Status::Access, text) })
    };
    match facts {
        _ if access.allows(Op::Read) && !facts.readable => lacks(Op::Read, "reading"),
        _ if access.allows(Op::Write) && !facts.writable => lacks(Op::Write, "writing"),
        _ if facts.appends => {
            Err(Error::invalid("fd: is open with O_APPEND: the kernel would append what is written"))
        }
        _ => Ok(()),
    }
}

impl Files {
    pub fn new(io: FileIo) -> Files {
        Files { io, hooks: Hooks::default(), table: Mutex::default() }
    }

    /// Opens a range of a file, and gives it addresses. The program's descriptor is not used afterwards.
    pub fn open(
        &self,
        fd: BorrowedFd<'_>,
        (offset, length): (u64, u64),
        access: Access,
    ) -> Result<Arc<OpenFile>> {
        let facts = file::facts(fd).map_err(|error| Error {
            status: if error.raw_os_error() == Some(libc::EBADF) { Status::Invalid } else { Status::System },
            ..Error::system("fd", &error)
        })?;
        check(&facts, offset, length, access)?;
        let descriptors = file::open(fd).map_err(|error| Error::system("opening the file anew", &error))?;
        let mut table = self.table.lock();
        let base = table.room(length).ok_or_else(|| {
            Error::new(Status::Limit, "length: no addresses are left for this many bytes of files")
        })?;
        let device = table.number(facts.device);
        let file = Arc::new(OpenFile {
            base,
            location: Location { kind: MemoryKind::File, device },
            offset,
            length,
            descriptors,
            direct_works: AtomicBool::new(true),
            sync_error: AtomicU32::new(0),
            syncing: AtomicBool::new(false),
        });
        table.next = (base + length).saturating_add(GAP);
        table.open.insert(base, file.clone());
        Ok(file)
    }

    /// Closes the file with this base, once no batch uses it.
    pub fn close(&self, base: u64) {
        let closed = self.table.lock().open.remove(&base);
        drop(closed); // closes outside the lock: a file system may take its time
    }

    /// Closes all files: no batch is under way, and none begins.
    pub fn close_all(&self) {
        let closed = std::mem::take(&mut self.table.lock().open);
        drop(closed);
    }

    /// Returns the file that has these addresses.
    pub fn find(&self, address: u64, length: u64) -> Option<Arc<OpenFile>> {
        let table = self.table.lock();
        let (_, file) = table.open.range(..=address).next_back()?;
        Some(file.clone()).filter(|file| file.contains(address, length))
    }
}

impl Table {
    /// Returns free addresses.
    fn room(&self, length: u64) -> Option<u64> {
        self.room_from(self.next.max(BASE), length).or_else(|| self.room_from(BASE, length))
    }

    fn room_from(&self, from: u64, length: u64) -> Option<u64> {
        let after = |end: u64| end.checked_add(GAP)?.checked_next_multiple_of(GAP);
        let before = self.open.range(..from).next_back().map(|(_, file)| file.base + file.length);
        let mut base = after(before.unwrap_or(0).max(from - GAP))?;
        for file in self.open.range(base..).map(|(_, file)| file) {
            if base.checked_add(length)? < file.base {
                return Some(base);
            }
            base = after(file.base + file.length)?;
        }
        (base.checked_add(length)? < END).then_some(base)
    }

    fn number(&mut self, device: u64) -> i32 {
        let known = self.devices.iter().position(|known| *known == device);
        known.unwrap_or_else(|| {
            self.devices.push(device);
            self.devices.len() - 1
        }) as i32
    }
}

struct FileDriver(Arc<Files>);

impl Driver for FileDriver {
    fn kind(&self) -> MemoryKind {
        MemoryKind::File
    }

    fn locate(&self, _address: u64) -> Result<Option<Allocation>> {
        Ok(None)
    }

    fn pin(&self, _address: u64, _length: usize) -> Result<()> {
        Ok(())
    }

    fn unpin(&self, _address: u64) {}

    /// Disks are fast with many blocks in flight: all slots of a ring at once.
    fn depth(&self, usual: usize) -> usize {
        usual * 4
    }

    fn open(&self, _device: i32, _batch_bytes: usize, _depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FileQueue::open(self.0.clone())?))
    }

    fn point(&self, _at: Start) -> Result<Box<dyn Point>> {
        Err(Error::new(Status::Unsupported, "a file has no events and no streams"))
    }

    fn hold(&self, _stream: u64) -> Result<Box<dyn Hold>> {
        Err(Error::new(Status::Unsupported, "a file has no streams"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_of_whole_pages_go_past_the_page_cache() {
        let align = DirectAlign { memory: 4, offset: 512 };
        let page = page_bytes() as u64;
        assert!(
            is_aligned(&align, FileOp::Read, 4, 512, 1024) && !is_aligned(&align, FileOp::Read, 4, 4, 512)
        );
        assert!(!is_aligned(&align, FileOp::Read, 2, 512, 1024));
        assert!(is_aligned(&align, FileOp::Write, 4, page, 2 * page));
        assert!(!is_aligned(&align, FileOp::Write, 4, 512, page));
        assert!(!is_aligned(&align, FileOp::Write, 4, page, page + 512));
        let wide = DirectAlign { memory: 4, offset: 2 * page };
        assert!(!is_aligned(&wide, FileOp::Write, 4, page, 2 * page));
    }
}
