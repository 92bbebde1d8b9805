//! The descriptors that a forked child must not keep: the engine's port, its connections, its shared memory. A child
//! with copies of them would keep the port taken, and the peers without the end of their connections, after the end of
//! its parent. `fd` lists them here, `verbs` those of devices; an atfork handler closes the child's copies. The handler
//! allocates nothing, calls only what a signal handler may call, and takes no lock but that of `unforked`.
//!
//! A descriptor is listed after it was made and struck before it is closed. So its number is never that of a file of
//! the program, whatever other threads do during the fork; at worst a child keeps a copy. Children by vfork and
//! posix_spawn keep theirs until exec, children by a raw clone for good.

use super::fork::ForkGuard;
use super::unforked;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A bit for each descriptor below 2^20, which is as many as Linux allows by default.
const WORDS: usize = (1 << 20) / 64;
static TABLE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// No descriptor was ever listed in this word or a later one.
static WORDS_USED: AtomicUsize = AtomicUsize::new(0);
/// How many forks lie between this process and the first that used ferry.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Tells whether this process made the table, and did not inherit it by a raw clone, which runs no handler.
static OWNER: AtomicPtr<ForkGuard> = AtomicPtr::new(std::ptr::null_mut());
/// Written in the parent before a fork, read in the child.
static IS_OWNER: AtomicBool = AtomicBool::new(false);

/// A descriptor in the table.
#[derive(Debug)]
pub struct Listed {
    fd: RawFd,
    generation: u32,
}

impl Listed {
    pub fn new(fd: RawFd) -> Listed {
        if let Some((word, bit)) = place(fd) {
            WORDS_USED.fetch_max(word + 1, Ordering::Relaxed);
            TABLE[word].fetch_or(bit, Ordering::Relaxed);
        }
        Listed { fd, generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Strikes the descriptor from the table, before it is closed. False in a child, which has closed its copy: the
    /// number may be another file's by now.
    pub fn strike(&self) -> bool {
        let is_mine = self.generation == GENERATION.load(Ordering::Relaxed);
        if let Some((word, bit)) = place(self.fd).filter(|_| is_mine) {
            TABLE[word].fetch_and(!bit, Ordering::Relaxed);
        }
        is_mine
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    // A child needs the standard streams, whatever is open there.
    let fd = usize::try_from(fd).ok().filter(|fd| (3..WORDS * 64).contains(fd))?;
    Some((fd / 64, 1 << (fd % 64)))
}

/// Registers the handlers: children close their copies from now on. Later calls in this process do nothing.
pub fn watch() -> io::Result<()> {
    if !OWNER.load(Ordering::Acquire).is_null() || cfg!(miri) {
        return Ok(());
    }
    let guard = Box::into_raw(Box::new(ForkGuard::of_this_process()?));
    if OWNER.compare_exchange(std::ptr::null_mut(), guard, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: made above, and nobody else has it.
        drop(unsafe { Box::from_raw(guard) });
        return Ok(());
    }
    // SAFETY: the handlers live as long as this library is loaded; the C library forgets them when it unloads it.
    match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn owner() -> Option<&'static ForkGuard> {
    // SAFETY: null, or leaked by `watch`.
    unsafe { OWNER.load(Ordering::Acquire).as_ref() }
}

extern "C" fn before() {
    unforked::keep_forks_away();
    IS_OWNER.store(owner().is_some_and(|guard| !guard.is_child()), Ordering::Relaxed);
}

extern "C" fn in_parent() {
    unforked::let_forks_go();
}

extern "C" fn in_child() {
    unforked::let_forks_go();
    if !IS_OWNER.load(Ordering::Relaxed) {
        return;
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for (at, word) in TABLE.iter().enumerate().take(WORDS_USED.load(Ordering::Relaxed)) {
        let mut left = word.swap(0, Ordering::Relaxed);
        while left != 0 {
            // SAFETY: the child's copy of a descriptor that belongs to this library alone. No code of the child uses
            // it: every call answers CLOSED, and `strike` keeps its owner from closing the number again.
            unsafe { libc::close((at * 64) as RawFd + left.trailing_zeros() as RawFd) };
            left &= left - 1;
        }
    }
    if let Some(guard) = owner() {
        guard.take_over();
    }
}
