//! An open RDMA device, its limits and its events. `port` has its ports.

use super::device::{name_of, DeviceList};
use super::{check, created, library, set_nonblocking, Limits};
use crate::sys::children::Listed;
use rdma_mummy_sys as ffi;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{addr_of, NonNull};
use std::sync::Arc;

/// An asynchronous event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    PortActive(u8),
    PortError(u8),
    /// No object of this context works any more.
    DeviceFatal,
    /// The QP with this number is in its error state, or about to be.
    QpError(u32),
    /// A completion queue is broken, or was full when a completion came.
    CqError,
    GidChange(u8),
    /// The event's number in verbs.h.
    Other(i32),
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ffi::ibv_context>,
    name: String,
    limits: Limits,
    /// The descriptors of commands and of events.
    descriptors: [Listed; 2],
}

// SAFETY: libibverbs lets any thread use and close a context.
unsafe impl Send for Context {}
// SAFETY: libibverbs lets threads use a context in parallel.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device by name. ENODEV if there is no such device.
    pub fn open(name: &str) -> io::Result<Arc<Context>> {
        let list = DeviceList::new()?;
        let found = list.devices().find(|device| name_of(*device) == Some(name));
        let device = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        // SAFETY: the device is in a live list.
        let raw = created(unsafe { library::ibv_open_device(device.as_ptr()) })?;
        // From here on dropping `context` closes the device.
        let name = name.to_owned();
        // SAFETY: the context is open.
        let descriptors = unsafe { [(*raw.as_ptr()).cmd_fd, (*raw.as_ptr()).async_fd].map(Listed::new) };
        let mut context = Context { raw, name, limits: Limits::nothing(), descriptors };
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

    /// Readable when `next_event` has an event. Non-blocking, and owned by the context.
    pub fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw()).async_fd }
    }

    /// Takes and acknowledges an event, if there is one.
    pub fn next_event(&self) -> io::Result<Option<Event>> {
        let mut event = MaybeUninit::<ffi::ibv_async_event>::uninit();
        // SAFETY: the context is open, and `event` lives on this stack for the duration of the call.
        if unsafe { library::ibv_get_async_event(self.raw(), event.as_mut_ptr()) } != 0 {
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
        unsafe { library::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some(result))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for listed in &self.descriptors {
            listed.strike();
        }
        // SAFETY: opened by `open`; everything that was made of it holds an Arc, so nothing is left.
        unsafe { library::ibv_close_device(self.raw()) };
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
            cqe_max: 0,
            srq_wr_max: 0,
            rd_atom_target_max: 0,
            rd_atom_initiator_max: 0,
            mr_bytes_max: 0,
            ports: 0,
            is_iwarp: false,
        }
    }
}

fn query_limits(context: NonNull<ffi::ibv_context>) -> io::Result<Limits> {
    // SAFETY: all-zero is a valid answer: numbers only.
    let mut device: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, and `device` lives on this stack for the duration of the call.
    check(unsafe { library::ibv_query_device(context.as_ptr(), &mut device) })?;
    // SAFETY: an open context holds its device.
    let transport = unsafe { (*(*context.as_ptr()).device).transport_type };
    let count = |number: libc::c_int| u32::try_from(number).unwrap_or(0);
    let small = |number: libc::c_int| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
    Ok(Limits {
        qp_wr_max: count(device.max_qp_wr),
        cqe_max: count(device.max_cqe),
        srq_wr_max: count(device.max_srq_wr),
        rd_atom_target_max: small(device.max_qp_rd_atom),
        rd_atom_initiator_max: small(device.max_qp_init_rd_atom),
        mr_bytes_max: device.max_mr_size,
        ports: device.phys_port_cnt,
        is_iwarp: transport == ffi::ibv_transport_type::IBV_TRANSPORT_IWARP,
    })
}
