//! The checkers. `access` looks at each access of the kernel to registered memory while it happens, `ends` at what an
//! application is told, `bounds` at how long things take and at what is left in the end.

pub mod access;
pub mod bounds;
pub mod ends;
