//! HIXL, by which devices of other hosts read and write device memory directly. It is a library of its own, opened when
//! it is first needed; its objects are released when dropped. Each call is made under a context of the device whose
//! memory it uses.

use super::bindings as ffi;
use super::handles::DeviceMemory;
use super::object::{calls, unavailable, Object};
use crate::status::{Error, Result, Status};
use crate::sys::lock::Mutex;
use crate::sys::unforked::unforked;
use crate::types::{Op, Transport};
use std::ffi::{c_void, CStr, CString};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::time::Duration;

const NAME: &str = "libcann_hixl.so";
/// Clients that may wait for the server to accept them; there is only one.
const BACKLOG: u32 = 1;
/// The name of the registered memory.
const TAG: &CStr = c"ferry";

calls! {
    Calls
    required: HixlCSServerCreate, HixlCSServerRegMem, HixlCSServerUnregMem, HixlCSServerListen,
        HixlCSServerDestroy, HixlCSClientCreate, HixlCSClientRegMem, HixlCSClientConnect,
        HixlCSClientGetRemoteMem, HixlCSClientBatchPutAsync, HixlCSClientBatchGetAsync,
        HixlCSClientQueryCompleteStatus, HixlCSClientDestroy;
    mark: HixlCSClientBatchPutSync;
}

pub struct Hixl {
    pub calls: Calls,
    /// The name under which the library was opened.
    name: String,
}

impl Hixl {
    /// Opens `wanted`, or the system's library if `wanted` is empty, once. Fails with UNAVAILABLE and the reason; a
    /// library before 9.1 lacks a function.
    pub fn open(wanted: &str) -> Result<&'static Hixl> {
        static OPEN: Mutex<Vec<&'static Hixl>> = Mutex::new(Vec::new());
        let name = if wanted.is_empty() { NAME } else { wanted };
        unforked(|| {
            let mut open = OPEN.lock();
            if let Some(known) = open.iter().find(|known| known.name == name) {
                return Ok(*known);
            }
            let calls = Calls::look_up(Object::open(name)?, name)?;
            let library: &'static Hixl = Box::leak(Box::new(Hixl { calls, name: name.into() }));
            open.push(library);
            Ok(library)
        })
    }

    /// UNAVAILABLE for every failure except a wrong parameter: the failed object can't be used any more.
    fn check(&self, function: &str, code: u32) -> Result<()> {
        let status = match code as i32 {
            0 => return Ok(()),
            ffi::HIXL_PARAMETER => Status::Invalid,
            _ => Status::Unavailable,
        };
        let why = match code as i32 {
            ffi::HIXL_TIMEOUT => " (timeout)",
            ffi::HIXL_NOT_CONNECTED => " (not connected)",
            _ => "",
        };
        let error = Error::new(status, format!("{function} failed with {code}{why}"));
        Err(Error { vendor_error: code as i32, ..error }.over(Transport::Ascend))
    }
}

fn of_device(memory: &DeviceMemory, length: u64) -> ffi::hixl_memory {
    ffi::hixl_memory { location: ffi::HIXL_AT_DEVICE, address: memory.address() as *mut c_void, length }
}

fn host_name(host: IpAddr) -> CString {
    // The text of an address contains no NUL.
    CString::new(host.to_string()).unwrap_or_default()
}

/// Memory that one client reads and writes directly.
pub struct Server {
    library: &'static Hixl,
    raw: *mut c_void,
    registered: *mut c_void,
    /// None once the memory was freed, or was leaked because the server could not be ended.
    memory: Option<DeviceMemory>,
}

impl Server {
    /// Listens at this port of the host, and offers `memory` at `endpoint`. The memory must begin at a page boundary.
    pub fn open(
        library: &'static Hixl,
        endpoint: &ffi::hixl_endpoint,
        (host, port): (IpAddr, u16),
        (memory, length): (DeviceMemory, u64),
    ) -> Result<Server> {
        let (calls, host) = (&library.calls, host_name(host));
        let description = ffi::hixl_server_description {
            endpoints: endpoint,
            host: host.as_ptr(),
            port: port.into(),
            count: 1,
            reserved: [0; 104],
        };
        let options = ffi::hixl_options { reserved: [0; 128] };
        let mut raw = null_mut();
        // SAFETY: everything that the structs name outlives the call.
        let code = unsafe { (calls.HixlCSServerCreate)(&description, &options, &mut raw) };
        library.check("HixlCSServerCreate", code)?;
        let region = of_device(&memory, length);
        let mut server = Server { library, raw, registered: null_mut(), memory: Some(memory) };
        // SAFETY: the memory is kept until the server has ended.
        let code = unsafe { (calls.HixlCSServerRegMem)(raw, TAG.as_ptr(), &region, &mut server.registered) };
        library.check("HixlCSServerRegMem", code)?;
        // SAFETY: the server was made above.
        library.check("HixlCSServerListen", unsafe { (calls.HixlCSServerListen)(raw, BACKLOG) })?;
        Ok(server)
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceMemory::address)
    }

    /// Ends the server and frees the memory. Returns false while a client is still connected.
    pub fn end(&mut self) -> bool {
        let calls = &self.library.calls;
        if !self.registered.is_null() {
            // SAFETY: both from `open`.
            if unsafe { (calls.HixlCSServerUnregMem)(self.raw, self.registered) } != 0 {
                return false;
            }
            self.registered = null_mut();
        }
        if !self.raw.is_null() {
            // SAFETY: from `open`, and not used any more if this succeeds.
            if unsafe { (calls.HixlCSServerDestroy)(self.raw) } != 0 {
                return false;
            }
            self.raw = null_mut();
        }
        self.memory = None;
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.end() {
            // A client may still write to the memory, so leak it.
            std::mem::forget(self.memory.take());
        }
    }
}

