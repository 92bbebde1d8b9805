//! A peer's lanes as one path: picks which of them moves what, and lets a waiting thread drive the
//! express lane itself.

use crate::complete::Transfer;
use crate::peer::outbox::Class;
use crate::peer::Link;
use crate::region::RemoteMap;
use crate::sys::lock::RwLock;
use crate::sys::{clock, socket};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::worker::GAP_SPINS;
use crate::types::{Range, Transport};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The lanes by slot: slot 0 is the express lane, the others carry bulk.
pub struct TcpLink {
    slots: RwLock<Vec<Option<Arc<Lane>>>>,
    spin_ns: u64,
    /// Whether the last wait was short enough for a spin to make sense; a hint.
    spin_pays: AtomicBool,
    express_bytes_max: u64,
}

impl TcpLink {
    pub fn new(lanes: u32, spin_ns: u64, express_bytes_max: u64) -> TcpLink {
        let slots = RwLock::new(vec![None; lanes as usize]);
        TcpLink { slots, spin_ns, spin_pays: AtomicBool::new(true), express_bytes_max }
    }

    pub fn set(&self, slot: u32, lane: Option<Arc<Lane>>) {
        let mut slots = self.slots.write();
        if let Some(place) = slots.get_mut(slot as usize) {
            *place = lane;
        }
    }

    pub fn get(&self, slot: u32) -> Option<Arc<Lane>> {
        self.slots.read().get(slot as usize).cloned().flatten()
    }

    pub fn attached(&self) -> Vec<Arc<Lane>> {
        self.slots.read().iter().flatten().cloned().collect()
    }
}

impl Link for TcpLink {
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }

    fn post(&self, class: Class) {
        if class == Class::Express {
            if let Some(lane) = self.get(0) {
                lane.send();
            }
            return;
        }
        self.attached().iter().filter(|lane| !lane.is_express()).for_each(|lane| lane.kick());
    }

    fn nudge(&self) {
        self.post(Class::Express);
        self.post(Class::Large);
    }

    fn drive(&self, transfer: &Transfer, deadline_ns: u64) {
        if transfer.spec.bytes > self.express_bytes_max {
            return;
        }
        let Some(lane) = self.get(0) else { return };
        if !lane.claim_input() {
            return;
        }
        let started_ns = clock::monotonic_ns();
        let mut may_spin = self.spin_ns > 0 && self.spin_pays.load(Ordering::Relaxed);
        let (mut spins, mut slept) = (false, false);
        let mut asked_cpu = false;
        loop {
            lane.drive_rx(true);
            let now_ns = clock::monotonic_ns();
            // What goes on another way ends without waking who sleeps here; that it does wakes them.
            let is_over = || transfer.is_final() || transfer.via() != Transport::Tcp;
            if is_over() || now_ns >= deadline_ns || lane.is_closed() {
                break;
            }
            if may_spin && !asked_cpu {
                asked_cpu = true;
                let (incoming, own) = socket::incoming_and_own_cpu(lane.fd());
                // Otherwise the peer needs this CPU to answer.
                may_spin = incoming != own;
            }
            may_spin &= now_ns < started_ns + self.spin_ns && lane.peer.active() <= 1;
            if may_spin {
                if !spins {
                    spins = true;
                    lane.context.stats.spins.fetch_add(1, Ordering::Relaxed);
                }
                std::hint::spin_loop();
                continue;
            }
            slept = true;
            lane.sleep_for_input(deadline_ns.saturating_sub(now_ns), is_over);
        }
        if spins && slept {
            lane.context.stats.spins_vain.fetch_add(1, Ordering::Relaxed);
        }
        let pays = clock::monotonic_ns() - started_ns < GAP_SPINS * self.spin_ns;
        self.spin_pays.store(pays, Ordering::Relaxed);
        lane.return_input();
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
