//! AscendCL's types, constants and functions, made from facts.h by
//! `UPDATE=1 cargo test -p ferry --test acl`; don't edit.

#![allow(non_camel_case_types)]

pub const ACL_INVALID: i32 = 100000;
pub const ACL_UNINITIALISED: i32 = 100001;
pub const ACL_INITIALISED_BEFORE: i32 = 100002;
pub const ACL_BAD_ALLOCATION: i32 = 200000;
pub const ACL_PARAMETER: i32 = 107000;
pub const ACL_DEVICE_ID: i32 = 107001;
pub const ACL_NO_CONTEXT: i32 = 107002;
pub const ACL_STREAM_OF_OTHER_CONTEXT: i32 = 107003;
pub const ACL_HANDLE: i32 = 107017;
pub const ACL_WAIT_TIMEOUT: i32 = 107019;
pub const ACL_NOT_SUPPORTED: i32 = 207000;
pub const ACL_OUT_OF_MEMORY: i32 = 207001;
pub const ACL_NO_PERMISSION: i32 = 207006;
pub const ACL_OUT_OF_DEVICE_MEMORY: i32 = 207018;
pub const ACL_DEVICE_ERRORS_MIN: i32 = 507000;
pub const ACL_IPC: i32 = 507022;
pub const ACL_HOST_REGISTERED_BEFORE: i32 = 507910;
pub const ACL_HOST_NOT_REGISTERED: i32 = 507911;
pub const ACL_DEVICE_ERRORS_MAX: i32 = 507999;
pub const ACL_COPY_HOST_TO_DEVICE: i32 = 1;
pub const ACL_COPY_DEVICE_TO_HOST: i32 = 2;
pub const ACL_COPY_DEVICE_TO_DEVICE: i32 = 3;
pub const ACL_MALLOC_HUGE_FIRST: i32 = 0;
pub const ACL_MALLOC_HUGE_ONLY: i32 = 1;
pub const ACL_AT_HOST: i32 = 0;
pub const ACL_AT_DEVICE: i32 = 1;
pub const ACL_AT_UNREGISTERED: i32 = 2;
pub const ACL_AT_MANAGED: i32 = 3;
pub const ACL_HOST_REGISTER_MAPPED: i32 = 0;
pub const ACL_STREAM_FAST_LAUNCH: i32 = 1;
pub const ACL_STREAM_FAST_SYNC: i32 = 2;
pub const ACL_STREAM_COMPLETE: i32 = 0;
pub const ACL_STREAM_NOT_READY: i32 = 1;
pub const ACL_STOP_ON_FAILURE: i32 = 1;
pub const ACL_EVENT_PROGRESS: i32 = 2;
pub const ACL_EVENT_NOT_READY: i32 = 0;
pub const ACL_EVENT_COMPLETE: i32 = 1;
pub const ACL_IPC_ENABLE_PEER_ACCESS: i32 = 1;
pub const ACL_IPC_KEY_BYTES: i32 = 65;
pub const HIXL_PARAMETER: i32 = 103900;
pub const HIXL_TIMEOUT: i32 = 103901;
pub const HIXL_NOT_CONNECTED: i32 = 103902;
pub const HIXL_OVER_HCCS: i32 = 0;
pub const HIXL_OVER_ROCE: i32 = 1;
pub const HIXL_ADDRESS_IPV4: i32 = 0;
pub const HIXL_ADDRESS_ID: i32 = 2;
pub const HIXL_AT_DEVICE: i32 = 0;
pub const HIXL_WAITING: i32 = 0;
pub const HIXL_COMPLETED: i32 = 1;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct acl_location {
    pub id: u32,
    pub type_: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct acl_pointer_attributes {
    pub location: acl_location,
    pub page_size: u32,
    pub reserved: [u32; 4usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct acl_batch_attribute {
    pub target: acl_location,
    pub source: acl_location,
    pub reserved: [u8; 16usize],
}
pub type aclInit = ::std::option::Option<
    unsafe extern "C" fn(
        config_path: *const ::std::os::raw::c_char,
    ) -> ::std::os::raw::c_int,
>;
pub type aclFinalize = ::std::option::Option<
    unsafe extern "C" fn() -> ::std::os::raw::c_int,
>;
pub type aclFinalizeReference = ::std::option::Option<
    unsafe extern "C" fn(left: *mut u64) -> ::std::os::raw::c_int,
>;
pub type aclGetRecentErrMsg = ::std::option::Option<
    unsafe extern "C" fn() -> *const ::std::os::raw::c_char,
>;
pub type aclrtGetDeviceCount = ::std::option::Option<
    unsafe extern "C" fn(count: *mut u32) -> ::std::os::raw::c_int,
>;
pub type aclrtGetPhyDevIdByLogicDevId = ::std::option::Option<
    unsafe extern "C" fn(device: i32, physical: *mut i32) -> ::std::os::raw::c_int,
>;
pub type aclrtCreateContext = ::std::option::Option<
    unsafe extern "C" fn(
        context: *mut *mut ::std::os::raw::c_void,
        device: i32,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtDestroyContext = ::std::option::Option<
    unsafe extern "C" fn(context: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtSetCurrentContext = ::std::option::Option<
    unsafe extern "C" fn(context: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtGetCurrentContext = ::std::option::Option<
    unsafe extern "C" fn(
        context: *mut *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtDeviceCanAccessPeer = ::std::option::Option<
    unsafe extern "C" fn(can: *mut i32, device: i32, peer: i32) -> ::std::os::raw::c_int,
>;
pub type aclrtDeviceEnablePeerAccess = ::std::option::Option<
    unsafe extern "C" fn(peer: i32, flags: u32) -> ::std::os::raw::c_int,
>;
pub type aclrtDeviceGetBareTgid = ::std::option::Option<
    unsafe extern "C" fn(process: *mut i32) -> ::std::os::raw::c_int,
>;
pub type aclrtMalloc = ::std::option::Option<
    unsafe extern "C" fn(
        address: *mut *mut ::std::os::raw::c_void,
        length: usize,
        policy: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtFree = ::std::option::Option<
    unsafe extern "C" fn(address: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtMallocHost = ::std::option::Option<
    unsafe extern "C" fn(
        address: *mut *mut ::std::os::raw::c_void,
        length: usize,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtFreeHost = ::std::option::Option<
    unsafe extern "C" fn(address: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtHostRegister = ::std::option::Option<
    unsafe extern "C" fn(
        address: *mut ::std::os::raw::c_void,
        length: u64,
        type_: ::std::os::raw::c_int,
        device_address: *mut *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtHostUnregister = ::std::option::Option<
    unsafe extern "C" fn(address: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtPointerGetAttributes = ::std::option::Option<
    unsafe extern "C" fn(
        address: *const ::std::os::raw::c_void,
        attributes: *mut acl_pointer_attributes,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtMemGetAddressRange = ::std::option::Option<
    unsafe extern "C" fn(
        address: *mut ::std::os::raw::c_void,
        base: *mut *mut ::std::os::raw::c_void,
        length: *mut usize,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtMemcpy = ::std::option::Option<
    unsafe extern "C" fn(
        target: *mut ::std::os::raw::c_void,
        target_length: usize,
        source: *const ::std::os::raw::c_void,
        length: usize,
        kind: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtMemcpyAsync = ::std::option::Option<
    unsafe extern "C" fn(
        target: *mut ::std::os::raw::c_void,
        target_length: usize,
        source: *const ::std::os::raw::c_void,
        length: usize,
        kind: ::std::os::raw::c_int,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtMemcpyBatchAsync = ::std::option::Option<
    unsafe extern "C" fn(
        targets: *mut *mut ::std::os::raw::c_void,
        target_lengths: *mut usize,
        sources: *mut *mut ::std::os::raw::c_void,
        lengths: *mut usize,
        count: usize,
        attributes: *mut acl_batch_attribute,
        attribute_indexes: *mut usize,
        attribute_count: usize,
        failed_index: *mut usize,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtCreateStreamWithConfig = ::std::option::Option<
    unsafe extern "C" fn(
        stream: *mut *mut ::std::os::raw::c_void,
        priority: u32,
        flags: u32,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtDestroyStream = ::std::option::Option<
    unsafe extern "C" fn(stream: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtSetStreamFailureMode = ::std::option::Option<
    unsafe extern "C" fn(
        stream: *mut ::std::os::raw::c_void,
        mode: u64,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtStreamQuery = ::std::option::Option<
    unsafe extern "C" fn(
        stream: *mut ::std::os::raw::c_void,
        status: *mut ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtStreamAbort = ::std::option::Option<
    unsafe extern "C" fn(stream: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtSynchronizeStreamWithTimeout = ::std::option::Option<
    unsafe extern "C" fn(
        stream: *mut ::std::os::raw::c_void,
        timeout_ms: i32,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtCreateEventWithFlag = ::std::option::Option<
    unsafe extern "C" fn(
        event: *mut *mut ::std::os::raw::c_void,
        flags: u32,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtDestroyEvent = ::std::option::Option<
    unsafe extern "C" fn(event: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtRecordEvent = ::std::option::Option<
    unsafe extern "C" fn(
        event: *mut ::std::os::raw::c_void,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtQueryEventStatus = ::std::option::Option<
    unsafe extern "C" fn(
        event: *mut ::std::os::raw::c_void,
        status: *mut ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtIpcMemGetExportKey = ::std::option::Option<
    unsafe extern "C" fn(
        base: *mut ::std::os::raw::c_void,
        length: usize,
        key: *mut ::std::os::raw::c_char,
        key_bytes: usize,
        flags: u64,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtIpcMemSetImportPid = ::std::option::Option<
    unsafe extern "C" fn(
        key: *const ::std::os::raw::c_char,
        processes: *mut i32,
        count: usize,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtIpcMemImportByKey = ::std::option::Option<
    unsafe extern "C" fn(
        base: *mut *mut ::std::os::raw::c_void,
        key: *const ::std::os::raw::c_char,
        flags: u64,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtIpcMemClose = ::std::option::Option<
    unsafe extern "C" fn(key: *const ::std::os::raw::c_char) -> ::std::os::raw::c_int,
>;
pub type aclrtMemRetainAllocationHandle = ::std::option::Option<
    unsafe extern "C" fn(
        base: *mut ::std::os::raw::c_void,
        handle: *mut *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtFreePhysical = ::std::option::Option<
    unsafe extern "C" fn(handle: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtMemExportToShareableHandle = ::std::option::Option<
    unsafe extern "C" fn(
        handle: *mut ::std::os::raw::c_void,
        type_: ::std::os::raw::c_int,
        flags: u64,
        shareable: *mut u64,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtMemSetPidToShareableHandle = ::std::option::Option<
    unsafe extern "C" fn(
        shareable: u64,
        processes: *mut i32,
        count: usize,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtMemImportFromShareableHandle = ::std::option::Option<
    unsafe extern "C" fn(
        shareable: u64,
        device: i32,
        handle: *mut *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtReserveMemAddress = ::std::option::Option<
    unsafe extern "C" fn(
        address: *mut *mut ::std::os::raw::c_void,
        length: usize,
        alignment: usize,
        wanted: *mut ::std::os::raw::c_void,
        flags: u64,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtReleaseMemAddress = ::std::option::Option<
    unsafe extern "C" fn(address: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
pub type aclrtMapMem = ::std::option::Option<
    unsafe extern "C" fn(
        address: *mut ::std::os::raw::c_void,
        length: usize,
        offset: usize,
        handle: *mut ::std::os::raw::c_void,
        flags: u64,
    ) -> ::std::os::raw::c_int,
>;
pub type aclrtUnmapMem = ::std::option::Option<
    unsafe extern "C" fn(address: *mut ::std::os::raw::c_void) -> ::std::os::raw::c_int,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hixl_endpoint {
    pub protocol: i32,
    pub address_type: i32,
    pub address: [u8; 36usize],
    pub location: i32,
    pub physical_device: u32,
    pub super_device: u32,
    pub rest: [u8; 104usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hixl_memory {
    pub location: i32,
    pub address: *mut ::std::os::raw::c_void,
    pub length: u64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hixl_server_description {
    pub endpoints: *const hixl_endpoint,
    pub host: *const ::std::os::raw::c_char,
    pub port: u32,
    pub count: u32,
    pub reserved: [u8; 104usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hixl_client_description {
    pub local: *const hixl_endpoint,
    pub remote: *const hixl_endpoint,
    pub host: *const ::std::os::raw::c_char,
    pub port: u32,
    pub traffic_class: u8,
    pub service_level: u8,
    pub reserved: [u8; 98usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hixl_options {
    pub reserved: [u8; 128usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hixl_piece {
    pub remote: *mut ::std::os::raw::c_void,
    pub local: *mut ::std::os::raw::c_void,
    pub length: u64,
}
pub type HixlCSServerCreate = ::std::option::Option<
    unsafe extern "C" fn(
        description: *const hixl_server_description,
        options: *const hixl_options,
        server: *mut *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSServerRegMem = ::std::option::Option<
    unsafe extern "C" fn(
        server: *mut ::std::os::raw::c_void,
        tag: *const ::std::os::raw::c_char,
        memory: *const hixl_memory,
        handle: *mut *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSServerUnregMem = ::std::option::Option<
    unsafe extern "C" fn(
        server: *mut ::std::os::raw::c_void,
        handle: *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSServerListen = ::std::option::Option<
    unsafe extern "C" fn(server: *mut ::std::os::raw::c_void, backlog: u32) -> u32,
>;
pub type HixlCSServerDestroy = ::std::option::Option<
    unsafe extern "C" fn(server: *mut ::std::os::raw::c_void) -> u32,
>;
pub type HixlCSClientCreate = ::std::option::Option<
    unsafe extern "C" fn(
        description: *const hixl_client_description,
        options: *const hixl_options,
        client: *mut *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSClientRegMem = ::std::option::Option<
    unsafe extern "C" fn(
        client: *mut ::std::os::raw::c_void,
        tag: *const ::std::os::raw::c_char,
        memory: *const hixl_memory,
        handle: *mut *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSClientConnect = ::std::option::Option<
    unsafe extern "C" fn(client: *mut ::std::os::raw::c_void, timeout_ms: u32) -> u32,
>;
pub type HixlCSClientGetRemoteMem = ::std::option::Option<
    unsafe extern "C" fn(
        client: *mut ::std::os::raw::c_void,
        memory: *mut *mut hixl_memory,
        tags: *mut *mut *mut ::std::os::raw::c_char,
        count: *mut u32,
        timeout_ms: u32,
    ) -> u32,
>;
pub type HixlCSClientBatchPutAsync = ::std::option::Option<
    unsafe extern "C" fn(
        client: *mut ::std::os::raw::c_void,
        count: u32,
        pieces: *const hixl_piece,
        complete: *mut *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSClientBatchGetAsync = ::std::option::Option<
    unsafe extern "C" fn(
        client: *mut ::std::os::raw::c_void,
        count: u32,
        pieces: *const hixl_piece,
        complete: *mut *mut ::std::os::raw::c_void,
    ) -> u32,
>;
pub type HixlCSClientBatchPutSync = ::std::option::Option<
    unsafe extern "C" fn(
        client: *mut ::std::os::raw::c_void,
        count: u32,
        pieces: *const hixl_piece,
        timeout_ms: u32,
    ) -> u32,
>;
pub type HixlCSClientQueryCompleteStatus = ::std::option::Option<
    unsafe extern "C" fn(
        client: *mut ::std::os::raw::c_void,
        complete: *mut ::std::os::raw::c_void,
        status: *mut i32,
    ) -> u32,
>;
pub type HixlCSClientDestroy = ::std::option::Option<
    unsafe extern "C" fn(client: *mut ::std::os::raw::c_void) -> u32,
>;
