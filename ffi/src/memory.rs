//! Registering memory, and memory that ferry allocates.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{check_reserved, ferry_region, timeout};
use crate::pointers::{slice, text, Out, OutList};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::types::{Access, Location, MemoryKind, RegionId};
use engine::{Error, FileRegion, RegionOptions, RegionSpec, Status};
use std::ffi::{c_char, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

/// Peers may READ the region.
pub const FERRY_ACCESS_REMOTE_READ: u32 = 1;
/// Peers may WRITE the region.
pub const FERRY_ACCESS_REMOTE_WRITE: u32 = 2;
const _: () = assert!(FERRY_ACCESS_REMOTE_READ == Access::REMOTE_READ.0);
const _: () = assert!(FERRY_ACCESS_REMOTE_WRITE == Access::REMOTE_WRITE.0);

/// ferry detects the kind: memory of a device whose library this process has loaded, or host memory.
pub const FERRY_MEMORY_AUTO: u32 = 0;
/// Host memory.
pub const FERRY_MEMORY_HOST: u32 = 1;
/// Memory of a CUDA device.
pub const FERRY_MEMORY_CUDA: u32 = 2;
/// Memory of an Ascend device.
pub const FERRY_MEMORY_ASCEND: u32 = 3;
/// Managed memory of CUDA.
pub const FERRY_MEMORY_CUDA_MANAGED: u32 = 4;
/// Host memory that CUDA has pinned.
pub const FERRY_MEMORY_CUDA_PINNED: u32 = 5;
/// A range of a file or of a block device: ferry_region_register_file.
pub const FERRY_MEMORY_FILE: u32 = 6;

const _: () = assert!(FERRY_MEMORY_HOST == MemoryKind::Host as u32);
const _: () = assert!(FERRY_MEMORY_CUDA == MemoryKind::Cuda as u32);
const _: () = assert!(FERRY_MEMORY_ASCEND == MemoryKind::Ascend as u32);
const _: () = assert!(FERRY_MEMORY_CUDA_MANAGED == MemoryKind::Managed as u32);
const _: () = assert!(FERRY_MEMORY_CUDA_PINNED == MemoryKind::Pinned as u32);
const _: () = assert!(FERRY_MEMORY_FILE == MemoryKind::File as u32);

/// Options of a region. Zero the struct, set struct_size to sizeof, then set the fields that you need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_region_options {
    /// sizeof(ferry_region_options).
    pub struct_size: u32,
    /// FERRY_ACCESS_* bits; at least one.
    pub access: u32,
    /// FERRY_MEMORY_*.
    pub kind: u32,
    /// Number of the device, for the kinds that have one; otherwise 0.
    pub device: i32,
    /// Must be 0.
    pub grant_scope: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Name under which peers find the region: at most 63 bytes, copied. NULL means no name.
    pub name: *const c_char,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_region_options {
    const SIZE_MIN: usize = 32;
}

/// Options of allocated memory, as in ferry_region_options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_alloc_options {
    /// sizeof(ferry_alloc_options).
    pub struct_size: u32,
    /// FERRY_ACCESS_* bits; at least one.
    pub access: u32,
    /// FERRY_MEMORY_*.
    pub kind: u32,
    /// Number of the device, for the kinds that have one; otherwise 0.
    pub device: i32,
    /// Must be 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Name under which peers find the region: at most 63 bytes, copied. NULL means no name.
    pub name: *const c_char,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_alloc_options {
    const SIZE_MIN: usize = 32;
}

/// Registers `length` bytes at `address` and announces the region to every peer. Transfers may run meanwhile.
///
/// `options` NULL means: peers may READ and WRITE, no name, kind FERRY_MEMORY_AUTO. Peers use *out_region as
/// remote_region. ferry borrows the memory until ferry_region_unregister has returned FERRY_OK or the engine
/// is closed; until then it must stay mapped, with the rights that the access needs.
///
/// FERRY_ERR_INVALID: zero length, NULL, overflow, no access, nothing is mapped there, ferry doesn't know the
/// device, or the memory is not of the kind or device in the options. FERRY_ERR_OVERLAP: a registered region
/// overlaps. FERRY_ERR_LIMIT. FERRY_ERR_UNAVAILABLE: the library of the device in the options is missing.
/// FERRY_ERR_NO_MEMORY or FERRY_ERR_SYSTEM: an RDMA device cannot register the memory.
#[no_mangle]
pub unsafe extern "C" fn ferry_region_register(
    engine: *mut ferry_engine,
    address: *mut c_void,
    length: usize,
    options: *const ferry_region_options,
    out_region: *mut ferry_region,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and the memory until unregister.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_region, "out_region")?;
            let options = region_options(options)?;
            out.set(engine.engine.register(address.cast(), length, &options)?.raw());
            Ok(())
        })
    }
}

