//! A value that is set once: the standard library's. A simulation replaces it, because a thread waits while another
//! makes the value.

pub use std::sync::OnceLock;
