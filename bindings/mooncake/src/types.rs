//! The structs and numbers of `ferry_mooncake.h`.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

pub const OPCODE_READ: c_int = 0;
pub const OPCODE_WRITE: c_int = 1;

/// The engine's own memory as a segment.
pub const LOCAL_SEGMENT: i32 = 0;
pub const INVALID_BATCH: u64 = u64::MAX;

/// The task is not final yet.
pub const STATUS_WAITING: c_int = 0;
/// The task does not exist.
pub const STATUS_INVALID: c_int = 2;
pub const STATUS_CANCELED: c_int = 3;
pub const STATUS_COMPLETED: c_int = 4;
pub const STATUS_TIMEOUT: c_int = 5;
pub const STATUS_FAILED: c_int = 6;

// `tests/layout.c` has the same sizes.
const _: () = assert!(size_of::<TransferRequest>() == 40 && offset_of!(TransferRequest, length) == 32);
const _: () =
    assert!(offset_of!(TransferRequest, source) == 8 && offset_of!(TransferRequest, target_id) == 16);
const _: () =
    assert!(size_of::<TransferStatus>() == 16 && offset_of!(TransferStatus, transferred_bytes) == 8);
const _: () = assert!(size_of::<NotifyMsg>() == 16 && size_of::<BufferEntry>() == 16);
const _: () = assert!(size_of::<NicLoadStat>() == 80);

/// `transfer_request_t`.
#[repr(C)]
pub struct TransferRequest {
    pub opcode: c_int,
    pub source: *mut c_void,
    pub target_id: i32,
    pub target_offset: u64,
    pub length: u64,
}

/// `transfer_status_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TransferStatus {
    pub status: c_int,
    pub transferred_bytes: u64,
}

/// `notify_msg_t`.
#[repr(C)]
pub struct NotifyMsg {
    pub name: *mut c_char,
    pub msg: *mut c_char,
}

/// `buffer_entry_t`.
#[repr(C)]
pub struct BufferEntry {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `nic_load_stat_t`.
#[repr(C)]
pub struct NicLoadStat {
    pub device_name: [c_char; 64],
    pub inflight_bytes: u64,
    pub ewma_bandwidth_bps: f64,
}
