//! The atomics with which threads hand work to each other. They are the standard library's. A simulation replaces them,
//! because it may switch threads at each access.

pub use std::sync::atomic::{
    fence, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