/// Registers `count` pieces of memory with the same options, all or none, and announces them together.
/// Behaves as ferry_region_register otherwise. out_regions has room for `count` handles, in the same order.
/// ferry_error.request_index is the index of the piece that failed.
#[no_mangle]
pub unsafe extern "C" fn ferry_region_register_batch(
    engine: *mut ferry_engine,
    addresses: *const *mut c_void,
    lengths: *const usize,
    count: usize,
    options: *const ferry_region_options,
    out_regions: *mut ferry_region,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and the memory until unregister.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            if count == 0 {
                return Err(Error::invalid("count is 0"));
            }
            let addresses = slice(addresses, count, "addresses")?;
            let lengths = slice(lengths, count, "lengths")?;
            let out = OutList::new(out_regions, count, "out_regions")?;
            let RegionOptions { access, name, location } = region_options(options)?;
            let mut specs = Vec::new();
            let no_memory = |_| Error::new(Status::NoMemory, format!("no memory for {count} regions"));
            specs.try_reserve_exact(count).map_err(no_memory)?;
            specs.extend(addresses.iter().zip(lengths).map(|(address, length)| RegionSpec {
                address: *address as u64,
                length: *length as u64,
                access,
                name: name.clone(),
                ..RegionSpec::default()
            }));
            let regions = engine.engine.register_batch(specs, location)?;
            out.fill(regions.into_iter().map(RegionId::raw));
            Ok(())
        })
    }
}

/// Registers `length` bytes of a file or of a block device, from `offset` on, and announces the region to every peer.
/// Behaves as ferry_region_register otherwise; options.kind is FERRY_MEMORY_AUTO or FERRY_MEMORY_FILE.
///
/// *out_address is the address of the first byte, for requests here and of peers. Nothing is mapped there: no memory of
/// a process or a device has such an address. The range of a file may lie beyond its end. A WRITE there extends the
/// file; a READ there fails with FERRY_ERR_SYSTEM and ENODATA. ferry opens the file anew with the rights of `fd`, which
/// the caller may close afterwards.
///
/// FERRY_ERR_INVALID: `fd` is no descriptor, or not of a file or a block device, or open with O_APPEND; zero length,
/// overflow, or a range beyond the end of a block device. FERRY_ERR_ACCESS, with EBADF: `fd` is not open for what the
/// access lets peers do. FERRY_ERR_LIMIT. FERRY_ERR_UNAVAILABLE: the setting file_io asks for io_uring, which the
/// kernel refuses. FERRY_ERR_SYSTEM: the kernel's errno.
#[no_mangle]
pub unsafe extern "C" fn ferry_region_register_file(
    engine: *mut ferry_engine,
    fd: i32,
    offset: u64,
    length: u64,
    options: *const ferry_region_options,
    out_address: *mut u64,
    out_region: *mut ferry_region,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and so is the descriptor.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out_address = Out::new(out_address, "out_address")?;
            let out_region = Out::new(out_region, "out_region")?;
            let options = region_options(options)?;
            if fd < 0 {
                return Err(Error::invalid(format!("fd: {fd} is no descriptor")));
            }
            let file = BorrowedFd::borrow_raw(fd);
            let FileRegion { region, address } =
                engine.engine.register_file(file, offset, length, &options)?;
            out_address.set(address);
            out_region.set(region.raw());
            Ok(())
        })
    }
}

/// Unregisters a region. After FERRY_OK nothing can reach the memory through ferry any more. Transfers that
/// name the region afterwards fail with FERRY_ERR_STALE at peers and FERRY_ERR_NOT_REGISTERED here.
///
/// Waits while the region is in use, and until connected peers have given up its RDMA keys. FERRY_ERR_BUSY with a
/// timeout of 0: the region cannot be unregistered at once, and nothing has changed. FERRY_ERR_BUSY with a longer
/// timeout: the region is still in use, but closed for new work; call again. FERRY_ERR_STALE: the region was
/// unregistered before. Memory of ferry_memory_alloc stays mapped until ferry_memory_free.
#[no_mangle]
pub unsafe extern "C" fn ferry_region_unregister(
    engine: *mut ferry_engine,
    region: ferry_region,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            if engine.allocations.unregister(region, timeout(timeout_ns))? {
                return Ok(());
            }
            engine.engine.unregister(RegionId::from_raw(region), timeout(timeout_ns))
        })
    }
}

