//! Two workers that hand over a paged KV cache, as in a serving system that runs prefill and decode on
//! different machines.
//!
//! ```text
//!   prefill process                                decode process
//!   cache: 32 layers of pool blocks                cache: the same, other block ids
//!        │  push: WRITE one layer, "layer 7" ──────────▶  waits on its queue's eventfd
//!        │  pull: ◀────────────── READ one layer          waits for its own transfers
//! ```
//! `geometry` says how large a cache is, `pattern` what every 8 bytes of it must be, `cache` holds one
//! in registered memory, `worker` is what both processes do, `prefill` and `decode` their roles,
//! `message` what they tell each other, `story` what they tell the parent, and `report` the table at
//! the end.

pub mod cache;
pub mod decode;
pub mod geometry;
pub mod message;
pub mod pattern;
pub mod prefill;
pub mod report;
pub mod story;
pub mod worker;
