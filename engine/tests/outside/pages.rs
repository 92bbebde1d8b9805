//! Registered memory of a program, whose pages the tests take away.

use ferry::types::RegionId;
use ferry::{Engine, RegionOptions};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

pub fn page_bytes() -> usize {
    // SAFETY: sysconf takes an integer; this one is always known.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// How a page is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Without rights, in place of a hole: the next mapping of another test would take the hole, and be unmapped with
    /// this memory.
    Unmapped,
    /// The file behind the memory ends before the page: a processor's access raises SIGBUS.
    Truncated,
    ReadOnly,
}

/// Memory of a memfd. Unmapped when dropped; unregister it first.
pub struct Pages {
    file: File,
    address: *mut u8,
    length: usize,
}

impl Pages {
    pub fn new(count: usize) -> Pages {
        let length = count * page_bytes();
        // SAFETY: the name is a C string, and the descriptor a fresh one.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(length as u64).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(address, libc::MAP_FAILED);
        Pages { file, address: address.cast(), length }
    }

    pub fn register(&self, engine: &Engine) -> RegionId {
        // SAFETY: no reference to the memory exists, and it is unmapped after it was unregistered. Some of its pages
        // may not be there: the tests are about that.
        unsafe { engine.register(self.address, self.length, &RegionOptions::default()) }.unwrap()
    }

    pub fn address(&self) -> u64 {
        self.address as u64
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: in bounds; no transfer runs.
        unsafe { self.address.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: in bounds; no transfer runs.
        unsafe { self.address.add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    /// Takes away the page at `offset`; with `Truncated` also all pages behind it.
    pub fn lose(&self, offset: usize, loss: Loss) {
        let page = offset / page_bytes() * page_bytes();
        let at = self.address.wrapping_add(page).cast();
        // SAFETY: a page of this mapping, to which no reference exists.
        let result = unsafe {
            match loss {
                Loss::Unmapped => libc::mprotect(at, page_bytes(), libc::PROT_NONE),
                Loss::ReadOnly => libc::mprotect(at, page_bytes(), libc::PROT_READ),
                Loss::Truncated => libc::ftruncate(self.file.as_raw_fd(), page as libc::off_t),
            }
        };
        assert_eq!(result, 0, "{loss:?}");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

/// Pages that are missing: a thread that touches one waits until this is dropped.
pub struct Blocked(File);

/// The kernel's `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// The kernel's `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const MISSING: u64 = 1;

impl Pages {
    /// Makes the page at `offset` missing. None, with the reason in print, where the kernel does not allow that.
    pub fn block(&self, offset: usize) -> Option<Blocked> {
        // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            println!("SKIPPED: userfaultfd: {}", std::io::Error::last_os_error());
            return None;
        }
        // SAFETY: as above.
        let file = unsafe { File::from_raw_fd(fd as libc::c_int) };
        let start = self.address() + (offset / page_bytes() * page_bytes()) as u64;
        let mut api = Api { api: UFFD_API, features: 0, ioctls: 0 };
        let mut register = Register { start, length: page_bytes() as u64, mode: MISSING, ioctls: 0 };
        // SAFETY: a page of this mapping, to which no reference exists, and structs that live on this stack.
        unsafe {
            assert_eq!(libc::madvise(start as *mut libc::c_void, page_bytes(), libc::MADV_REMOVE), 0);
            assert_eq!(libc::ioctl(file.as_raw_fd(), UFFDIO_API, &raw mut api), 0);
            assert_eq!(libc::ioctl(file.as_raw_fd(), UFFDIO_REGISTER, &raw mut register), 0);
        }
        Some(Blocked(file))
    }
}

impl Blocked {
    /// Waits until a thread touches a page.
    pub fn wait(&self) {
        let mut polled = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives on this stack.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 60_000) }, 1, "nothing touches the page");
    }
}
