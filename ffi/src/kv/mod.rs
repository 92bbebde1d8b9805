//! The C interface of ferry-kv, `include/ferry_kv.h`. One part is pure: layouts of paged KV caches, and what one
//! rank must send to another that is sharded differently. The other part hands sequences over between caches of
//! engines. The crate
//! `ferry_kv` decides; these files check pointers and sizes, and convert.
//!
//! ```text
//! desc      the structs that describe a layout       ┐
//! convert   from those structs to a layout           │
//! arrays    arrays of structs that the caller fills  │
//! arrange   strides of the usual arrangements        ├ pure
//! layout    ferry_kv_layout: made, exported, imported│
//! plan      ferry_kv_plan: who sends to whom         │
//! moves     ferry_kv_moves: bytes, by strides        ┘
//! cache     ferry_kv_cache: opened, closed, freed    ┐
//! id        ferry_kv_id: one attempt                 │
//! lists     ferry_kv_block_list, by group            ├ over an engine
//! offer     what a producer says                     │
//! take      what a consumer says                     │
//! events    ferry_kv_event: what has become of it    │
//! state     ferry_kv_state: what is known of an id   │
//! metrics   ferry_kv_stats: what a cache counts      │
//! timeline  what happened when, and its picture      ┘
//! names     of the numbers in all of these
//! directory, directory_info   ferry_directory: peers by name, by the crate `ferry_directory`
//! ```

pub mod arrange;
pub(crate) mod arrays;
pub mod cache;
mod convert;
pub mod desc;
pub mod directory;
pub mod directory_info;
pub mod events;
pub mod id;
pub mod layout;
pub mod lists;
pub mod metrics;
pub mod moves;
pub mod names;
pub mod offer;
pub mod plan;
pub mod state;
pub mod take;
pub mod timeline;

/// The header promises that threads may share these.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<layout::ferry_kv_layout>();
    shared::<plan::ferry_kv_plan>();
    shared::<moves::ferry_kv_moves>();
    shared::<cache::ferry_kv_cache>();
    shared::<directory::ferry_directory>();
};
