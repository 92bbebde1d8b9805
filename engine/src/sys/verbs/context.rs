//! Which RDMA devices there are, and an open one: its limits, ports, addresses and events.

use super::{check, created, set_nonblocking};
use rdma_mummy_sys as ffi;
use std::ffi::{c_char, CStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{addr_of, NonNull};
use std::sync::Arc;

/// What the device said when it was opened.
#[derive(Clone, Debug)]
pub struct Limits {
    pub qp_wr_max: u32,
    pub sge_max: u32,
    pub cqe_max: u32,
    pub qp_max: u32,
    pub srq_wr_max: u32,
    /// RDMA READs that one QP serves at a time.
    pub rd_atom_target_max: u8,
    /// RDMA READs that one QP has under way at a time.
    pub rd_atom_initiator_max: u8,
    pub mr_bytes_max: u64,
    pub vendor_id: u32,
    pub fw: String,
    pub ports: u8,
    pub is_iwarp: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    Down,
    Init,
    Armed,
    Active,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub state: PortState,
    /// The active one.
    pub mtu_bytes: u32,
    pub is_ethernet: bool,
    pub lid: u16,
    /// Slots of the GID table, used or not.
    pub gids: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    Ib,
    RoceV1,
    RoceV2,
}

#[derive(Clone, Copy, Debug)]
pub struct Gid {
    pub index: u32,
    pub raw: [u8; 16],
    pub kind: GidKind,
}

/// What a device tells unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    PortActive(u8),
    PortError(u8),
    /// Nothing that was made of this context works any more.
    DeviceFatal,
    /// By number. It is in its error state, or about to be.
    QpError(u32),
    /// One was full when a completion came, or is broken.
    CqError,
    GidChange(u8),
    /// The number that verbs.h has for it.
    Other(i32),
}

/// The names of all RDMA devices; none is an answer too. The error says why nobody can be asked: no
/// libibverbs, or a kernel without RDMA.
pub fn device_names() -> Result<Vec<String>, String> {
    let list = DeviceList::new().map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => library_missing(),
        Some(libc::ENOSYS) => "the kernel has no RDMA support (ib_uverbs is not loaded)".to_owned(),
        _ => format!("libibverbs can't list devices: {error}"),
    })?;
    Ok(list.devices().filter_map(|device| name_of(device).map(str::to_owned)).collect())
}

/// Why the calls of libibverbs lead nowhere, in the loader's words.
fn library_missing() -> String {
    // SAFETY: a constant name. What opens stays open, as `rdma-mummy-sys` would have kept it.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return "libibverbs.so.1 appeared after the process started, or is incomplete".to_owned();
    }
    // SAFETY: called right after the failure, in the thread that saw it.
    let reason = unsafe { libc::dlerror() };
    if reason.is_null() {
        return "libibverbs.so.1 can't be opened".to_owned();
    }
    // SAFETY: a C string that is this thread's until its next call into the loader.
    unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
}

/// The array that libibverbs allocates, and its length.
struct DeviceList {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> io::Result<DeviceList> {
        let mut count = 0;
        // SAFETY: `count` lives on this stack for the duration of the call.
        let first = created(unsafe { ffi::ibv_get_device_list(&mut count) })?;
        Ok(DeviceList { first, count: count.max(0) as usize })
    }

