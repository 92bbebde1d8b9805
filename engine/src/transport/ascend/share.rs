//! Shares device memory between processes of one host: `export` describes it, `import` maps it. An allocation is
//! exported as a whole, with the offset of the range.
//!
//! Two methods exist, and an export names those that worked for the exporter. A key (from CANN 8.3 on) is for memory
//! from aclrtMalloc; importing a key fails if the NPUs are on PCIe. A shareable handle is for mapped physical memory.
//! If neither works, transfers are staged.
//!
//! Before CANN 9.0 the library does not tell where an allocation begins. Then the range is exported as if it were the
//! whole allocation, and the library refuses a range that does not begin one.

use super::driver::{physical_device, range_of};
use crate::device::Borrowed;
use crate::limits::DEVICE_EXPORTS_MAX;
use crate::region::range_contains;
use crate::status::{Error, Result, Status};
use crate::sys::acl::{self, Runtime};
use crate::types::{end_of, PeerId, Transport};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

const KEY_BYTES: usize = acl::ACL_IPC_KEY_BYTES as usize;
/// An export: version, available methods, device, offset, length, key, handle.
const BYTES: usize = 2 + 4 + 8 + 8 + KEY_BYTES + 8;
const VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const HAS_HANDLE: u8 = 2;

type Key = [u8; KEY_BYTES];

/// The methods by which an allocation can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Methods {
    /// A C string.
    key: Option<Key>,
    handle: Option<u64>,
}

