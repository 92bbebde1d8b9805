//! Memory that another process exported, mapped for one device. An allocation is opened once, however many
//! ranges of it are imported.

use super::export::{Exported, Kind};
use crate::status::{Error, Result};
use crate::sys::cuda::{
    Context, Failure, IpcHandle, MemAccess, HANDLE_TYPE_POSIX_FD, IPC_LAZY_ENABLE_PEER_ACCESS,
};
use crate::sys::unix;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;

pub struct Imports {
    context: Arc<Context>,
    opened: HashMap<Key, Opened>,
    /// Ranges by the address that `import` gave: what each is of, and how often it was imported. None:
    /// memory of this process.
    ranges: HashMap<u64, (Option<Key>, usize)>,
}

/// Tells allocations apart. The driver makes a new handle when memory comes back at the same address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Handle(IpcHandle),
    Descriptor { token: u64, descriptor: i32 },
}

struct Opened {
    address: u64,
    span: u64,
    kind: Kind,
    uses: usize,
}

impl Imports {
    pub fn new(context: &Arc<Context>) -> Imports {
        Imports { context: context.clone(), opened: HashMap::new(), ranges: HashMap::new() }
    }

    /// See `Queue::import`. The queue's context is current on this thread.
    pub fn import(&mut self, exported: &[u8]) -> Result<u64> {
        let exported = Exported::decode(exported)?;
        if exported.is_own() {
            // The driver refuses handles of the same process, and none is needed.
            self.ranges.entry(exported.address).or_insert((None, 0)).1 += 1;
            return Ok(exported.address);
        }
        let key = match exported.kind {
            Kind::Handle => Key::Handle(exported.handle),
            Kind::Descriptor => Key::Descriptor { token: exported.token, descriptor: exported.descriptor },
        };
        if !self.opened.contains_key(&key) {
            let opened = self.open(&exported)?;
            self.opened.insert(key, opened);
        }
        let Some(opened) = self.opened.get_mut(&key).filter(|opened| exported.span <= opened.span) else {
            return Err(Error::invalid("exported: it contradicts what was imported before"));
        };
        opened.uses += 1;
        let address = opened.address + (exported.address - exported.base);
        self.ranges.entry(address).or_insert((Some(key), 0)).1 += 1;
        Ok(address)
    }

    /// See `Queue::close`.
    pub fn close(&mut self, imported: u64) -> Result<()> {
        let Some((key, count)) = self.ranges.get_mut(&imported) else {
            return Err(Error::invalid(format!("imported: nothing was imported at {imported:#x}")));
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

    fn open(&self, exported: &Exported) -> Result<Opened> {
        let (kind, span) = (exported.kind, exported.span);
        let address = match kind {
            Kind::Handle => {
                let mut address = 0;
                // SAFETY: the result lives on this stack; the driver checks the handle.
                unsafe {
                    let (handle, flags) = (exported.handle, IPC_LAZY_ENABLE_PEER_ACCESS);
                    self.context.api.ipc_open_mem_handle(&mut address, handle, flags)
                }?;
                address
            }
            Kind::Descriptor => self.map(exported)?,
        };
        Ok(Opened { address, span, kind, uses: 0 })
    }

    /// Takes the descriptor out of the other process and maps what is behind it.
    fn map(&self, exported: &Exported) -> Result<u64> {
        let api = self.context.api;
        let span = exported.span as usize;
        let descriptor = unix::descriptor_of(exported.pid, exported.descriptor).map_err(|error| {
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
        mapped?;
        Ok(address)
    }
}

impl Opened {
    fn close(self, context: &Context) -> Result<(), Failure> {
        let (address, span) = (self.address, self.span as usize);
        // SAFETY: opened or mapped by `Imports`, closed once; who closes it has seen that nothing uses it.
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
