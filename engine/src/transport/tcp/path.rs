//! A peer's lanes as one path: picks the lane for each class, and lets a waiting thread drive the express lane itself.

use crate::command::Command;
use crate::complete::Transfer;
use crate::peer::outbox::Class;
use crate::peer::transport::{BULK, EXPRESS};
use crate::peer::{After, Path, Peer};
use crate::region::RemoteMap;
use crate::sys::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sys::clock;
use crate::sys::lock::RwLock;
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::rx::By;
use crate::transport::tcp::worker::GAP_SPINS;
use crate::types::{Monotonic, Range, Transport};
use std::sync::{Arc, Weak};

/// How long a waiting thread lets another one have the lane before it leaves the lane to the worker.
const HELD_NS: u64 = 1_000_000;

/// The lanes by slot: slot 0 is the express lane, the others carry bulk.
pub struct TcpPath {
    /// Weak, because the peer holds the path.
    peer: Weak<Peer>,
    /// The kinds of lanes that the service was asked for. Each is requested once: from then on a lost lane is
    /// opened again without a request.
    wanted: AtomicU32,
    slots: RwLock<Vec<Option<Arc<Lane>>>>,
    spin_ns: u64,
    /// Whether the last wait was short enough for spinning to pay; a hint.
    spin_pays: AtomicBool,
    express_bytes_max: u64,
}

impl TcpPath {
    pub fn new(peer: &Arc<Peer>, lanes: u32, spin_ns: u64, express_bytes_max: u64) -> TcpPath {
        TcpPath {
            peer: Arc::downgrade(peer),
            wanted: AtomicU32::new(0),
            slots: RwLock::new(vec![None; lanes as usize]),
            spin_ns,
            spin_pays: AtomicBool::new(true),
            express_bytes_max,
        }
    }

    /// Requests lanes of this kind if work waits for them. The caller has queued the work before.
    fn want(&self, kind: u32) {
        if self.wanted.load(Ordering::Relaxed) & kind != 0 {
            return;
        }
        let Some(peer) = self.peer.upgrade() else { return };
        if !peer.has_work(Transport::Tcp, kind == EXPRESS)
            || self.wanted.fetch_or(kind, Ordering::Relaxed) & kind != 0
        {
            return;
        }
        // After the bit is set: `set` calls `update_express` under the lock too, so the later call sees both changes.
        self.update_express(&self.slots.read());
        peer.engine().commands.push(Command::PathWants { peer: peer.handle, transport: Transport::Tcp });
    }

    /// Returns the kinds of lanes that work has waited for.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Lets the express lane pull bulk only if bulk was queued and no bulk lane is attached: a peer that exchanges only
    /// small messages does not pay for the check with each frame.
    fn update_express(&self, slots: &[Option<Arc<Lane>>]) {
        let is_wanted = self.wanted.load(Ordering::Relaxed) & BULK != 0;
        if let Some((Some(express), bulk)) = slots.split_first() {
            express.set_alone(is_wanted && bulk.iter().all(Option::is_none));
        }
    }

    pub fn set(&self, lane: Arc<Lane>) {
        let mut slots = self.slots.write();
        if let Some(place) = slots.get_mut(lane.slot as usize) {
            *place = Some(lane);
        }
        self.update_express(&slots);
    }

    /// Removes a lane, if no other lane has taken its slot.
    pub fn remove(&self, lane: &Lane) {
        let mut slots = self.slots.write();
        if let Some(place) = slots.get_mut(lane.slot as usize) {
            place.take_if(|it| it.id == lane.id);
        }
        self.update_express(&slots);
    }

    pub fn get(&self, slot: u32) -> Option<Arc<Lane>> {
        self.slots.read().get(slot as usize).cloned().flatten()
    }

    /// Returns whether work waits for a lane that is not attached.
    pub fn lacks_lane(&self) -> bool {
        let Some(peer) = self.peer.upgrade() else { return false };
        let (has_express, has_any) = (self.get(0).is_some(), self.lanes() > 0);
        (!has_express && peer.has_work(Transport::Tcp, true))
            || (!has_any && peer.has_work(Transport::Tcp, false))
    }

