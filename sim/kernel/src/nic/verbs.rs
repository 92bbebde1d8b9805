//! The objects of libibverbs that programs hold, in the shape of the engine's `sys::verbs`, each destroyed when it is
//! dropped. Objects of a killed process are taken back by the kernel, a while later. Above 500 lines because libibverbs
//! has so many kinds of objects, each with a few lines.

#[path = "../../../../engine/src/sys/os/verbs/data.rs"]
mod data;

use super::completion::{ChannelState, CqState, EventQueue, Wc};
use super::wire::{Op, Request};
use super::{status, Registered, MTU};
use crate::fd::{AsFd, FileId, Kind, OwnedFd};
use crate::memory;
use crate::process::ProcessId;
use crate::world::{is_running, point, try_with, with, World};
pub use data::{Gid, GidKind, Limits, LocalSide, Port, PortState, QpSpec, Remote};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Returns the names of the devices of the running task's host.
pub fn device_names() -> Vec<String> {
    point();
    with(|world| {
        let host = world.processes[world.here().0 as usize].host;
        let own = world.nics.devices.iter().filter(|device| device.host == host);
        own.map(|device| device.name.clone()).collect()
    })
}

/// Who made an object, and in which world.
#[derive(Clone, Copy, Debug)]
struct Maker {
    process: ProcessId,
    world: u64,
}

impl Maker {
    fn here(world: &World) -> Maker {
        Maker { process: world.here(), world: world.serial }
    }

    /// Takes an object back. Outside of its world, and when its process is dead, it is not there any more.
    fn destroy(self, act: impl FnOnce(&mut World)) {
        if !is_running() {
            return;
        }
        point();
        try_with(|world| {
            if world.serial == self.world && world.process(self.process).alive {
                act(world);
            }
        });
        memory::tell();
    }
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    PortActive(u8),
    PortError(u8),
    QpError(u32),
    CqError,
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    number: u32,
    name: String,
    limits: Limits,
    events: OwnedFd,
    maker: Maker,
}

