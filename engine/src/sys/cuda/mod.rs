//! NVIDIA's driver library (libcuda.so.1), as far as `transport::cuda` needs it. `api` looks up its functions,
//! `failure` turns results into errors, `context`, `stream` and `memory` hold objects and release them when dropped,
//! and `gate` has the one function that the driver calls.
//!
//! Nothing links against the library: it is opened when device memory of its kind is first used. If the library is
//! absent, too old, or lacks a function, the error says so; nothing is printed and nothing panics.
//!
//! The library is thread-safe. Most calls work in the thread's current context, so each object here enters its own
//! context for the length of a call, and then restores the thread's previous one.

mod api;
mod context;
mod failure;
mod gate;
mod memory;
mod stream;

pub use api::{is_loaded, load, Api};
pub use context::{Context, CurrentContext};
pub use failure::Failure;
pub use gate::Gate;
pub use memory::{DeviceMemory, PinnedMemory};
pub use stream::{is_event_reached, Event, Stream};

use std::ffi::{c_int, c_void};

/// A pointer to an object of the library: a context, stream, event, module or function. A number, because nothing here
/// dereferences it.
pub type Handle = usize;

/// Results of calls (`CUresult`). Numbers rather than an enum, because newer drivers have more results.
pub mod result {
    pub const SUCCESS: i32 = 0;
    pub const INVALID_VALUE: i32 = 1;
    pub const OUT_OF_MEMORY: i32 = 2;
    pub const NOT_INITIALIZED: i32 = 3;
    pub const DEINITIALIZED: i32 = 4;
    pub const DEVICE_UNAVAILABLE: i32 = 46;
    pub const INVALID_DEVICE: i32 = 101;
    pub const INVALID_CONTEXT: i32 = 201;
    pub const ECC_UNCORRECTABLE: i32 = 214;
    pub const NVLINK_UNCORRECTABLE: i32 = 220;
    pub const CONTAINED: i32 = 226;
    pub const INVALID_HANDLE: i32 = 400;
    pub const NOT_READY: i32 = 600;
    pub const ILLEGAL_ADDRESS: i32 = 700;
    pub const LAUNCH_TIMEOUT: i32 = 702;
    pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub const CONTEXT_IS_DESTROYED: i32 = 709;
    pub const ASSERT: i32 = 710;
    pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    pub const HARDWARE_STACK_ERROR: i32 = 714;
    pub const LAUNCH_FAILED: i32 = 719;
    pub const TENSOR_MEMORY_LEAK: i32 = 721;
    pub const NOT_SUPPORTED: i32 = 801;
    pub const MPS_CLIENT_TERMINATED: i32 = 810;
    pub const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    pub const CAPTURED_EVENT: i32 = 907;
    pub const EXTERNAL_DEVICE: i32 = 911;
}

/// `CUpointer_attribute`.
pub mod pointer {
    pub const MEMORY_TYPE: i32 = 2;
    pub const IS_MANAGED: i32 = 8;
    pub const DEVICE_ORDINAL: i32 = 9;
    pub const IS_LEGACY_IPC_CAPABLE: i32 = 10;
    pub const RANGE_START_ADDR: i32 = 11;
    pub const RANGE_SIZE: i32 = 12;
    pub const MAPPED: i32 = 13;
    pub const ALLOWED_HANDLE_TYPES: i32 = 14;
}

/// `CUmemorytype`.
pub const MEMORY_TYPE_HOST: u64 = 1;
pub const MEMORY_TYPE_DEVICE: u64 = 2;

/// `CUdevice_attribute`.
pub const ATTRIBUTE_MULTIPROCESSOR_COUNT: i32 = 16;
pub const ATTRIBUTE_PCI_BUS: i32 = 33;
pub const ATTRIBUTE_PCI_DEVICE: i32 = 34;
pub const ATTRIBUTE_PCI_DOMAIN: i32 = 50;
pub const ATTRIBUTE_RDMA_WRITES_ORDERING: i32 = 118;
pub const ATTRIBUTE_DMA_BUF_SUPPORTED: i32 = 124;
/// `CUGPUDirectRDMAWritesOrdering`: this device sees NICs' writes without a flush. At the next higher value all devices
/// do, at 0 none does.
pub const RDMA_WRITES_ORDERED_FOR_OWNER: i32 = 100;

/// `CUmemAllocationHandleType`.
pub const HANDLE_TYPE_POSIX_FD: i32 = 1;
/// `CUmemRangeHandleType`.
pub const RANGE_HANDLE_DMA_BUF_FD: i32 = 1;

/// The only flag of `cuIpcOpenMemHandle`: enables peer access when the mapping needs it.
pub const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// The default stream, which waits for all others of its context, and the default stream of each thread.
pub const STREAM_LEGACY: u64 = 1;
pub const STREAM_PER_THREAD: u64 = 2;

/// `CUipcMemHandle`, passed by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct IpcHandle(pub [u8; 64]);

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemLocation {
    pub kind: i32,
    pub id: i32,
}

impl MemLocation {
    pub fn device(ordinal: i32) -> MemLocation {
        MemLocation { kind: 1, id: ordinal }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct MemAccess {
    pub location: MemLocation,
    pub flags: i32,
}

impl MemAccess {
    pub fn read_write(ordinal: i32) -> MemAccess {
        MemAccess { location: MemLocation::device(ordinal), flags: 3 }
    }
}

/// `CUmemcpyAttributes`: all zero except for the order in which sources are read.
#[repr(C)]
pub struct CopyAttributes {
    pub source_order: i32,
    pub source_hint: MemLocation,
    pub target_hint: MemLocation,
    pub flags: u32,
}

impl CopyAttributes {
    /// Sources are read when the stream reaches the copy.
    pub fn in_stream_order() -> CopyAttributes {
        let none = MemLocation { kind: 0, id: 0 };
        CopyAttributes { source_order: 1, source_hint: none, target_hint: none, flags: 0 }
    }
}

/// `CUhostFn`.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

// Sizes as a C compiler computes them.
const _: () = assert!(size_of::<IpcHandle>() == 64 && size_of::<MemAccess>() == 12);
const _: () = assert!(size_of::<CopyAttributes>() == 24 && size_of::<c_int>() == 4);
