//! Memory of an Ascend device, through AscendCL.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use ferry::sys::acl::{
    Context, DeviceMemory, Library, Runtime, ACL_COPY_DEVICE_TO_HOST, ACL_COPY_HOST_TO_DEVICE,
};

use super::{check_number, is_standin, Described, Held};

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
}

impl Held for Allocation {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn copy_in(&self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
        let (to, length) = (self.at(offset), from.len());
        // SAFETY: both ranges are as long, the device's as the caller promises; the call returns when it has copied.
        let code = unsafe {
            (self.runtime.calls.aclrtMemcpy)(
                to,
                length,
                from.as_ptr().cast(),
                length,
                ACL_COPY_HOST_TO_DEVICE,
            )
        };
        Ok(self.runtime.check("aclrtMemcpy", code)?)
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        let (from, length) = (self.at(offset), into.len());
        // SAFETY: as in `copy_in`.
        let code = unsafe {
            (self.runtime.calls.aclrtMemcpy)(
                into.as_mut_ptr().cast(),
                length,
                from,
                length,
                ACL_COPY_DEVICE_TO_HOST,
            )
        };
        Ok(self.runtime.check("aclrtMemcpy", code)?)
    }
}
