//! The functions of the driver library, found by name once for each library that is opened. A method calls
//! its function and makes a `Failure` of any result but success. Libraries stay open: threads of the
//! driver's and the program's contexts live in them.

use super::{result, CopyAttributes, Failure, Handle, HostFn, IpcHandle, MemAccess};
use crate::status::{Error, Result, Status};
use crate::sys::loader;
use crate::sys::lock::Mutex;
use crate::sys::map::HashMap;
use crate::sys::unforked::unforked;
use std::ffi::{c_char, c_void, CStr, CString};

/// CUDA 12.0, as `cuDriverGetVersion` counts (1000 × major + 10 × minor): pointers have mappings that can be
/// asked for, and streams can wait for values on every device.
pub const VERSION_MIN: i32 = 12_000;

/// Generates the table, its look-up and a method for each function from one list. Functions under `optional` may be
/// missing; calling one then returns NOT_SUPPORTED, as a driver without the feature does.
macro_rules! functions {
    (
        required { $($(#[$when:meta])* $name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)* }
        optional { $($maybe:ident = $maybe_symbol:literal ($($maybe_arg:ident: $maybe_type:ty),*);)* }
    ) => {
        struct Table {
            $($(#[$when])* $name: unsafe extern "C" fn($($type),*) -> i32,)*
            $($maybe: Option<unsafe extern "C" fn($($maybe_type),*) -> i32>,)*
        }

        impl Table {
            /// Fails with the name of the first required function that is missing.
            fn find(library: &Opened) -> Result<Table, &'static str> {
                Ok(Table {
                    $($(#[$when])* $name: match library.symbol(concat!($symbol, "\0")) {
                        // SAFETY: the driver's function of this name has this signature in every version
                        // from VERSION_MIN on, and the library is never closed.
                        Some(address) => unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(address)
                        },
                        None => return Err($symbol),
                    },)*
                    $($maybe: library.symbol(concat!($maybe_symbol, "\0")).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($maybe_type),*) -> i32>(address)
                        }
                    }),)*
                })
            }
        }

        /// Each method is the driver's function of that name.
        ///
        /// # Safety
        /// For every method: each pointer is valid for what the function reads or writes, for as long as it does, and
        /// each handle names an object that still exists.
        #[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]
        impl Api {
            $($(#[$when])* pub unsafe fn $name(&'static self, $($arg: $type),*) -> Result<(), Failure> {
                // SAFETY: the caller's promise.
                self.check($symbol, unsafe { (self.table.$name)($($arg),*) })
            })*
            $(pub unsafe fn $maybe(&'static self, $($maybe_arg: $maybe_type),*) -> Result<(), Failure> {
                let code = match self.table.$maybe {
                    // SAFETY: the caller's promise.
                    Some(function) => unsafe { function($($maybe_arg),*) },
                    None => result::NOT_SUPPORTED,
                };
                self.check($maybe_symbol, code)
            })*
        }
    };
}

