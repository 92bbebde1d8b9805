//! The Ascend driver as a `device::Driver`: locates memory, pins host memory, opens queues, waits for the program's
//! events.

use super::across::{self, Fabric};
use super::contexts::Contexts;
use super::queue::AscendQueue;
use crate::device::{Allocation, Attachment, Driver, Hold, Point, Queue, Start};
use crate::status::{Error, Result, Status};
use crate::sys::acl::{self, Event, Library, Runtime};
use crate::sys::host;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashSet;
use crate::sys::proven::Proven;
use crate::types::{Location, MemoryKind, Transport};
use std::ffi::{c_void, CStr};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;

pub struct Ascend {
    library: &'static Library,
    contexts: Arc<Contexts>,
    fabric: Option<Fabric>,
    /// Initialised on first use. If memory of its devices exists, the program has initialised the library before.
    runtime: Mutex<Option<Arc<Runtime>>>,
    /// The addresses that `pin` has pinned. Memory that the program pinned before stays pinned.
    pinned: Mutex<HashSet<u64>>,
}

impl Ascend {
    pub fn open(wanted: &str, fabric: Option<Fabric>) -> Result<Ascend> {
        Ok(Ascend {
            library: Library::open(wanted)?,
            contexts: Arc::default(),
            fabric,
            runtime: Mutex::default(),
            pinned: Mutex::default(),
        })
    }

    fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut runtime = self.runtime.lock();
        if let Some(begun) = &*runtime {
            return Ok(begun.clone());
        }
        let begun = Runtime::begin(self.library)?;
        Ok(runtime.insert(begun).clone())
    }

    fn pinned(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.pinned.lock()
    }

    /// Returns the allocation at an address, on a thread that has a context. Memory that the library does not know as
    /// a device's is host memory.
    fn look_up(&self, address: u64) -> Result<Option<Allocation>> {
        let location = match location_of(self.library, address) {
            Ok(location) if matches!(location.type_, acl::ACL_AT_DEVICE | acl::ACL_AT_MANAGED) => location,
            Err(error) if error.vendor_error == acl::ACL_NO_CONTEXT => return Err(error),
            _ => return Ok(None),
        };
        let location = Location { kind: MemoryKind::Ascend, device: location.id as i32 };
        let (base, length) = range_of(self.library, address).unwrap_or((address, 0));
        Ok(Some(Allocation { location, base, length }))
    }
}