    fn devices(&self) -> impl Iterator<Item = NonNull<ffi::ibv_device>> + '_ {
        // SAFETY: the library has written `count` pointers, and frees them when `self` is dropped.
        let all = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        all.iter().filter_map(|device| NonNull::new(*device))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list, and freed once. Devices that were opened hold on to theirs.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// Of a device in a live list.
fn name_of<'a>(device: NonNull<ffi::ibv_device>) -> Option<&'a str> {
    // SAFETY: the callers hold the list that the device is in, and copy the name before they let go.
    let name = unsafe { ffi::ibv_get_device_name(device.as_ptr()) };
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string inside the device, which is there as long as the list.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ffi::ibv_context>,
    name: String,
    limits: Limits,
}

// SAFETY: libibverbs lets any thread use and close a context.
unsafe impl Send for Context {}
// SAFETY: libibverbs lets threads use a context in parallel.
unsafe impl Sync for Context {}

impl Context {
    /// ENODEV if there is no such device.
    pub fn open(name: &str) -> io::Result<Arc<Context>> {
        let list = DeviceList::new()?;
        let found = list.devices().find(|device| name_of(*device) == Some(name));
        let device = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        // SAFETY: the device is in a live list.
        let raw = created(unsafe { ffi::ibv_open_device(device.as_ptr()) })?;
        // From here on the guard closes it.
        let mut context = Context { raw, name: name.to_owned(), limits: Limits::nothing() };
        context.limits = query_limits(raw)?;
        set_nonblocking(context.event_fd())?;
        Ok(Arc::new(context))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    /// Ports count from 1.
    pub fn port(&self, number: u8) -> io::Result<Port> {
        // SAFETY: all-zero is a valid answer: numbers only.
        let mut port: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `port` lives on this stack for the duration of the call.
        check(unsafe { ffi::ibv_query_port(self.raw(), number, &mut port) })?;
        Ok(Port {
            state: match port.state {
                ffi::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                ffi::ibv_port_state::IBV_PORT_INIT => PortState::Init,
                ffi::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
                ffi::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                _ => PortState::Other,
            },
            mtu_bytes: mtu_bytes(port.active_mtu),
            is_ethernet: port.link_layer == ffi::IBV_LINK_LAYER_ETHERNET,
            lid: port.lid,
            gids: u32::try_from(port.gid_tbl_len).unwrap_or(0),
        })
    }

    /// Entries that are in use. Empty too if the port can't be asked.
    pub fn gids(&self, port: u8) -> Vec<Gid> {
        let Ok(attributes) = self.port(port) else { return Vec::new() };
        let mut gids = self.gid_table(port).unwrap_or_else(|| self.gids_one_by_one(port, attributes.gids));
        gids.retain(|gid| gid.raw != [0; 16]);
        if !attributes.is_ethernet {
            gids.iter_mut().for_each(|gid| gid.kind = GidKind::Ib);
        }
        gids
    }

    /// One system call for all ports; libibverbs has it since 33.
    fn gid_table(&self, port: u8) -> Option<Vec<Gid>> {
        let slots: u32 =
            (1..=self.limits.ports).filter_map(|port| self.port(port).ok()).map(|port| port.gids).sum();
        let mut entries = Vec::<ffi::ibv_gid_entry>::with_capacity(slots as usize);
        // SAFETY: there is room for that many entries. Not the crate's inline function, which would form
        // a reference to the first of them.
        let count = unsafe {
            ffi::_ibv_query_gid_table(
                self.raw(),
                entries.as_mut_ptr(),
                entries.capacity(),
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).ok()?;
        // SAFETY: the call has written that many, which is at most the capacity it was told.
        unsafe { entries.set_len(count) };
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        Some(
            of_port
                .map(|entry| Gid {
                    index: entry.gid_index,
                    // SAFETY: bytes, however they are looked at.
                    raw: unsafe { entry.gid.raw },
                    kind: match entry.gid_type {
                        ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                        ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                        _ => GidKind::Ib,
                    },
                })
                .collect(),
        )
    }

    /// For an older libibverbs; the kinds are from sysfs.
    fn gids_one_by_one(&self, port: u8, slots: u32) -> Vec<Gid> {
        let mut gids = Vec::new();
        for index in 0..slots {
            let mut gid = ffi::ibv_gid { raw: [0; 16] };
            // SAFETY: the context is open, and `gid` lives on this stack for the duration of the call.
            if unsafe { ffi::ibv_query_gid(self.raw(), port, index as libc::c_int, &mut gid) } != 0 {
                continue;
            }
            // SAFETY: bytes, however they are looked at.
            let raw = unsafe { gid.raw };
            if raw == [0; 16] {
                continue;
            }
            let path = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", self.name);
            let kind = match std::fs::read_to_string(path) {
                Ok(kind) if kind.trim() == "RoCE v2" => GidKind::RoceV2,
                // The kernel's word for both; `gids` knows the link layer.
                _ => GidKind::RoceV1,
            };
            gids.push(Gid { index, raw, kind });
        }
        gids
    }

    /// Readable when `next_event` has something. Non-blocking; the context's own.
    pub fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw()).async_fd }
    }

