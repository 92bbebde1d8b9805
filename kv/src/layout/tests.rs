//! Layouts for the tests of this module's files.

use super::Layer;

/// A layer without memory, of rows of 128 bytes.
pub fn layer(name: &str, heads: u32) -> Layer {
    let name = name.to_string();
    Layer { name, group: 0, stage: 0, heads, pairs: 2, elements: 64, element_bytes: 2, memory: None }
}