impl Driver for Ascend {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Ascend
    }

    fn locate(&self, address: u64) -> Result<Option<Allocation>> {
        match self.look_up(address) {
            // This thread has no context. If no context can be had, no device exists whose memory it could be: the
            // toolkit may be installed, and initialised, without devices.
            Err(_) => {
                let Ok(runtime) = self.runtime() else { return Ok(None) };
                match self.contexts.run(&runtime, || self.look_up(address)) {
                    Err(error) if error.status == Status::Unavailable => Ok(None),
                    found => found?,
                }
            }
            found => found,
        }
    }

    /// If the system cannot pin memory that the library did not allocate, this does nothing, and copies are
    /// synchronous.
    fn pin(&self, address: u64, length: usize) -> Result<()> {
        if !can_lock(&kernel()) {
            return Ok(());
        }
        let runtime = self.runtime()?;
        let locked = self.contexts.run(&runtime, || {
            let mut device_address = null_mut();
            let (memory, mapped) = (address as *mut c_void, acl::ACL_HOST_REGISTER_MAPPED);
            let call = runtime.calls.aclrtHostRegister;
            // SAFETY: the pointer outlives the call; the memory stays mapped until `unpin`, as the trait says.
            let code = unsafe { call(memory, length as u64, mapped, &mut device_address) };
            runtime.check("aclrtHostRegister", code)
        })?;
        match locked {
            Ok(()) => drop(self.pinned().insert(address)),
            // Pinned by the program, or not supported by the devices.
            Err(error) if matches!(error.status, Status::Busy | Status::Unsupported) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn unpin(&self, address: u64) {
        if !self.pinned().remove(&address) {
            return;
        }
        let Ok(runtime) = self.runtime() else { return };
        let _ = self.contexts.run(&runtime, || {
            let memory = address as *mut c_void;
            // SAFETY: pinned by `pin`; no copy under way uses it.
            unsafe { (runtime.calls.aclrtHostUnregister)(memory) }
        });
    }

    fn open(&self, device: i32, batch_bytes: usize, depth: usize) -> Result<Box<dyn Queue>> {
        let (runtime, contexts, fabric) = (self.runtime()?, self.contexts.clone(), self.fabric.clone());
        Ok(Box::new(AscendQueue::open(runtime, (contexts, fabric), device, batch_bytes, depth)?))
    }

    fn crosses(&self) -> bool {
        self.fabric.is_some()
    }

    fn attach(&self, device: i32, length: u64, offer: &[u8], host: IpAddr) -> Result<Attachment> {
        across::attach(&self.runtime()?, self.fabric.as_ref(), (device, length), offer, host)
    }

    fn point(&self, at: Start) -> Result<Box<dyn Point>> {
        let runtime = self.runtime()?;
        Ok(Box::new(match at {
            Start::Event(event) => Event::of_program(&runtime, event),
            Start::Stream(stream) => Event::record(&runtime, stream)?,
        }))
    }

    fn hold(&self, _stream: u64) -> Result<Box<dyn Hold>> {
        // A stream waits only for events that are already recorded in another stream, and no stream waits for the
        // host.
        let text = "AscendCL has no way to hold a stream from the host";
        Err(Error::new(Status::Unsupported, text).over(Transport::Ascend))
    }

    fn process_id(&self) -> i32 {
        let mut process = 0;
        let has_answered = self.library.calls.aclrtDeviceGetBareTgid.is_some_and(|call| {
            // SAFETY: the number outlives the call.
            unsafe { call(&mut process) == 0 }
        });
        if has_answered {
            process
        } else {
            host::pid()
        }
    }

    fn borrower(&self, claimed: i32, proven: &Proven) -> Result<i32> {
        Ascend::check_borrower(self.process_id(), claimed, proven)
    }
}

impl Ascend {
    /// AscendCL takes a list of processes that may import, numbered as the driver counts them: as the host does, in
    /// any container (aclrtDeviceGetBareTgid). Outside of containers this is the number that the kernel shows for the
    /// proven process, and no other number is accepted. In a container `own` differs from the kernel's number of this
    /// process, and the kernel does not show the host's numbers. Then the proven process, which could pass the memory
    /// on anyway, is trusted, except if it names this engine's own process.
    fn check_borrower(own: i32, claimed: i32, proven: &Proven) -> Result<i32> {
        let is_known_here = own == host::pid();
        let fits = if is_known_here { claimed == proven.pid } else { (claimed == own) == proven.is_self() };
        if claimed > 0 && fits {
            return Ok(claimed);
        }
        let text = format!("the peer claims process {claimed}, but the kernel names process {}", proven.pid);
        Err(Error::new(Status::Access, text).over(Transport::Ascend))
    }
}

impl Point for Event {
    fn is_reached(&self) -> Result<bool> {
        Event::is_reached(self)
    }
}

/// Returns the location of memory. An error: the library does not know it, or the calling thread has no context.
pub fn location_of(library: &Library, address: u64) -> Result<acl::acl_location> {
    let location = acl::acl_location { id: 0, type_: acl::ACL_AT_UNREGISTERED };
    let mut found = acl::acl_pointer_attributes { location, page_size: 0, reserved: [0; 4] };
    // SAFETY: the struct outlives the call, and the library only looks the address up.
    let code = unsafe { (library.calls.aclrtPointerGetAttributes)(address as *const c_void, &mut found) };
    library.check("aclrtPointerGetAttributes", code)?;
    Ok(found.location)
}

/// Returns the device's number on the machine.
pub fn physical_device(library: &Library, device: i32) -> Result<i32> {
    let mut physical = 0;
    // SAFETY: the number outlives the call.
    let code = unsafe { (library.calls.aclrtGetPhyDevIdByLogicDevId)(device, &mut physical) };
    library.check("aclrtGetPhyDevIdByLogicDevId", code)?;
    Ok(physical)
}

/// Returns base and length of the allocation, if the library tells.
pub fn range_of(library: &Library, address: u64) -> Option<(u64, u64)> {
    let range = library.calls.aclrtMemGetAddressRange?;
    let (mut base, mut length) = (null_mut(), 0);
    // SAFETY: pointer and number outlive the call, and the library only looks the address up.
    let code = unsafe { range(address as *mut c_void, &mut base, &mut length) };
    (code == 0 && length > 0).then_some((base as u64, length as u64))
}

/// Returns the release of the running kernel.
fn kernel() -> String {
    // SAFETY: zeros are valid, and uname fills the struct with C strings.
    let name = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&mut name);
        CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    };
    name
}

/// Returns whether the driver can pin memory that it did not allocate. Up to kernel 5.10 it must not be given any.
fn can_lock(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) > (5, 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unix;

    #[test]
    fn a_process_is_let_in_by_the_number_that_the_kernel_shows_here() {
        let own = host::pid();
        let pidfd = Arc::new(unix::pidfd_of(own).unwrap());
        let proven = |pid| Proven::new(pid, pidfd.clone());
        let (me, other, hidden) = (proven(own), proven(own + 1), proven(0));
        let check =
            |own, claimed, proven| Ascend::check_borrower(own, claimed, proven).map_err(|error| error.status);
        // Outside of containers.
        assert_eq!((check(own, own + 1, &other), check(own, own, &me)), (Ok(own + 1), Ok(own)));
        for (claimed, proven) in
            [(own, &other), (own + 2, &other), (own + 1, &me), (0, &hidden), (7, &hidden)]
        {
            assert_eq!(check(own, claimed, proven), Err(Status::Access), "{claimed} {proven:?}");
        }
        // In a container, where the host numbers processes differently.
        let bare = own + 1000;
        assert_eq!(
            (check(bare, bare + 1, &other), check(bare, bare + 1, &hidden)),
            (Ok(bare + 1), Ok(bare + 1))
        );
        for (claimed, proven) in
            [(bare, &other), (bare, &hidden), (bare + 1, &me), (0, &other), (-1, &hidden)]
        {
            assert_eq!(check(bare, claimed, proven), Err(Status::Access), "{claimed} {proven:?}");
        }
    }

    #[test]
    fn old_kernels_lock_nothing() {
        for old in ["5.10.0-60.18.0.50.oe2203.aarch64", "4.19.90", "5.4", "5", ""] {
            assert!(!can_lock(old), "{old:?}");
        }
        for new in ["5.11.0", "5.15.0-91-generic", "6.6.0-72.0.0.76.oe2403.aarch64", "10.0"] {
            assert!(can_lock(new), "{new:?}");
        }
    }
}
