//! Maps memory that another process exported, for one device. Each exported allocation is opened once, even if several
//! ranges of it are imported.
//!
//! Numbers of processes and descriptors are valid only in the pid namespace of their process: in another container the
//! same number may be another process, or this one. So descriptors are taken from the process that the same-host path
//! has proven, by its pidfd, and this process's own exports are recognised by its own list.

use super::export::{Exported, Kind};
use crate::device::Borrowed;
use crate::status::{Error, Result, Status};
use crate::sys::cuda::{
    result, Context, Failure, IpcHandle, MemAccess, HANDLE_TYPE_POSIX_FD, IPC_LAZY_ENABLE_PEER_ACCESS,
};
use crate::sys::host::pid_namespace;
use crate::sys::map::HashMap;
use crate::sys::proven::Proven;
use crate::types::{end_of, PeerId};
use std::os::fd::AsRawFd;
use std::sync::Arc;

pub struct Imports {
    context: Arc<Context>,
    opened: HashMap<Key, Opened>,
    /// Ranges by the address that `import` returned: the allocation, and the count of imports. None: memory of this
    /// process.
    ranges: HashMap<u64, (Option<Key>, usize)>,
}

/// The key of an allocation, within its peer. The driver makes a new handle when memory is allocated at the same
/// address again. Descriptors get new numbers, so for them the export's number counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Handle { peer: PeerId, handle: IpcHandle },
    Descriptor { peer: PeerId, number: u64 },
}

struct Opened {
    address: u64,
    span: u64,
    kind: Kind,
    uses: usize,
}

impl Imports {
    pub fn new(context: &Arc<Context>) -> Imports {
        Imports { context: context.clone(), opened: HashMap::default(), ranges: HashMap::default() }
    }

    /// See `Queue::import`. The queue's context is current on this thread.
    pub fn import(&mut self, borrowed: &Borrowed<'_>) -> Result<u64> {
        let Borrowed { peer, owner, .. } = *borrowed;
        let exported = Exported::decode(borrowed.exported)?;
        if borrowed.length > exported.length {
            let (there, wanted) = (exported.length, borrowed.length);
            return Err(Error::invalid(format!(
                "exported: {there} bytes, fewer than the {wanted} bytes requested"
            )));
        }
        if owner.is_self() {
            return self.import_own(&exported);
        }
        let key = match exported.kind {
            Kind::Handle => Key::Handle { peer, handle: exported.handle },
            Kind::Descriptor => Key::Descriptor { peer, number: exported.number },
        };
        if !self.opened.contains_key(&key) {
            let opened = self.open(&exported, owner)?;
            self.opened.insert(key, opened);
        }
        let Some(opened) = self.opened.get_mut(&key).filter(|opened| exported.span <= opened.span) else {
            return Err(Error::invalid("exported: it contradicts an earlier import"));
        };
        opened.uses += 1;
        let address = opened.address + (exported.address - exported.base);
        self.ranges.entry(address).or_insert((Some(key), 0)).1 += 1;
        Ok(address)
    }

    /// Imports memory that this process exports. It needs no mapping, and the driver refuses a process's own handles.
    fn import_own(&mut self, exported: &Exported) -> Result<u64> {
        if !exported.is_own() {
            return Err(Error::invalid("exported: no queue of this process exports it"));
        }
        self.ranges.entry(exported.address).or_insert((None, 0)).1 += 1;
        Ok(exported.address)
    }

    /// See `Queue::close`.
    pub fn close(&mut self, imported: u64) -> Result<()> {
        let Some((key, count)) = self.ranges.get_mut(&imported) else {
            return Err(Error::invalid(format!("imported: no import is at {imported:#x}")));
        };
        let key = *key;
        *count -= 1;
        if *count == 0 {
            self.ranges.remove(&imported);
        }
        let Some(key) = key else { return Ok(()) };
        let last = self.opened.get_mut(&key).is_some_and(|opened| {
            opened.uses -= 1;
            opened.uses == 0
        });
        match last.then(|| self.opened.remove(&key)).flatten() {
            Some(opened) => Ok(opened.close(&self.context)?),
            None => Ok(()),
        }
    }

