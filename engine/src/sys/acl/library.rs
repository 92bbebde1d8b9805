//! Opens AscendCL and looks up its functions, initialises and finalises it in this process, and turns its codes into
//! errors. The library stays open because it has threads of its own.

use super::bindings as ffi;
use super::object::{calls, unavailable, Object};
use crate::status::{Error, Result, Status};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::unforked::unforked;
use crate::types::Transport;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ops::Deref;
use std::sync::Arc;

/// The library's file names in the order of trial: before and after the runtime became a library of its own.
const NAMES: [&str; 2] = ["libascendcl.so", "libacl_rt.so"];
/// The most characters of the library's own text in an error.
const TEXT_CHARS_MAX: usize = 300;

calls! {
    Calls
    required: aclInit, aclFinalize, aclGetRecentErrMsg, aclrtGetDeviceCount,
        aclrtGetPhyDevIdByLogicDevId, aclrtCreateContext, aclrtDestroyContext, aclrtSetCurrentContext,
        aclrtGetCurrentContext, aclrtDeviceCanAccessPeer, aclrtDeviceEnablePeerAccess, aclrtMalloc, aclrtFree,
        aclrtMallocHost, aclrtFreeHost, aclrtHostRegister, aclrtHostUnregister, aclrtPointerGetAttributes,
        aclrtMemcpy, aclrtMemcpyAsync, aclrtCreateStreamWithConfig, aclrtDestroyStream,
        aclrtSetStreamFailureMode, aclrtStreamQuery, aclrtStreamAbort, aclrtSynchronizeStreamWithTimeout,
        aclrtCreateEventWithFlag, aclrtDestroyEvent, aclrtRecordEvent, aclrtQueryEventStatus,
        aclrtMemRetainAllocationHandle, aclrtFreePhysical, aclrtMemExportToShareableHandle,
        aclrtMemSetPidToShareableHandle, aclrtMemImportFromShareableHandle, aclrtReserveMemAddress,
        aclrtReleaseMemAddress, aclrtMapMem, aclrtUnmapMem;
    optional: aclFinalizeReference, aclrtDeviceGetBareTgid, aclrtMemGetAddressRange, aclrtMemcpyBatchAsync,
        aclrtIpcMemGetExportKey, aclrtIpcMemSetImportPid, aclrtIpcMemImportByKey, aclrtIpcMemClose;
}

/// AscendCL, open but perhaps not initialised: without a `Runtime`, calls work only if the program itself has
/// initialised the library.
pub struct Library {
    pub calls: Calls,
    /// The name under which the library was opened.
    pub name: String,
    uses: Mutex<Uses>,
}

#[derive(Default)]
struct Uses {
    count: usize,
    /// Whether the last use finalises the library.
    ends: bool,
}

impl Library {
    /// Opens `wanted`, or the system's library if `wanted` is empty. Fails with UNAVAILABLE and the reason. The
    /// process has one `Library` for each name.
    pub fn open(wanted: &str) -> Result<&'static Library> {
        static OPEN: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());
        unforked(|| {
            let mut open = OPEN.lock();
            let mut reason = None;
            for name in candidates(wanted) {
                if let Some(known) = open.iter().find(|known| known.name == name) {
                    return Ok(*known);
                }
                match Object::open(name).and_then(|object| Calls::look_up(object, name)) {
                    Ok(calls) => {
                        let library = Library { calls, name: name.into(), uses: Mutex::default() };
                        let library: &'static Library = Box::leak(Box::new(library));
                        open.push(library);
                        return Ok(library);
                    }
                    // The first reason concerns the preferred library.
                    Err(error) => drop(reason.get_or_insert(error)),
                }
            }
            Err(reason.unwrap_or_else(|| unavailable("there is no name of a library to open".into())))
        })
    }

    /// True if the program has the library open already. Opens nothing.
    pub fn is_loaded(wanted: &str) -> bool {
        candidates(wanted).into_iter().any(Object::is_loaded)
    }

    /// Returns an error of `function` if the code is not success.
    pub fn check(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NULL, or a C string of this thread, valid until its next call.
        let text = unsafe { text_of((self.calls.aclGetRecentErrMsg)()) };
        let text = text.map_or_else(String::new, |text| format!(": {text}"));
        let error = Error::new(status_of(code), format!("{function} failed with {code}{text}"));
        Err(Error { vendor_error: code, ..error }.over(Transport::Ascend))
    }

    /// Returns an optional function, or UNSUPPORTED if this version lacks it.
    pub fn need<F>(&self, function: &str, there: Option<F>) -> Result<F> {
        there.ok_or_else(|| {
            let text = format!("{} has no {function}", self.name);
            Error::new(Status::Unsupported, text).over(Transport::Ascend)
        })
    }

    /// Returns the name of the device model, if the library has one.
    #[cfg(feature = "internals")]
    pub fn soc_name(&self) -> Option<String> {
        let object = Object::open(&self.name).ok()?;
        // SAFETY: the type is that of the function of this name.
        let ask = unsafe { object.find::<unsafe extern "C" fn() -> *const c_char>("aclrtGetSocName\0") }?;
        // SAFETY: NULL, or a C string that stays.
        unsafe { text_of(ask()) }
    }

    pub fn device_count(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: the number outlives the call.
        self.check("aclrtGetDeviceCount", unsafe { (self.calls.aclrtGetDeviceCount)(&mut count) })?;
        Ok(i32::try_from(count).unwrap_or(i32::MAX))
    }

    /// Returns the calling thread's current context, if it has one.
    pub fn current_context(&self) -> Option<*mut c_void> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer outlives the call.
        let code = unsafe { (self.calls.aclrtGetCurrentContext)(&mut context) };
        (code == 0 && !context.is_null()).then_some(context)
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock()
    }
}

