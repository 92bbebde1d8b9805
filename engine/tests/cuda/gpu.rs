//! The library under test and the program around it: memory of each kind, data that encodes its place, and the
//! stand-in's knobs.

use crate::standin;
use ferry::internals::device::{Batch, Direction, Driver, Piece, Queue};
use ferry::internals::sys::cuda::{Api, Context, DeviceMemory, PinnedMemory, Stream};
use ferry::status::Result;
use std::ffi::{c_char, c_int, c_long, c_void, CString};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const MIB: usize = 1 << 20;

pub fn is_real() -> bool {
    std::env::var("FERRY_TEST_CUDA").as_deref() == Ok("real")
}

/// Returns the stand-in of this CUDA version.
pub fn standin_library(version: &str) -> PathBuf {
    standin::folder().join(format!("cuda-{version}/libcuda.so.1"))
}

/// The stand-in's own functions.
pub struct Standin {
    set: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
    calls: unsafe extern "C" fn(*const c_char) -> c_long,
    release: unsafe extern "C" fn(),
    audit: unsafe extern "C" fn() -> c_long,
}

impl Standin {
    fn find(path: &str) -> Option<Standin> {
        let name = CString::new(path).unwrap();
        // SAFETY: a C string; the library that it names is the test's own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path} can't be opened");
        // SAFETY: the library is open and is never closed.
        let symbol = |name: &std::ffi::CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
        if symbol(c"standin_set").is_null() {
            return None;
        }
        type Set = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
        type Calls = unsafe extern "C" fn(*const c_char) -> c_long;
        type Audit = unsafe extern "C" fn() -> c_long;
        // SAFETY: the stand-in's functions of these names have these types: `core/knobs.h`.
        unsafe {
            Some(Standin {
                set: std::mem::transmute::<*mut c_void, Set>(symbol(c"standin_set")),
                calls: std::mem::transmute::<*mut c_void, Calls>(symbol(c"standin_calls")),
                release: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(symbol(
                    c"standin_release",
                )),
                audit: std::mem::transmute::<*mut c_void, Audit>(symbol(c"standin_audit")),
            })
        }
    }

    pub fn set(&self, knob: &str, value: &str) {
        let (name, text) = (CString::new(knob).unwrap(), CString::new(value).unwrap());
        // SAFETY: two C strings, which outlive the call.
        assert_eq!(unsafe { (self.set)(name.as_ptr(), text.as_ptr()) }, 0, "{knob}={value}");
    }

    /// Makes the n-th call from now on fail with this code.
    pub fn fault(&self, function: &str, nth: &str, code: i32) {
        self.set("FERRY_STANDIN_FAULT", &format!("{function}:{nth}:{code}"));
    }

    pub fn calls(&self, function: &str) -> i64 {
        // SAFETY: a C string, which outlives the call.
        unsafe { (self.calls)(CString::new(function).unwrap().as_ptr()) }
    }

    pub fn release(&self) {
        // SAFETY: the function takes no arguments and may be called at any time.
        unsafe { (self.release)() }
    }

    pub fn audit(&self) -> i64 {
        // SAFETY: as for `release`.
        unsafe { (self.audit)() }
    }
}

/// Returns the folder of this program's runs, and of the other process that a test starts.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join("ferry-cuda-tests");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn audit_file() -> PathBuf {
    folder().join(format!("audit-{}", std::process::id()))
}

/// One test's use of the library; tests run one at a time.
pub struct Gpu {
    pub api: &'static Api,
    pub library: String,
    driver: Option<Arc<dyn Driver>>,
    program: Option<Arc<Context>>,
    standin: Option<Standin>,
    /// The complaints so far, and the number that each audit adds.
    complaints: (i64, i64),
    leaks: std::cell::Cell<bool>,
    _alone: MutexGuard<'static, ()>,
}

/// Opens the real library's first device, or the stand-in's. Without a device returns None, and prints so.
pub fn gpu(test: &str) -> Option<Gpu> {
    if !is_real() {
        return Some(open(standin_library("12.8").to_str().unwrap()));
    }
    match ferry::internals::sys::cuda::load("") {
        Ok(_) => Some(open("")),
        Err(error) => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
    }
}

/// Opens the stand-in, for tests that turn its knobs.
pub fn standin(test: &str) -> Option<Gpu> {
    standin_of(test, "12.8")
}

pub fn standin_of(test: &str, version: &str) -> Option<Gpu> {
    if is_real() {
        eprintln!("SKIPPED {test}: a real driver has no faults to order");
        return None;
    }
    Some(open(standin_library(version).to_str().unwrap()))
}

fn open(path: &str) -> Gpu {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let library = ferry::internals::transport::cuda::library(path);
    let standin = (!path.is_empty()).then(|| Standin::find(path)).flatten();
    if let Some(standin) = &standin {
        for (knob, value) in [
            ("FERRY_STANDIN_FAULT", ""),
            ("FERRY_STANDIN_HANG", "0"),
            ("FERRY_STANDIN_COPY_US", ""),
            ("FERRY_STANDIN_PEER", ""),
            ("FERRY_STANDIN_IPC", ""),
            ("FERRY_STANDIN_STICKY", ""),
            ("FERRY_STANDIN_DIR", folder().to_str().unwrap()),
            ("FERRY_STANDIN_AUDIT", audit_file().to_str().unwrap()),
        ] {
            standin.set(knob, value);
        }
    }
    let driver = (library.open)().unwrap();
    let api = ferry::internals::sys::cuda::load(path).unwrap();
    let program = Context::retain(api, 0).unwrap();
    // Complaints at the start: the program's context, and memory that a failed context of an earlier test kept.
    let complaints = standin.as_ref().map_or((0, 0), |standin| {
        let before = standin.audit();
        let now = standin.audit();
        (now, now - before)
    });
    Gpu {
        api,
        library: path.into(),
        driver: Some(driver),
        program: Some(program),
        standin,
        complaints,
        leaks: std::cell::Cell::new(false),
        _alone: alone,
    }
}

