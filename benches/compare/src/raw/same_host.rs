//! The references of the same-host path: the least that a program can do to move bytes between two processes of one
//! machine.
//!
//! For memory that only its owner maps, the kernel copies between the two address spaces (`process_vm_writev` and
//! `process_vm_readv`). Memory that both processes map is copied here, by ferry's own kernel or by `memcpy`, whichever
//! is faster for the workload. Whole transfers move from several threads without messages to the target, which only
//! holds its memory. The target is a child of this same binary, like the target of the TCP reference.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context};
use ferry::internals::sys::copy::{self, Piece};
use ferry::internals::sys::memory::page_bytes;
use ferry::internals::sys::socket::IoVec;
use ferry::internals::sys::vm;
use ferry_bench::child::ChildProcess;
use ferry_bench::dispense::Dispenser;
use ferry_bench::memory::{private, Memory};
use ferry_bench::subject::Origin;
use ferry_bench::workload::{LatencyWorkload, Operation, Workload};
use serde::{Deserialize, Serialize};

use super::reference::{await_parent, on_threads, tell_parent, Ground, Reference, Way};
use crate::role::Role;

/// Blocks of each side in one system call.
const BLOCKS_A_CALL: [usize; 3] = [64, 16, 1_024];
/// The kernels of copies through a mapping: ferry's own, the best that we know of, and `memcpy`.
const STREAMING: usize = 0;
const MEMCPY: usize = 1;

/// Maps memory that is private, like an application's own, or a file that others can map, as ferry allocates it.
fn map(origin: Origin, bytes: usize) -> anyhow::Result<Memory> {
    match origin {
        Origin::Own => private(bytes),
        Origin::Alloc => Ok(Memory::shared(bytes)?),
    }
}

/// The place of the target's memory, as the target's first line states it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Place {
    address: u64,
    /// The memory file's descriptor, if it is one.
    fd: Option<i32>,
}

/// Serves the parent until it closes this process's input. The target sleeps during a run.
pub fn serve(origin: Origin, memory_bytes: usize) -> anyhow::Result<()> {
    let memory = map(origin, memory_bytes)?;
    let fd = memory.memfd().map(|file| file.as_raw_fd());
    tell_parent(&Place { address: memory.address() as u64, fd })?;
    await_parent()
}

pub struct SameHost {
    access: Access,
    threads: usize,
}

/// The access to the target's memory.
enum Access {
    Kernel { pid: i32, address: u64 },
    Mapped(Memory),
}

/// A thread's setting, and its lists, which are reused from transfer to transfer.
#[derive(Default)]
pub struct Run {
    setting: usize,
    here: Vec<IoVec>,
    there: Vec<IoVec>,
    pieces: Vec<Piece>,
}

pub type SameHostEngine = Reference<SameHost>;

impl SameHostEngine {
    /// Starts the target from `program`, this program. Each of the threads moves transfers of its own.
    pub fn start(
        program: &Path,
        origin: Origin,
        memory_bytes: usize,
        threads: usize,
    ) -> anyhow::Result<SameHostEngine> {
        ensure!(threads > 0, "at least one thread moves the data");
        let memory = map(origin, memory_bytes).context("the initiator's memory")?;
        let mut child = ChildProcess::start(program, &Role::SameHostTarget { origin, memory_bytes })?;
        let Place { address, fd } = child.reply().context("the raw target")?;
        let access = match fd {
            None => Access::Kernel { pid: child.pid() as i32, address },
            Some(fd) => {
                let mapped = map_of(child.pid(), fd, memory_bytes);
                Access::Mapped(mapped.context("reaching the raw target's memory")?)
            }
        };
        Reference::new(SameHost { access, threads }, child, memory, address)
    }
}

/// Maps another process's memory file.
fn map_of(pid: u32, fd: i32, bytes: usize) -> io::Result<Memory> {
    let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
    let remote = Memory::of(file.as_fd(), bytes, true)?;
    // Touch the pages before any run.
    (0..bytes).step_by(page_bytes()).for_each(|offset| remote.read(offset, &mut [0]));
    Ok(remote)
}

