//! The service behind RDMA paths. Its one thread handles device events and the messages of peers' services, makes
//! endpoints and gives them up. The control loop tells it when sessions begin and end (`TransportService`), and closes
//! endpoints through it as lanes. It touches no payload.

use super::device::{Device, DeviceStats};
use super::direct::Direct;
use super::discovery;
use super::flushing::Flushing;
use super::key_holders::KeyHolders;
#[cfg(test)]
use super::path::RdmaPath;
use super::poller::Polling;
use super::session::{EndpointStage, Pair, Session};
use super::sessions::Sessions;
use super::wire::Message;
use super::{DeviceSettings, Usable};
use crate::command::{Command, Commands};
use crate::loss::{Cause, Loss};
use crate::region::holder::Holder;
use crate::region::Registry;
use crate::status::{Error, Result};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::clock;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::poller::{Poller, PollerKind, Ready};
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Next, Turns};
use crate::types::{LaneId, Monotonic, PeerId, RegionId, SessionId, Transport};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const FIRST_DEVICE: u64 = 16;

#[derive(Clone)]
pub struct RdmaSettings {
    pub devices: DeviceSettings,
    /// Names of the devices to use; empty means all.
    pub names: Vec<String>,
    pub qps: u32,
    pub spin_ns: u64,
    /// How long a peer may keep keys after it was asked for them.
    pub lease_ns: u64,
    /// How long to wait for devices that are down, if the peer had an endpoint.
    pub patience: Duration,
    /// How long unused endpoints are kept; zero means for ever.
    pub idle: Duration,
}

pub struct RdmaService {
    pub(super) settings: RdmaSettings,
    pub(super) registry: Arc<Registry>,
    pub(super) commands: Arc<Commands>,
    pub(super) devices: Vec<Arc<Device>>,
    pub(super) key_holders: Arc<KeyHolders>,
    pub(super) poller: Arc<Poller>,
    pollings: Mutex<Vec<Arc<Polling>>>,
    sessions: Mutex<Sessions>,
    /// Peers for which something was queued while their endpoints were given up. A leaf lock: callers may hold others.
    pub(super) wanted: Arc<Mutex<Vec<PeerId>>>,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Number of sessions that were looked after.
    #[cfg(test)]
    served: crate::sys::atomic::AtomicU64,
}

impl RdmaService {
    /// Opens the devices of this host, or returns why RDMA can't be used here. The outer error is an error of the
    /// settings or of the system.
    pub fn new(
        settings: RdmaSettings,
        registry: Arc<Registry>,
        commands: Arc<Commands>,
        direct: Direct,
    ) -> Result<Usable<Arc<RdmaService>>> {
        let devices = match discovery::open(&settings)? {
            Ok(devices) => devices,
            Err(why) => return Ok(Err(why)),
        };
        RdmaService::over(devices, settings, registry, commands, direct).map(Ok)
    }

    fn over(
        devices: Vec<Arc<Device>>,
        settings: RdmaSettings,
        registry: Arc<Registry>,
        commands: Arc<Commands>,
        direct: Direct,
    ) -> Result<Arc<RdmaService>> {
        let poller = Arc::new(Poller::new(PollerKind::Epoll)?);
        for device in &devices {
            device.report_to(&poller, FIRST_DEVICE + device.index as u64)?;
        }
        let key_holders = Arc::new(KeyHolders::new(devices.clone(), direct));
        let service = Arc::new(RdmaService {
            settings,
            registry: registry.clone(),
            commands,
            devices,
            key_holders: key_holders.clone(),
            poller,
            pollings: Mutex::default(),
            sessions: Mutex::new(Sessions::new()),
            wanted: Arc::default(),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
            #[cfg(test)]
            served: Default::default(),
        });
        let weak = Arc::downgrade(&service);
        key_holders.set_ask(move |region| {
            if let Some(service) = weak.upgrade() {
                service.lock().revoking.push(region);
                service.poller.wake();
            }
        });
        registry.set_holder(key_holders as Arc<dyn Holder>);
        Ok(service)
    }

    pub fn start(self: &Arc<RdmaService>) -> Result<()> {
        let mut pollings = self.pollings.lock();
        for device in &self.devices {
            pollings.push(Polling::start(device.clone(), self.settings.spin_ns)?);
        }
        let service = self.clone();
        let poller = self.poller.clone();
        let thread = turns::start("ferry-rdma", "keeping endpoints", poller, move || Some(service))
            .map_err(|error| Error::system("starting the thread for RDMA", &error))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the threads. All sessions must have ended before.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.poller.wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        let pollings = std::mem::take(&mut *self.pollings.lock());
        pollings.into_iter().for_each(|polling| polling.stop());
    }

    /// Returns the paths to all peers.
    #[cfg(test)]
    pub fn paths(&self) -> Vec<Arc<RdmaPath>> {
        self.lock().all.values().map(|session| session.path.clone()).collect()
    }

