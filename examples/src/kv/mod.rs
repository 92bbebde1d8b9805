//! Two workers that hand over a paged KV cache, as in a serving system that runs prefill and decode on
//! different machines.
//!
//! ```text
//!   prefill process                                decode process
//!   cache: 32 layers of pool blocks                cache: the same, other block ids
//!        │  push: WRITE one layer, "layer 7" ──────────▶  waits on its queue's eventfd
//!        │  pull: ◀────────────── READ one layer          waits for its own transfers
//! ```
//! `geometry` has the size of a cache, `pattern` the content of every 8 bytes, `cache` a cache in registered
//! memory, `worker` the work that both processes share, `prefill` and `decode` their roles, `message` the
//! messages between them, `story` their lines to the parent, and `report` the table at the end.

pub mod cache;
pub mod decode;
pub mod geometry;
pub mod message;
pub mod pattern;
pub mod prefill;
pub mod report;
pub mod story;
pub mod worker;
