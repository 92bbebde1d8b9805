//! The way from one host to another: how long it takes, and whether it is cut.

use super::{Arrival, Net, StreamEnd};
use crate::process::HostId;
use crate::timer::Event;
use crate::world::World;

/// The least and most latency in nanoseconds between two hosts, and within one host.
const LATENCY_NS: (u64, u64) = (10_000, 1_000_000);
const LATENCY_WITHIN_NS: (u64, u64) = (2_000, 20_000);
/// When what was held is tried again: the longer the cut was, the later it may be, as TCP's retries get rarer.
const RETRY_NS: (u64, u64) = (1_000_000, 120_000_000_000);

pub(super) struct Link {
    pub latency_ns: u64,
    /// Since when nothing passes.
    pub cut_at: Option<u64>,
    /// The first packets of dials are lost.
    pub hangs_dials: bool,
}

impl Net {
    fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.links.get(&(from, to)).is_some_and(|link| link.cut_at.is_some())
    }
}

impl World {
    pub(super) fn link(&mut self, from: HostId, to: HostId) -> &mut Link {
        if !self.net.links.contains_key(&(from, to)) {
            let (least, most) = if from == to { LATENCY_WITHIN_NS } else { LATENCY_NS };
            let latency_ns = self.fate.log_uniform(least, most);
            self.net.links.insert((from, to), Link { latency_ns, cut_at: None, hangs_dials: false });
        }
        self.net.links.get_mut(&(from, to)).expect("just added")
    }

    /// Draws how long a packet travels.
    pub(super) fn travel_ns(&mut self, from: HostId, to: HostId) -> u64 {
        let latency_ns = self.link(from, to).latency_ns;
        let delay_ppm = self.net.faults.delay_ppm;
        let delay_ns = if self.fate.chance(delay_ppm) {
            self.fate.log_uniform(self.net.faults.delay_ns.0, self.net.faults.delay_ns.1)
        } else {
            0
        };
        latency_ns + self.fate.below(latency_ns / 2 + 1) + delay_ns
    }

    /// True if nothing arrives at `to` from `from` now.
    pub(crate) fn is_held(&self, from: HostId, to: HostId) -> bool {
        let host = &self.hosts[to.0 as usize];
        host.down || host.clock.suspended_at.is_some() || self.net.is_cut(from, to)
    }

    /// Cuts the way from one host to another.
    pub(super) fn cut(&mut self, from: HostId, to: HostId) {
        let now = self.now;
        self.link(from, to).cut_at.get_or_insert(now);
        self.note("cut", &[from.0.into(), to.0.into()], |world| {
            format!(
                "cuts the way from {} to {}",
                world.hosts[from.0 as usize].name, world.hosts[to.0 as usize].name
            )
        });
    }

    pub(super) fn mend(&mut self, from: HostId, to: HostId) {
        let Some(cut_at) = self.link(from, to).cut_at.take() else { return };
        self.note("mend", &[from.0.into(), to.0.into()], |world| {
            format!(
                "mends the way from {} to {}",
                world.hosts[from.0 as usize].name, world.hosts[to.0 as usize].name
            )
        });
        self.try_again(cut_at, |a, b| (a, b) == (from, to));
    }

    /// Plans new tries of all that is queued on the ways for which `of` holds, and which passed nothing since `since`.
    pub(super) fn try_again(&mut self, since: u64, of: impl Fn(HostId, HostId) -> bool) {
        let (least, most) = RETRY_NS;
        let longest = (self.now - since).clamp(2 * least, most);
        for connection in 0..self.net.connections.len() as u32 {
            for side in 0..2 {
                let from = StreamEnd { connection, side };
                let (a, b) = self.hosts_of(from);
                let pipe = self.pipe(from);
                let (packets, acknowledgements) =
                    (!pipe.packets.is_empty(), !pipe.acknowledgements.is_empty());
                for (due, way, acknowledgements) in
                    [(packets, of(a, b), false), (acknowledgements, of(b, a), true)]
                {
                    if due && way {
                        let at = self.now + self.fate.log_uniform(least, longest);
                        self.plan(at, Event::Net(Arrival { from, acknowledgements }));
                    }
                }
            }
        }
    }

    /// A host that was suspended or down hears again.
    pub(crate) fn host_hears(&mut self, host: HostId, since: u64) {
        self.try_again(since, |_, to| to == host);
        self.nics_wake_up(host);
        self.devices_wake_up(host);
    }
}