    /// Returns the current state of each device.
    pub fn devices(&self) -> impl Iterator<Item = DeviceStats<'_>> {
        self.devices.iter().map(|device| device.stats())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// Handles pending work: suspected devices, revoked keys, closed endpoints, and sessions that are due.
    fn work_off(&self, now: Monotonic) {
        let suspected = std::mem::take(&mut self.lock().suspected);
        suspected.into_iter().for_each(|index| self.check_device(&self.devices[index]));
        self.ask_holders();
        self.end_flushed(now);
        self.take_due(now).into_iter().for_each(|peer| self.serve(peer, now));
    }

    pub(super) fn silence(&self) -> Duration {
        Duration::from_nanos(self.settings.lease_ns)
    }

    fn take_due(&self, now: Monotonic) -> BTreeSet<PeerId> {
        let mut due = self.lock().take_due(now);
        due.extend(std::mem::take(&mut *self.wanted.lock()));
        due
    }

    pub(super) fn send(&self, session: &Session, message: &Message) {
        self.commands.push(Command::ServiceMessage {
            peer: session.session_info.peer.handle,
            session_id: session.session_info.session_id,
            transport: Transport::Rdma,
            body: message.encode(),
            why: String::new(),
        });
    }

    pub(super) fn offer(&self) -> Message {
        let (devices, whys): (Vec<_>, Vec<_>) =
            self.devices.iter().map(|device| device.offer()).partition(|offer| offer.is_ok());
        let whys: Vec<String> = whys.into_iter().filter_map(std::result::Result::err).collect();
        Message::Offer { devices: devices.into_iter().flatten().collect(), why: whys.join("; ") }
    }

    /// Drains the events of a device and looks at its port, which may have come up or gone down.
    fn device_event(&self, index: usize) {
        let Some(device) = self.devices.get(index) else { return };
        while let Ok(Some(_)) = device.pd.context().next_event() {}
        self.check_device(device);
    }

    fn check_device(&self, device: &Arc<Device>) {
        if !device.refresh_port() {
            return;
        }
        if !device.is_up() {
            device.all_endpoints().iter().for_each(|endpoint| endpoint.fail("its port is down".into()));
        }
        let offer = self.offer();
        let mut peers = Vec::new();
        self.lock().all.change_all(|session| {
            self.send(session, &offer);
            session.plan(&self.devices);
            peers.push(session.session_info.peer.handle);
            true
        });
        // If the last port is down, transfers that wait for an endpoint wait in vain, whichever thread closed the last
        // one.
        peers.into_iter().for_each(|peer| self.report_state(peer));
        self.poller.wake();
    }

    fn serve(&self, peer: PeerId, now: Monotonic) {
        #[cfg(test)]
        self.served.fetch_add(1, Ordering::Relaxed);
        while let Some((message, id)) = self.next_message(peer) {
            self.handle_message(peer, id, message);
        }
        self.time(peer, now);
        self.settle(peer);
        self.plan(peer);
    }

    /// Schedules the next check of this session.
    fn plan(&self, peer: PeerId) {
        let mut sessions = self.lock();
        let next =
            |session: &Session| session.next_due(clock::monotonic_ns(), self.silence(), self.settings.idle);
        let at = sessions.all.get(&peer).and_then(next);
        sessions.all.plan(peer, at);
    }

    fn next_message(&self, peer: PeerId) -> Option<(Message, SessionId)> {
        let mut sessions = self.lock();
        let session = sessions.all.get_mut(&peer)?;
        Some((session.inbox.pop_front()?, session.session_info.session_id))
    }

    /// Calls `act` with the session, if it is still the session with this id.
    pub(super) fn with<T>(
        &self,
        peer: PeerId,
        id: SessionId,
        act: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let mut sessions = self.lock();
        sessions.all.get_mut(&peer).filter(|session| session.session_info.session_id == id).map(act)
    }

    fn handle_message(&self, peer: PeerId, id: SessionId, message: Message) {
        match message {
            Message::Offer { devices, why } => {
                let gone = self
                    .with(peer, id, |session| session.offered(devices, why, &self.devices))
                    .unwrap_or_default();
                gone.into_iter().for_each(|lane| self.give_up(peer, lane));
                self.report_state(peer);
            }
            Message::Revoked(regions) => {
                let asked = self.with(peer, id, |session| session.let_go(&regions)).unwrap_or_default();
                self.release(&mut self.lock().flushing, &asked, peer);
            }
            // `message` has taken these in on arrival.
            Message::Keys(_) | Message::Revoke(_) => {}
            Message::Connect { lane, own, other, side } => self.answer(peer, id, lane, (other, own), side),
            Message::Accept { lane, side } => self.accepted(peer, id, lane, side),
            Message::Refuse { lane, why } => self.close_quietly(peer, id, lane, &why),
            Message::Established { lane } => {
                self.with(peer, id, |session| session.opened(lane, EndpointStage::Answered));
                self.report_state(peer);
            }
            Message::Idle => self.peer_is_idle(peer, id),
            Message::Wake => self.wake(peer, id),
            Message::Settled { .. } => {
                self.with(peer, id, |session| session.is_settled = true);
                self.report_state(peer);
            }
        }
    }

