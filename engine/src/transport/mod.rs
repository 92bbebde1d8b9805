//! The transports. Each folder is one transport and imports none of the others.

pub mod ascend;
pub mod cuda;
pub mod local;
pub mod rdma;
pub mod tcp;
