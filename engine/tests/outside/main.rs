//! Faults from outside an engine, with the real kernel: programs that exec, pages that block or fault,
//! limits, signals, forked children, clocks and names. Each file takes one of these.

mod children;
#[path = "../common/mod.rs"]
mod common;
mod exec;
mod limits;
mod names;
mod own;
mod pages;
mod pages_block;
mod pages_fault;
mod role;
mod signals;
mod unseen;
