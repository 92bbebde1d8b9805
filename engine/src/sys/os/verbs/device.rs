//! Lists the RDMA devices, or says why it can't.

use super::{created, library};
use crate::status::reason;
use crate::sys::unforked::unforked;
use rdma_mummy_sys as ffi;
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

/// Returns the names of all RDMA devices, of which there may be none. The error says why they can't be listed: no
/// libibverbs, or a kernel without RDMA.
pub fn device_names() -> Result<Vec<String>, String> {
    library::open()?;
    let list = DeviceList::new().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no RDMA support (ib_uverbs is not loaded)".to_owned(),
        _ => format!("libibverbs can't list devices: {}", reason(&error)),
    })?;
    Ok(list.devices().filter_map(|device| name_of(device).map(str::to_owned)).collect())
}

/// The array of devices that libibverbs allocates, and its length.
pub(super) struct DeviceList {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    pub(super) fn new() -> io::Result<DeviceList> {
        library::open().map_err(|_| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let mut count = 0;
        // The library locks for all callers.
        // SAFETY: `count` lives on this stack for the duration of the call.
        let first = unforked(|| created(unsafe { library::ibv_get_device_list(&mut count) }))?;
        Ok(DeviceList { first, count: count.max(0) as usize })
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = NonNull<ffi::ibv_device>> + '_ {
        // SAFETY: the library has written `count` pointers, and frees them when `self` is dropped.
        let all = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        all.iter().filter_map(|device| NonNull::new(*device))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list, and freed once. Devices that were opened hold on to theirs.
        unsafe { library::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// Returns the name of a device in a live list.
pub(super) fn name_of<'a>(device: NonNull<ffi::ibv_device>) -> Option<&'a str> {
    // SAFETY: the callers hold the list that the device is in, and copy the name before they let go.
    let name = unsafe { library::ibv_get_device_name(device.as_ptr()) };
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string inside the device, which is there as long as the list.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}