    /// Takes and acknowledges an event, if there is one.
    pub fn next_event(&self) -> io::Result<Option<Event>> {
        let mut event = MaybeUninit::<ffi::ibv_async_event>::uninit();
        // SAFETY: the context is open, and `event` lives on this stack for the duration of the call.
        if unsafe { ffi::ibv_get_async_event(self.raw(), event.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the call has written it, and what it points to is not destroyed before it is
        // acknowledged.
        let result = unsafe { read_event(event.as_ptr()) };
        // SAFETY: taken above, acknowledged once.
        unsafe { ffi::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some(result))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; everything that was made of it holds an Arc, so nothing is left.
        unsafe { ffi::ibv_close_device(self.raw()) };
    }
}

/// # Safety
///
/// The event is one that ibv_get_async_event has written, not yet acknowledged.
unsafe fn read_event(event: *const ffi::ibv_async_event) -> Event {
    use ffi::ibv_event_type as kind;
    // As a number: the crate declares an enum, and a newer library may have events that it lacks.
    // SAFETY: the caller's event is written, and the field is 32 bits.
    let number = unsafe { addr_of!((*event).event_type).cast::<i32>().read() };
    // SAFETY: as above; which field of the union is meant follows from the number.
    let port = || unsafe { (*event).element.port_num as u8 };
    let is = |of: kind| number == of as i32;
    if is(kind::IBV_EVENT_PORT_ACTIVE) {
        Event::PortActive(port())
    } else if is(kind::IBV_EVENT_PORT_ERR) {
        Event::PortError(port())
    } else if is(kind::IBV_EVENT_GID_CHANGE) {
        Event::GidChange(port())
    } else if is(kind::IBV_EVENT_DEVICE_FATAL) {
        Event::DeviceFatal
    } else if is(kind::IBV_EVENT_CQ_ERR) {
        Event::CqError
    } else if is(kind::IBV_EVENT_QP_FATAL)
        || is(kind::IBV_EVENT_QP_REQ_ERR)
        || is(kind::IBV_EVENT_QP_ACCESS_ERR)
        || is(kind::IBV_EVENT_PATH_MIG_ERR)
    {
        // SAFETY: the QP is not destroyed before its event is acknowledged.
        Event::QpError(unsafe { (*(*event).element.qp).qp_num })
    } else {
        Event::Other(number)
    }
}

impl Limits {
    fn nothing() -> Limits {
        Limits {
            qp_wr_max: 0,
            sge_max: 0,
            cqe_max: 0,
            qp_max: 0,
            srq_wr_max: 0,
            rd_atom_target_max: 0,
            rd_atom_initiator_max: 0,
            mr_bytes_max: 0,
            vendor_id: 0,
            fw: String::new(),
            ports: 0,
            is_iwarp: false,
        }
    }
}

fn query_limits(context: NonNull<ffi::ibv_context>) -> io::Result<Limits> {
    // SAFETY: all-zero is a valid answer: numbers only.
    let mut device: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, and `device` lives on this stack for the duration of the call.
    check(unsafe { ffi::ibv_query_device(context.as_ptr(), &mut device) })?;
    // SAFETY: an open context holds its device.
    let transport = unsafe { (*(*context.as_ptr()).device).transport_type };
    let count = |number: libc::c_int| u32::try_from(number).unwrap_or(0);
    let small = |number: libc::c_int| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
    Ok(Limits {
        qp_wr_max: count(device.max_qp_wr),
        sge_max: count(device.max_sge),
        cqe_max: count(device.max_cqe),
        qp_max: count(device.max_qp),
        srq_wr_max: count(device.max_srq_wr),
        rd_atom_target_max: small(device.max_qp_rd_atom),
        rd_atom_initiator_max: small(device.max_qp_init_rd_atom),
        mr_bytes_max: device.max_mr_size,
        vendor_id: device.vendor_id,
        fw: text(&device.fw_ver),
        ports: device.phys_port_cnt,
        is_iwarp: transport == ffi::ibv_transport_type::IBV_TRANSPORT_IWARP,
    })
}

/// Up to the terminating zero, or all of it.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|char| *char as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// 1 is 256 bytes, each next one twice as much, up to 5.
pub(super) fn mtu_bytes(mtu: ffi::ibv_mtu::Type) -> u32 {
    128 << mtu.clamp(ffi::ibv_mtu::IBV_MTU_256, ffi::ibv_mtu::IBV_MTU_4096)
}

/// The largest that is not above.
pub(super) fn mtu_of(bytes: u32) -> ffi::ibv_mtu::Type {
    match bytes {
        4096.. => ffi::ibv_mtu::IBV_MTU_4096,
        2048.. => ffi::ibv_mtu::IBV_MTU_2048,
        1024.. => ffi::ibv_mtu::IBV_MTU_1024,
        512.. => ffi::ibv_mtu::IBV_MTU_512,
        _ => ffi::ibv_mtu::IBV_MTU_256,
    }
}