functions! {
    required {
        init = "cuInit" (flags: u32);
        get_error_name = "cuGetErrorName" (code: i32, text: *mut *const c_char);
        get_error_string = "cuGetErrorString" (code: i32, text: *mut *const c_char);
        device_get = "cuDeviceGet" (device: *mut i32, ordinal: i32);
        device_get_count = "cuDeviceGetCount" (count: *mut i32);
        #[cfg(feature = "internals")]
        device_get_name = "cuDeviceGetName" (name: *mut c_char, length: i32, device: i32);
        device_get_attribute = "cuDeviceGetAttribute" (value: *mut i32, attribute: i32, device: i32);
        device_can_access_peer = "cuDeviceCanAccessPeer" (can: *mut i32, device: i32, peer: i32);
        primary_ctx_retain = "cuDevicePrimaryCtxRetain" (context: *mut Handle, device: i32);
        primary_ctx_get_state = "cuDevicePrimaryCtxGetState" (device: i32, flags: *mut u32, active: *mut i32);
        primary_ctx_release = "cuDevicePrimaryCtxRelease_v2" (device: i32);
        ctx_push_current = "cuCtxPushCurrent_v2" (context: Handle);
        ctx_pop_current = "cuCtxPopCurrent_v2" (context: *mut Handle);
        ctx_enable_peer_access = "cuCtxEnablePeerAccess" (peer: Handle, flags: u32);
        pointer_get_attributes = "cuPointerGetAttributes"
            (count: u32, attributes: *const i32, values: *const *mut c_void, address: u64);
        mem_get_address_range = "cuMemGetAddressRange_v2" (base: *mut u64, bytes: *mut usize, address: u64);
        mem_alloc = "cuMemAlloc_v2" (address: *mut u64, bytes: usize);
        mem_free = "cuMemFree_v2" (address: u64);
        mem_host_alloc = "cuMemHostAlloc" (address: *mut *mut c_void, bytes: usize, flags: u32);
        mem_free_host = "cuMemFreeHost" (address: *mut c_void);
        mem_host_register = "cuMemHostRegister_v2" (address: *mut c_void, bytes: usize, flags: u32);
        mem_host_unregister = "cuMemHostUnregister" (address: *mut c_void);
        memcpy_host_to_device = "cuMemcpyHtoDAsync_v2" (to: u64, from: *const c_void, bytes: usize, stream: Handle);
        memcpy_device_to_host = "cuMemcpyDtoHAsync_v2" (to: *mut c_void, from: u64, bytes: usize, stream: Handle);
        memcpy_device_to_device = "cuMemcpyDtoDAsync_v2" (to: u64, from: u64, bytes: usize, stream: Handle);
        stream_create = "cuStreamCreate" (stream: *mut Handle, flags: u32);
        stream_destroy = "cuStreamDestroy_v2" (stream: Handle);
        stream_query = "cuStreamQuery" (stream: Handle);
        stream_synchronize = "cuStreamSynchronize" (stream: Handle);
        stream_get_ctx = "cuStreamGetCtx" (stream: Handle, context: *mut Handle);
        stream_is_capturing = "cuStreamIsCapturing" (stream: Handle, status: *mut i32);
        stream_wait_event = "cuStreamWaitEvent" (stream: Handle, event: Handle, flags: u32);
        stream_wait_value_32 = "cuStreamWaitValue32_v2" (stream: Handle, address: u64, value: u32, flags: u32);
        launch_host_func = "cuLaunchHostFunc" (stream: Handle, function: HostFn, data: *mut c_void);
        event_create = "cuEventCreate" (event: *mut Handle, flags: u32);
        event_destroy = "cuEventDestroy_v2" (event: Handle);
        event_record = "cuEventRecord" (event: Handle, stream: Handle);
        event_query = "cuEventQuery" (event: Handle);
        module_load_data = "cuModuleLoadData" (module: *mut Handle, image: *const c_void);
        module_unload = "cuModuleUnload" (module: Handle);
        module_get_function = "cuModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
        launch_kernel = "cuLaunchKernel"
            (function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
            shared_bytes: u32, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void);
        ipc_get_mem_handle = "cuIpcGetMemHandle" (handle: *mut IpcHandle, address: u64);
        ipc_open_mem_handle = "cuIpcOpenMemHandle_v2" (address: *mut u64, handle: IpcHandle, flags: u32);
        ipc_close_mem_handle = "cuIpcCloseMemHandle" (address: u64);
    }
    optional {
        exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (mode: *mut i32);
        // Since 12.8. The header of 13.0 has another function of this name, whose symbol ends in _v2.
        memcpy_batch = "cuMemcpyBatchAsync"
            (to: *mut u64, from: *mut u64, bytes: *mut usize, count: usize, attributes: *mut CopyAttributes,
            attribute_starts: *mut usize, attribute_count: usize, failed_at: *mut usize, stream: Handle);
        mem_retain_allocation_handle = "cuMemRetainAllocationHandle" (allocation: *mut u64, address: *mut c_void);
        mem_export_to_shareable_handle = "cuMemExportToShareableHandle"
            (handle: *mut c_void, allocation: u64, kind: i32, flags: u64);
        mem_import_from_shareable_handle = "cuMemImportFromShareableHandle"
            (allocation: *mut u64, handle: *mut c_void, kind: i32);
        mem_release = "cuMemRelease" (allocation: u64);
        mem_address_reserve = "cuMemAddressReserve"
            (address: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64);
        mem_address_free = "cuMemAddressFree" (address: u64, bytes: usize);
        mem_map = "cuMemMap" (address: u64, bytes: usize, offset: usize, allocation: u64, flags: u64);
        mem_unmap = "cuMemUnmap" (address: u64, bytes: usize);
        mem_set_access = "cuMemSetAccess" (address: u64, bytes: usize, access: *const MemAccess, count: usize);
        mem_get_handle_for_address_range = "cuMemGetHandleForAddressRange"
            (handle: *mut c_void, address: u64, bytes: usize, kind: i32, flags: u64);
    }
}

/// A driver library that is open, new enough and initialised.
pub struct Api {
    table: Table,
    /// Encoded like VERSION_MIN.
    #[cfg(feature = "internals")]
    pub version: i32,
    /// The name under which the library was opened.
    #[cfg(feature = "internals")]
    pub name: String,
}

