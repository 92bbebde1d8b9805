//! Maps and sets without an order. Their hasher is the standard library's random one, because peers choose keys. A
//! simulation takes a hasher that is the same in each run, so that iteration repeats. `default` makes an empty map;
//! the standard library has `new` for its own hasher alone.

pub use std::collections::hash_map::Entry;
use std::hash::RandomState;

pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
pub type HashSet<T> = std::collections::HashSet<T, RandomState>;
