//! One RDMA device of this host, opened with the engine, and all that its endpoints share. Whether peers can reach the
//! device, and at which address, changes with its port.

use super::endpoint::Endpoint;
use super::locality::{Place, SYSFS};
use super::notifications::{self, Notifications, SendBody};
use super::topology::{choose_gid, NoAddress};
use super::wire::DeviceOffer;
use super::{DeviceSettings, Usable};
use crate::limits::SPLIT_BYTES_MIN;
use crate::peer::{After, Left};
use crate::status::{reason, Error};
use crate::sys::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::lock::{Mutex, MutexGuard, RwLock};
use crate::sys::map::HashMap;
use crate::sys::mapping::Mapping;
use crate::sys::poller::{Interest, Poller, PollerKind};
use crate::sys::verbs::{Channel, Completion, Context, Cq, Gid, Mr, Pd, PortState};
use crate::types::Transport;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

/// The cookie of the completion queue for receives.
pub const RECEIVED: u64 = 0;
/// Capacity of the completion queue for receives.
const RECEIVED_MAX: u32 = 1024;
const PAGE: usize = 4096;
/// Offset in the page at which the answers of flushes land. Peers read the page's first half.
const SCRATCH: u64 = 2048;

/// The address at which peers reach a device now.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub gid: Gid,
    pub lid: u16,
    pub is_ethernet: bool,
    pub mtu: u32,
}

/// Statistics of a device: whether it is up, and the payload and requests that this engine posted as initiator.
pub struct DeviceStats<'a> {
    pub name: &'a str,
    pub is_up: bool,
    pub bytes: u64,
    /// Includes flushes and notifications.
    pub work_requests: u64,
}

pub struct Device {
    /// The device's number in this engine and in messages to peers.
    pub index: usize,
    pub pd: Arc<Pd>,
    /// The completion channel of all its completion queues.
    pub channel: Arc<Channel>,
    pub notifications: Notifications,
    /// Completions of receives on any endpoint.
    pub received: Arc<Cq>,
    receiver: Mutex<Vec<Completion>>,
    pub port: u8,
    pub place: Place,
    settings: DeviceSettings,
    /// The error says why peers can't reach the device.
    address: RwLock<Result<Address, NoAddress>>,
    /// Declared before `page`, so that the registration is dropped first.
    page_key: Mr,
    page: Mapping,
    /// Endpoints by the cookie of their completion queue.
    endpoints: Mutex<HashMap<u64, Weak<Endpoint>>>,
    /// Endpoints by the numbers of their queue pairs.
    by_qp: Mutex<HashMap<u32, Weak<Endpoint>>>,
    next_cookie: AtomicU64,
    splits: AtomicBool,
    /// Whether the device's thread ticks. Ordered with the endpoints' counts of chains in flight.
    ticking: AtomicBool,
    /// A path found no slot for a notification or an acknowledgement.
    lacks_slots: AtomicBool,
    /// The device's thread sleeps on this.
    pub poller: Arc<Poller>,
    /// Payload that this engine moved as initiator.
    pub bytes: AtomicU64,
    pub work_requests: AtomicU64,
}

impl Device {
    pub fn open(index: usize, name: &str, settings: &DeviceSettings) -> Usable<Device> {
        let context = Context::open(name)
            .map_err(|error| format!("{name}: the device can't be opened: {}", reason(&error)))?;
        if context.limits().is_iwarp {
            return Err(format!("{name}: iWARP is not supported"));
        }
        Device::make(index, &context, settings).map_err(|error| format!("{name}: {}", reason(&error)))
    }

    fn make(index: usize, context: &Arc<Context>, settings: &DeviceSettings) -> io::Result<Device> {
        let (pd, channel) = (Pd::new(context)?, Channel::new(context)?);
        let poller = Arc::new(Poller::new(PollerKind::Epoll).map_err(io::Error::other)?);
        let notifications = Notifications::new(&pd)?;
        let received =
            Cq::new(context, RECEIVED_MAX.min(context.limits().cqe_max), Some(&channel), RECEIVED)?;
        received.arm()?;
        let page = Mapping::private(PAGE)?;
        // SAFETY: the mapping is the device's own, and outlives the registration by the order of fields.
        let page_key = unsafe { pd.register(page.address() as u64, PAGE as u64, true, false, false) }?;
        let ports = 1..=context.limits().ports;
        let is_active = |port: &u8| context.port(*port).is_ok_and(|port| port.state == PortState::Active);
        let device = Device {
            index,
            channel,
            notifications,
            received,
            receiver: Mutex::new(vec![Completion::default(); 32]),
            port: ports.clone().find(is_active).unwrap_or(1),
            place: Place::of_nic(Path::new(SYSFS), context.name()),
            settings: settings.clone(),
            address: RwLock::new(Err(NoAddress::Port("its port was not checked yet".into()))),
            page_key,
            page,
            endpoints: Mutex::default(),
            by_qp: Mutex::default(),
            next_cookie: AtomicU64::new(1),
            splits: AtomicBool::new(false),
            ticking: AtomicBool::new(false),
            lacks_slots: AtomicBool::new(false),
            poller,
            bytes: AtomicU64::new(0),
            work_requests: AtomicU64::new(0),
            pd,
        };
        device.refresh_port();
        Ok(device)
    }