/// The initialised library. The program may initialise it too, before or after ferry; neither may finalise it for the
/// other.
pub struct Runtime(&'static Library);

impl Runtime {
    pub fn begin(library: &'static Library) -> Result<Arc<Runtime>> {
        let mut uses = library.uses();
        if uses.count == 0 {
            // SAFETY: no configuration.
            let code = unsafe { (library.calls.aclInit)(std::ptr::null()) };
            if code != ffi::ACL_INITIALISED_BEFORE {
                library.check("aclInit", code)?;
            }
            // If the library counts its uses, this use is counted and must be undone. Otherwise only the first user
            // finalises.
            uses.ends = code == 0 || library.calls.aclFinalizeReference.is_some();
        }
        uses.count += 1;
        Ok(Arc::new(Runtime(library)))
    }
}

impl Deref for Runtime {
    type Target = Library;

    fn deref(&self) -> &Library {
        self.0
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let mut uses = self.0.uses();
        uses.count -= 1;
        if uses.count > 0 || !uses.ends {
            return;
        }
        // SAFETY: what was made through this runtime held it, and is gone.
        unsafe {
            match self.0.calls.aclFinalizeReference {
                Some(finalize) => finalize(std::ptr::null_mut()),
                None => (self.0.calls.aclFinalize)(),
            };
        }
    }
}

fn candidates(wanted: &str) -> Vec<&str> {
    if wanted.is_empty() {
        NAMES.to_vec()
    } else {
        vec![wanted]
    }
}

/// # Safety
///
/// NULL, or a C string that stays valid for the call.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text: String = text.trim().chars().take(TEXT_CHARS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// Returns the status for a code. UNAVAILABLE means that the device or the library can't be used any more.
fn status_of(code: c_int) -> Status {
    match code {
        ffi::ACL_INVALID | ffi::ACL_PARAMETER | ffi::ACL_DEVICE_ID | ffi::ACL_HANDLE => Status::Invalid,
        ffi::ACL_BAD_ALLOCATION | ffi::ACL_OUT_OF_MEMORY | ffi::ACL_OUT_OF_DEVICE_MEMORY => Status::NoMemory,
        ffi::ACL_NOT_SUPPORTED => Status::Unsupported,
        ffi::ACL_NO_PERMISSION => Status::Access,
        ffi::ACL_HOST_REGISTERED_BEFORE => Status::Busy,
        ffi::ACL_HOST_NOT_REGISTERED => Status::NotRegistered,
        ffi::ACL_IPC => Status::System,
        // The program has finalised the library, or reset the device.
        ffi::ACL_UNINITIALISED | ffi::ACL_NO_CONTEXT | ffi::ACL_STREAM_OF_OTHER_CONTEXT => {
            Status::Unavailable
        }
        ffi::ACL_WAIT_TIMEOUT | ffi::ACL_DEVICE_ERRORS_MIN..=ffi::ACL_DEVICE_ERRORS_MAX => {
            Status::Unavailable
        }
        _ => Status::System,
    }
}
