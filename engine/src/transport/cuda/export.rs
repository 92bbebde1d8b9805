//! Exports device memory to another process: by a handle of the driver's for memory from cuMemAlloc, by a file
//! descriptor for mapped memory (cuMemCreate) that was created as exportable. Other memory, such as that of
//! cudaMallocAsync's pools, cannot be exported.
//!
//! ```text
//! 0 kind | 1..4 zero | 4 pid | 8 number | 16 namespace | 24 address | 32 length
//! 40 base | 48 span | 56 descriptor | 60 handle | 124
//! ```
//! Little-endian. `number` names this export only; `pid` is the exporting process's in its own pid `namespace`; `base`
//! and `span` are of the allocation. The importing side trusts none of it: see `import`.

use super::contexts::Contexts;
use super::locate::attributes;
use crate::limits::DEVICE_EXPORTS_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::cuda::{pointer, Api, IpcHandle, HANDLE_TYPE_POSIX_FD};
use crate::sys::fd::{AsFd, OwnedFd};
use crate::sys::local::process_local;
use crate::sys::lock::Mutex;
use crate::sys::map::HashMap;
use crate::sys::{host, random_u64, unix};
use crate::types::end_of;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

pub const EXPORTED_BYTES: usize = 124;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `handle` is the driver's.
    Handle = 1,
    /// `descriptor` is open in the exporting process.
    Descriptor = 2,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    pub kind: Kind,
    pub pid: i32,
    pub number: u64,
    pub namespace: u64,
    pub address: u64,
    pub length: u64,
    pub base: u64,
    pub span: u64,
    pub descriptor: RawFd,
    pub handle: IpcHandle,
}

process_local! {
    /// The exports of this process's queues, by number: address and length.
    static OWN: Mutex<Option<HashMap<u64, (u64, u64)>>> = Mutex::new(None);
}

fn own<R>(act: impl FnOnce(&mut HashMap<u64, (u64, u64)>) -> R) -> R {
    OWN.with(|own| act(own.lock().get_or_insert_default()))
}

impl Exported {
    /// Returns whether a queue of this process exports exactly this.
    pub fn is_own(&self) -> bool {
        own(|all| all.get(&self.number) == Some(&(self.address, self.length)))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(EXPORTED_BYTES);
        out.extend_from_slice(&(self.kind as u32).to_le_bytes());
        out.extend_from_slice(&self.pid.to_le_bytes());
        for number in [self.number, self.namespace, self.address, self.length, self.base, self.span] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.descriptor.to_le_bytes());
        out.extend_from_slice(&self.handle.0);
        out
    }

    /// INVALID for bytes that `encode` cannot have made.
    pub fn decode(bytes: &[u8]) -> Result<Exported> {
        let wrong = || Error::invalid("exported: these bytes are no export of a CUDA queue");
        if bytes.len() != EXPORTED_BYTES {
            return Err(wrong());
        }
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let kind = match u32_at(0) {
            1 => Kind::Handle,
            2 => Kind::Descriptor,
            _ => return Err(wrong()),
        };
        let mut handle = IpcHandle([0; 64]);
        handle.0.copy_from_slice(&bytes[60..EXPORTED_BYTES]);
        let exported = Exported {
            kind,
            pid: u32_at(4) as i32,
            number: u64_at(8),
            namespace: u64_at(16),
            address: u64_at(24),
            length: u64_at(32),
            base: u64_at(40),
            span: u64_at(48),
            descriptor: u32_at(56) as RawFd,
            handle,
        };
        let inside = |end: u64| end_of(exported.base, exported.span).is_some_and(|last| end <= last);
        if exported.address < exported.base || !end_of(exported.address, exported.length).is_some_and(inside)
        {
            return Err(wrong());
        }
        Ok(exported)
    }
}

/// The exports of one queue, by number, with their descriptors. An open descriptor keeps its memory allocated.
#[derive(Default)]
pub struct Exports(HashMap<u64, Option<OwnedFd>>);

impl Exports {
    /// See `Queue::export`. The queue's context is current on this thread.
    pub fn export(&mut self, contexts: &Contexts, address: u64, length: u64) -> Result<Vec<u8>> {
        use pointer::*;
        let api = contexts.api;
        let names = [MAPPED, IS_LEGACY_IPC_CAPABLE, ALLOWED_HANDLE_TYPES, RANGE_START_ADDR, RANGE_SIZE];
        let found = attributes(contexts, names, address)?.filter(|[mapped, ..]| *mapped as u8 != 0);
        let Some([_, legacy, types, base, span]) = found else {
            return Err(Error::invalid(format!("address: {address:#x} is not memory of a CUDA device")));
        };
        let mut exported = Exported {
            kind: Kind::Handle,
            pid: host::pid(),
            number: random_u64(),
            namespace: host::pid_namespace(),
            address,
            length,
            base,
            span,
            descriptor: -1,
            handle: IpcHandle([0; 64]),
        };
        if legacy as u8 != 0 {
            exported.must_hold()?;
            // SAFETY: the result lives on this stack; the driver checks the address.
            unsafe { api.ipc_get_mem_handle(&mut exported.handle, base) }?;
            return Ok(self.keep(&exported, None));
        }
        if types as i32 & HANDLE_TYPE_POSIX_FD == 0 {
            let text = format!(
                "the memory at {address:#x} can't be reached from another process: it belongs to a \
                 pool (cudaMallocAsync), or was created without an exportable handle"
            );
            return Err(Error::new(Status::Unavailable, text));
        }
        // For mapped memory the range above is the reserved one, of which only a part may be mapped.
        let (mut base, mut span) = (0, 0);
        // SAFETY: the results live on this stack; the driver checks the address.
        unsafe { api.mem_get_address_range(&mut base, &mut span, address) }?;
        (exported.kind, exported.base, exported.span) = (Kind::Descriptor, base, span as u64);
        exported.must_hold()?;
        if self.0.values().flatten().count() >= DEVICE_EXPORTS_MAX {
            return Err(Error::new(Status::Limit, format!("{DEVICE_EXPORTS_MAX} allocations are exported")));
        }
        let descriptor = descriptor_of(api, base)?;
        exported.descriptor = descriptor.as_raw_fd();
        Ok(self.keep(&exported, Some(descriptor)))
    }

