//! The C interface of ferry-pool, `include/ferry_pool.h`. The crate `ferry_pool` decides; these files check pointers
//! and sizes, and convert.
//!
//! ```text
//! key       ferry_pool_key: 32 bytes that name a chunk          ┐
//! keyspace  keys of a tenant and a model, of a caller's hashes  ├ pure
//! chain     keys of token ids                                   ┘
//! node      ferry_pool: a node, opened, closed, freed
//! values    a key and its memory, options of calls
//! results   how a key ended
//! parts     values of engines that are sharded differently
//! calls     get, put, exists, remove, prefetch, waiting or not
//! cost      what a get of a prefix would cost
//! drain     a node is taken out
//! events    ends of calls that were submitted
//! nodes     the nodes of the cluster
//! stats     what a node counts
//! names     of the outcomes
//! ```

pub mod calls;
pub mod chain;
pub mod cost;
pub mod drain;
pub mod events;
pub mod key;
pub mod keyspace;
pub mod names;
pub mod node;
pub mod nodes;
pub mod parts;
pub mod results;
pub mod stats;
pub mod values;

/// The header promises that threads may share these.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<keyspace::ferry_pool_keyspace>();
    shared::<node::ferry_pool>();
    shared::<parts::ferry_pool_parts>();
};
