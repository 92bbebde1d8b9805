//! A transport for tests alone: two engines of one process copy between their registered memory. It has what a
//! transport needs and no more (ARCHITECTURE.md, "How to add a transport").
//!
//! A session has one lane, for both directions. The dialer leaves the lane in `OFFERED` and tells its number; the
//! acceptor takes the lane from there and answers. One thread of each engine copies what that engine posts.

use crate::complete::{transfer::Failure, Fence};
use crate::loss::{Cause, Loss};
use crate::peer::outbox::{PullLimits, Pulled};
use crate::peer::{After, Closed, Path, Peer, SessionInfo, TransportService};
use crate::region::{self, RegionMap, RemoteMap};
use crate::status::{Error, Status};
use crate::sys::poller::{Poller, PollerKind, Ready};
use crate::sys::turns::{self, Next, Turns};
use crate::sys::{clock, lock::Mutex, map::HashMap, once::OnceLock, racing, thread::JoinHandle};
use crate::types::{Boottime, LaneId, Monotonic, Op, PeerId, Range, RegionId, SessionId, Slice, Transport};
use crate::{command::Command, context::Context};
use std::{collections::BTreeMap, sync::Arc};

const TRANSPORT: Transport = Transport::Loopback;

/// Lanes that no acceptor has taken yet, by the id of the session.
static OFFERED: Mutex<BTreeMap<SessionId, Arc<Lane>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Lane {
    number: LaneId,
    /// The dialer's end and the acceptor's.
    ends: [OnceLock<End>; 2],
    /// Whether the lane is closed. Locked while a frame is copied and settled.
    closed: Mutex<bool>,
}

/// An engine, and the engine at the other end as this one sees it.
struct End(Arc<Context>, Arc<Peer>);

impl Lane {
    /// Waits for the frame that is being copied and lets no other begin, which keeps contract 3. No frame is posted and
    /// not settled then.
    fn close(&self) -> Closed {
        if !std::mem::replace(&mut *self.closed.lock(), true) {
            for End(context, peer) in self.ends.iter().filter_map(OnceLock::get) {
                let loss = Loss::of(Cause::Closed, "an engine closed the lane").over(TRANSPORT);
                context.commands.push(Command::LaneLost { peer: peer.handle, lane: self.number, loss });
            }
        }
        Closed::Quiet(Vec::new())
    }

    /// Copies one frame of this end's engine and settles it. False if none waits or none can go.
    fn step(&self, side: usize, express: bool) -> bool {
        let (own, target) = (self.ends[side].get(), self.ends[1 - side].get());
        let (Some(End(_, peer)), Some(target)) = (own, target) else { return false };
        let Some(not_after_ns) = peer.clock.not_after(clock::boottime_ns()) else {
            peer.ask();
            return false;
        };
        let mut after = peer.after(); // dropped after the lock
        let closed = self.closed.lock();
        let limits = PullLimits::data(crate::limits::FRAME_BYTES_MAX);
        let pulled = if *closed { None } else { peer.pull(TRANSPORT, express, limits) };
        let Some(Pulled::Slices { transfer, range, .. }) = pulled else { return false };
        transfer.mark_started();
        let map = target.0.registry.snapshot();
        let (mut stop, mut bytes, mut failures) = (range.first, 0, Vec::new());
        for slice in range.of(&transfer.spec.slices) {
            match target.copy(&map, transfer.spec.op, slice, not_after_ns) {
                Ok(true) => {}
                Ok(false) => break,
                Err(status) => failures.push(Failure { slice: stop, status, os_error: 0, vendor_error: 0 }),
            }
            bytes += u64::from(slice.length);
            stop += 1;
        }
        let (done, left) = range.split_at(stop);
        if !done.is_empty() {
            peer.answered(&transfer, done, bytes, &failures, false, &mut after);
        }
        if !left.is_empty() {
            peer.release_run(&transfer, left, false, Fence::Confirmed, &mut after);
        }
        true
    }
}

impl End {
    /// Copies a slice from or to memory of this engine, the target. False: the lease is over, and nothing was copied.
    fn copy(&self, map: &RegionMap, op: Op, slice: &Slice, not_after_ns: Boottime) -> Result<bool, Status> {
        let length = u64::from(slice.length);
        let region = match region::admit(map, self.0.tag, op, (slice.region, slice.remote, length))? {
            region if region.is_device() => return Err(Status::Unsupported),
            region if !region.enter() => return Err(Status::Stale),
            region => region,
        };
        let in_time = clock::boottime_ns() <= not_after_ns;
        if in_time {
            let (here, there) = (slice.local as usize, slice.remote as usize);
            let (from, mut to) = if op == Op::Write { (here, there) } else { (there, here) };
            // SAFETY: the target's range was admitted inside a region that is entered. The initiator's lies in
            // regions that the transfer has entered until it is final. Both are of this process: they are mapped.
            unsafe {
                racing::for_each_part(from as *const u8, slice.length as usize, |part| {
                    racing::copy_in(to as *mut u8, part);
                    to += part.len();
                });
            }
            if op == Op::Write && clock::boottime_ns() > not_after_ns {
                self.1.late_apply(region.id, slice.remote, length);
            }
        }
        region.leave();
        Ok(in_time)
    }
}

/// The sleeper of the engine's thread, which posts all classes, EXPRESS too: this path need not be fast.
struct LoopbackPath(Arc<Poller>);