    fn keep(&mut self, exported: &Exported, descriptor: Option<OwnedFd>) -> Vec<u8> {
        let Exported { number, address, length, .. } = *exported;
        self.0.insert(number, descriptor);
        own(|all| all.insert(number, (address, length)));
        exported.encode()
    }

    pub fn withdraw(&mut self, exported: &[u8]) {
        if let Ok(exported) = Exported::decode(exported) {
            if self.0.remove(&exported.number).is_some() {
                forget(exported.number);
            }
        }
    }
}

impl Drop for Exports {
    fn drop(&mut self) {
        self.0.keys().for_each(|number| forget(*number));
    }
}

fn forget(number: u64) {
    own(|all| all.remove(&number));
}

impl Exported {
    fn must_hold(&self) -> Result<()> {
        let end = end_of(self.address, self.length);
        if end.is_some_and(|end| end_of(self.base, self.span).is_some_and(|last| end <= last)) {
            return Ok(());
        }
        let (address, length) = (self.address, self.length);
        let text =
            format!("the {length} bytes at {address:#x} span several allocations, and an export holds one");
        Err(Error::new(Status::Unavailable, text))
    }
}

/// Returns a descriptor for the allocation that is mapped at `base`.
fn descriptor_of(api: &'static Api, base: u64) -> Result<OwnedFd> {
    let mut allocation = 0;
    // SAFETY: the result lives on this stack; the driver checks the address.
    unsafe { api.mem_retain_allocation_handle(&mut allocation, base as usize as *mut _) }?;
    let mut fd: RawFd = -1;
    // SAFETY: for this kind of handle the result is an int; the allocation was retained above.
    let exported = unsafe {
        api.mem_export_to_shareable_handle((&raw mut fd).cast(), allocation, HANDLE_TYPE_POSIX_FD, 0)
    };
    // SAFETY: releases the retained allocation.
    let _ = unsafe { api.mem_release(allocation) };
    exported?;
    // SAFETY: a fresh descriptor that the driver made for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    unix::set_close_on_exec(fd.as_fd()).map_err(|error| Error::system("the exported descriptor", &error))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Exported {
        let mut handle = IpcHandle([0; 64]);
        handle.0.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        Exported {
            kind: Kind::Descriptor,
            pid: 4711,
            number: 9,
            namespace: 4_026_531_836,
            address: 0x7000_0100,
            length: 0xf00,
            base: 0x7000_0000,
            span: 0x1000,
            descriptor: 9,
            handle,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_shorter_or_longer() {
        let (exported, bytes) = (example(), example().encode());
        assert_eq!(bytes.len(), EXPORTED_BYTES);
        assert!(Exported::decode(&bytes).unwrap() == exported);
        assert!(!exported.is_own(), "nothing here exports it");
        for length in (0..EXPORTED_BYTES).chain([EXPORTED_BYTES + 1]) {
            let mut other = bytes.clone();
            other.resize(length, 0);
            assert!(Exported::decode(&other).is_err());
        }
    }

    #[test]
    fn a_range_outside_its_allocation_is_refused() {
        for (address, length) in [(0x7000_0100, 0xf01), (0x6fff_ffff, 1), (u64::MAX, 2)] {
            assert!(Exported::decode(&Exported { address, length, ..example() }.encode()).is_err());
        }
        assert!(Exported::decode(&Exported { span: u64::MAX, ..example() }.encode()).is_err());
    }

    /// The process's own exports are recognised by its own list, not by the peer's claim alone.
    #[test]
    fn an_export_is_own_while_it_is_kept_and_as_it_was_made() {
        let (mut exports, exported) = (Exports::default(), Exported { number: random_u64(), ..example() });
        let bytes = exports.keep(&exported, None);
        assert!(exported.is_own());
        let foreign = [
            Exported { address: exported.address + 1, length: exported.length - 1, ..exported },
            Exported { length: exported.length - 1, ..exported },
            Exported { number: exported.number ^ 1, ..exported },
        ];
        assert!(foreign.iter().all(|forged| !forged.is_own()));
        exports.withdraw(&bytes);
        assert!(!exported.is_own());
        exports.keep(&exported, None);
        drop(exports);
        assert!(!exported.is_own());
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused_or_mean_a_range_inside_an_allocation(bytes in proptest::collection::vec(any::<u8>(), EXPORTED_BYTES), kind in 0u8..4) {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
            if let Ok(exported) = Exported::decode(&bytes) {
                prop_assert!(exported.address >= exported.base);
                prop_assert!(exported.address + exported.length <= exported.base + exported.span);
                prop_assert_eq!(exported.encode(), bytes);
            }
        }
    }
}
