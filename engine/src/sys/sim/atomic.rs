//! The simulated side of `sys::atomic`: each access is a point.

pub use ferry_sim_kernel::sync::atomic::{
    fence, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
