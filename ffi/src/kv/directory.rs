//! `ferry_directory`: peers by name, from open to free.

use super::directory_info::{ferry_directory_entry, ferry_directory_info, ferry_directory_options};
use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::{ferry_peer, timeout};
use crate::pointers::{reference, text, Out};
use crate::status::{ferry_status, FERRY_OK, FERRY_PENDING};
use crate::versioned::{self, OutArray};
use ::ferry_directory::{Change, Directory, Entry};
use engine::status::Result;
use engine::{Engine, Error, Status};
use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};

/// A name has appeared that no engine had before.
pub const FERRY_DIRECTORY_ADDED: u32 = 1;
/// A name has another engine, incarnation or address than before.
pub const FERRY_DIRECTORY_CHANGED: u32 = 2;
/// No engine has the name any more; the entry shows its last values.
pub const FERRY_DIRECTORY_REMOVED: u32 = 3;
/// More than 4,096 names have changed, and the directory dropped changes: list the names again. The entry is empty.
pub const FERRY_DIRECTORY_LIST_ANEW: u32 = 4;

/// Peers by name. All threads may use a directory at the same time; only ferry_directory_free must be alone.
pub struct ferry_directory {
    directory: Directory,
    engine: Engine,
}

impl ferry_directory {
    /// Returns the caller's directory. CLOSED in a forked child.
    ///
    /// # Safety
    /// `pointer` is NULL or a directory that is not freed during `'a`.
    unsafe fn own<'a>(pointer: *const ferry_directory) -> Result<&'a ferry_directory> {
        // SAFETY: the caller's promise.
        let directory = unsafe { reference(pointer, "directory") }?;
        // The directory's lock may be taken for ever in a child, so this comes before it.
        directory.engine.hub_of_closed()?;
        Ok(directory)
    }

    /// Returns the caller's directory for a call that waits. BUSY inside a callback, unless the timeout is 0.
    ///
    /// # Safety
    /// As for `own`.
    unsafe fn blocking<'a>(pointer: *const ferry_directory, timeout_ns: u64) -> Result<&'a ferry_directory> {
        // SAFETY: the caller's promise.
        let directory = unsafe { ferry_directory::own(pointer) }?;
        if timeout_ns != 0 {
            check_may_wait(&directory.engine)?;
        }
        Ok(directory)
    }
}

pub(crate) fn check_may_wait(engine: &Engine) -> Result<()> {
    if engine.in_callback() {
        let message = "a call that waits is not allowed inside a callback: all callbacks would stop";
        return Err(Error::new(Status::Busy, message));
    }
    Ok(())
}

/// Opens a directory of an engine's peers. `url` is `static:name=host:port,...`, `static:/file` with an entry a line,
/// `static:` for which names are addresses, or `etcd:http://host:port,.../prefix` (or https). `options` NULL means the
/// defaults. A directory in etcd has a thread. End the directory with ferry_directory_free.
///
/// FERRY_ERR_INVALID names what is wrong in `url` or `options`. FERRY_ERR_UNREACHABLE: etcd does not answer in time;
/// with FERRY_DIRECTORY_NO_WAIT the call does not wait. FERRY_ERR_REFUSED: etcd refuses the user.
/// FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_open(
    engine: *mut ferry_engine,
    url: *const c_char,
    options: *const ferry_directory_options,
    out_directory: *mut *mut ferry_directory,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?.engine.clone();
            check_may_wait(&engine)?;
            let url = text(url, "url")?;
            let options = match versioned::read(options, "options")? {
                Some(options) => options.options()?,
                None => Default::default(),
            };
            let out = Out::new(out_directory, "out_directory")?;
            let directory = Directory::open(&engine, url, options)?;
            out.set(Box::into_raw(Box::new(ferry_directory { directory, engine })));
            Ok(())
        })
    }
}

/// Makes the directory's engine known under a name, until ferry_directory_unregister, ferry_directory_close or the end
/// of the process. A name has letters, digits and `. _ : -`, in parts that `/` divides, 127 bytes at most.
///
/// The call returns when etcd has the name. If another engine has it, the call waits until that engine has withdrawn
/// it or its lease is over; an engine that was registered at this engine's address is gone, and gives way at once.
/// Later the directory keeps the name by itself, after etcd was restarted, lost its data or was cut off.
///
/// FERRY_ERR_BUSY: the timeout has passed, and another engine has the name; the message says which.
/// FERRY_ERR_UNREACHABLE: it has passed, and etcd does not answer. FERRY_ERR_REFUSED: etcd does not let the user write
/// there. FERRY_ERR_INVALID: the directory has registered the name already, or the list of a `static:` directory,
/// which makes nothing known, lacks it. FERRY_ERR_UNAVAILABLE: the engine does not listen. FERRY_ERR_LIMIT: the
/// directory has registered 1,024 names. FERRY_ERR_BUSY inside a callback. A call that fails registers nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_register(
    directory: *mut ferry_directory,
    name: *const c_char,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::blocking(directory, timeout_ns)?;
            own.directory.register(text(name, "name")?, timeout(timeout_ns))
        })
    }
}

/// Withdraws a name, and returns when etcd has it no longer.
///
/// FERRY_ERR_TIMEOUT: etcd has not answered; the name is withdrawn when it does, or when its lease is over.
/// FERRY_ERR_INVALID: this directory has not registered the name. FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_unregister(
    directory: *mut ferry_directory,
    name: *const c_char,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::blocking(directory, timeout_ns)?;
            own.directory.unregister(text(name, "name")?, timeout(timeout_ns))
        })
    }
}

