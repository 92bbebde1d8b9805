//! A simulated kernel. Programs run on it deterministically: threads are tasks that switch only at points, time is
//! virtual, and processes, memory, sockets and pollers are data in one world. One seed decides every switch, every
//! delay and every fault, so a run repeats exactly.
//!
//! ```text
//!   run      one world, from its first task to its outcome
//!    ├ task, wait, scope    stacks that take turns; waits with a time; tasks that are awaited in a scope
//!    ├ sync, local          locks, atomics and thread-local variables, all made of points
//!    ├ clock, process       hosts with clocks that drift, processes that stop and die
//!    ├ arena, memory        memory at repeated addresses, and who touched which registered part of it
//!    ├ pages                pages that are missing or late, for those that touch them
//!    ├ trace, moment        the story of a run; how often it came to situations that are looked for
//!    ├ explore              every schedule of a short program, in place of one that a seed draws
//!    ├ fd, poller, eventfd  descriptors, and waiting for them
//!    ├ net, unix, vm        streams between hosts, sockets within one, copies between processes
//!    ├ nic                  RDMA devices, as libibverbs shows them
//!    ├ device               devices with memory of their own, and their copies
//!    └ rng, timer, world    the seed's numbers, what is due when, the state behind all of it
//! ```
//! A point is a place where another task may run: each lock, each access to an atomic, each call of the kernel.
//! Between two points a task is alone. A killed process's tasks never run again, and their stacks are not unwound:
//! what they own is leaked, as memory of a dead process that the host gives back. So programs that run long sequences
//! of seeds should run some thousand in one operating system's process, and start another.

pub mod arena;
pub mod clock;
pub mod device;
pub mod eventfd;
pub mod explore;
pub mod fd;
pub mod local;
pub mod memory;
pub mod moment;
pub mod net;
pub mod nic;
pub mod pages;
pub mod poller;
pub mod process;
mod rng;
mod run;
pub mod scope;
pub mod sync;
pub mod task;
mod timer;
pub mod trace;
pub mod unix;
pub mod vm;
pub mod wait;
mod world;

#[cfg(test)]
mod tests;

pub use rng::MILLION;
pub use run::{fail, run, Options, Outcome};
pub use world::{is_running, point};

/// Returns a random number for the program that runs.
pub fn random_u64() -> u64 {
    point();
    world::with(|world| world.draws.next())
}

/// Removes the items that `is_taken` names, and returns them in their order. The others keep theirs.
pub fn take_where<T>(items: &mut Vec<T>, mut is_taken: impl FnMut(&T) -> bool) -> std::vec::Drain<'_, T> {
    items.sort_by_key(&mut is_taken);
    let first = items.partition_point(|item| !is_taken(item));
    items.drain(first..)
}