impl Gpu {
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.driver.as_ref().unwrap()
    }

    pub fn standin(&self) -> &Standin {
        self.standin.as_ref().unwrap()
    }

    pub fn standin_at(&self, path: &str) -> Standin {
        Standin::find(path).unwrap()
    }

    /// Expects leaks: the test leaves memory behind on purpose.
    pub fn expect_leaks(&self) {
        self.leaks.set(true);
    }

    pub fn count(&self, function: &str) -> i64 {
        self.standin.as_ref().map_or(0, |standin| standin.calls(function))
    }

    /// Returns the program's context of device 0.
    pub fn program(&self) -> &Arc<Context> {
        self.program.as_ref().unwrap()
    }

    pub fn queue(&self, depth: usize) -> Box<dyn Queue> {
        self.driver().open(0, MIB, depth).unwrap()
    }

    pub fn device(&self, bytes: usize) -> DeviceMemory {
        DeviceMemory::new(self.program(), bytes).unwrap()
    }

    pub fn pinned(&self, bytes: usize) -> PinnedMemory {
        PinnedMemory::new(self.program(), bytes).unwrap()
    }

    /// Writes device memory without ferry.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let _entered = self.program().enter().unwrap();
        // SAFETY: the bytes live until the stream has ended; the device's memory is the test's, and the driver refuses
        // any other memory.
        unsafe {
            self.api
                .memcpy_host_to_device(address, bytes.as_ptr().cast(), bytes.len(), 0)
                .map_err(error)
                .unwrap();
            self.api.stream_synchronize(0).map_err(error).unwrap();
        }
    }

    /// Writes as `put` does, on a stream that no other stream waits for.
    pub fn put_async(&self, address: u64, bytes: &[u8]) {
        let stream = Stream::new(self.program()).unwrap();
        let _entered = self.program().enter().unwrap();
        // SAFETY: as in `put`; the stream lives until the end of this function.
        unsafe {
            self.api
                .memcpy_host_to_device(address, bytes.as_ptr().cast(), bytes.len(), stream.raw)
                .map_err(error)
                .unwrap();
            self.api.stream_synchronize(stream.raw).map_err(error).unwrap();
        }
    }

    pub fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let _entered = self.program().enter().unwrap();
        let mut bytes = vec![0; length];
        // SAFETY: as in `put`, in the other direction.
        unsafe {
            self.api
                .memcpy_device_to_host(bytes.as_mut_ptr().cast(), address, length, 0)
                .map_err(error)
                .unwrap();
            self.api.stream_synchronize(0).map_err(error).unwrap();
        }
        bytes
    }

    /// Returns a function of the library that the engine does not use.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        let library = if self.library.is_empty() { "libcuda.so.1" } else { &self.library };
        let (library, name) = (CString::new(library).unwrap(), CString::new(name).unwrap());
        // SAFETY: two C strings; the library was open before, and stays so.
        let address = unsafe { libc::dlsym(libc::dlopen(library.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    }

    /// Returns the calling thread's current context.
    pub fn current(&self) -> usize {
        // SAFETY: the driver's function of this name has this type.
        let function: unsafe extern "C" fn(*mut usize) -> i32 =
            unsafe { std::mem::transmute(self.symbol("cuCtxGetCurrent")) };
        let mut context = 0;
        // SAFETY: the result lives on this stack.
        assert_eq!(unsafe { function(&mut context) }, 0);
        context
    }
}

fn error(failure: ferry::internals::sys::cuda::Failure) -> ferry::Error {
    failure.into()
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.driver = None;
        if let Some(standin) = &self.standin {
            standin.set("FERRY_STANDIN_FAULT", "");
            if !std::thread::panicking() && !self.leaks.get() {
                let (before, each) = self.complaints;
                let new = standin.audit() - before - each;
                assert_eq!(new, 0, "something was not given back; see {}", audit_file().display());
            }
        }
        self.program = None;
    }
}

/// Returns bytes of which each 8 encode their owner and their offset.
pub fn pattern(owner: u32, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64)
        .flat_map(|at| (u64::from(owner) << 40 | at).to_le_bytes())
        .take(length)
        .collect()
}

pub fn host_bytes(memory: &PinnedMemory) -> &'static mut [u8] {
    // SAFETY: the memory is mapped as long as `memory` lives, and each test uses it no longer. The test waits for the
    // device's writes before it looks.
    unsafe { std::slice::from_raw_parts_mut(memory.pointer(), memory.length) }
}

pub fn wait(queue: &mut dyn Queue, batch: Batch) -> Result<()> {
    let since = Instant::now();
    while !queue.poll_done(batch)? {
        assert!(since.elapsed() < PATIENCE, "{batch:?} does not end");
        std::thread::yield_now();
    }
    Ok(())
}

pub fn copy(queue: &mut dyn Queue, direction: Direction, pieces: &[Piece]) -> Result<()> {
    let batch = queue.copy(direction, pieces)?;
    wait(queue, batch)
}

/// Returns the numbers below `count` in an order that `seed` gives.
pub fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed | 1;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}