impl Methods {
    /// Returns whether both name the same allocation by some method.
    fn meets(&self, other: &Methods) -> bool {
        let same_key = self.key.is_some() && self.key == other.key;
        same_key || self.handle.is_some() && self.handle == other.handle
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exported {
    /// The device that has the memory, by its number on the whole host.
    device: i32,
    offset: u64,
    /// The allocation's length.
    length: u64,
    methods: Methods,
}

impl Exported {
    fn encode(&self) -> Vec<u8> {
        let has = |there, flag| if there { flag } else { 0 };
        let Methods { key, handle } = self.methods;
        let mut out = vec![VERSION, has(key.is_some(), HAS_KEY) | has(handle.is_some(), HAS_HANDLE)];
        out.extend(self.device.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend(key.unwrap_or([0; KEY_BYTES]));
        out.extend(handle.unwrap_or(0).to_le_bytes());
        out
    }

    /// INVALID for bytes that `encode` does not make.
    fn decode(bytes: &[u8]) -> Result<Exported> {
        let wrong = || Error::invalid("exported Ascend memory: not in the format of this version of ferry");
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let mut rest = &bytes[..];
        let (version, flags) = (take::<1>(&mut rest)[0], take::<1>(&mut rest)[0]);
        let device = i32::from_le_bytes(take(&mut rest));
        let offset = u64::from_le_bytes(take(&mut rest));
        let length = u64::from_le_bytes(take(&mut rest));
        let key: Key = take(&mut rest);
        let handle = u64::from_le_bytes(take(&mut rest));
        let flags_known = flags != 0 && flags & !(HAS_KEY | HAS_HANDLE) == 0;
        let is_text = key.iter().position(|byte| *byte == 0).is_some_and(|end| end > 0);
        if version != VERSION || !flags_known || offset >= length || flags & HAS_KEY != 0 && !is_text {
            return Err(wrong());
        }
        let methods = Methods {
            key: (flags & HAS_KEY != 0).then_some(key),
            handle: (flags & HAS_HANDLE != 0).then_some(handle),
        };
        Ok(Exported { device, offset, length, methods })
    }
}

/// Returns whether `length` bytes from `base` on are inside the allocation. Before CANN 9.0 the bounds are unknown
/// (None), and the device refuses access beyond them.
fn is_all_there(allocation: Option<(u64, u64)>, base: u64, length: u64) -> bool {
    allocation.is_none_or(|(at, whole)| range_contains(at, whole, base, length))
}

/// Takes the next N bytes of a list that has them.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (mut out, (first, left)) = ([0; N], rest.split_at(N));
    out.copy_from_slice(first);
    *rest = left;
    out
}

/// The exports and imports of one queue. Used and dropped under the queue's context.
pub struct Sharing {
    runtime: Arc<Runtime>,
    device: i32,
    exports: Vec<Export>,
    /// By base.
    imports: BTreeMap<u64, Import>,
}

struct Export {
    base: u64,
    length: u64,
    methods: Methods,
    /// The reference behind `methods.handle`.
    physical: *mut c_void,
    /// Calls of `export` that were not withdrawn. At 0 the export ends as soon as its importers allow it.
    users: u32,
}

struct Import {
    /// The allocation's length, and the peer that lends it.
    length: u64,
    peer: PeerId,
    methods: Methods,
    /// The handle by which it was opened; None if it was opened by key.
    physical: Option<*mut c_void>,
    users: u32,
}

impl Sharing {
    pub fn new(runtime: &Arc<Runtime>, device: i32) -> Sharing {
        Sharing { runtime: runtime.clone(), device, exports: Vec::new(), imports: BTreeMap::new() }
    }

    pub fn export(&mut self, address: u64, length: u64, pid: i32) -> Result<Vec<u8>> {
        let (base, whole) = range_of(&self.runtime, address).unwrap_or((address, length));
        let inside = end_of(address, length).is_some_and(|end| end <= base.saturating_add(whole));
        if length == 0 || !inside {
            let text =
                format!("{length} bytes at {address:#x} are not within one allocation of Ascend memory");
            return Err(Error::invalid(text).over(Transport::Ascend));
        }
        // An unused export is left over because an importer still had it open. Its memory may have been freed, and
        // another allocation may be at the same place by now.
        let in_use = |one: &Export| one.users > 0 && (one.base, one.length) == (base, whole);
        let at = match self.exports.iter().position(in_use) {
            Some(at) => at,
            None => {
                if self.exports.len() >= DEVICE_EXPORTS_MAX {
                    let text = format!("{DEVICE_EXPORTS_MAX} allocations are exported");
                    return Err(Error::new(Status::Limit, text).over(Transport::Ascend));
                }
                let export = self.begin_export(base, whole)?;
                self.exports.push(export);
                self.exports.len() - 1
            }
        };
        self.exports[at].users += 1;
        let methods = self.exports[at].methods;
        let exported = physical_device(&self.runtime, self.device)
            .map(|device| Exported { device, offset: address - base, length: whole, methods }.encode());
        let allowed = exported.and_then(|exported| self.allow(&methods, pid).map(|()| exported));
        if allowed.is_err() {
            self.exports[at].users -= 1;
            self.end_unused();
        }
        allowed
    }

    pub fn withdraw(&mut self, exported: &[u8]) {
        let Ok(exported) = Exported::decode(exported) else { return };
        let found = self.exports.iter_mut().find(|one| one.methods == exported.methods && one.users > 0);
        if let Some(export) = found {
            export.users -= 1;
        }
        self.end_unused();
    }

    /// Imports memory. Another import of the same allocation must state the same properties as the first one.
    pub fn import(&mut self, borrowed: &Borrowed<'_>) -> Result<u64> {
        let peer = borrowed.peer;
        let Exported { device, offset, length, methods } = Exported::decode(borrowed.exported)?;
        let refuse = |text: &str| {
            Err(Error::invalid(format!("exported Ascend memory: {text}")).over(Transport::Ascend))
        };
        if borrowed.length > length - offset {
            return refuse("it is shorter than the requested range");
        }
        if let Some((base, import)) = self.imports.iter_mut().find(|(_, one)| one.methods.meets(&methods)) {
            if (import.length, import.peer, import.methods) != (length, peer, methods) {
                return refuse("it contradicts an earlier import");
            }
            import.users += 1;
            return Ok(base + offset);
        }
        let same = physical_device(&self.runtime, self.device)? == device;
        let (base, physical) = match methods.key.map(|key| self.import_key(&key, same)) {
            Some(Ok(base)) => (base, None),
            Some(Err(error)) if methods.handle.is_none() || error.status == Status::Access => {
                return Err(error);
            }
            // No key, or a key that cannot be imported here (PCIe).
            _ => {
                let (base, physical) = self.import_handle(methods.handle.unwrap_or(0), length, device)?;
                (base, Some(physical))
            }
        };
        let import = Import { length, peer, methods, physical, users: 1 };
        if !is_all_there(range_of(&self.runtime, base), base, length) {
            let _ = self.end_import(base, &import);
            return refuse("the allocation is smaller than the peer claims");
        }
        self.imports.insert(base, import);
        Ok(base + offset)
    }

    pub fn close(&mut self, imported: u64) -> Result<()> {
        let unknown = || Error::invalid(format!("no import is at {imported:#x}"));
        let (base, import) = self.find_mut(imported).ok_or_else(unknown)?;
        import.users -= 1;
        if import.users > 0 {
            return Ok(());
        }
        match self.imports.remove(&base) {
            Some(import) => self.end_import(base, &import),
            None => Ok(()),
        }
    }

    pub fn is_imported(&self, address: u64) -> bool {
        let before = self.imports.range(..=address).next_back();
        before.is_some_and(|(base, import)| address - base < import.length)
    }

    fn find_mut(&mut self, address: u64) -> Option<(u64, &mut Import)> {
        let (base, import) = self.imports.range_mut(..=address).next_back()?;
        (address - base < import.length).then_some((*base, import))
    }

    /// Exports by both methods, as far as they work. UNAVAILABLE with the reasons if neither does.
    fn begin_export(&self, base: u64, length: u64) -> Result<Export> {
        let (key, handle) = (self.export_key(base, length), self.export_handle(base));
        if let (Err(key), Err(handle)) = (&key, &handle) {
            let text = format!("memory can't be exported: {}; {}", key.message, handle.message);
            let error = Error { vendor_error: key.vendor_error, ..Error::new(Status::Unavailable, text) };
            return Err(error.over(Transport::Ascend));
        }
        let (physical, handle) = handle.map_or((null_mut(), None), |(raw, number)| (raw, Some(number)));
        Ok(Export { base, length, methods: Methods { key: key.ok(), handle }, physical, users: 0 })
    }

    fn export_key(&self, base: u64, length: u64) -> Result<Key> {
        let calls = &self.runtime.calls;
        let export = self.runtime.need("aclrtIpcMemGetExportKey", calls.aclrtIpcMemGetExportKey)?;
        let mut key = [0u8; KEY_BYTES];
        // Flag 0: only processes that are allowed one by one may import.
        // SAFETY: the key has room for as many bytes as it says; the library refuses memory that it does not own.
        let code =
            unsafe { export(base as *mut c_void, length as usize, key.as_mut_ptr().cast(), KEY_BYTES, 0) };
        self.runtime.check("aclrtIpcMemGetExportKey", code)?;
        key[KEY_BYTES - 1] = 0;
        Ok(key)
    }

    fn export_handle(&self, base: u64) -> Result<(*mut c_void, u64)> {
        let (runtime, calls) = (&self.runtime, &self.runtime.calls);
        let mut physical = null_mut();
        // SAFETY: the pointer outlives the call; the library refuses memory that was not mapped.
        let code = unsafe { (calls.aclrtMemRetainAllocationHandle)(base as *mut c_void, &mut physical) };
        runtime.check("aclrtMemRetainAllocationHandle", code)?;
        let mut handle = 0;
        // SAFETY: the number outlives the call; the reference was taken above.
        let code = unsafe { (calls.aclrtMemExportToShareableHandle)(physical, 0, 0, &mut handle) };
        if let Err(error) = runtime.check("aclrtMemExportToShareableHandle", code) {
            // SAFETY: gives back the reference taken above.
            unsafe { (calls.aclrtFreePhysical)(physical) };
            return Err(error);
        }
        Ok((physical, handle))
    }

    /// Allows a process to import the memory.
    fn allow(&self, methods: &Methods, pid: i32) -> Result<()> {
        let (runtime, calls) = (&self.runtime, &self.runtime.calls);
        let mut pids = [pid];
        if let Some(key) = methods.key {
            let allow = runtime.need("aclrtIpcMemSetImportPid", calls.aclrtIpcMemSetImportPid)?;
            // SAFETY: a C string and a list of one, which outlive the call.
            let code = unsafe { allow(key.as_ptr().cast(), pids.as_mut_ptr(), 1) };
            runtime.check("aclrtIpcMemSetImportPid", code)?;
        }
        if let Some(handle) = methods.handle {
            // SAFETY: a list of one, which outlives the call.
            let code = unsafe { (calls.aclrtMemSetPidToShareableHandle)(handle, pids.as_mut_ptr(), 1) };
            runtime.check("aclrtMemSetPidToShareableHandle", code)?;
        }
        Ok(())
    }

    /// Imports by key. `same`: the memory is of this queue's device.
    fn import_key(&self, key: &Key, same: bool) -> Result<u64> {
        let calls = &self.runtime.calls;
        let import = self.runtime.need("aclrtIpcMemImportByKey", calls.aclrtIpcMemImportByKey)?;
        let flags = if same { 0 } else { acl::ACL_IPC_ENABLE_PEER_ACCESS as u64 };
        let mut base = null_mut();
        // SAFETY: the pointer outlives the call, and the key ends with a zero.
        let code = unsafe { import(&mut base, key.as_ptr().cast(), flags) };
        self.runtime.check("aclrtIpcMemImportByKey", code)?;
        Ok(base as u64)
    }

    fn import_handle(&self, handle: u64, length: u64, device: i32) -> Result<(u64, *mut c_void)> {
        let (runtime, calls) = (&self.runtime, &self.runtime.calls);
        self.reach(device)?;
        let (mut physical, mut base) = (null_mut(), null_mut());
        // SAFETY: the pointer outlives the call; the library refuses a wrong handle.
        let code = unsafe { (calls.aclrtMemImportFromShareableHandle)(handle, self.device, &mut physical) };
        runtime.check("aclrtMemImportFromShareableHandle", code)?;
        // SAFETY: each call uses the result of the one before; if a later call fails, the results are freed.
        let mapped = unsafe {
            let code = (calls.aclrtReserveMemAddress)(&mut base, length as usize, 0, null_mut(), 0);
            runtime.check("aclrtReserveMemAddress", code).and_then(|()| {
                let code = (calls.aclrtMapMem)(base, length as usize, 0, physical, 0);
                runtime.check("aclrtMapMem", code)
            })
        };
        match mapped {
            Ok(()) => Ok((base as u64, physical)),
            Err(error) => {
                // SAFETY: as above, and nothing is mapped.
                unsafe {
                    if !base.is_null() {
                        (calls.aclrtReleaseMemAddress)(base);
                    }
                    (calls.aclrtFreePhysical)(physical);
                }
                Err(error)
            }
        }
    }

    /// Lets this queue's device reach another device of the host, if this process can use that device.
    fn reach(&self, physical: i32) -> Result<()> {
        for device in 0..self.runtime.device_count()? {
            if device != self.device && physical_device(&self.runtime, device)? == physical {
                // SAFETY: no memory is involved.
                let code = unsafe { (self.runtime.calls.aclrtDeviceEnablePeerAccess)(device, 0) };
                return self.runtime.check("aclrtDeviceEnablePeerAccess", code);
            }
        }
        Ok(())
    }

    fn end_import(&self, base: u64, import: &Import) -> Result<()> {
        let (runtime, calls) = (&self.runtime, &self.runtime.calls);
        match (import.physical, import.methods.key) {
            (Some(physical), _) => {
                // SAFETY: made by `import_handle`; no copy under way uses it, as the trait says.
                let codes = unsafe {
                    let unmapped = (calls.aclrtUnmapMem)(base as *mut c_void);
                    let freed = (calls.aclrtFreePhysical)(physical);
                    [unmapped, freed, (calls.aclrtReleaseMemAddress)(base as *mut c_void)]
                };
                let names = ["aclrtUnmapMem", "aclrtFreePhysical", "aclrtReleaseMemAddress"];
                names.into_iter().zip(codes).try_for_each(|(name, code)| runtime.check(name, code))
            }
            (None, Some(key)) => self.close_key(&key),
            (None, None) => Ok(()),
        }
    }

    fn close_key(&self, key: &Key) -> Result<()> {
        let close = self.runtime.need("aclrtIpcMemClose", self.runtime.calls.aclrtIpcMemClose)?;
        // SAFETY: a C string; no copy under way uses the memory imported by it.
        self.runtime.check("aclrtIpcMemClose", unsafe { close(key.as_ptr().cast()) })
    }

    /// Ends unused exports. An export that an importer still has open is tried again next time.
    fn end_unused(&mut self) {
        let mut exports = std::mem::take(&mut self.exports);
        exports.retain_mut(|export| export.users > 0 || !self.end_export(export));
        self.exports = exports;
    }

    fn end_export(&self, export: &mut Export) -> bool {
        if !export.physical.is_null() {
            // SAFETY: the reference taken by `export_handle`. Importers have their own.
            unsafe { (self.runtime.calls.aclrtFreePhysical)(export.physical) };
            export.physical = null_mut();
        }
        export.methods.key.is_none_or(|key| self.close_key(&key).is_ok())
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        for (base, import) in std::mem::take(&mut self.imports) {
            let _ = self.end_import(base, &import);
        }
        for mut export in std::mem::take(&mut self.exports) {
            self.end_export(&mut export);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Exported {
        let mut key = [b'k'; KEY_BYTES];
        key[KEY_BYTES - 1] = 0;
        Exported {
            device: 3,
            offset: 4096,
            length: 8192,
            methods: Methods { key: Some(key), handle: Some(9) },
        }
    }

    #[test]
    fn what_is_exported_is_read_back() {
        let both = example();
        let key = Exported { methods: Methods { handle: None, ..both.methods }, ..both };
        let handle = Exported { methods: Methods { key: None, ..both.methods }, ..both };
        for exported in [both, key, handle] {
            let bytes = exported.encode();
            assert!(bytes.len() == BYTES && BYTES <= 512);
            assert_eq!(Exported::decode(&bytes).unwrap(), exported);
        }
    }

    /// The length is the peer's claim, and may be larger than any sum can hold.
    #[test]
    fn an_allocation_that_is_shorter_than_was_said_is_not_all_there() {
        let (at, whole) = (1 << 40, 8192);
        assert!(is_all_there(Some((at, whole)), at, whole) && is_all_there(None, at, u64::MAX));
        for length in [whole + 1, u64::MAX - at, u64::MAX - at + 1, u64::MAX] {
            assert!(!is_all_there(Some((at, whole)), at, length), "{length:#x}");
        }
        assert!(!is_all_there(Some((at, whole)), at - 1, 1));
    }

    #[test]
    fn what_nobody_exports_is_refused() {
        let good = example().encode();
        for length in (0..good.len()).chain([good.len() + 1]) {
            let mut bytes = good.clone();
            bytes.resize(length, 0);
            assert_eq!(Exported::decode(&bytes).unwrap_err().status, Status::Invalid, "{length} bytes");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Exported::decode(&bytes)
        };
        assert!(with(0, 2).is_err() && with(1, 0).is_err() && with(1, 4).is_err());
        // The offset is the allocation's last valid byte, and the byte after it.
        let last = Exported { offset: 8191, ..example() };
        assert!(Exported::decode(&last.encode()).is_ok());
        assert!(Exported::decode(&Exported { offset: 8192, ..example() }.encode()).is_err());
        // A key without an end, and an empty key.
        assert!(with(22 + KEY_BYTES - 1, b'k').is_err() && with(22, 0).is_err());
    }
}
