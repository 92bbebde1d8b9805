//! Routing: which paths carry a transfer (`choose`), how many bytes each (`split`), and the slices that
//! a path can post (`slice`). Pure; between `plan`, which gives ranges, and `transport`, which posts.
//! Slicing comes last and can be done again from the same ranges when a path fails.

mod choose;
mod slice;
mod split;
#[cfg(test)]
mod tests;

pub use choose::{choose, Choice, PathState};
pub use slice::slice;
pub use split::split;
