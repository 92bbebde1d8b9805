//! The references of the same-host path: the least a program can do to move bytes between two processes
//! of one machine.
//!
//! `vm` has the kernel copy between the two address spaces; `shared` maps the target's memory and copies
//! itself. Both move whole transfers from several threads without a word to the target, which only
//! prepares and checks its memory: a child of this same binary, as the target of the TCP reference is.

mod engine;
mod pair;
mod shared;
mod target;
mod vm;
mod wire;

pub use engine::{SameHostEngine, SharedEngine, VmEngine};
pub use pair::SameHostConfig;
pub use target::{serve, SameHostTargetOptions};

use std::io;

use crate::memory::Memory;
use crate::walk::Walk;
pub use wire::Kind;
use wire::Place;

/// How a thread of the initiator reaches the target's memory.
pub trait Way: Sized + Sync {
    /// What `Engine::name` says.
    const NAME: &'static str;
    const KIND: Kind;
    /// Settings worth trying for a workload; the first serves what was not prepared.
    const SETTINGS: &'static [usize];

    /// `pid` is the target, which has `bytes` of memory at `place`.
    fn reach(pid: u32, place: Place, bytes: usize) -> io::Result<Self>;

    /// Moves all of transfer `number` and returns when it is in place.
    fn carry(
        &self,
        walk: &Walk,
        memory: &Memory,
        number: u64,
        setting: usize,
        scratch: &mut Scratch,
    ) -> io::Result<()>;

    fn describe(setting: usize) -> String;
}

/// A thread's lists, reused from transfer to transfer.
#[derive(Default)]
pub struct Scratch {
    here: Vec<libc::iovec>,
    there: Vec<libc::iovec>,
    pieces: Vec<shared::Piece>,
}