    /// Releases the peer's keys of these regions, as soon as all its closed endpoints are destroyed.
    fn release(&self, flushing: &mut Flushing, regions: &[RegionId], peer: PeerId) {
        if flushing.has(peer) {
            flushing.let_go(peer, regions)
        } else {
            self.key_holders.release(regions, peer)
        }
    }

    /// Asks the control loop to close an endpoint and to fence its lane.
    pub(super) fn give_up(&self, peer: PeerId, lane: LaneId) {
        let loss = Loss::of(Cause::Ours, format!("RDMA lane {lane} was given up")).over(Transport::Rdma);
        self.commands.push(Command::LaneLost { peer, lane, loss });
    }

    /// Handles timeouts and probes that were answered.
    fn time(&self, peer: PeerId, now: Monotonic) {
        if let Some(id) = self.wanted(peer) {
            self.wake(peer, id);
        }
        if self.lock().all.get_mut(&peer).is_some_and(|session| session.give_up_parted(now)) {
            self.report_state(peer);
        }
        let Some((id, due, stuck, proven)) = self.check_times(peer, now) else { return };
        due.into_iter().for_each(|pair| self.ask(peer, id, pair));
        stuck.into_iter().for_each(|lane| self.give_up(peer, lane));
        for lane in &proven {
            self.with(peer, id, |session| {
                session.opened(*lane, EndpointStage::Probing);
                self.send(session, &Message::Established { lane: *lane });
            });
        }
        if !proven.is_empty() {
            self.report_state(peer);
        }
    }

    #[allow(clippy::type_complexity)]
    fn check_times(
        &self,
        peer: PeerId,
        now: Monotonic,
    ) -> Option<(SessionId, Vec<Pair>, Vec<LaneId>, Vec<LaneId>)> {
        let sessions = &mut *self.lock();
        let session = sessions.all.get_mut(&peer)?;
        for regions in session.take_acks() {
            self.send(session, &Message::Revoked(regions));
        }
        if session.ask_idle(now, self.settings.idle) {
            self.send(session, &Message::Idle);
        }
        let mut stuck = session.stuck(now);
        let overdue = session.overdue(now, self.silence());
        if !overdue.is_empty() {
            // A peer that keeps its keys for too long loses the endpoints through which it could use them.
            stuck.extend(session.entries.keys());
            if session.entries.is_empty() {
                session.asked.retain(|(_, region)| !overdue.contains(region));
                self.release(&mut sessions.flushing, &overdue, peer);
            }
        }
        let proven = session.entries.iter().filter(|(_, entry)| {
            entry.stage == EndpointStage::Probing && entry.endpoint.is_proven() && !entry.endpoint.is_broken()
        });
        let proven = proven.map(|(lane, _)| *lane).collect();
        Some((session.session_info.session_id, session.due(now), stuck, proven))
    }

    /// Reports once, after the first attempts, that their result is known.
    fn settle(&self, peer: PeerId) {
        let mut sessions = self.lock();
        let Some(session) = sessions.all.get_mut(&peer).filter(|session| !session.is_settled) else { return };
        let hopeless = session.why_not(&self.devices).is_some_and(|(_, pending)| !pending);
        if session.is_tried() || hopeless || session.is_late(clock::monotonic_ns()) {
            session.is_settled = true;
            if session.session_info.dialer {
                self.send(session, &Message::Settled { why: String::new() });
            }
            drop(sessions);
            self.report_state(peer);
        }
    }

    /// Tells the control loop whether there is a path. Reports nothing before the first attempts are over.
    pub(super) fn report_state(&self, peer: PeerId) {
        let sessions = self.lock();
        let Some(session) = sessions.all.get(&peer) else { return };
        let why = session.why_not(&self.devices);
        if !session.is_settled {
            return;
        }
        let pending = why.as_ref().is_some_and(|(_, pending)| *pending);
        let why = why.map(|(why, _)| why);
        self.commands.push(Command::PathSettled { peer, transport: Transport::Rdma, why, pending });
    }
}

impl Turns for Arc<RdmaService> {
    fn turn(&mut self, now: Monotonic, ready: &[Ready]) -> Next {
        for event in ready {
            if let Some(device) = event.token.checked_sub(FIRST_DEVICE) {
                self.device_event(device as usize);
            }
        }
        self.work_off(now);
        if self.stopping.load(Ordering::SeqCst) {
            Next::Over
        } else {
            Next::at(self.lock().next_due(now))
        }
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