/// Allocates registered memory: page-aligned, zeroed, in huge pages if the system has some. Processes of the
/// same user on this host map it and copy directly. The call therefore allocates all pages now, which takes
/// about as long as filling them with zeros.
///
/// `options` NULL: host memory that peers may READ and WRITE. Free it with ferry_memory_free; ferry_engine_free
/// unmaps the rest. FERRY_ERR_NO_MEMORY: the machine (MemAvailable) or a control group of the process has less memory
/// left. The call checks this for lengths from 1 MiB on, and again before each 256 MiB of memory that other processes
/// can map. Other programs may take the memory between the check and the allocation; the kernel then ends a process
/// of its choice. FERRY_ERR_INVALID for a length of 0.
#[no_mangle]
pub unsafe extern "C" fn ferry_memory_alloc(
    engine: *mut ferry_engine,
    length: usize,
    options: *const ferry_alloc_options,
    out_address: *mut *mut c_void,
    out_region: *mut ferry_region,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out_address = Out::new(out_address, "out_address")?;
            let out_region = Out::new(out_region, "out_region")?;
            let memory = engine.engine.alloc(length, &alloc_options(options)?)?;
            let (address, region) = (memory.address(), memory.region());
            engine.allocations.add(memory)?;
            out_address.set(ptr::with_exposed_provenance_mut(address as usize));
            out_region.set(region.raw());
            Ok(())
        })
    }
}

/// Unregisters memory of ferry_memory_alloc, unless that was done before, and unmaps it. Waits and fails as
/// ferry_region_unregister does. FERRY_ERR_INVALID: ferry did not allocate the region.
#[no_mangle]
pub unsafe extern "C" fn ferry_memory_free(
    engine: *mut ferry_engine,
    region: ferry_region,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            if engine.allocations.free(region, timeout(timeout_ns))? {
                return Ok(());
            }
            // Distinguishes a stale handle from a region that the caller registered.
            engine.engine.check_region(RegionId::from_raw(region))?;
            Err(Error::invalid("region is not memory that ferry allocated; use ferry_region_unregister"))
        })
    }
}

/// # Safety
/// `options` is NULL or the caller's for the length of the call.
unsafe fn region_options(options: *const ferry_region_options) -> Result<RegionOptions> {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(options, "options") })? else {
        return Ok(RegionOptions::default());
    };
    let location = location(options.kind, options.device)?;
    check_reserved(options.grant_scope, "options.grant_scope")?;
    check_reserved(options.reserved, "options.reserved")?;
    // SAFETY: a name is NULL or terminated text that the caller keeps for the length of the call.
    unsafe { with_name(options.access, options.name, location) }
}

/// # Safety
/// As for `region_options`.
unsafe fn alloc_options(options: *const ferry_alloc_options) -> Result<RegionOptions> {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(options, "options") })? else {
        return Ok(RegionOptions::default());
    };
    let location = location(options.kind, options.device)?;
    check_reserved(options.flags, "options.flags")?;
    check_reserved(options.reserved, "options.reserved")?;
    // SAFETY: a name is NULL or terminated text that the caller keeps for the length of the call.
    unsafe { with_name(options.access, options.name, location) }
}

/// # Safety
/// `name` is NULL or terminated text.
unsafe fn with_name(access: u32, name: *const c_char, location: Option<Location>) -> Result<RegionOptions> {
    // SAFETY: the caller's promise.
    let name = if name.is_null() { "" } else { unsafe { text(name, "options.name") }? };
    if access == 0 {
        // The caller more likely forgot the access than meant none.
        return Err(Error::invalid("options.access is 0"));
    }
    Ok(RegionOptions { access: Access(access), name: name.to_owned(), location })
}

/// Returns the location in the options; None means that ferry detects it.
fn location(kind: u32, device: i32) -> Result<Option<Location>> {
    if kind == FERRY_MEMORY_AUTO && device == 0 {
        return Ok(None);
    }
    let known = MemoryKind::from_number(kind);
    let kind = match known {
        Some(kind) => kind,
        None if kind == FERRY_MEMORY_AUTO => MemoryKind::Host,
        None => return Err(Error::invalid(format!("options.kind is {kind}, not a FERRY_MEMORY_* value"))),
    };
    if !kind.is_device() && device != 0 {
        let text = format!("options.device is {device}, but must be 0 for an options.kind without devices");
        return Err(Error::invalid(text));
    }
    if device < 0 {
        return Err(Error::invalid(format!("options.device is {device}, but must be at least 0")));
    }
    Ok(Some(Location { kind, device }))
}