    pub fn name(&self) -> &str {
        self.pd.context().name()
    }

    pub fn stats(&self) -> DeviceStats<'_> {
        DeviceStats {
            name: self.name(),
            is_up: self.is_up(),
            bytes: self.bytes.load(Ordering::Relaxed),
            work_requests: self.work_requests.load(Ordering::Relaxed),
        }
    }

    /// Registers the device's events with the poller.
    pub fn report_to(&self, poller: &Poller, token: u64) -> Result<(), Error> {
        let added = poller.add(self.pd.context().event_fd(), token, Interest { read: true, write: false });
        added.map_err(|error| Error::system("watching RDMA devices", &error))
    }

    /// Returns the device's address, or why peers can't reach it.
    pub fn address(&self) -> Result<Address, NoAddress> {
        self.address.read().clone()
    }

    pub fn is_up(&self) -> bool {
        self.address.read().is_ok()
    }

    /// Reads the state of the port again. Returns true if peers must be told.
    pub fn refresh_port(&self) -> bool {
        let found = self.find_address().map_err(|why| why.of(&format!("{} port {}", self.name(), self.port)));
        let mut address = self.address.write();
        let key = |address: &Result<Address, NoAddress>| {
            address.as_ref().ok().map(|it| (it.gid.raw, it.gid.index, it.lid, it.mtu))
        };
        let changed = key(&address) != key(&found);
        *address = found;
        changed
    }

    fn find_address(&self) -> Result<Address, NoAddress> {
        let context = self.pd.context();
        let port = context.port(self.port).map_err(|error| NoAddress::Port(reason(&error)))?;
        if port.state != PortState::Active {
            return Err(NoAddress::Port("the port is down".into()));
        }
        let gid = choose_gid(&context.gids(self.port), port.is_ethernet, self.settings.gid_index)?;
        let mtu = match self.settings.mtu {
            0 => port.mtu_bytes,
            most => port.mtu_bytes.min(most),
        };
        Ok(Address { gid, lid: port.lid, is_ethernet: port.is_ethernet, mtu })
    }

    /// Returns the largest length of one registration.
    pub fn piece_bytes(&self) -> u64 {
        let most = self.pd.context().limits().mr_bytes_max.max(SPLIT_BYTES_MIN);
        match self.settings.mr_bytes_max {
            0 => most,
            asked => most.min(asked),
        }
    }

    /// True if any region was registered in several pieces.
    pub fn splits(&self) -> bool {
        self.splits.load(Ordering::Relaxed)
    }

    pub fn note_length(&self, length: u64) {
        if length > self.piece_bytes() {
            self.splits.store(true, Ordering::Relaxed);
        }
    }

    /// Returns how long a packet may go unacknowledged, as InfiniBand's exponent (4.096 us times two to that power),
    /// and the number of retransmissions.
    pub fn patience(&self) -> (u8, u8) {
        let units = u64::from(self.settings.ack_timeout_ms) * 1_000_000 / 4096;
        (units.next_power_of_two().trailing_zeros().clamp(1, 31) as u8, self.settings.retries as u8)
    }

    pub fn inline_bytes(&self) -> u32 {
        self.settings.inline_bytes
    }

    /// Returns the address at which flushes land, and its key.
    pub fn scratch(&self) -> (u64, u32) {
        (self.page.address() as u64 + SCRATCH, self.page_key.lkey())
    }

    /// Returns the description of the device for peers, while they can reach it.
    pub fn offer(&self) -> Usable<DeviceOffer> {
        let address = self.address()?;
        Ok(DeviceOffer {
            index: self.index as u8,
            is_ethernet: address.is_ethernet,
            gid: address.gid.raw,
            lid: address.lid,
            mtu: address.mtu as u16,
            reads_max: self.pd.context().limits().rd_atom_target_max,
            flush_address: self.page.address() as u64,
            flush_rkey: self.page_key.rkey(),
            name: self.name().into(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<Endpoint>>> {
        self.endpoints.lock()
    }

    /// Returns a new cookie for a completion queue.
    pub fn cookie(&self) -> u64 {
        self.next_cookie.fetch_add(1, Ordering::Relaxed)
    }

    pub fn add(&self, cookie: u64, qps: &[u32], endpoint: &Arc<Endpoint>) {
        self.lock().insert(cookie, Arc::downgrade(endpoint));
        let mut by_qp = self.by_qp.lock();
        by_qp.extend(qps.iter().map(|number| (*number, Arc::downgrade(endpoint))));
    }

    /// Removes an endpoint that is closed, whose notifications the caller has taken in, or that is being dropped. Other
    /// endpoints may have its numbers by now: those of destroyed queue pairs are given again.
    pub fn forget(&self, cookie: u64, qps: &[u32], endpoint: *const Endpoint) {
        self.lock().remove(&cookie);
        let mut by_qp = self.by_qp.lock();
        for number in qps {
            if by_qp.get(number).is_some_and(|known| known.as_ptr() == endpoint) {
                by_qp.remove(number);
            }
        }
    }

    /// Takes in notifications received up to now on any endpoint, but at most RECEIVED_MAX: a thread that closes an
    /// endpoint of one peer must not stay for another peer's flood. Returns true if more may have arrived.
    pub fn receive(&self) -> bool {
        let mut completions = self.receiver.lock();
        let (mut received, mut taken) = (Vec::new(), 0);
        while let Ok(count) = self.received.poll(&mut completions) {
            for completion in &completions[..count] {
                received.extend(self.handle_receive(completion));
            }
            taken += count;
            if count < completions.len() || taken >= RECEIVED_MAX as usize {
                break;
            }
        }
        drop(completions);
        // Not under the lock: a thread that closes an endpoint receives, too.
        for (endpoint, left) in received {
            After::resume(&endpoint.peer, left).flush();
        }
        taken >= RECEIVED_MAX as usize
    }

    /// Handles one receive. Returns its endpoint and the work that is left for the endpoint's peer.
    fn handle_receive(&self, completion: &Completion) -> Option<(Arc<Endpoint>, Left)> {
        let mut received = None;
        let slot = completion.id() as u32;
        if completion.is_success() {
            let mut bytes = notifications::buffer();
            let length = self.notifications.read(slot, completion.bytes(), &mut bytes);
            let by_qp = self.by_qp.lock();
            let endpoint = by_qp.get(&completion.qp_number()).and_then(Weak::upgrade);
            drop(by_qp);
            received = endpoint.map(|endpoint| {
                let mut after = endpoint.peer.after();
                if endpoint.handle_send(SendBody::decode(&bytes[..length]), &mut after) {
                    after.nudge(Transport::Rdma);
                }
                let left = after.set_aside();
                (endpoint, left)
            });
        }
        // An error here means that the device is broken, which its port or its endpoints report.
        let _ = self.notifications.feed(slot);
        received
    }

    /// Returns the endpoint whose completion queue has this cookie, if the endpoint still exists.
    pub fn endpoint(&self, cookie: u64) -> Option<Arc<Endpoint>> {
        self.lock().get(&cookie).and_then(Weak::upgrade)
    }

    /// Notes small work whose completion no thread sleeps for. Its caller asks for it, or the second tick from now
    /// settles it.
    pub fn ensure_ticking(&self) {
        if !self.ticking.load(Ordering::SeqCst) && !self.ticking.swap(true, Ordering::SeqCst) {
            self.poller.wake();
        }
    }

    pub fn is_ticking(&self) -> bool {
        self.ticking.load(Ordering::SeqCst)
    }

    /// Takes a free slot to send a notification from. If there is none, the ticks offer one to all endpoints again: the
    /// endpoint that gives one back may be another peer's.
    pub fn take_slot(&self) -> Option<u32> {
        let slot = self.notifications.take();
        if slot.is_none() {
            self.lacks_slots.store(true, Ordering::SeqCst);
            self.ensure_ticking();
        }
        slot
    }

    /// Ticks: arms endpoints whose work has not moved since the last tick, and makes paths that found no slot post
    /// again. Stops ticking when nothing moves.
    pub fn tick(&self) {
        let endpoints = self.all_endpoints();
        let moves = endpoints.iter().filter(|endpoint| endpoint.tick(&mut endpoint.peer.after())).count() > 0;
        if self.lacks_slots.swap(false, Ordering::SeqCst) {
            endpoints.iter().for_each(|endpoint| endpoint.peer.after().nudge(Transport::Rdma));
        }
        // A path that again finds no slot sets `lacks_slots` again.
        if !moves && !self.lacks_slots.load(Ordering::SeqCst) {
            self.ticking.store(false, Ordering::SeqCst);
            // A thread that posted before the store found the ticks on, and relies on them, at a new endpoint too.
            self.all_endpoints().iter().filter(|endpoint| endpoint.watch.has_work()).for_each(|it| {
                it.ensure_watched(&mut it.peer.after());
            });
            if self.lacks_slots.load(Ordering::SeqCst) {
                self.ensure_ticking();
            }
        }
    }

    pub fn all_endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }
}
