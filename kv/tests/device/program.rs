//! The program that uses the device: `tests/standin/program` by its C interface, and the knobs of the stand-in.

use std::ffi::{c_char, c_int, c_void, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::standin;
use ferry::Start;

/// `program_stream` of program.h.
#[repr(C)]
struct Raw {
    handle: *mut c_void,
    event: *mut c_void,
    staged: *mut c_void,
    length: usize,
    gate: *mut c_void,
}

pub struct Program {
    library: *mut c_void,
    cuda: String,
    _alone: MutexGuard<'static, ()>,
}

pub struct Stream<'a> {
    program: &'a Program,
    raw: *mut Raw,
}

fn open(path: &str) -> *mut c_void {
    let name = CString::new(path).unwrap();
    // SAFETY: a C string; the libraries are the tests' own.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{path} cannot be opened");
    library
}

fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is open, and is never closed.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is missing");
    found
}

impl Program {
    /// Each test begins with a device that nobody else uses.
    pub fn begin() -> Program {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = standin::folder().join("cuda-12.8");
        let cuda = folder.join("libcuda.so.1").display().to_string();
        open(&cuda);
        let library = open(folder.join("libprogram.so").to_str().unwrap());
        let program = Program { library, cuda, _alone: alone };
        program.set("FERRY_STANDIN_FAULT", "");
        // SAFETY: as program.h declares it.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(symbol(library, "program_begin"))() };
        program
    }

    pub fn cuda(&self) -> String {
        self.cuda.clone()
    }

    pub fn set(&self, knob: &str, value: &str) {
        let (knob, value) = (CString::new(knob).unwrap(), CString::new(value).unwrap());
        type Set = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
        // SAFETY: the stand-in's function has this type, and gets two C strings.
        let code = unsafe {
            std::mem::transmute::<*mut c_void, Set>(symbol(open(&self.cuda), "standin_set"))(
                knob.as_ptr(),
                value.as_ptr(),
            )
        };
        assert_eq!(code, 0);
    }

    pub fn stream(&self) -> Stream<'_> {
        type Make = unsafe extern "C" fn(usize) -> *mut Raw;
        // SAFETY: as program.h declares it.
        let raw = unsafe {
            std::mem::transmute::<*mut c_void, Make>(symbol(self.library, "program_stream_make"))(64)
        };
        Stream { program: self, raw }
    }
}

impl Stream<'_> {
    fn call(&self, name: &str) {
        let function = symbol(self.program.library, name);
        // SAFETY: functions of program.h that take a stream of it.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Raw)>(function)(self.raw) };
    }

    /// All work of this stream so far.
    pub fn so_far(&self) -> Start {
        // SAFETY: the stream lives as long as this.
        unsafe { Start::stream((*self.raw).handle as u64) }
    }

    pub fn event(&self) -> Start {
        // SAFETY: as above.
        unsafe { Start::event((*self.raw).event as u64) }
    }

    /// Work that the stream is given from here on waits for `go`.
    pub fn block(&self) {
        self.call("program_stream_block");
    }

    pub fn go(&self) {
        self.call("program_stream_go");
    }

    pub fn record(&self) {
        self.call("program_stream_record");
    }

    /// Records the event of another stream behind the work of this one.
    pub fn record_other(&self, other: &Stream) {
        // SAFETY: both live; the events change places for the call.
        unsafe { std::mem::swap(&mut (*self.raw).event, &mut (*other.raw).event) };
        self.record();
        // SAFETY: as above.
        unsafe { std::mem::swap(&mut (*self.raw).event, &mut (*other.raw).event) };
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.call("program_stream_end");
    }
}
