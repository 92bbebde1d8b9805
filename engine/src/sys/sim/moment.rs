//! The simulated side of `sys::moment`: counts.

pub use ferry_sim_kernel::moment::reached_if;
