//! The simulated side of `sys::once`.

pub use ferry_sim_kernel::sync::OnceLock;