    fn open(&self, exported: &Exported, owner: &Proven) -> Result<Opened> {
        let (kind, span) = (exported.kind, exported.span);
        let address = match kind {
            Kind::Handle => self.open_handle(exported, owner)?,
            Kind::Descriptor => self.map(exported, owner)?,
        };
        Ok(Opened { address, span, kind, uses: 0 })
    }

    /// The content of a handle is the driver's, and NVIDIA does not document how it names the exporting process. So a
    /// handle is opened only if that process has the same number on both sides.
    fn open_handle(&self, exported: &Exported, owner: &Proven) -> Result<u64> {
        let api = self.context.api;
        let here = pid_namespace();
        if here == 0 || exported.namespace != here || exported.pid != owner.pid {
            let text =
                "the peer's process is in another pid namespace, where CUDA's handles may name another one";
            return Err(Error::new(Status::Unavailable, text));
        }
        let (mut address, mut base, mut bytes) = (0, 0, 0);
        // SAFETY: the result lives on this stack; the driver checks the handle.
        unsafe { api.ipc_open_mem_handle(&mut address, exported.handle, IPC_LAZY_ENABLE_PEER_ACCESS) }?;
        // SAFETY: the results live on this stack; the memory was opened above.
        let known = unsafe { api.mem_get_address_range(&mut base, &mut bytes, address) };
        let is_whole = end_of(address, exported.span)
            .is_some_and(|end| end_of(base, bytes as u64).is_some_and(|last| address >= base && end <= last));
        if let (Ok(()), true) = (known, is_whole) {
            return Ok(address);
        }
        // SAFETY: opened above, and nothing uses it.
        let _ = unsafe { api.ipc_close_mem_handle(address) };
        known?;
        Err(Error::invalid(format!("exported: {} bytes of an allocation of {bytes} bytes", exported.span)))
    }

    /// Takes the descriptor out of the other process and maps its memory.
    fn map(&self, exported: &Exported, owner: &Proven) -> Result<u64> {
        let api = self.context.api;
        let span = exported.span as usize;
        let descriptor = owner.descriptor(exported.descriptor).map_err(|error| {
            Error::system("taking the descriptor of exported memory out of its process (pidfd_getfd)", &error)
        })?;
        let mut allocation = 0;
        // SAFETY: the result lives on this stack; for this kind of handle the descriptor's number is passed
        // in the pointer's place, and is not kept.
        unsafe {
            let number = descriptor.as_raw_fd() as usize as *mut _;
            api.mem_import_from_shareable_handle(&mut allocation, number, HANDLE_TYPE_POSIX_FD)
        }?;
        let mut address = 0;
        // SAFETY: results live on this stack; each call undoes those before it when it fails. The mapping
        // keeps the allocation, so that its handle is given back in any case.
        let mapped = unsafe {
            let mapped = api.mem_address_reserve(&mut address, span, 0, 0, 0).and_then(|()| {
                let mapped = api.mem_map(address, span, 0, allocation, 0).and_then(|()| {
                    let access = MemAccess::read_write(self.context.ordinal);
                    api.mem_set_access(address, span, &access, 1).inspect_err(|_| {
                        let _ = api.mem_unmap(address, span);
                    })
                });
                mapped.inspect_err(|_| {
                    let _ = api.mem_address_free(address, span);
                })
            });
            let _ = api.mem_release(allocation);
            mapped
        };
        match mapped {
            Ok(()) => Ok(address),
            // Some drivers (13.0) return this for an allocation shorter than the mapping; others return INVALID_VALUE.
            Err(failure) if failure.function == "cuMemMap" && failure.code == result::NOT_SUPPORTED => {
                Err(Error { status: Status::Invalid, ..failure.into() })
            }
            Err(failure) => Err(failure.into()),
        }
    }
}

impl Opened {
    fn close(self, context: &Context) -> Result<(), Failure> {
        let (address, span) = (self.address, self.span as usize);
        // SAFETY: opened or mapped by `Imports`, closed once; the caller of `close` has seen that no copy uses it.
        unsafe {
            match self.kind {
                Kind::Handle => context.api.ipc_close_mem_handle(address),
                Kind::Descriptor => {
                    context.api.mem_unmap(address, span)?;
                    context.api.mem_address_free(address, span)
                }
            }
        }
    }
}

impl Drop for Imports {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            for (_, opened) in self.opened.drain() {
                let _ = opened.close(&self.context);
            }
        }
    }
}