impl Context {
    /// Opens a device by name. ENODEV if there is no such device.
    pub fn open(name: &str) -> io::Result<Arc<Context>> {
        point();
        with(|world| {
            let (number, events) = world.open_nic(name)?;
            let abilities = &world.nics.devices[world.device_of(number)? as usize].abilities;
            let limits = Limits {
                qp_wr_max: abilities.qp_wr_max,
                cqe_max: abilities.cqe_max,
                srq_wr_max: abilities.srq_wr_max,
                rd_atom_target_max: abilities.rd_atom_max,
                rd_atom_initiator_max: abilities.rd_atom_max,
                mr_bytes_max: abilities.mr_bytes_max,
                ports: 1,
                is_iwarp: false,
            };
            Ok(Arc::new(Context { number, name: name.to_owned(), limits, events, maker: Maker::here(world) }))
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Readable when `next_event` has an event.
    pub fn event_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    pub fn next_event(&self) -> io::Result<Option<Event>> {
        point();
        with(|world| {
            let file = self.events.as_fd().file(world)?;
            match &mut world.file(file).kind {
                Kind::DeviceEvents(EventQueue(events)) => Ok(events.pop_front()),
                _ => Ok(None),
            }
        })
    }

    /// Returns the state of a port. There is one, with the number 1.
    pub fn port(&self, number: u8) -> io::Result<Port> {
        point();
        with(|world| {
            let device = world.device_of(self.number)?;
            if number != 1 {
                return crate::fd::errno(libc::EINVAL);
            }
            let is_up = world.nics.devices[device as usize].is_up;
            let state = if is_up { PortState::Active } else { PortState::Down };
            Ok(Port { state, mtu_bytes: MTU, is_ethernet: true, lid: 0, gids: 2 })
        })
    }

    /// Returns the GIDs in use: one address, as RoCE v1 and v2 have it.
    pub fn gids(&self, _port: u8) -> Vec<Gid> {
        point();
        let raw =
            with(|world| world.device_of(self.number).map(|device| world.nics.devices[device as usize].gid));
        let kinds = [(0, GidKind::RoceV1), (1, GidKind::RoceV2)];
        raw.map_or(Vec::new(), |raw| kinds.map(|(index, kind)| Gid { index, raw, kind }).to_vec())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.maker.destroy(|world| world.nics.opened[self.number as usize] = None);
    }
}

/// A protection domain: a queue pair reaches only memory of its own domain.
#[derive(Debug)]
pub struct Pd {
    number: u32,
    context: Arc<Context>,
}

impl Pd {
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Pd>> {
        point();
        with(|world| {
            world.device_of(context.number)?;
            world.nics.domains += 1;
            Ok(Arc::new(Pd { number: world.nics.domains, context: context.clone() }))
        })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers memory of the running task's process. One number is the key at both ends.
    ///
    /// # Safety
    /// The range stays mapped until the `Mr` has been dropped, and the owner of its bytes agrees to what the device
    /// and, as allowed here, peers do to them meanwhile.
    pub unsafe fn register(
        self: &Arc<Pd>,
        address: u64,
        length: u64,
        remote_read: bool,
        remote_write: bool,
        _relaxed: bool,
    ) -> io::Result<Mr> {
        point();
        if crate::device::has(address) {
            return crate::fd::errno(libc::EFAULT);
        }
        with(|world| {
            let (pd, process) = (self.number, world.here());
            let memory = Registered { pd, process, address, length, remote_read, remote_write };
            let key = world.register_memory(self.context.number, memory)?;
            Ok(Mr { key, pd: self.clone(), maker: Maker::here(world) })
        })
    }

    /// NICs of a simulation do not reach memory of devices.
    ///
    /// # Safety
    /// Nothing happens.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn register_dmabuf(
        self: &Arc<Pd>,
        _fd: RawFd,
        _offset: u64,
        _length: u64,
        _iova: u64,
        _remote_read: bool,
        _remote_write: bool,
    ) -> io::Result<Mr> {
        crate::fd::errno(libc::EOPNOTSUPP)
    }
}

/// Registered memory. Once it is dropped, no device touches the memory any more, and its key is refused.
#[derive(Debug)]
pub struct Mr {
    key: u32,
    pd: Arc<Pd>,
    maker: Maker,
}

impl Mr {
    pub fn lkey(&self) -> u32 {
        self.key
    }

    pub fn rkey(&self) -> u32 {
        self.key
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.maker.destroy(|world| {
            if let Ok(device) = world.device_of(self.pd.context.number) {
                world.deregister(device, self.key);
            }
        });
    }
}

/// A descriptor that is readable when an armed queue has a completion.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    _context: Arc<Context>,
}

impl Channel {
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Channel>> {
        point();
        with(|world| {
            world.device_of(context.number)?;
            let fd = world.open(world.here(), Kind::Completions(ChannelState::default()))?;
            Ok(Arc::new(Channel { fd, _context: context.clone() }))
        })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns the cookie of a queue that has an event, if there is one. The queue is no longer armed.
    pub fn next(&self) -> io::Result<Option<u64>> {
        point();
        with(|world| {
            let file = self.fd.as_fd().file(world)?;
            match &mut world.file(file).kind {
                Kind::Completions(ChannelState(events)) => Ok(events.pop_front().map(|(_, cookie)| cookie)),
                _ => Ok(None),
            }
        })
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    number: u32,
    maker: Maker,
    _channel: Option<Arc<Channel>>,
    _context: Arc<Context>,
}

impl Cq {
    /// Makes a queue for this many completions. One more breaks the queue and every queue pair on it.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<Channel>>,
        cookie: u64,
    ) -> io::Result<Arc<Cq>> {
        point();
        with(|world| {
            let file = |channel: &Arc<Channel>| channel.fd.as_fd().file(world);
            let channel_file: Option<FileId> = channel.map(file).transpose()?;
            let cq = CqState {
                process: world.here(),
                capacity: entries as usize,
                entries: VecDeque::new(),
                channel: channel_file,
                cookie,
                is_armed: false,
                is_broken: false,
            };
            let number = world.make_cq(context.number, cq)?;
            let (maker, channel) = (Maker::here(world), channel.cloned());
            Ok(Arc::new(Cq { number, maker, _channel: channel, _context: context.clone() }))
        })
    }

    /// Takes up to as many completions as `out` has room for. Returns their number.
    pub fn poll(&self, out: &mut [Completion]) -> io::Result<usize> {
        point();
        with(|world| {
            let nics = &mut world.nics;
            let cq = nics.cqs.get_mut(&self.number).filter(|cq| !cq.is_broken);
            let Some(cq) = cq else { return crate::fd::errno(libc::EIO) };
            let count = out.len().min(cq.entries.len());
            for (place, entry) in out.iter_mut().zip(cq.entries.drain(..count)) {
                *place = Completion(entry.wc);
                if let Some(qp) = nics.qps.get_mut(&entry.serial) {
                    qp.taken -= entry.places;
                }
            }
            Ok(count)
        })
    }

    /// Arms the queue: the next completion raises one event on the channel.
    pub fn arm(&self) -> io::Result<()> {
        point();
        with(|world| world.arm(self.number));
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.maker.destroy(|world| world.destroy_cq(self.number));
    }
}

/// The result of one work request. Also a slot for `poll` to fill.
#[derive(Clone, Copy, Default)]
pub struct Completion(Wc);

impl Completion {
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns one of `status`.
    pub fn status(&self) -> u32 {
        self.0.status
    }

    pub fn is_success(&self) -> bool {
        self.0.status == status::SUCCESS
    }

    pub fn vendor_error(&self) -> u32 {
        0
    }

    pub fn qp_number(&self) -> u32 {
        self.0.qp
    }

    /// Valid only on success: the number of bytes received or read.
    pub fn bytes(&self) -> u32 {
        self.0.bytes
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status {} (work request {:#x}, QP {})", self.status(), self.id(), self.qp_number())
    }
}

/// A receive queue that several queue pairs share.
#[derive(Debug)]
pub struct Srq {
    number: u32,
    maker: Maker,
    pd: Arc<Pd>,
}

impl Srq {
    pub fn new(pd: &Arc<Pd>, entries: u32) -> io::Result<Arc<Srq>> {
        point();
        with(|world| {
            let maker = Maker::here(world);
            let number = world.make_srq(pd.context.number, maker.process, entries)?;
            Ok(Arc::new(Srq { number, maker, pd: pd.clone() }))
        })
    }

    /// Posts a receive. ENOMEM if the queue is full.
    ///
    /// # Safety
    /// The memory stays registered and mapped, and nobody else uses it, until the completion, or until the queue has
    /// been dropped.
    pub unsafe fn post_receive(&self, id: u64, address: u64, length: u32, lkey: u32) -> io::Result<()> {
        point();
        with(|world| world.post_receive(self.number, id, (address, length, lkey)))
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.maker.destroy(|world| drop(world.nics.srqs.remove(&self.number)));
    }
}

/// One end of a reliable connection. Only signalled and failed requests complete.
#[derive(Debug)]
pub struct Qp {
    serial: u64,
    number: u32,
    inline_bytes: u32,
    maker: Maker,
    _cqs: [Arc<Cq>; 2],
    _srq: Arc<Srq>,
    _pd: Arc<Pd>,
}

impl Qp {
    /// Makes a queue pair whose sends complete on `cq`.
    pub fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        (srq, receive_cq): (&Arc<Srq>, &Arc<Cq>),
        spec: &QpSpec,
    ) -> io::Result<Qp> {
        if !Arc::ptr_eq(pd, &srq.pd) {
            return crate::fd::errno(libc::EINVAL);
        }
        point();
        with(|world| {
            let queues = (cq.number, receive_cq.number, srq.number);
            let (serial, number) = world.make_qp((pd.context.number, pd.number), queues, spec)?;
            let inline_bytes = world.nics.qps[&serial].inline_bytes_max;
            Ok(Qp {
                serial,
                number,
                inline_bytes,
                maker: Maker::here(world),
                _cqs: [cq.clone(), receive_cq.clone()],
                _srq: srq.clone(),
                _pd: pd.clone(),
            })
        })
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    pub fn to_init(&self, port: u8) -> io::Result<()> {
        point();
        with(|world| world.qp_to_init(self.serial, port))
    }

    pub fn to_rtr(&self, to: &Remote) -> io::Result<()> {
        point();
        with(|world| world.qp_to_rtr(self.serial, to))
    }

    pub fn to_rts(&self, from: &LocalSide) -> io::Result<()> {
        point();
        with(|world| world.qp_to_rts(self.serial, from))
    }

    /// Ends the connection: outstanding requests complete as flushed.
    pub fn to_error(&self) -> io::Result<()> {
        point();
        with(|world| world.flush(self.serial));
        memory::tell();
        Ok(())
    }

    /// Posts a chain, which is not cleared. An error carries the number of requests, from the first on, that the
    /// device has taken, and ENOMEM if the queue was full.
    ///
    /// # Safety
    /// The memory that the chain names stays registered and mapped until the completion that covers it, or until the
    /// `Qp` has been dropped. Until then nobody writes memory that is sent, or uses memory that is read into. Memory of
    /// inline requests only needs to be there for the call.
    pub unsafe fn post(&self, chain: &mut Chain) -> Result<(), (usize, io::Error)> {
        point();
        let result = with(|world| {
            for (taken, request) in chain.0.iter().enumerate() {
                world.post(self.serial, *request).map_err(|error| (taken, error))?;
            }
            Ok(())
        });
        memory::tell();
        result
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.maker.destroy(|world| world.destroy_qp(self.serial));
    }
}

/// A list of work requests that `Qp::post` posts in one call.
#[derive(Debug)]
pub struct Chain(Vec<Request>, usize);

impl Chain {
    pub fn new(capacity: usize) -> Chain {
        Chain(Vec::with_capacity(capacity), capacity)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn capacity(&self) -> usize {
        self.1
    }

    /// Adds a WRITE from `local` to `remote`. Panics, like the other methods, if the chain is full.
    #[allow(clippy::too_many_arguments)]
    pub fn write(
        &mut self,
        id: u64,
        local: u64,
        lkey: u32,
        remote: u64,
        rkey: u32,
        length: u32,
        inline: bool,
    ) {
        let (op, is_inline, is_signaled) = (Op::Write, inline, false);
        self.push(Request { op, id, local, lkey, remote, rkey, length, is_inline, is_signaled });
    }

    /// Adds a READ from `remote` to `local`.
    pub fn read(&mut self, id: u64, local: u64, lkey: u32, remote: u64, rkey: u32, length: u32) {
        let (op, is_inline, is_signaled) = (Op::Read, false, false);
        self.push(Request { op, id, local, lkey, remote, rkey, length, is_inline, is_signaled });
    }

    /// Adds a SEND, which takes the next receive of the peer's queue.
    pub fn send(&mut self, id: u64, local: u64, lkey: u32, length: u32, inline: bool) {
        let (op, is_inline, is_signaled) = (Op::Send, inline, false);
        self.push(Request { op, id, local, lkey, remote: 0, rkey: 0, length, is_inline, is_signaled });
    }

    /// Makes the last request signalled; panics if there is none.
    pub fn signal_last(&mut self) {
        self.0.last_mut().expect("no request to signal").is_signaled = true;
    }

    fn push(&mut self, request: Request) {
        assert!(self.0.len() < self.1, "the chain is full");
        self.0.push(request);
    }
}
