//! An open device with its protection domain, and memory that is registered with it.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{bail, ensure, Context};
use rdma_mummy_sys as verbs;

use super::Port;
use crate::memory::Memory;

/// The first of a device, as in perftest.
pub const PORT_NUMBER: u8 = 1;

/// Closed when the last that was made with it is gone.
pub struct Device {
    context: NonNull<verbs::ibv_context>,
    domain: NonNull<verbs::ibv_pd>,
    pub limits: verbs::ibv_device_attr,
    pub gid: [u8; 16],
    /// Of the port, in bytes.
    pub mtu: u32,
}

impl Device {
    pub fn open(port: &Port) -> anyhow::Result<Rc<Device>> {
        let context = open(&port.device)?;
        // SAFETY: an open context; its guard follows below, and nothing returns in between.
        let domain = unsafe { verbs::ibv_alloc_pd(context.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            let error = io::Error::last_os_error();
            // SAFETY: opened above, and nothing was made with it.
            unsafe { verbs::ibv_close_device(context.as_ptr()) };
            return Err(error).context("a protection domain");
        };
        // SAFETY: all of it is integers; what the queries below do not fill in stays 0.
        let limits = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut device = Device { context, domain, limits, gid: [0; 16], mtu: 0 };
        device.query(port.gid_index).with_context(|| format!("what {} can do", port.device))?;
        Ok(Rc::new(device))
    }

    fn query(&mut self, gid_index: u8) -> anyhow::Result<()> {
        let context = self.context.as_ptr();
        // SAFETY: integers, as above.
        let mut attributes: verbs::ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut gid = verbs::ibv_gid { raw: [0; 16] };
        // SAFETY: an open context, and structures of ours for the length of each call.
        unsafe {
            checked(verbs::ibv_query_device(context, &mut self.limits))?;
            checked(verbs::ibv_query_port(context, PORT_NUMBER, &mut attributes))?;
            checked(verbs::ibv_query_gid(context, PORT_NUMBER, gid_index.into(), &mut gid))
                .with_context(|| format!("GID {gid_index}"))?;
        }
        ensure!(
            attributes.state == verbs::ibv_port_state::IBV_PORT_ACTIVE,
            "port {PORT_NUMBER} is not active"
        );
        // SAFETY: every bit of the union's bytes is valid.
        self.gid = unsafe { gid.raw };
        self.mtu = 128 << attributes.active_mtu;
        Ok(())
    }

    pub fn context(&self) -> *mut verbs::ibv_context {
        self.context.as_ptr()
    }

    pub fn domain(&self) -> *mut verbs::ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever was made with either holds an `Rc` of this, and so is gone.
        unsafe {
            verbs::ibv_dealloc_pd(self.domain.as_ptr());
            verbs::ibv_close_device(self.context.as_ptr());
        }
    }
}

/// Opens the device of this name; an error that names those there are.
fn open(name: &str) -> anyhow::Result<NonNull<verbs::ibv_context>> {
    let mut count = 0;
    // SAFETY: a count of ours; the list is given back below.
    let list = unsafe { verbs::ibv_get_device_list(&mut count) };
    let Some(list) = NonNull::new(list) else {
        return Err(io::Error::last_os_error()).context("listing RDMA devices (is libibverbs.so.1 there?)");
    };
    // SAFETY: verbs says that so many devices are in the list.
    let devices = unsafe { std::slice::from_raw_parts(list.as_ptr(), count as usize) };
    // SAFETY: a device of the list; its name lives as long as the list.
    let name_of = |device| unsafe { CStr::from_ptr(verbs::ibv_get_device_name(device)) }.to_string_lossy();
    let found = devices.iter().find(|&&device| name_of(device) == name);
    // SAFETY: as above.
    let opened = found.map(|&device| unsafe { verbs::ibv_open_device(device) });
    let error = io::Error::last_os_error();
    let names = devices.iter().map(|&device| name_of(device).into_owned()).collect::<Vec<_>>().join(", ");
    // SAFETY: the list from above, once; an open device outlives it.
    unsafe { verbs::ibv_free_device_list(list.as_ptr()) };
    match opened.map(NonNull::new) {
        Some(Some(context)) => Ok(context),
        Some(None) => Err(error).with_context(|| format!("opening {name}")),
        None => bail!("there is no RDMA device {name}, only: {names}"),
    }
}

/// verbs' way of failing: the number of the error, or -1 with errno.
pub fn checked(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// The device may reach it for as long as it lives. Whoever posts work that names it drops the queue pairs
/// first.
pub struct Registered {
    region: NonNull<verbs::ibv_mr>,
    pub memory: Memory,
    _device: Rc<Device>,
}

impl Registered {
    pub fn new(device: &Rc<Device>, bytes: usize) -> anyhow::Result<Registered> {
        let memory = Memory::new(bytes).context("mapping")?;
        let access = verbs::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | verbs::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | verbs::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        // SAFETY: a live mapping of as many bytes, which goes only after drop has deregistered it.
        let region =
            unsafe { verbs::ibv_reg_mr(device.domain(), memory.address().cast(), bytes, access as i32) };
        let region = NonNull::new(region).ok_or_else(io::Error::last_os_error);
        let region = region.with_context(|| format!("registering {bytes} bytes (ulimit -l?)"))?;
        Ok(Registered { region, memory, _device: device.clone() })
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: verbs' own structure, alive until drop; the key never changes.
        unsafe { (*self.region.as_ptr()).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.region.as_ptr()).rkey }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered once, in `new`. The mapping goes afterwards, with the field.
        unsafe { verbs::ibv_dereg_mr(self.region.as_ptr()) };
    }
}
