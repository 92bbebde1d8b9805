//! The transports. Each folder is one transport and imports none of the others.

pub mod ascend;
// The feature `sim` takes the devices of the simulated kernel in place of CUDA's.
#[cfg_attr(feature = "sim", path = "sim/cuda.rs")]
pub mod cuda;
// The simulated kernel has no files.
#[cfg_attr(feature = "sim", path = "sim/file.rs")]
pub mod file;
pub mod local;
#[cfg(test)]
pub mod loopback;
pub mod rdma;
pub mod tcp;
