//! `ferry_pool_drain`: takes a node out of its pool.

use super::node::ferry_pool;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::timeout;
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::Drained;
use std::mem::size_of;

/// The values of a node that was taken out. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_pool_drained {
    /// In: sizeof(ferry_pool_drained). Out: how many bytes were written.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Values that drains have moved to other nodes since the node was opened.
    pub moved: u64,
    /// Values that another node had already.
    pub here: u64,
    /// Values that no other node took: they stay in this node until it is closed. If there are 1,024 or more, the drain
    /// ended early.
    pub left: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_drained {
    const SIZE_MIN: usize = 32;
}

/// Takes a node out of the pool, before it is closed: it takes no puts any more, and moves its values to other nodes,
/// those used longest ago first. The others evict for them as for any put. The node serves gets all the while, and gets
/// find the values. Waits until that is done; a drain that is under way is joined. Close the node afterwards: it takes
/// puts again only if no other node could take what is left.
///
/// FERRY_ERR_TIMEOUT: the drain goes on; the next call tells its end. FERRY_ERR_INVALID: the node lends no memory, or
/// no other node takes values; the message names the node. FERRY_ERR_CLOSED: the pool or its engine is closed.
/// FERRY_ERR_BUSY: inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_drain(
    pool: *mut ferry_pool,
    timeout_ns: u64,
    out_drained: *mut ferry_pool_drained,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let pool = ferry_pool::own(pool)?;
            let out = versioned::Out::new(out_drained, "out_drained")?;
            out.set(&pool.pool.drain(timeout(timeout_ns))?.into());
            Ok(())
        })
    }
}

impl From<Drained> for ferry_pool_drained {
    fn from(drained: Drained) -> ferry_pool_drained {
        let Drained { moved, here, left, .. } = drained;
        let struct_size = size_of::<ferry_pool_drained>() as u32;
        ferry_pool_drained { struct_size, reserved: 0, moved, here, left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let expected = ferry_pool_drained { struct_size: 32, reserved: 0, moved: 1, here: 2, left: 3 };
        assert_eq!(ferry_pool_drained::from(Drained { moved: 1, here: 2, left: 3, copies: true }), expected);
    }
}
