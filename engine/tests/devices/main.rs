//! Memory of devices between two processes, each with device libraries of its own: the bytes that arrive for every
//! pair of memories, and the outcome of transfers when a device, a library or a process fails.
//!
//! The libraries are the stand-ins (`tests/standin`): CUDA's and AscendCL's in every process, so that the two ends may
//! use different ones. `role` is a process that obeys commands, `program` plays the host program in it, `ends` has two
//! such processes and their commands. The tests check the promises of transfers, not how device memory gets from one
//! process to the other.

#[path = "../common/mod.rs"]
mod common;
mod ends;
#[path = "../common/mapped.rs"]
mod mapped;
mod program;
mod role;

mod across;
mod faults;
mod lost;
mod moves;
mod namespaces;
mod order;
mod own;
mod refused;
mod struck;