impl Path for LoopbackPath {
    fn carries(&self, ranges: &[Range], known: &RemoteMap, alone: bool) -> bool {
        let found = |it: &Range| known.find(it.remote, it.length).is_some();
        alone || ranges.iter().all(|it| it.region != RegionId::NONE || found(it))
    }

    fn nudge(&self, _after: &mut After) {
        self.0.wake();
    }
}

pub struct Service(Arc<Context>, Mutex<LoopbackState>, Arc<Poller>);

#[derive(Default)]
struct LoopbackState {
    sessions: HashMap<PeerId, SessionInfo>,
    /// The lane to each peer, and which end is here.
    lanes: HashMap<PeerId, (Arc<Lane>, usize)>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// The service of an engine whose settings name this transport.
    pub fn installed(context: &Arc<Context>) -> Result<Arc<dyn TransportService>, String> {
        let is_named = context.config.transports.0 & TRANSPORT.bit() != 0;
        let poller = Poller::new(PollerKind::Epoll).map_err(|error| error.message)?;
        let service = || Arc::new(Service(context.clone(), Mutex::default(), Arc::new(poller))) as _;
        is_named.then(service).ok_or_else(|| "not named by the settings".into())
    }

    /// This engine's end of a lane. Contract 3: a lane whose number is taken or fenced carries nothing.
    fn attach(&self, info: &SessionInfo, lane: Arc<Lane>) -> (Arc<Lane>, usize) {
        let side = usize::from(!info.dialer);
        let _ = lane.ends[side].set(End(self.0.clone(), info.peer.clone()));
        if !info.lane_numbers.take(lane.number) {
            lane.close();
        }
        (lane, side)
    }
}

impl Turns for Arc<Service> {
    fn turn(&mut self, _: Monotonic, _: &[Ready]) -> Next {
        let lanes: Vec<_> = self.1.lock().lanes.values().cloned().collect();
        let step = |(lane, side): &(Arc<Lane>, usize)| lane.step(*side, true) | lane.step(*side, false);
        match (lanes.iter().fold(false, |more, lane| step(lane) | more), &self.1.lock().thread) {
            (true, _) => Next::Again,
            (_, None) => Next::Over,
            _ => Next::WhenWoken,
        }
    }
}

impl TransportService for Service {
    fn start(self: Arc<Self>) -> Result<(), Error> {
        let (service, mut state) = (self.clone(), self.1.lock());
        let thread = turns::start("ferry-loopback", "copying", self.2.clone(), || Some(service));
        state.thread = Some(thread.map_err(|error| Error::system("starting ferry-loopback", &error))?);
        Ok(())
    }

    fn stop(&self) {
        let thread = self.1.lock().thread.take();
        self.2.wake();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn bury(&self) -> bool {
        self.1.lock().lanes.values().for_each(|(lane, _)| drop(lane.close()));
        true
    }

    fn begin(&self, info: SessionInfo) {
        let mut state = self.1.lock();
        if info.dialer {
            let lane = Arc::new(Lane { number: info.lane_numbers.draw(), ..Lane::default() });
            OFFERED.lock().insert(info.session_id, lane.clone());
            info.send(TRANSPORT, lane.number.raw().to_le_bytes().to_vec(), String::new());
            state.lanes.insert(info.peer.handle, self.attach(&info, lane));
        }
        state.sessions.insert(info.peer.handle, info);
    }

    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        let Ok(number) = body.try_into().map(|bytes| LaneId::from_raw(u32::from_le_bytes(bytes))) else {
            return false;
        };
        let LoopbackState { sessions, lanes, .. } = &mut *self.1.lock();
        let Some(info) = sessions.get(&peer) else { return true };
        let mut why = None;
        if !info.dialer {
            match OFFERED.lock().remove(&info.session_id).filter(|lane| lane.number == number) {
                Some(lane) => drop(lanes.insert(peer, self.attach(info, lane))),
                None => why = Some("the peer is in another process".to_owned()),
            }
            info.send(TRANSPORT, body.to_vec(), why.clone().unwrap_or_default());
        }
        info.settled(TRANSPORT, why);
        true
    }

    fn refused(&self, peer: PeerId, why: String) -> bool {
        let info = &self.1.lock().sessions;
        info.get(&peer).into_iter().for_each(|info| info.settled(TRANSPORT, Some(why.clone())));
        true
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        let lane = self.1.lock().lanes.contains_key(&peer);
        lane.then(|| (Arc::new(LoopbackPath(self.2.clone())) as _, "within one process".into()))
    }

    fn close_lane(&self, peer: PeerId, number: LaneId) -> Option<Closed> {
        let lanes = &mut self.1.lock().lanes;
        let (lane, _) = lanes.get(&peer).filter(|(lane, _)| lane.number == number)?;
        let closed = lane.close();
        lanes.remove(&peer);
        // Connected anew, the session has another lane.
        self.0.commands.push(Command::PathBroken { peer, transport: TRANSPORT });
        Some(closed)
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        let mut state = self.1.lock();
        state.sessions.remove(&peer).map(|info| OFFERED.lock().remove(&info.session_id));
        state.lanes.remove(&peer).into_iter().map(|(lane, _)| (lane.number, lane.close())).collect()
    }
}

#[path = "loopback_tests.rs"]
mod tests;