impl Api {
    fn check(&'static self, function: &'static str, code: i32) -> Result<(), Failure> {
        if code == result::SUCCESS {
            return Ok(());
        }
        Err(Failure { api: self, function, code })
    }

    /// Returns the driver's name of this result, and its description.
    pub(super) fn explain(&'static self, code: i32) -> (String, String) {
        type Ask = unsafe fn(&'static Api, i32, *mut *const c_char) -> Result<(), Failure>;
        let read = |ask: Ask, otherwise: &str| {
            let mut text = std::ptr::null();
            // SAFETY: `text` lives on this stack. An unknown code leaves or makes it NULL.
            let known = unsafe { ask(self, code, &mut text) };
            if known.is_err() || text.is_null() {
                return otherwise.to_owned();
            }
            // SAFETY: the driver's texts are constants, and end in NUL.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let name = read(Api::get_error_name, "an unknown error");
        (name, read(Api::get_error_string, "the driver has no text for it"))
    }
}

/// The file name under which every driver installs its library.
const LIBRARY: &str = "libcuda.so.1";

fn name_or_default(path: &str) -> &str {
    if path.is_empty() {
        LIBRARY
    } else {
        path
    }
}

/// True if the program has the driver library open. Opens nothing.
pub fn is_loaded(path: &str) -> bool {
    let Ok(name) = CString::new(name_or_default(path)) else { return false };
    // SAFETY: with RTLD_NOLOAD nothing is loaded, and none of the library's code runs.
    let handle = unsafe { loader::open(&name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if !handle.is_null() {
        // SAFETY: gives back the reference that dlopen took; the program's own stays.
        unsafe { libc::dlclose(handle) };
    }
    !handle.is_null()
}

/// Opens the driver library, the default one for an empty path, and initialises it. UNAVAILABLE if it is not
/// there, lacks a function, is older than VERSION_MIN, or finds no device.
pub fn load(path: &str) -> Result<&'static Api> {
    static LOADED: Mutex<Option<HashMap<String, &'static Api>>> = Mutex::new(None);
    unforked(|| {
        let mut loaded = LOADED.lock();
        let loaded = loaded.get_or_insert_default();
        let name = name_or_default(path);
        if let Some(api) = loaded.get(name) {
            return Ok(*api);
        }
        let api = open(name)?;
        loaded.insert(name.into(), api);
        Ok(api)
    })
}

fn open(name: &str) -> Result<&'static Api> {
    let unavailable = |text: String| Error::new(Status::Unavailable, text);
    let library = Opened::new(name).map_err(unavailable)?;
    let version =
        library.version().ok_or_else(|| unavailable(format!("{name} does not tell its version")))?;
    if version < VERSION_MIN {
        let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
        let (found, needed) = (text(version), text(VERSION_MIN));
        return Err(unavailable(format!(
            "the driver behind {name} supports CUDA {found}; {needed} is needed"
        )));
    }
    let table = Table::find(&library).map_err(|symbol| unavailable(format!("{name} lacks {symbol}")))?;
    // Kept for good, once for each name, because the library is not closed either.
    let api: &'static Api = Box::leak(Box::new(Api {
        table,
        #[cfg(feature = "internals")]
        version,
        #[cfg(feature = "internals")]
        name: name.into(),
    }));
    // SAFETY: takes no pointers. Further calls, also the program's, do nothing.
    unsafe { api.init(0) }?;
    Ok(api)
}

/// The handle that dlopen returned.
struct Opened(*mut c_void);

impl Opened {
    fn new(name: &str) -> Result<Opened, String> {
        let path = CString::new(name).map_err(|_| "the library's name has a NUL byte in it".to_owned())?;
        // SAFETY: the library is the one that the program's owner installed or named; its constructors run.
        let handle = unsafe { loader::open(&path, libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Opened(handle));
        }
        // SAFETY: this thread's own message, or NULL; valid until its next call of this family.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err(format!("{name} can't be opened"));
        }
        // SAFETY: as above, and it ends in NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        Err(format!("the driver's library can't be opened: {text}"))
    }

    /// Returns the driver's version. It is checked first, because an old driver lacks other functions too.
    fn version(&self) -> Option<i32> {
        let address = self.symbol("cuDriverGetVersion\0")?;
        // SAFETY: the driver's function of this name has this signature in every version.
        let ask =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut i32) -> i32>(address) };
        let mut version = 0;
        // SAFETY: writes one int; needs no cuInit.
        (unsafe { ask(&mut version) } == result::SUCCESS).then_some(version)
    }

    /// `name` ends in NUL.
    fn symbol(&self, name: &'static str) -> Option<*mut c_void> {
        // SAFETY: the library is open, the name ends in NUL.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr().cast()) };
        (!address.is_null()).then_some(address)
    }
}