    pub fn attached(&self) -> Vec<Arc<Lane>> {
        self.slots.read().iter().flatten().cloned().collect()
    }

    /// Receives on the calling thread, which spins while that pays, and then sleeps. Without a time until which it may
    /// sleep it returns instead of sleeping, and the caller answers for whether spinning pays.
    fn receive_until(&self, is_over: &dyn Fn() -> bool, sleep_until_ns: Option<Monotonic>) -> bool {
        let Some(lane) = self.get(0) else { return false };
        if !lane.claim_input() {
            return false;
        }
        let started_ns = clock::monotonic_ns();
        let until_ns = sleep_until_ns.unwrap_or(Monotonic::NEVER);
        let mut may_spin = sleep_until_ns.is_none() || self.spin_pays.load(Ordering::Relaxed);
        let (mut spins, mut slept) = (false, false);
        // The call that sends on the lane (0 if none does), and how long this thread waits for that call.
        let mut held = (0, Monotonic::ZERO);
        let leaves = loop {
            let turn = lane.drive_rx(By::Caller);
            let now_ns = clock::monotonic_ns();
            if turn.leaves {
                break true;
            }
            if is_over() || now_ns >= until_ns || lane.is_closed() {
                break false;
            }
            if turn.is_held {
                let sends = lane.sends();
                if held.0 != sends || held.1 == Monotonic::ZERO {
                    held = (sends, now_ns + HELD_NS);
                }
                if now_ns >= held.1 {
                    // The sending thread may wait for a page. Unlike this thread, a worker that waits can be replaced.
                    break false;
                }
                lane.context.crowd.make_way(now_ns);
                continue;
            }
            held.1 = Monotonic::ZERO;
            may_spin &= now_ns < started_ns + self.spin_ns && !lane.context.crowd.is_there(now_ns);
            may_spin &= sleep_until_ns.is_none() || lane.peer.active() <= 1;
            if may_spin {
                if !spins {
                    spins = true;
                    lane.context.stats.spins.fetch_add(1, Ordering::Relaxed);
                }
                may_spin = lane.context.crowd.make_way(now_ns);
                continue;
            }
            slept = true;
            if sleep_until_ns.is_none() {
                break false;
            }
            lane.sleep_for_input(until_ns.saturating_sub(now_ns), is_over);
        };
        if spins && slept {
            lane.context.stats.spins_vain.fetch_add(1, Ordering::Relaxed);
        }
        if sleep_until_ns.is_some() {
            let pays = clock::monotonic_ns() - started_ns < GAP_SPINS * self.spin_ns;
            self.spin_pays.store(pays, Ordering::Relaxed);
        }
        lane.return_input(leaves);
        spins
    }
}

impl Path for TcpPath {
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }

    fn post(&self, class: Class, _submitted_ns: Option<Monotonic>, after: &mut After) {
        if class == Class::Express {
            return match self.get(0) {
                Some(lane) => lane.send(after),
                None => self.want(EXPRESS),
            };
        }
        let lanes = self.attached();
        let mut bulk = lanes.iter().filter(|lane| !lane.is_express()).peekable();
        if bulk.peek().is_some() {
            return bulk.for_each(|lane| lane.kick());
        }
        // The express lane carries bulk until the bulk lanes are attached.
        self.want(BULK);
        lanes.iter().for_each(|lane| lane.kick());
    }

    fn nudge(&self, after: &mut After) {
        self.post(Class::Express, None, after);
        self.post(Class::Large, None, after);
    }

    fn drive(&self, transfer: &Transfer, deadline_ns: Monotonic) {
        if transfer.spec.bytes <= self.express_bytes_max {
            // A transfer that moved to another path completes without waking this thread. The move itself wakes it.
            let is_over = || transfer.is_final() || transfer.transport() != Transport::Tcp;
            self.receive_until(&is_over, Some(deadline_ns));
        }
    }

    fn listen(&self, is_over: &dyn Fn() -> bool) -> bool {
        self.receive_until(is_over, None)
    }

    fn wake(&self) {
        if let Some(lane) = self.get(0) {
            lane.wake_caller();
        }
    }

    fn lanes(&self) -> usize {
        self.attached().len()
    }
}
