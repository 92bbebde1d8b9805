//! `ferry_pool_result`: how one key of a call ended.

use crate::handles::check_reserved;
use ::ferry_pool::{KeyEnd, NodeId, Outcome};
use engine::status::Result;
use engine::Error;

/// Get: the value is in the caller's memory. Put: it is stored. Exists: it exists. Remove: it is removed. Prefetch: it
/// was brought into this node's memory.
pub const FERRY_POOL_OUTCOME_OK: u32 = 0;
/// Put: the value was stored already, and no byte was moved. Prefetch: it was in this node's memory.
pub const FERRY_POOL_OUTCOME_HERE: u32 = 1;
/// No node has the value.
pub const FERRY_POOL_OUTCOME_ABSENT: u32 = 2;
/// The value was not found, and a node may still have it: nodes are missing, or the index is being rebuilt.
pub const FERRY_POOL_OUTCOME_UNKNOWN: u32 = 3;
/// Get: the index named an owner, which has evicted the value since.
pub const FERRY_POOL_OUTCOME_EVICTED: u32 = 4;
/// Each owner of the value is lost or silent.
pub const FERRY_POOL_OUTCOME_OWNER_LOST: u32 = 5;
/// Get: the bytes of each owner did not match their checksum. The owners drop them.
pub const FERRY_POOL_OUTCOME_CORRUPT: u32 = 6;
/// Put: no node has room, even after eviction. Prefetch: this node has none.
pub const FERRY_POOL_OUTCOME_FULL: u32 = 7;
/// Put: the value is longer than the memory of any node. Prefetch: it is longer than this node can bring.
pub const FERRY_POOL_OUTCOME_TOO_LONG: u32 = 8;
/// Get: the memory has another length than the value, whose length is in bytes.
pub const FERRY_POOL_OUTCOME_LENGTH: u32 = 9;
/// The transfer failed: the caller's memory was unregistered meanwhile, or cannot be read or written.
pub const FERRY_POOL_OUTCOME_FAILED: u32 = 10;
/// The pool or its engine was closed.
pub const FERRY_POOL_OUTCOME_CLOSED: u32 = 11;

/// How one key of a call ended. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_pool_result {
    /// FERRY_POOL_OUTCOME_*. After a get, the memory of a key is undefined unless this is FERRY_POOL_OUTCOME_OK.
    pub outcome: u32,
    /// Always 0.
    pub reserved: u32,
    /// The length of the value where it is known, else 0.
    pub bytes: u64,
    /// The node that served, stored or has it: the id in ferry_pool_node_info. 0: no node did, or several.
    pub node: u64,
}

impl From<KeyEnd> for ferry_pool_result {
    fn from(end: KeyEnd) -> ferry_pool_result {
        let KeyEnd { outcome, bytes, node } = end;
        ferry_pool_result { outcome: outcome as u32, reserved: 0, bytes, node: node.map_or(0, |node| node.0) }
    }
}

impl ferry_pool_result {
    /// Reads what an earlier call has written.
    pub(super) fn read(&self) -> Result<KeyEnd> {
        check_reserved(self.reserved, "results.reserved")?;
        let outcome = Outcome::from_number(self.outcome);
        let unknown = || Error::invalid(format!("results: {} is no FERRY_POOL_OUTCOME_*", self.outcome));
        let node = Some(NodeId(self.node)).filter(|node| node.0 != 0);
        Ok(KeyEnd { outcome: outcome.ok_or_else(unknown)?, bytes: self.bytes, node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let end = KeyEnd { outcome: Outcome::Evicted, bytes: 7, node: Some(NodeId(8)) };
        let result =
            ferry_pool_result { outcome: FERRY_POOL_OUTCOME_EVICTED, reserved: 0, bytes: 7, node: 8 };
        assert_eq!(ferry_pool_result::from(end), result);
        assert_eq!(result.read().unwrap(), end);
        assert!(ferry_pool_result { outcome: 12, ..result }.read().is_err());
    }
}
