//! The service behind RDMA paths: one thread that listens to the devices and to what peers' services say,
//! makes endpoints and gives them up. The control loop tells it which sessions stand (`Companion`), and has it
//! close endpoints as it closes lanes. No payload passes here.

use super::device::{Device, DeviceStats};
use super::direct::Direct;
use super::discovery;
use super::held::Held;
use super::link::RdmaLink;
use super::poller::Polling;
use super::session::{Pair, Session, Stage};
use super::wire::Word;
use super::DeviceSettings;
use crate::command::{Command, Commands};
use crate::limits::COMPANION_LANES_FROM;
use crate::loss::{Cause, Loss};
use crate::peer::{Companion, Link, Posted, Ticket};
use crate::region::holder::Holder;
use crate::region::Registry;
use crate::status::{Error, Result};
use crate::sys::health;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::poller::{Poller, PollerKind, Ready};
use crate::types::Transport;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Endpoints are lanes to the session; their numbers begin where no TCP lane's are.
pub(super) const FIRST_LANE: u32 = COMPANION_LANES_FROM;
const FIRST_DEVICE: u64 = 16;

#[derive(Clone)]
pub struct Settings {
    pub devices: DeviceSettings,
    /// Names of the devices to use; all, if there are none.
    pub names: Vec<String>,
    pub qps: u32,
    pub spin_ns: u64,
    /// How long a peer may hold keys that it was asked to let go of.
    pub lease_ns: u64,
    /// How long devices that are down are waited for where there was a path.
    pub patience: Duration,
    /// How long endpoints are kept with nothing to do; zero is for ever.
    pub idle: Duration,
}

