//! The driver under test, the program around it and the stand-in's knobs, in a process for each test.

use crate::standin;
use ferry::internals::device::{Batch, Driver, Queue};
use ferry::internals::sys::acl::{Library, ACL_COPY_DEVICE_TO_HOST, ACL_COPY_HOST_TO_DEVICE};
use ferry::internals::transport::ascend;
use ferry::status::{Error, Result};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_void, CString};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const VERSIONS: [&str; 5] = ["8.1", "8.3", "8.5", "9.0", "9.1"];

/// Set in a test's own process: the number of the call of `alone` that the process runs.
const TEST: &str = "FERRY_TEST_ASCEND";
const LIBRARY: &str = "FERRY_TEST_ASCEND_LIBRARY";

/// The line that the process prints at the end.
const DONE: &str = "@@ the body has run";

thread_local! {
    /// Calls of `alone` by this thread, which runs one test.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Runs the body of `test`, the function that calls this, in a process of its own with this version of the library and
/// these knobs (without their prefix FERRY_STANDIN_). Fails if the body fails, if the library complains, or if
/// something that the library gave out is not given back.
pub fn alone<F>(_test: F, version: &str, knobs: &[(&str, &str)], body: impl FnOnce(Npu)) {
    static SO_FAR: AtomicUsize = AtomicUsize::new(0);
    let name = std::any::type_name::<F>().strip_prefix("ascend::").unwrap();
    if let Ok(role) = std::env::var(TEST) {
        // One test may call this several times; the process is for one of them.
        if role == SO_FAR.fetch_add(1, Ordering::Relaxed).to_string() {
            body(Npu::open());
            println!("{DONE}");
        }
        return;
    }
    let call = CALLS.with(|calls| calls.replace(calls.get() + 1));
    let library = standin::folder().join(format!("cann-{version}/libascendcl.so"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{}-{}-{call}",
        name.replace("::", "-"),
        std::process::id()
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let audit = folder.join("audit");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(TEST, call.to_string())
        .env(LIBRARY, library)
        .env("FERRY_STANDIN_DIR", &folder)
        .env("FERRY_STANDIN_AUDIT", &audit)
        .envs(knobs.iter().map(|(knob, value)| (format!("FERRY_STANDIN_{knob}"), value)))
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(DONE), "CANN {version}: {said}");
    let audit = std::fs::read_to_string(audit).unwrap();
    assert!(audit.is_empty(), "CANN {version}: {audit}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Declares functions of the stand-in that ferry doesn't use.
macro_rules! others {
    ($($name:ident($($argument:ty),*);)+) => {
        #[allow(non_snake_case)]
        pub struct Others { $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)+ }

        impl Others {
            fn find(library: &str) -> Others {
                // SAFETY: the stand-in's functions of these names have these types: `ascend/acl.h`, `core/knobs.h`.
                Others { $($name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(symbol(library, stringify!($name))) },)+ }
            }
        }
    };
}

others! {
    aclrtSetDevice(i32);
    aclrtGetDevice(*mut i32);
    aclrtResetDevice(i32);
    aclrtCreateStream(*mut *mut c_void);
    aclrtMallocPhysical(*mut *mut c_void, usize, *const Physical, u64);
    standin_set(*const c_char, *const c_char);
    standin_release();
}

/// Describes physical memory: handle type, allocation type, attributes, device, kind of place, reserved.
#[repr(C)]
pub struct Physical(i32, i32, i32, u32, i32, u64);

fn symbol(library: &str, name: &str) -> *mut c_void {
    let (library, name) = (CString::new(library).unwrap(), CString::new(name).unwrap());
    // SAFETY: two C strings; the library is the test's own, and is never closed.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        let found = libc::dlsym(handle, name.as_ptr());
        assert!(!found.is_null(), "{name:?}");
        found
    }
}

/// Returns how often this function of the library was called.
pub fn calls(path: &str, function: &str) -> i64 {
    // SAFETY: the stand-in's function of this name has this type.
    let count: unsafe extern "C" fn(*const c_char) -> c_long =
        unsafe { std::mem::transmute(symbol(path, "standin_calls")) };
    let name = CString::new(function).unwrap();
    // SAFETY: a C string, which outlives the call.
    unsafe { count(name.as_ptr()) as i64 }
}

/// Asserts that a call of the library succeeded.
#[track_caller]
pub fn good(code: c_int) {
    assert_eq!(code, 0);
}

/// The library, as a program and as the driver see it.
pub struct Npu {
    pub path: String,
    pub driver: Arc<dyn Driver>,
    pub program: &'static Library,
    pub others: Others,
    /// Devices that the program has set.
    set: Vec<i32>,
}

impl Npu {
    fn open() -> Npu {
        let path = std::env::var(LIBRARY).unwrap();
        let library = ascend::library(&path, None);
        let driver = (library.open)().unwrap();
        Npu { driver, program: Library::open(&path).unwrap(), others: Others::find(&path), path, set: vec![] }
    }

    /// Opens the library in a process that a test has started itself.
    pub fn beside() -> Npu {
        Npu::open()
    }

    /// Initializes the library for the program, and makes this device current on this thread.
    pub fn start(&mut self, device: i32) {
        // SAFETY: no file of settings is named, which is allowed.
        let code = unsafe { (self.program.calls.aclInit)(std::ptr::null()) };
        assert!(matches!(code, 0 | 100_002), "{code}");
        self.set(device);
    }

    pub fn set(&mut self, device: i32) {
        // SAFETY: no memory is involved.
        good(unsafe { (self.others.aclrtSetDevice)(device) });
        self.set.push(device);
    }

    pub fn calls(&self, function: &str) -> i64 {
        calls(&self.path, function)
    }

    pub fn knob(&self, knob: &str, value: &str) {
        let (name, text) =
            (CString::new(format!("FERRY_STANDIN_{knob}")).unwrap(), CString::new(value).unwrap());
        // SAFETY: two C strings, which outlive the call.
        good(unsafe { (self.others.standin_set)(name.as_ptr(), text.as_ptr()) });
    }

    /// Makes the n-th call from now on, or each call ("*"), fail with this code.
    pub fn fault(&self, function: &str, nth: &str, code: i32) {
        self.knob("FAULT", &format!("{function}:{nth}:{code}"));
    }

    pub fn no_fault(&self) {
        self.knob("FAULT", "");
    }

    /// Lets hanging copies continue, later ones too, until `so` is true.
    pub fn release_until(&self, mut so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !so() {
            assert!(begin.elapsed() < PATIENCE, "what was released still hangs");
            // SAFETY: the function takes no arguments and may be called at any time.
            unsafe { (self.others.standin_release)() };
            std::thread::yield_now();
        }
    }

    pub fn device_memory(&self, length: usize) -> u64 {
        let mut address = null_mut();
        // SAFETY: the result lives on this stack.
        good(unsafe { (self.program.calls.aclrtMalloc)(&mut address, length, 0) });
        address as u64
    }

    pub fn free(&self, address: u64) {
        // SAFETY: allocated by the test, which uses it no more.
        good(unsafe { (self.program.calls.aclrtFree)(address as *mut c_void) });
    }

    pub fn host_memory(&self, length: usize) -> u64 {
        let mut address = null_mut();
        // SAFETY: the result lives on this stack.
        good(unsafe { (self.program.calls.aclrtMallocHost)(&mut address, length) });
        address as u64
    }

    pub fn free_host(&self, address: u64) {
        // SAFETY: allocated by the test, which uses it no more.
        good(unsafe { (self.program.calls.aclrtFreeHost)(address as *mut c_void) });
    }

    /// Allocates and maps this many bytes of physical memory; returns the address and the handle.
    pub fn mapped_memory(&self, device: u32, length: usize) -> (u64, *mut c_void) {
        let (mut handle, mut address) = (null_mut(), null_mut());
        let calls = &self.program.calls;
        // SAFETY: results and arguments live on this stack; each call gets what the one before it made.
        unsafe {
            good((self.others.aclrtMallocPhysical)(&mut handle, length, &Physical(0, 0, 0, device, 1, 0), 0));
            good((calls.aclrtReserveMemAddress)(&mut address, length, 0, null_mut(), 0));
            good((calls.aclrtMapMem)(address, length, 0, handle, 0));
        }
        (address as u64, handle)
    }

    pub fn unmap(&self, (address, handle): (u64, *mut c_void)) {
        let (address, calls) = (address as *mut c_void, &self.program.calls);
        // SAFETY: made by `mapped_memory`; the test uses it no more.
        unsafe {
            good((calls.aclrtUnmapMem)(address));
            good((calls.aclrtFreePhysical)(handle));
            good((calls.aclrtReleaseMemAddress)(address));
        }
    }

    /// Fills device memory with a pattern: each 8 bytes encode their offset.
    pub fn fill_device(&self, address: u64, length: usize, seed: u64) {
        let data = pattern(length, seed);
        let (to, from, kind) = (address as *mut c_void, data.as_ptr().cast(), ACL_COPY_HOST_TO_DEVICE);
        // SAFETY: the host side is `data`, which outlives the call; the stand-in refuses what is no device memory.
        good(unsafe { (self.program.calls.aclrtMemcpy)(to, length, from, length, kind) });
    }

    pub fn read_device(&self, address: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0u8; length];
        let (to, from, kind) = (data.as_mut_ptr().cast(), address as *const c_void, ACL_COPY_DEVICE_TO_HOST);
        // SAFETY: the host side is `data`, which outlives the call; the stand-in refuses what is no device memory.
        good(unsafe { (self.program.calls.aclrtMemcpy)(to, length, from, length, kind) });
        data
    }

    #[track_caller]
    pub fn expect_device(&self, address: u64, length: usize, seed: u64) {
        expect(&self.read_device(address, length), seed);
    }

    /// Runs `work` with a queue of this device on a thread of its own.
    pub fn with_queue<T: Send>(
        &self,
        device: i32,
        batch_bytes: usize,
        depth: usize,
        work: impl FnOnce(&mut dyn Queue) -> T + Send,
    ) -> Result<T> {
        let driver = &self.driver;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let mut queue = driver.open(device, batch_bytes, depth)?;
                Ok(work(&mut *queue))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Ends the process as if it had been killed; no audit runs.
    pub fn leave(self) -> ! {
        println!("{DONE}");
        // SAFETY: nothing of this process is needed any more.
        unsafe { libc::_exit(0) }
    }

    /// Finalizes the library for the program; the library then reports leaks.
    pub fn end(mut self) {
        for device in std::mem::take(&mut self.set) {
            // SAFETY: no memory is involved; what was on the device is not used any more.
            good(unsafe { (self.others.aclrtResetDevice)(device) });
        }
        drop(self.driver);
        // SAFETY: begun by `start`; the driver, which is gone, made its last call before.
        good(unsafe { (self.program.calls.aclFinalize)() });
    }
}

// SAFETY: the library's handles that the program has may be used on any thread.
unsafe impl Sync for Npu {}

pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).flat_map(|at| (seed << 40 | at).to_le_bytes());
    words.take(length).collect()
}

#[track_caller]
pub fn expect(data: &[u8], seed: u64) {
    let good = pattern(data.len(), seed);
    let wrong = data.iter().zip(&good).position(|(found, wanted)| found != wanted);
    assert_eq!(wrong, None, "{} bytes of seed {seed}", data.len());
}

pub fn host_slice<'a>(address: u64, length: usize) -> &'a mut [u8] {
    // SAFETY: host memory of the caller's that is as long and stays for as long as the slice is used. The test waits
    // for the device's writes before it looks.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) }
}

/// Waits until the batch has ended.
pub fn finish(queue: &mut dyn Queue, batch: Batch) -> Result<()> {
    let begin = Instant::now();
    while !queue.poll_done(batch)? {
        assert!(begin.elapsed() < PATIENCE, "{batch:?} does not end");
        std::thread::yield_now();
    }
    Ok(())
}

/// Returns the status and the library's code of a failure.
pub fn cause(error: &Error) -> (ferry::Status, i32) {
    (error.status, error.vendor_error)
}
