//! The C interface of ferry-kv's pure part, `include/ferry_kv.h`: layouts of paged KV caches, and what one rank must
//! send to another that is sharded differently. No call needs an engine, opens anything or waits. The crate `ferry_kv`
//! decides; these files check pointers and sizes, and convert.
//!
//! ```text
//! desc      the structs that describe a layout
//! convert   from those structs to a layout
//! arrays    arrays of structs that the caller fills
//! arrange   strides of the usual arrangements
//! layout    ferry_kv_layout: made, exported, imported
//! plan      ferry_kv_plan: who sends to whom
//! moves     ferry_kv_moves: the bytes of some tokens, by strides
//! ```

pub mod arrange;
mod arrays;
mod convert;
pub mod desc;
pub mod layout;
pub mod moves;
pub mod plan;

/// The header promises that threads may share these.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<layout::ferry_kv_layout>();
    shared::<plan::ferry_kv_plan>();
    shared::<moves::ferry_kv_moves>();
};
