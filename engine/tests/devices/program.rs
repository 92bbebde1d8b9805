//! Plays the host program in a test's process: allocates, fills and reads memory of the host and of the stand-ins'
//! devices by the libraries' own calls, and turns the stand-ins' knobs.

use crate::mapped::Mapped;
use ferry::internals::sys::acl::{self, Library, Runtime, ACL_COPY_DEVICE_TO_HOST, ACL_COPY_HOST_TO_DEVICE};
use ferry::internals::sys::cuda;
use std::ffi::{c_char, c_int, c_long, c_void, CString};
use std::sync::Arc;

/// Libraries, by their paths.
pub struct Program {
    cuda: String,
    ascend: String,
    npu: Option<Npu>,
}

/// The current context of this thread, which is the only one that plays the program.
struct Npu {
    _context: acl::Context,
    runtime: Arc<Runtime>,
}

pub enum Bytes {
    /// Allocated by ferry, so that other processes can map the memory.
    Shared(ferry::Memory),
    Host(Box<[u64]>, usize),
    Cuda(cuda::DeviceMemory, Arc<cuda::Context>, usize),
    Mapped(Mapped),
    Ascend(acl::DeviceMemory, Arc<Runtime>, usize),
}

impl Program {
    pub fn new(cuda: &str, ascend: &str) -> Program {
        Program { cuda: cuda.into(), ascend: ascend.into(), npu: None }
    }

    /// `host`, `cuda0`, `cuda1`, `cuda-mapped0` (cuMemCreate; whole huge pages) or `ascend0`.
    pub fn allocate(&mut self, place: &str, bytes: usize) -> Result<Bytes, ferry::Error> {
        if place == "host" {
            return Ok(Bytes::Host(vec![0; bytes.div_ceil(8)].into_boxed_slice(), bytes));
        }
        if let Some(device) = place.strip_prefix("cuda-mapped") {
            let context = cuda::Context::retain(cuda::load(&self.cuda)?, device.parse().unwrap())?;
            let create = self.symbol("cuda", "cuMemCreate");
            return Ok(Bytes::Mapped(Mapped::new(context, create, bytes, 1)));
        }
        if let Some(device) = place.strip_prefix("cuda") {
            let context = cuda::Context::retain(cuda::load(&self.cuda)?, device.parse().unwrap())?;
            return Ok(Bytes::Cuda(cuda::DeviceMemory::new(&context, bytes)?, context, bytes));
        }
        assert_eq!(place, "ascend0");
        if self.npu.is_none() {
            let runtime = Runtime::begin(Library::open(&self.ascend)?)?;
            self.npu = Some(Npu { _context: acl::Context::create(&runtime, 0)?, runtime });
        }
        let runtime = &self.npu.as_ref().unwrap().runtime;
        Ok(Bytes::Ascend(acl::DeviceMemory::new(runtime, bytes)?, runtime.clone(), bytes))
    }

    fn symbol(&self, library: &str, name: &str) -> *mut c_void {
        let library = match library {
            "cuda" => self.cuda.clone(),
            "hixl" => self.ascend.replace("libascendcl", "libcann_hixl"),
            _ => self.ascend.clone(),
        };
        let (path, name) = (CString::new(library.as_str()).unwrap(), CString::new(name).unwrap());
        // SAFETY: C strings; the library is a stand-in, which any thread may open.
        let found = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
        assert!(!found.is_null(), "{library} has no {name:?}");
        found
    }

    /// Sets `knob`, given without FERRY_STANDIN_; an empty value restores the initial value.
    pub fn set(&self, library: &str, knob: &str, value: &str) {
        let (name, value) =
            (CString::new(format!("FERRY_STANDIN_{knob}")).unwrap(), CString::new(value).unwrap());
        let function = self.symbol(library, "standin_set");
        // SAFETY: the function's type, as the stand-ins' page has it, and C strings for the call.
        let code = unsafe {
            let set: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int =
                std::mem::transmute(function);
            set(name.as_ptr(), value.as_ptr())
        };
        assert_eq!(code, 0, "{knob}={value:?}");
    }

    /// Returns how often this function of the library was called.
    pub fn calls(&self, library: &str, function: &str) -> i64 {
        let (name, calls) = (CString::new(function).unwrap(), self.symbol(library, "standin_calls"));
        // SAFETY: as in `set`.
        unsafe {
            let calls: unsafe extern "C" fn(*const c_char) -> c_long = std::mem::transmute(calls);
            calls(name.as_ptr())
        }
    }

    /// Lets hanging copies continue.
    pub fn release(&self, library: &str) {
        let release = self.symbol(library, "standin_release");
        // SAFETY: as in `set`.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(release)() }
    }
}

impl Bytes {
    pub fn address(&self) -> u64 {
        match self {
            Bytes::Shared(memory) => memory.address(),
            Bytes::Host(words, _) => words.as_ptr() as u64,
            Bytes::Cuda(memory, ..) => memory.address,
            Bytes::Mapped(memory) => memory.address,
            Bytes::Ascend(memory, ..) => memory.address(),
        }
    }

    pub fn write(&self, bytes: &[u8]) {
        let (address, length) = (self.address(), bytes.len());
        match self {
            Bytes::Shared(memory) => memory.write(0, bytes),
            // SAFETY: the memory is that long (the test fills whole memories), and Rust has no reference to it.
            Bytes::Host(..) => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, length)
            },
            Bytes::Cuda(_, context, _) | Bytes::Mapped(Mapped { context, .. }) => {
                let _entered = context.enter().unwrap();
                // SAFETY: as above; the copy has ended when the stream is synchronised.
                unsafe {
                    context.api.memcpy_host_to_device(address, bytes.as_ptr().cast(), length, 0).unwrap();
                    context.api.stream_synchronize(0).unwrap();
                }
            }
            Bytes::Ascend(_, runtime, _) => {
                let (to, from) = (address as *mut c_void, bytes.as_ptr().cast());
                // SAFETY: as above; the call returns when it has copied.
                let code =
                    unsafe { (runtime.calls.aclrtMemcpy)(to, length, from, length, ACL_COPY_HOST_TO_DEVICE) };
                assert_eq!(code, 0);
            }
        }
    }

    pub fn read(&self) -> Vec<u8> {
        let length = match self {
            Bytes::Shared(memory) => memory.length(),
            Bytes::Mapped(memory) => memory.bytes,
            Bytes::Host(_, length) | Bytes::Cuda(.., length) | Bytes::Ascend(.., length) => *length,
        };
        let (address, mut out) = (self.address(), vec![0; length]);
        match self {
            Bytes::Shared(memory) => memory.read(0, &mut out),
            // SAFETY: as in `write`.
            Bytes::Host(..) => unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), length)
            },
            Bytes::Cuda(_, context, _) | Bytes::Mapped(Mapped { context, .. }) => {
                let _entered = context.enter().unwrap();
                // SAFETY: as in `write`.
                unsafe {
                    context.api.memcpy_device_to_host(out.as_mut_ptr().cast(), address, length, 0).unwrap();
                    context.api.stream_synchronize(0).unwrap();
                }
            }
            Bytes::Ascend(_, runtime, _) => {
                let (to, from) = (out.as_mut_ptr().cast(), address as *const c_void);
                // SAFETY: as in `write`.
                let code =
                    unsafe { (runtime.calls.aclrtMemcpy)(to, length, from, length, ACL_COPY_DEVICE_TO_HOST) };
                assert_eq!(code, 0);
            }
        }
        out
    }
}
