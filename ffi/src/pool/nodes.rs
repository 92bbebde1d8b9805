//! The nodes of the cluster, as one of them knows them.

use super::node::ferry_pool;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::timeout;
use crate::pointers::{copy_text, Out};
use crate::status::ferry_status;
use crate::versioned::{OutArray, Versioned};
use ::ferry_pool::NodeInfo;
use std::ffi::c_char;
use std::mem::size_of;

/// A node of the cluster.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_node_info {
    /// Out: how many bytes were written.
    pub struct_size: u32,
    /// 1 if the node lends memory, 0 if it is a client or has not greeted.
    pub is_member: u32,
    /// What ferry_pool_result.node says of it; 0 before it has greeted.
    pub id: u64,
    /// Bytes that it lends.
    pub capacity: u64,
    /// Bytes of these that hold no value, as it said last.
    pub free: u64,
    /// Its name, terminated; "" before it has greeted.
    pub name: [c_char; 264],
    /// "host:port", as configured or as the engine knows it; terminated.
    pub address: [c_char; 264],
    /// Why it is not connected, or cannot be a node of this cluster: a sentence for people, terminated, cut if it is
    /// too long. "" if it is one.
    pub why: [c_char; 240],
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_node_info {
    const SIZE_MIN: usize = 800;
}

/// Lists this node, then those that it is, or is to be, connected to. Returns lists as ferry_config_settings does. A
/// closed pool still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_nodes(
    pool: *const ferry_pool,
    out_nodes: *mut ferry_pool_node_info,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let pool = ferry_pool::own(pool)?;
            let out = OutArray::new(out_nodes, element_size, capacity, "out_nodes")?;
            let count = Out::new(out_count, "out_count")?;
            let nodes = pool.pool.nodes();
            out.fill(nodes.iter().map(ferry_pool_node_info::from));
            count.set(nodes.len());
            Ok(())
        })
    }
}

/// Waits until `count` nodes, this one among them, are connected and have greeted.
///
/// FERRY_ERR_TIMEOUT: they are not; the message names those that are missing, and why. FERRY_ERR_CLOSED: the pool or
/// its engine is closed. FERRY_ERR_BUSY: inside a callback, unless the timeout is 0.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_wait_nodes(
    pool: *mut ferry_pool,
    count: usize,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            ferry_pool::blocking(pool, timeout_ns)?.pool.wait_for_nodes(count, timeout(timeout_ns))
        })
    }
}

impl From<&NodeInfo> for ferry_pool_node_info {
    fn from(node: &NodeInfo) -> ferry_pool_node_info {
        let mut info = ferry_pool_node_info {
            struct_size: size_of::<ferry_pool_node_info>() as u32,
            is_member: node.is_member.into(),
            id: node.id.map_or(0, |id| id.0),
            capacity: node.capacity,
            free: node.free,
            name: [0; 264],
            address: [0; 264],
            why: [0; 240],
        };
        copy_text(&node.name, &mut info.name);
        copy_text(&node.address, &mut info.address);
        copy_text(&node.why, &mut info.why);
        info
    }
}