pub struct Service {
    pub(super) settings: Settings,
    pub(super) registry: Arc<Registry>,
    pub(super) commands: Arc<Commands>,
    pub(super) devices: Vec<Arc<Device>>,
    pub(super) held: Arc<Held>,
    poller: Arc<Poller>,
    pollings: Mutex<Vec<Arc<Polling>>>,
    sessions: Mutex<Sessions>,
    pub(super) next_lane: AtomicU32,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
pub(super) struct Sessions {
    /// By the peer's handle, from the session's beginning to its end.
    pub(super) all: HashMap<u64, Session>,
    /// Peers whose sessions are over, and since when they have had no endpoint where there was one.
    parted: HashMap<u64, Instant>,
    /// Those that have something to look at.
    work: BTreeSet<u64>,
    /// Regions that are being unregistered, whose holders have not been asked yet.
    pub(super) revoking: Vec<u64>,
}

impl Service {
    /// Opens the devices that there are, or says why RDMA can't be used here. The outer error is of the
    /// settings, or of the system.
    pub fn new(
        settings: Settings,
        registry: Arc<Registry>,
        commands: Arc<Commands>,
        direct: Direct,
    ) -> Result<std::result::Result<Arc<Service>, String>> {
        let devices = match discovery::open(&settings)? {
            Ok(devices) => devices,
            Err(why) => return Ok(Err(why)),
        };
        let poller = Arc::new(Poller::new(PollerKind::Epoll)?);
        for device in &devices {
            device.report_to(&poller, FIRST_DEVICE + device.index as u64)?;
        }
        let held = Arc::new(Held::new(devices.clone(), direct));
        let service = Arc::new(Service {
            settings,
            registry: registry.clone(),
            commands,
            devices,
            held: held.clone(),
            poller,
            pollings: Mutex::default(),
            sessions: Mutex::default(),
            next_lane: AtomicU32::new(FIRST_LANE),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let weak = Arc::downgrade(&service);
        held.set_ask(move |region| {
            if let Some(service) = weak.upgrade() {
                service.lock().revoking.push(region);
                service.poller.wake();
            }
        });
        registry.set_holder(held as Arc<dyn Holder>);
        Ok(Ok(service))
    }

    pub fn start(self: &Arc<Service>) -> Result<()> {
        let mut pollings = self.pollings.lock();
        for device in &self.devices {
            pollings.push(Polling::start(device.clone(), self.settings.spin_ns)?);
        }
        let service = self.clone();
        let thread = crate::sys::thread::spawn("ferry-rdma", move || {
            health::doing("keeping endpoints");
            health::woken_by(&|| service.poller.wake(), || service.run());
        })
        .map_err(|error| Error::system("starting the thread for RDMA", &error))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the threads. The sessions have ended before.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.poller.wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        let pollings = std::mem::take(&mut *self.pollings.lock());
        pollings.into_iter().for_each(|polling| polling.stop());
    }

    /// The paths to all peers.
    #[cfg(test)]
    pub fn links(&self) -> Vec<Arc<RdmaLink>> {
        self.lock().all.values().map(|session| session.link.clone()).collect()
    }

    /// Each device as it is now.
    pub fn devices(&self) -> impl Iterator<Item = DeviceStats<'_>> {
        self.devices.iter().map(|device| device.stats())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    fn run(&self) {
        let mut ready: Vec<Ready> = Vec::new();
        while !self.stopping.load(Ordering::SeqCst) {
            let timeout = self.next_look().map(|at| at.saturating_duration_since(Instant::now()));
            ready.clear();
            if self.poller.wait(&mut ready, timeout.map(|left| left.as_nanos() as u64)).is_err() {
                std::thread::yield_now();
            }
            for event in &ready {
                if let Some(device) = event.token.checked_sub(FIRST_DEVICE) {
                    self.device_event(device as usize);
                }
            }
            self.ask_holders();
            let now = Instant::now();
            let due = self.take_due(now);
            due.into_iter().for_each(|peer| self.look_after(peer, now));
        }
    }

    fn silence(&self) -> Duration {
        Duration::from_nanos(self.settings.lease_ns)
    }

    fn next_look(&self) -> Option<Instant> {
        let sessions = self.lock();
        let now = Instant::now();
        if !sessions.work.is_empty() || !sessions.revoking.is_empty() {
            return Some(now);
        }
        let times = |session: &Session| session.next_look(now, self.silence(), self.settings.idle);
        sessions.all.values().filter_map(times).min()
    }

    fn take_due(&self, now: Instant) -> Vec<u64> {
        let mut sessions = self.lock();
        let mut due = std::mem::take(&mut sessions.work);
        let soon = now + Duration::from_millis(1);
        let next = |session: &Session| session.next_look(now, self.silence(), self.settings.idle);
        let timed = sessions.all.iter().filter(|(_, session)| next(session).is_some_and(|at| at <= soon));
        due.extend(timed.map(|(peer, _)| *peer));
        due.into_iter().collect()
    }

    pub(super) fn tell(&self, session: &Session, word: &Word) {
        self.commands.push(Command::Tell {
            peer: session.ticket.peer.handle,
            session_id: session.ticket.session_id,
            transport: Transport::Rdma,
            body: word.encode(),
            why: String::new(),
        });
    }

    fn offer(&self) -> Word {
        let (devices, whys): (Vec<_>, Vec<_>) =
            self.devices.iter().map(|device| device.offer()).partition(|offer| offer.is_ok());
        let whys: Vec<String> = whys.into_iter().filter_map(std::result::Result::err).collect();
        Word::Offer { devices: devices.into_iter().flatten().collect(), why: whys.join("; ") }
    }

    /// A device says something: its port may have come or gone.
    fn device_event(&self, index: usize) {
        let Some(device) = self.devices.get(index) else { return };
        while let Ok(Some(_)) = device.pd.context().next_event() {}
        self.look_at(device);
    }

    fn look_at(&self, device: &Arc<Device>) {
        if !device.look() {
            return;
        }
        if !device.is_up() {
            device.all_endpoints().iter().for_each(|endpoint| endpoint.fail("its port is down".into()));
        }
        let offer = self.offer();
        let mut sessions = self.lock();
        let Sessions { all, work, .. } = &mut *sessions;
        for (peer, session) in all.iter_mut() {
            self.tell(session, &offer);
            session.plan(&self.devices);
            work.insert(*peer);
        }
        let peers: Vec<u64> = all.keys().copied().collect();
        drop(sessions);
        // With the last port gone what waits for an endpoint waits in vain, whoever closed the last one.
        peers.into_iter().for_each(|peer| self.say_state(peer));
        self.poller.wake();
    }

    fn look_after(&self, peer: u64, now: Instant) {
        while let Some((word, id)) = self.next_word(peer) {
            self.heard(peer, id, word);
        }
        self.time(peer, now);
        self.settle(peer);
    }

    fn next_word(&self, peer: u64) -> Option<(Word, [u8; 16])> {
        let mut sessions = self.lock();
        let session = sessions.all.get_mut(&peer)?;
        Some((session.inbox.pop_front()?, session.ticket.session_id))
    }

    /// The session, if it is still that one.
    pub(super) fn with<T>(&self, peer: u64, id: [u8; 16], act: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let mut sessions = self.lock();
        sessions.all.get_mut(&peer).filter(|session| session.ticket.session_id == id).map(act)
    }

    fn heard(&self, peer: u64, id: [u8; 16], word: Word) {
        match word {
            Word::Offer { devices, why } => {
                let gone = self
                    .with(peer, id, |session| session.offered(devices, why, &self.devices))
                    .unwrap_or_default();
                gone.into_iter().for_each(|lane| self.give_up(peer, lane));
                self.say_state(peer);
            }
            Word::Revoked(regions) => {
                let asked = self.with(peer, id, |session| session.let_go(&regions)).unwrap_or_default();
                self.held.release(&asked, peer);
            }
            // Taken in as they came: `message`.
            Word::Keys(_) | Word::Revoke(_) => {}
            Word::Connect { lane, own, other, side } => self.answer(peer, id, lane, (other, own), side),
            Word::Accept { lane, side } => self.accepted(peer, id, lane, side),
            Word::Refuse { lane, why } => self.close_quietly(peer, id, lane, &why),
            Word::Established { lane } => {
                self.with(peer, id, |session| session.opened(lane, Stage::Answered));
                self.say_state(peer);
            }
            Word::Idle => self.heard_idle(peer, id),
            Word::Wake => self.wake(peer, id),
            Word::Settled { .. } => {
                self.with(peer, id, |session| session.is_settled = true);
                self.say_state(peer);
            }
        }
    }

    /// Has the control loop close an endpoint, and fence what it carries.
    pub(super) fn give_up(&self, peer: u64, lane: u32) {
        let loss = Loss::told(Cause::Ours, format!("RDMA lane {lane} was given up")).over(Transport::Rdma);
        self.commands.push(Command::LaneLost { peer, lane, loss });
    }

    /// What time, and completions, ask for.
    fn time(&self, peer: u64, now: Instant) {
        if let Some(id) = self.wanted(peer) {
            self.wake(peer, id);
        }
        if self.lock().all.get_mut(&peer).is_some_and(|session| session.gives_up(now)) {
            self.say_state(peer);
        }
        let Some((id, due, stuck, proven)) = self.look_at_time(peer, now) else { return };
        due.into_iter().for_each(|pair| self.ask(peer, id, pair));
        stuck.into_iter().for_each(|lane| self.give_up(peer, lane));
        for lane in &proven {
            self.with(peer, id, |session| {
                session.opened(*lane, Stage::Probing);
                self.tell(session, &Word::Established { lane: *lane });
            });
        }
        if !proven.is_empty() {
            self.say_state(peer);
        }
    }

    #[allow(clippy::type_complexity)]
    fn look_at_time(&self, peer: u64, now: Instant) -> Option<([u8; 16], Vec<Pair>, Vec<u32>, Vec<u32>)> {
        let mut sessions = self.lock();
        let session = sessions.all.get_mut(&peer)?;
        for regions in session.take_acks() {
            self.tell(session, &Word::Revoked(regions));
        }
        if session.asks_idle(now, self.settings.idle) {
            self.tell(session, &Word::Idle);
        }
        let mut stuck = session.stuck(now);
        let silence = self.silence();
        let overdue: Vec<u64> =
            session.asked.iter().filter(|(since, _)| *since + silence <= now).map(|(_, it)| *it).collect();
        if !overdue.is_empty() {
            // A peer that does not let go loses the endpoints through which it could use the keys.
            stuck.extend(session.entries.keys());
            if session.entries.is_empty() {
                session.asked.retain(|(_, region)| !overdue.contains(region));
                self.held.release(&overdue, peer);
            }
        }
        let proven = session.entries.iter().filter(|(_, entry)| {
            entry.stage == Stage::Probing && entry.endpoint.is_proven() && !entry.endpoint.is_broken()
        });
        let proven = proven.map(|(lane, _)| *lane).collect();
        Some((session.ticket.session_id, session.due(now), stuck, proven))
    }

    /// Says, once, what became of the first attempts.
    fn settle(&self, peer: u64) {
        let mut sessions = self.lock();
        let Some(session) = sessions.all.get_mut(&peer).filter(|session| !session.is_settled) else { return };
        let hopeless = session.why_not(&self.devices).is_some_and(|(_, pending)| !pending);
        if session.is_tried() || hopeless || session.is_late(Instant::now()) {
            session.is_settled = true;
            if session.ticket.dialer {
                self.tell(session, &Word::Settled { why: String::new() });
            }
            drop(sessions);
            self.say_state(peer);
        }
    }

    /// Tells the control loop whether there is a path. Before the first attempts are over it has to wait,
    /// unless there is one.
    pub(super) fn say_state(&self, peer: u64) {
        let sessions = self.lock();
        let Some(session) = sessions.all.get(&peer) else { return };
        let why = session.why_not(&self.devices);
        if !session.is_settled {
            return;
        }
        let pending = why.as_ref().is_some_and(|(_, pending)| *pending);
        let why = why.map(|(why, _)| why);
        self.commands.push(Command::CompanionSettled { peer, transport: Transport::Rdma, why, pending });
    }
}

impl Companion for Service {
    fn begin(&self, ticket: Ticket) {
        let peer = ticket.peer.handle;
        let poller = self.poller.clone();
        let call = Box::new(move || poller.wake());
        let link = RdmaLink::new(ticket.peer.clone(), self.registry.clone(), self.settings.spin_ns, call);
        let mut sessions = self.lock();
        let parted = sessions.parted.remove(&peer);
        let session = Session::new(ticket, Arc::new(link), self.settings.patience, parted);
        // The control loop asks for the regions' keys, in turns, and says this after them: nothing is posted here
        // before.
        self.tell(&session, &self.offer());
        sessions.all.insert(peer, session);
        sessions.work.insert(peer);
        drop(sessions);
        self.poller.wake();
    }

    fn message(&self, peer: u64, body: &[u8]) -> bool {
        let Ok(word) = Word::decode(body) else { return false };
        let mut sessions = self.lock();
        let Some(session) = sessions.all.get_mut(&peer) else { return true };
        let taken = match word {
            // Before the next message is looked at: it may announce the region to whoever submits.
            Word::Keys(keys) => {
                session.link.keys.add(keys);
                return true;
            }
            Word::Revoke(regions) => session.revoked(regions),
            word => session.hear(word),
        };
        sessions.work.insert(peer);
        drop(sessions);
        self.poller.wake();
        taken
    }

    fn refused(&self, peer: u64, why: String) -> bool {
        let mut sessions = self.lock();
        let Some(session) = sessions.all.get_mut(&peer) else { return true };
        let taken = session.hear(Word::Offer { devices: Vec::new(), why });
        sessions.work.insert(peer);
        drop(sessions);
        self.poller.wake();
        taken
    }

    fn link(&self, peer: u64) -> Option<(Arc<dyn Link>, String)> {
        let sessions = self.lock();
        let session = sessions.all.get(&peer)?;
        session.why_not(&self.devices).is_none().then(|| {
            let link: Arc<dyn Link> = session.link.clone();
            (link, session.how())
        })
    }

    fn regions_added(&self, peer: u64, ids: &[u64]) -> Vec<Vec<u8>> {
        // Sessions begin and end on the calling thread: a region that is revoked meanwhile finds it there to ask.
        if !self.lock().all.contains_key(&peer) {
            return Vec::new();
        }
        let map = self.registry.snapshot();
        let regions = ids.iter().filter_map(|id| map.get(*id));
        regions.flat_map(|region| self.keys_of(region, peer)).map(|word| word.encode()).collect()
    }

    fn regions_removed(&self, _ids: &[u64]) {}

    fn carriers(&self, peer: u64, transfer: u64) -> Vec<u32> {
        let sessions = self.lock();
        let Some(session) = sessions.all.get(&peer) else { return Vec::new() };
        let carrying = session.entries.iter().filter(|(_, entry)| entry.endpoint.carries(transfer));
        carrying.map(|(lane, _)| *lane).collect()
    }

    fn close_lane(&self, peer: u64, lane: u32) -> Option<Vec<Posted>> {
        let endpoint = {
            let mut sessions = self.lock();
            let session = sessions.all.get_mut(&peer)?;
            let why = session.entries.get(&lane)?.endpoint.why().to_owned();
            let endpoint = session.take(lane, &why)?;
            sessions.work.insert(peer);
            endpoint
        };
        let records = endpoint.close();
        // Whether the device is to blame, its port tells.
        self.look_at(&endpoint.device);
        self.say_state(peer);
        self.poller.wake();
        Some(records)
    }

    fn end(&self, peer: u64) -> Vec<(u32, Vec<Posted>)> {
        let mut sessions = self.lock();
        let Some(mut session) = sessions.all.remove(&peer) else { return Vec::new() };
        // Whoever may be reached again is waited for as if the session had stood.
        if let Some(since) = session.parted() {
            sessions.parted.insert(peer, since);
        }
        drop(sessions);
        let lanes = session.take_all().into_iter().map(|it| (it.lane, it.close())).collect();
        self.held.release_all(peer);
        lanes
    }

    fn forget(&self, peer: u64) {
        self.lock().parted.remove(&peer);
    }

    /// Ending a session destroys its queue pairs: nothing comes after that.
    fn is_quiet(&self, _peer: u64) -> bool {
        true
    }
}
