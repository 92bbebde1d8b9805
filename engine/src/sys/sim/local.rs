//! The simulated side of `sys::local`: variables of tasks and of simulated processes.

pub use ferry_sim_kernel::{local, process_local};
