//! Memory of an Ascend device, through AscendCL.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use ferry::internals::sys::acl::{
    Context, DeviceMemory, Library, Runtime, ACL_COPY_DEVICE_TO_HOST, ACL_COPY_HOST_TO_DEVICE,
};

use super::{check_number, is_standin, Held};
use crate::workload::Described;

/// Initializes the library once for the process: a finalized library may not initialize again.
fn begin(library: &str) -> anyhow::Result<Arc<Runtime>> {
    static BEGUN: Mutex<Vec<Arc<Runtime>>> = Mutex::new(Vec::new());
    let library = Library::open(library)?;
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = begun.iter().find(|runtime| runtime.name == library.name) {
        return Ok(runtime.clone());
    }
    let runtime = Runtime::begin(library)?;
    begun.push(runtime.clone());
    Ok(runtime)
}

pub fn describe(device: i32, library: &str) -> anyhow::Result<Described> {
    let runtime = begin(library)?;
    check_number(device, runtime.device_count()?, &runtime.name)?;
    let name = runtime.soc_name().unwrap_or_else(|| "of unknown make".to_owned());
    let text = format!("Ascend device {device}, {name}; {}", runtime.name);
    Ok(Described { text, is_standin: is_standin(&runtime.name) })
}

pub fn allocate(device: i32, library: &str, bytes: usize) -> anyhow::Result<Box<dyn Held>> {
    let runtime = begin(library)?;
    let context = Context::create(&runtime, device)?;
    let memory = DeviceMemory::new(&runtime, bytes)?;
    Ok(Box::new(Allocation { memory, _context: context, runtime }))
}

/// Belongs to a thread whose current context this is.
struct Allocation {
    /// Freed before its context.
    memory: DeviceMemory,
    _context: Context,
    runtime: Arc<Runtime>,
}

impl Allocation {
    fn at(&self, offset: usize) -> *mut c_void {
        (self.memory.address() + offset as u64) as *mut c_void
    }

    /// Returns when all bytes are copied.
    ///
    /// # Safety
    /// Both ranges are as long, memory of that kind, and stay so until then.
    unsafe fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        length: usize,
        kind: i32,
    ) -> anyhow::Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.runtime.calls.aclrtMemcpy)(to, length, from, length, kind) };
        Ok(self.runtime.check("aclrtMemcpy", code)?)
    }
}

impl Held for Allocation {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn copy_in(&self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
        // SAFETY: the device's range lies within the allocation, as the caller promises.
        unsafe { self.copy(self.at(offset), from.as_ptr().cast(), from.len(), ACL_COPY_HOST_TO_DEVICE) }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        // SAFETY: as in `copy_in`.
        unsafe { self.copy(into.as_mut_ptr().cast(), self.at(offset), into.len(), ACL_COPY_DEVICE_TO_HOST) }
    }
}
