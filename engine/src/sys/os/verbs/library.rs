//! Opens libibverbs when devices are first asked for, and never closes it. Functions are looked up by name.
//! `rdma-mummy-sys` has the types and the inline functions of verbs.h. Its other functions are not used here: a
//! program that references one of them opens the library at its start, wanted or not.
//!
//! Fork: a child shares the parent's pages until one of them writes, and the writer gets the copy. Without help,
//! memory that the parent uses after a fork is not the memory that its NIC reads and writes any more. Since 5.12 Linux
//! copies pinned pages for the child at once, and reports that (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK); ibv_fork_init(3)
//! then does nothing (IBV_FORK_UNNEEDED, ibv_is_fork_initialized(3), rdma-core 35). On older kernels it keeps
//! registered pages out of children (MADV_DONTFORK): the parent is safe, and a child that touches such a page dies.
//! The call must come before any registration in the process.

use crate::status::reason;
use crate::sys::loader;
use crate::sys::unforked::unforked;
use rdma_mummy_sys::*;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::io;
use std::sync::OnceLock;

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

/// Opens libibverbs once. The error says why it can't be used, in the loader's words if the loader failed.
pub fn open() -> Result<(), &'static str> {
    let loaded = match LIBRARY.get() {
        Some(loaded) => loaded,
        None => unforked(|| LIBRARY.get_or_init(load)),
    };
    loaded.as_ref().map(|_| ()).map_err(String::as_str)
}

fn load() -> Result<Library, String> {
    // SAFETY: a constant name; the library's constructors are its own business.
    let handle = unsafe { loader::open(c"libibverbs.so.1", libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(why("libibverbs.so.1 can't be opened"));
    }
    let library = Library::find(handle)?;
    // SAFETY: ibv_fork_init takes nothing and returns a number.
    let fork_init: unsafe extern "C" fn() -> c_int =
        unsafe { std::mem::transmute(find(handle, "ibv_fork_init")?) };
    // SAFETY: as above.
    match unsafe { fork_init() } {
        0 => Ok(library),
        errno => Err(format!(
            "libibverbs can't make fork safe, as this kernel needs it (ibv_fork_init: {}): was memory registered \
             in this process before?",
            reason(&io::Error::from_raw_os_error(errno))
        )),
    }
}

/// Returns the text of the loader's last failure in this thread.
fn why(unknown: &str) -> String {
    // SAFETY: no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return unknown.to_owned();
    }
    // SAFETY: a C string that is this thread's until its next call into the loader.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    format!("{unknown}: {text}")
}

fn find(handle: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let name = CString::new(name).map_err(|zero| zero.to_string())?;
    // SAFETY: the library is open, and stays so.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() {
        return Err(why("libibverbs.so.1 lacks a call"));
    }
    Ok(symbol)
}

/// Returns the table. Every object that a call needs came from the library, so it is open.
fn library() -> &'static Library {
    match LIBRARY.get() {
        Some(Ok(library)) => library,
        _ => unreachable!("libibverbs was called before it was opened"),
    }
}

/// Declares the functions, by verbs.h's names and types: those of every supported libibverbs, and newer ones, with the
/// result to return if the function is missing.
macro_rules! calls {
    (
        $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*
        newer:
        $(fn $new:ident($($new_arg:ident: $new_type:ty),*) -> $new_result:ty = $missing:expr;)*
    ) => {
        struct Library {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            $($new: Option<unsafe extern "C" fn($($new_type),*) -> $new_result>,)*
        }

        impl Library {
            fn find(handle: *mut c_void) -> Result<Library, String> {
                Ok(Library {
                    $($name: {
                        let found = find(handle, stringify!($name))?;
                        // SAFETY: libibverbs's symbol versions promise that this name has this type.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(found) }
                    },)*
                    $($new: {
                        let found = find(handle, stringify!($new)).ok();
                        // SAFETY: as above.
                        found.map(|found| unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($new_type),*) -> $new_result>(found) })
                    },)*
                })
            }
        }

        $(
            #[inline]
            pub unsafe fn $name($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller keeps the call's own conditions.
                unsafe { (library().$name)($($arg),*) }
            }
        )*
        $(
            #[inline]
            pub unsafe fn $new($($new_arg: $new_type),*) -> $new_result {
                match library().$new {
                    // SAFETY: the caller keeps the call's own conditions.
                    Some(call) => unsafe { call($($new_arg),*) },
                    None => $missing,
                }
            }
        )*
    };
}

calls! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, address: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context, entries: c_int, cookie: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int
    ) -> *mut ibv_cq;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cookie: *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    fn ibv_create_srq(pd: *mut ibv_pd, attributes: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, fields: c_int) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    newer:
    fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, room: usize, flags: u32, entry_bytes: usize
    ) -> isize = -(libc::EOPNOTSUPP as isize);
    fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
    ) -> *mut ibv_mr = not_supported();
}

/// Returns NULL and sets errno, for a missing function that returns a pointer.
fn not_supported<T>() -> *mut T {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}