impl SameHost {
    /// Moves all of transfer `number` and returns when the data is in place.
    fn move_all(&self, ground: Ground, run: &mut Run, number: u64) -> io::Result<()> {
        match &self.access {
            Access::Kernel { pid, address } => by_kernel(ground, (*pid, *address), run, number),
            Access::Mapped(remote) => {
                by_copies(ground, remote, run, number);
                Ok(())
            }
        }
    }
}

fn by_kernel(ground: Ground, target: (i32, u64), run: &mut Run, number: u64) -> io::Result<()> {
    let (Ground { walk, memory }, (pid, address)) = (ground, target);
    let Run { setting: blocks_a_call, here, there, .. } = run;
    here.clear();
    there.clear();
    let bytes = walk.workload().block_bytes;
    for (own, other) in walk.offsets(number) {
        here.push(IoVec::new(memory.address() as u64 + own as u64, bytes));
        there.push(IoVec::new(address + other as u64, bytes));
    }
    for (here, there) in here.chunks(*blocks_a_call).zip(there.chunks(*blocks_a_call)) {
        // SAFETY: `here` lies in our own memory, which a walk stays within and which outlives the run; no reference to
        // its bytes exists meanwhile. The kernel checks the target's addresses.
        let moved = unsafe {
            match walk.workload().operation {
                Operation::Write => vm::write(pid, here, there),
                Operation::Read => vm::read(pid, here, there),
            }
        }?;
        if moved != here.len() * bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel copied only a part"));
        }
    }
    Ok(())
}

fn by_copies(Ground { walk, memory }: Ground, remote: &Memory, run: &mut Run, number: u64) {
    let Run { setting: kernel, pieces, .. } = run;
    let length = walk.workload().block_bytes;
    pieces.clear();
    pieces.extend(walk.offsets(number).map(|(own, other)| {
        let (here, there) = (memory.address().wrapping_add(own), remote.address().wrapping_add(other));
        match walk.workload().operation {
            Operation::Write => Piece { from: here, to: there, length },
            Operation::Read => Piece { from: there, to: here, length },
        }
    }));
    // SAFETY: a walk stays within both mappings, which are distinct and outlive the run.
    unsafe {
        match &pieces[..] {
            pieces if *kernel == MEMCPY => pieces.iter().for_each(|piece| {
                std::ptr::copy_nonoverlapping(piece.from, piece.to, piece.length);
            }),
            pieces => copy::copy_all(pieces),
        }
    }
}

impl Way for SameHost {
    type Setting = usize;
    type Run = Run;

    fn name(&self) -> &'static str {
        match self.access {
            Access::Kernel { .. } => "raw process_vm",
            Access::Mapped(_) => "raw shared mapping",
        }
    }

    fn path(&self) -> String {
        let kind = match self.access {
            Access::Kernel { .. } => "own",
            Access::Mapped(_) => "shared",
        };
        format!("{kind} memory, {} threads", self.threads)
    }

    fn settings(&self) -> Vec<usize> {
        match self.access {
            Access::Kernel { .. } => BLOCKS_A_CALL.into(),
            Access::Mapped(_) => vec![STREAMING, MEMCPY],
        }
    }

    fn describe(&self, setting: usize, _: &Workload) -> String {
        let threads = match self.threads {
            1 => "one thread".to_owned(),
            count => format!("{count} threads"),
        };
        match self.access {
            Access::Kernel { .. } => format!("{threads}, {setting} blocks a call"),
            Access::Mapped(_) if setting == MEMCPY => format!("{threads}, memcpy"),
            Access::Mapped(_) => format!("{threads}, streaming copies"),
        }
    }

    fn ready(&self, _: &Workload, setting: usize, _: Option<&LatencyWorkload>) -> anyhow::Result<Run> {
        Ok(Run { setting, ..Run::default() })
    }

    fn drive(&self, ground: Ground, run: &mut Run, dispenser: &Dispenser) -> io::Result<Instant> {
        on_threads(self.threads, |_| {
            let mut run = Run { setting: run.setting, ..Run::default() };
            while let Some(number) = dispenser.take() {
                self.move_all(ground, &mut run, number)?;
            }
            Ok(())
        })
    }

    fn carry(&self, ground: Ground, run: &mut Run, number: u64) -> io::Result<()> {
        self.move_all(ground, run, number)
    }
}
