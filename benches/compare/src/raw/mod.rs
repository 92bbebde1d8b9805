//! The references: the least that a program can do to move the same bytes, over TCP here, within one machine in
//! `same_host`, and over RDMA in `verbs`.
//!
//! Two processes on 127.0.0.1, with a thread at each end of each connection, gather and scatter in place. The target
//! is this same binary, started with a hidden subcommand, and stays up between runs so that they can be interleaved
//! with another engine's.

mod lane;
mod pieces;
mod reference;
pub mod same_host;
mod socket;
mod tcp;
pub mod verbs;

pub use tcp::{serve, RawEngine, Tuning, CONGESTION_CONTROL};
