//! ferry-compare: measures ferry beside raw references, perftest and other engines, in turn, and judges the ratios. It
//! is not shipped.
//!
//! From the bottom up: the quantities and jobs of a run (`figures`), verdicts (`judge`), rows and their rounds
//! (`contest`), the tables (`screen`), memory of children (`foreign`), the references (`raw`), and the three
//! comparisons: `sockets`, `peers` and `rdma`. `role` is what this program's child processes are.

pub mod contest;
pub mod figures;
pub mod foreign;
pub mod judge;
pub mod peers;
pub mod raw;
pub mod rdma;
pub mod role;
pub mod screen;
pub mod sockets;
