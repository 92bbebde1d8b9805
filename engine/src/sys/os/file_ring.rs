//! The calls of `file` by io_uring. One thread makes the ring and uses it.

use super::file::{FileCall, FileOp};
use crate::status::reason;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, IoUring, Probe};
use std::io;

pub struct FileRing(IoUring);

impl FileRing {
    /// Makes a ring for up to `calls` calls at once. Fails with the reason if the kernel or a sandbox has none.
    pub fn new(calls: u32) -> Result<FileRing, String> {
        let ring = build(calls).map_err(|error| format!("io_uring_setup failed: {}", reason(&error)))?;
        let mut known = Probe::new();
        ring.submitter()
            .register_probe(&mut known)
            .map_err(|error| format!("the probe of io_uring failed: {}", reason(&error)))?;
        for (code, name) in
            [(opcode::Read::CODE, "READ"), (opcode::Write::CODE, "WRITE"), (opcode::Fsync::CODE, "FSYNC")]
        {
            if !known.is_supported(code) {
                return Err(format!("io_uring lacks {name}"));
            }
        }
        Ok(FileRing(ring))
    }

    /// Queues a call until `enter`. False: there is no room.
    ///
    /// # Safety
    /// As for `file::call`, until `reap` has returned the call's result.
    pub unsafe fn push(&mut self, call: &FileCall, id: u64) -> bool {
        let (fd, memory) = (Fd(call.fd), call.memory as usize as *mut u8);
        let entry = match call.op {
            FileOp::Read => opcode::Read::new(fd, memory, call.length).offset(call.offset).build(),
            FileOp::Write => opcode::Write::new(fd, memory, call.length).offset(call.offset).build(),
            FileOp::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.0.submission().push(&entry.user_data(id)) }.is_ok()
    }

    /// Gives the queued calls to the kernel, and lets the kernel report ended ones. Calls that the kernel does not take
    /// stay queued.
    pub fn enter(&mut self) {
        let submissions = self.0.submission();
        let idle = submissions.is_empty() && !submissions.taskrun() && !submissions.cq_overflow();
        drop(submissions);
        if !idle {
            let _ = self.0.submit();
        }
    }

    /// Returns the calls that have ended, with their results as in `file::call`.
    pub fn reap(&mut self, ended: &mut Vec<(u64, i32)>) {
        ended.extend(self.0.completion().map(|entry| (entry.user_data(), entry.result())));
    }
}

/// Builds a ring for the calling thread alone if the kernel can (6.1): the end of a call then costs no interrupt.
fn build(calls: u32) -> io::Result<IoUring> {
    let builder = IoUring::builder();
    let mut exclusive = builder.clone();
    exclusive.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun().setup_taskrun_flag();
    match exclusive.build(calls) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(calls),
        result => result,
    }
}
