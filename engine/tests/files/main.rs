//! Files as memory: the bytes that arrive, what registering refuses, what happens at the ends of files and of disks,
//! and how regions and engines end. Each test runs by io_uring and by threads, and says so aloud where it can't.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod faults;
mod moves;
mod refused;
mod support;
