//! The simulated side of `sys::map`: the hasher is the same in each run.

pub use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, DefaultHasher};

pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
pub type HashSet<T> = std::collections::HashSet<T, BuildHasherDefault<DefaultHasher>>;