/// Returns the directory's entry for a name. Never waits: etcd sends changes to the directory, and the last known
/// entry holds while etcd is unreachable. FERRY_ERR_UNREACHABLE: no engine has the name.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_lookup(
    directory: *const ferry_directory,
    name: *const c_char,
    out_entry: *mut ferry_directory_entry,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::own(directory)?;
            let name = text(name, "name")?;
            let out = versioned::Out::new(out_entry, "out_entry")?;
            out.set(&(&own.directory.lookup(name)?).into());
            Ok(())
        })
    }
}

/// Connects to the engine that has the name, and waits until transfers can be submitted. The peer is the incarnation
/// that the directory names.
///
/// The call retries with the directory's current entry while the name is missing, nothing answers at the name's
/// address, or another engine answers there. After the timeout the call returns FERRY_ERR_UNREACHABLE or
/// FERRY_ERR_TIMEOUT, or FERRY_ERR_STALE if another engine answers. Any other error of ferry_peer_connect ends the
/// call at once. A name that is missing from a `static:` directory ends it at once too.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_connect(
    directory: *mut ferry_directory,
    name: *const c_char,
    timeout_ns: u64,
    out_peer: *mut ferry_peer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::own(directory)?;
            check_may_wait(&own.engine)?;
            let name = text(name, "name")?;
            let out = Out::new(out_peer, "out_peer")?;
            out.set(own.directory.connect(name, timeout(timeout_ns))?.raw());
            Ok(())
        })
    }
}

/// Lists the entries whose names begin with `prefix`, in order of the names; "" lists all. Returns lists as
/// ferry_config_settings does. FERRY_ERR_INVALID: no name can begin with `prefix`.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_list(
    directory: *const ferry_directory,
    prefix: *const c_char,
    out_entries: *mut ferry_directory_entry,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::own(directory)?;
            let prefix = text(prefix, "prefix")?;
            let array = OutArray::new(out_entries, element_size, capacity, "out_entries")?;
            let count = Out::new(out_count, "out_count")?;
            let entries = own.directory.list(prefix)?;
            array.fill(entries.iter().map(ferry_directory_entry::from));
            count.set(entries.len());
            Ok(())
        })
    }
}

/// Takes the next change: *out_kind gets a FERRY_DIRECTORY_*, *out_entry the entry. Never waits. Several changes of
/// one name become one change. The first changes of a directory in etcd report the entries that existed when it
/// opened.
///
/// FERRY_PENDING: there is none, and the outputs are as they were. Several threads may take changes; each goes to one.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_poll(
    directory: *mut ferry_directory,
    out_kind: *mut u32,
    out_entry: *mut ferry_directory_entry,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::own(directory)?;
            let kind = Out::new(out_kind, "out_kind")?;
            let out = versioned::Out::new(out_entry, "out_entry")?;
            let empty = Entry { name: String::new(), address: String::new(), identity: None };
            let (number, entry) = match own.directory.poll()? {
                None => return Ok(FERRY_PENDING),
                Some(Change::Added(entry)) => (FERRY_DIRECTORY_ADDED, entry),
                Some(Change::Changed(entry)) => (FERRY_DIRECTORY_CHANGED, entry),
                Some(Change::Removed(entry)) => (FERRY_DIRECTORY_REMOVED, entry),
                Some(Change::ListAnew) => (FERRY_DIRECTORY_LIST_ANEW, empty),
            };
            kind.set(number);
            out.set(&(&entry).into());
            Ok(FERRY_OK)
        })
    }
}

/// Returns a descriptor for poll, epoll or an event loop. It is readable while ferry_directory_poll has a change, and
/// when the directory is closed. ferry owns the descriptor: don't read, write or close it.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_fd(
    directory: *const ferry_directory,
    out_fd: *mut c_int,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::own(directory)?;
            Out::new(out_fd, "out_fd")?.set(own.directory.as_fd().as_raw_fd());
            Ok(())
        })
    }
}

/// Tells how the directory stands: whether etcd answers, and which names are published.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_get_info(
    directory: *const ferry_directory,
    out_status: *mut ferry_directory_info,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = ferry_directory::own(directory)?;
            let out = versioned::Out::new(out_status, "out_status")?;
            out.set(&(&own.directory.status()?).into());
            Ok(())
        })
    }
}

/// Closes a directory: its names are withdrawn, its thread ends, and all calls return FERRY_ERR_CLOSED. Peers stay
/// connected. If etcd does not answer within a second, the names stay until their lease is over. After FERRY_OK the
/// call returns FERRY_OK again; in a forked child it does nothing. FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_close(
    directory: *mut ferry_directory,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let own = reference(directory, "directory")?;
            if own.engine.is_forked() {
                return Ok(());
            }
            check_may_wait(&own.engine)?;
            own.directory.close();
            Ok(())
        })
    }
}

/// Closes a directory, as ferry_directory_close does, and frees it. NULL does nothing. Call it while no other call uses
/// the directory. The engine may be freed before or after. In a forked child the call does nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_directory_free(directory: *mut ferry_directory) {
    quietly(|| {
        // SAFETY: NULL, or from `ferry_directory_open` and not freed before.
        let is_forked = unsafe { directory.as_ref() }.is_none_or(|own| own.engine.is_forked());
        if !is_forked {
            // SAFETY: as above; the caller gives the directory up, and no other call uses it.
            drop(unsafe { Box::from_raw(directory) });
        }
    });
}
