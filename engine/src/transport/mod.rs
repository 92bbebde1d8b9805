//! The paths to a peer. Each folder is one transport and knows none of the others.

pub mod ascend;
pub mod cuda;
pub mod local;
#[cfg(test)]
pub mod loopback;
pub mod rdma;
pub mod tcp;
