//! The transports. Each folder is one transport and imports none of the others.

pub mod ascend;
pub mod cuda;
pub mod local;
#[cfg(test)]
pub mod loopback;
pub mod rdma;
pub mod tcp;
