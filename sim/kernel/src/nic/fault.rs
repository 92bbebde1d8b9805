//! Faults of NICs and of the ways between them, and the present states of queue pairs.

use super::{verbs, NicId, State};
use crate::process::HostId;
use crate::rng::MILLION;
use crate::world::{point, with, World};

/// How often faults happen by themselves, in parts per million.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Packets that are lost.
    pub loss_ppm: u32,
    /// Packets that come so much later that others overtake them.
    pub overtaken_ppm: u32,
    pub overtaken_ns: (u64, u64),
    /// Timers that run off so early that packets are sent again which are not lost.
    pub early_ppm: u32,
    /// Pieces that land so much later in memory.
    pub late_landing_ppm: u32,
    pub late_landing_ns: (u64, u64),
    /// Completions that come so much later.
    pub late_ppm: u32,
    pub late_ns: (u64, u64),
}

impl Default for Faults {
    /// Returns the rates that hold without a fault.
    fn default() -> Faults {
        Faults {
            loss_ppm: 0,
            overtaken_ppm: 0,
            overtaken_ns: (1_000, 1_000_000),
            early_ppm: 10_000,
            late_landing_ppm: 50_000,
            late_landing_ns: (5_000, 3_000_000),
            late_ppm: 2_000,
            late_ns: (20_000, 2_000_000),
        }
    }
}

/// Replaces the rates of faults.
pub fn set_faults(faults: Faults) {
    assert!(faults.loss_ppm < MILLION, "a way that loses everything is cut");
    with(|world| {
        world.note("nic faults", &[], |_| "changes the rates of NICs' faults".into());
        world.nics.faults = faults;
    });
}

/// Cuts the way of RDMA from one host to another: packets are lost. Streams are not cut.
pub fn cut(from: HostId, to: HostId) {
    point();
    with(|world| {
        world.nics.cuts.insert((from, to));
        world.note_way("nic cut", "cuts", from, to);
    });
}

pub fn mend(from: HostId, to: HostId) {
    point();
    with(|world| {
        world.nics.cuts.remove(&(from, to));
        world.note_way("nic mend", "mends", from, to);
    });
}

/// Mends all ways, and lets all ports be up.
pub fn mend_all() {
    point();
    let count = with(|world| {
        world.nics.cuts.clear();
        world.nics.devices.len() as u32
    });
    (0..count).for_each(|at| set_port(NicId(at), true));
}

/// Takes the port of a device down, or up again. Its queue pairs stay, and their packets are lost meanwhile.
pub fn set_port(nic: NicId, is_up: bool) {
    with(|world| {
        let device = &mut world.nics.devices[nic.0 as usize];
        if std::mem::replace(&mut device.is_up, is_up) == is_up {
            return;
        }
        let host = device.host;
        world.note("port", &[nic.0.into(), is_up.into()], |world| {
            let device = &world.nics.devices[nic.0 as usize];
            let verb = if is_up { "up" } else { "down" };
            format!("the port of {} of {} is {verb}", device.name, world.hosts[host.0 as usize].name)
        });
        let event = if is_up { verbs::Event::PortActive(1) } else { verbs::Event::PortError(1) };
        world.tell_device(nic.0, event);
    });
}

/// Lets one of the queue pairs that stand fail, chosen by `which`. False if there is none.
pub fn break_queue_pair(which: u64) -> bool {
    point();
    with(|world| {
        let all = world.nics.qps.iter().filter(|(_, qp)| qp.state == State::Rts);
        let all: Vec<u64> = all.map(|(serial, _)| *serial).collect();
        let chosen = all.get((which % all.len().max(1) as u64) as usize).copied();
        if let Some(serial) = chosen {
            world.break_qp(serial);
        }
        chosen.is_some()
    })
}

/// How many queue pairs and requests are in each state at the moment, for those who count what runs reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Queue pairs that are connected, and in error.
    pub connected: usize,
    pub in_error: usize,
    /// Requests that are posted and not over, and queue pairs that send again because their timer has expired.
    pub posted: usize,
    pub sending_again: usize,
    /// Pieces that have arrived and are not in memory.
    pub landing: usize,
    /// Completions that are yet to come.
    pub late: usize,
    /// Queue pairs of processes that have died.
    pub of_the_dead: usize,
    /// Requests that targets have refused so far.
    pub refusals: u64,
}

pub fn states() -> States {
    with(|world| {
        let mut states = States { refusals: world.nics.refusals, ..States::default() };
        for qp in world.nics.qps.values() {
            states.connected += usize::from(qp.state == State::Rts);
            states.in_error += usize::from(qp.state == State::Error);
            states.posted += qp.sends.len();
            states.sending_again += usize::from(qp.tries > 0);
            states.landing += qp.landing.len();
            states.late += qp.finished.len();
            states.of_the_dead += usize::from(!world.processes[qp.process.0 as usize].alive);
        }
        states
    })
}

impl World {
    fn note_way(&mut self, verb: &'static str, told: &str, from: HostId, to: HostId) {
        self.note(verb, &[from.0.into(), to.0.into()], |world| {
            let [from, to] = [from, to].map(|host| &world.hosts[host.0 as usize].name);
            format!("{told} RDMA's way from {from} to {to}")
        });
    }
}