/// A piece that is being moved.
pub struct Moving(*mut c_void);

/// A connection between memory here and a server's memory.
pub struct Client {
    library: &'static Hixl,
    raw: *mut c_void,
    memory: Option<DeviceMemory>,
    /// The start of the server's memory, as its device addresses it, and its length.
    remote: (u64, u64),
    /// A started piece was not seen to end.
    failed: bool,
}

impl Client {
    /// Connects. Takes at most twice `patience`.
    pub fn connect(
        library: &'static Hixl,
        (local, remote): (&ffi::hixl_endpoint, &ffi::hixl_endpoint),
        (host, port): (IpAddr, u16),
        (memory, length): (DeviceMemory, u64),
        patience: Duration,
    ) -> Result<Client> {
        let (calls, host) = (&library.calls, host_name(host));
        let timeout_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let description = ffi::hixl_client_description {
            local,
            remote,
            host: host.as_ptr(),
            port: port.into(),
            // 255 leaves the choice to the library.
            traffic_class: u8::MAX,
            service_level: u8::MAX,
            reserved: [0; 98],
        };
        let options = ffi::hixl_options { reserved: [0; 128] };
        let mut raw = null_mut();
        // SAFETY: everything that the structs name outlives the call.
        let code = unsafe { (calls.HixlCSClientCreate)(&description, &options, &mut raw) };
        library.check("HixlCSClientCreate", code)?;
        let region = of_device(&memory, length);
        let mut client = Client { library, raw, memory: Some(memory), remote: (0, 0), failed: false };
        let mut registered = null_mut();
        // SAFETY: the memory is kept until the client has ended, which also ends the registration.
        let code = unsafe { (calls.HixlCSClientRegMem)(raw, TAG.as_ptr(), &region, &mut registered) };
        library.check("HixlCSClientRegMem", code)?;
        // SAFETY: the client was made above.
        let code = unsafe { (calls.HixlCSClientConnect)(raw, timeout_ms) };
        library.check("HixlCSClientConnect", code)?;
        let (mut list, mut tags, mut count) = (null_mut(), null_mut(), 0);
        // SAFETY: pointers and number outlive the call.
        let code =
            unsafe { (calls.HixlCSClientGetRemoteMem)(raw, &mut list, &mut tags, &mut count, timeout_ms) };
        library.check("HixlCSClientGetRemoteMem", code)?;
        if count != 1 || list.is_null() {
            let text = format!("HIXL reports {count} pieces of memory instead of one");
            return Err(Error::new(Status::Unavailable, text).over(Transport::Ascend));
        }
        // SAFETY: the list has as many entries as it says, until the next such call.
        let shown = unsafe { &*list };
        client.remote = (shown.address as u64, shown.length);
        Ok(client)
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceMemory::address)
    }

    pub fn remote(&self) -> (u64, u64) {
        self.remote
    }

    /// Starts to move a piece. `poll_done` tells when it has been moved.
    ///
    /// # Safety
    ///
    /// The local side is within this client's memory.
    pub unsafe fn start(&mut self, op: Op, (local, remote): (u64, u64), length: u64) -> Result<Moving> {
        let calls = &self.library.calls;
        let piece = ffi::hixl_piece { remote: remote as *mut c_void, local: local as *mut c_void, length };
        let mut complete = null_mut();
        // SAFETY: the piece outlives the call; its memory is kept until the client has ended.
        let (name, code) = unsafe {
            match op {
                Op::Write => (
                    "HixlCSClientBatchPutAsync",
                    (calls.HixlCSClientBatchPutAsync)(self.raw, 1, &piece, &mut complete),
                ),
                Op::Read => (
                    "HixlCSClientBatchGetAsync",
                    (calls.HixlCSClientBatchGetAsync)(self.raw, 1, &piece, &mut complete),
                ),
            }
        };
        self.library.check(name, code).inspect_err(|_| self.failed = true)?;
        Ok(Moving(complete))
    }

    /// True when the piece has been moved. An error means that the client can't be used any more.
    ///
    /// # Safety
    ///
    /// The piece was not reported as done or failed before.
    pub unsafe fn poll_done(&mut self, moving: &Moving) -> Result<bool> {
        let mut status = ffi::HIXL_WAITING;
        let query = self.library.calls.HixlCSClientQueryCompleteStatus;
        // SAFETY: from `start`, and not seen to end, as the caller says; the number outlives the call.
        let code = unsafe { query(self.raw, moving.0, &mut status) };
        let result = self.library.check("HixlCSClientQueryCompleteStatus", code);
        let result = match (result, status) {
            (Ok(()), ffi::HIXL_COMPLETED) => Ok(true),
            (Ok(()), ffi::HIXL_WAITING) => Ok(false),
            (Ok(()), status) => {
                let text = format!("HIXL moved nothing: its status is {status}");
                Err(Error { vendor_error: status, ..Error::new(Status::Unavailable, text) }
                    .over(Transport::Ascend))
            }
            (Err(error), _) => Err(error),
        };
        result.inspect_err(|_| self.failed = true)
    }

    /// Notes that started pieces may still be moving at both ends.
    pub fn give_up(&mut self) {
        self.failed = true;
    }
}

impl Drop for Client {
    /// After a failure the client stays connected, so that the server keeps its memory, and this end's memory is
    /// leaked: both stay until the process ends.
    fn drop(&mut self) {
        // SAFETY: from `connect`, and not used any more.
        let ended = !self.failed && unsafe { (self.library.calls.HixlCSClientDestroy)(self.raw) } == 0;
        if !ended {
            std::mem::forget(self.memory.take());
        }
    }
}
