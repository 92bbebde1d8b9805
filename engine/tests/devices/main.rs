//! Memory of devices between two processes, each with device libraries of its own: what arrives for every pair of
//! memories, and what becomes of transfers when a device, a library or a process fails.
//!
//! The libraries are the stand-ins (`tests/standin`): CUDA's and AscendCL's in every process, so that one end may
//! have the one and the other end the other. `role` is a process that does as it is told, `program` what the host
//! program does in it, `ends` two of them and what they tell. What a test states is what transfers promise; how
//! device memory gets from one process to the other is not its business.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod program;
mod role;

mod across;
mod faults;
mod lost;
mod moves;
mod namespaces;
mod order;
mod refused;
mod struck;
