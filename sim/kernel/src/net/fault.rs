//! Faults of the network: how often each happens by itself, and calls that make one happen.

use super::{Phase, StreamEnd};
use crate::process::{HostId, ProcessId};
use crate::world::{point, with};
use std::net::SocketAddr;

/// How often faults happen, in parts per million.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Sends, and receives, that move only a part.
    pub short_send_ppm: u32,
    pub short_receive_ppm: u32,
    /// Packets that take so much longer on the way, and delay all behind them.
    pub delay_ppm: u32,
    pub delay_ns: (u64, u64),
    /// Packets with data at which the connection is reset, a bit is flipped, or the bytes arrive twice.
    pub reset_ppm: u32,
    pub flip_ppm: u32,
    pub replay_ppm: u32,
    /// Dials whose first packet is lost, and dials that are refused.
    pub hang_ppm: u32,
    pub refuse_ppm: u32,
    /// Calls that need a descriptor and fail with EMFILE.
    pub no_descriptor_ppm: u32,
    /// The sizes that buffers may have whose size no program has set.
    pub buffer_bytes: (usize, usize),
}

impl Default for Faults {
    /// Returns the rates that hold without a fault.
    fn default() -> Faults {
        Faults {
            short_send_ppm: 50_000,
            short_receive_ppm: 50_000,
            delay_ppm: 0,
            delay_ns: (1_000_000, 1_000_000_000),
            reset_ppm: 0,
            flip_ppm: 0,
            replay_ppm: 0,
            hang_ppm: 0,
            refuse_ppm: 0,
            no_descriptor_ppm: 0,
            buffer_bytes: (16 << 10, 4 << 20),
        }
    }
}

/// Replaces the rates of faults.
pub fn set_faults(faults: Faults) {
    with(|world| {
        world.note("faults", &[], |_| "changes the rates of faults".into());
        world.net.faults = faults;
    });
}

/// Cuts both ways between two hosts. Sent data is held, and so are acknowledgements.
pub fn partition(a: HostId, b: HostId) {
    partition_one_way(a, b);
    partition_one_way(b, a);
}

/// Cuts the way from one host to another.
pub fn partition_one_way(from: HostId, to: HostId) {
    point();
    with(|world| world.cut(from, to));
}

/// Mends both ways between two hosts. Held data arrives when its kernel tries again.
pub fn heal(a: HostId, b: HostId) {
    point();
    with(|world| {
        world.mend(a, b);
        world.mend(b, a);
    });
}

/// Mends all ways, and lets dials pass.
pub fn heal_all() {
    point();
    with(|world| {
        let links: Vec<(HostId, HostId)> = world.net.links.keys().copied().collect();
        for (from, to) in links {
            world.link(from, to).hangs_dials = false;
            world.mend(from, to);
        }
    });
}

/// Loses the first packets of dials from one host to another, or lets them pass again.
pub fn hang_dials(from: HostId, to: HostId, hang: bool) {
    with(|world| {
        world.note("hang", &[from.0.into(), to.0.into(), hang.into()], |_| {
            format!("{} dials between two hosts", if hang { "loses" } else { "passes" })
        });
        world.link(from, to).hangs_dials = hang;
    });
}

/// Sets what a packet takes at least from one host to another.
pub fn set_latency(from: HostId, to: HostId, ns: u64) {
    with(|world| world.link(from, to).latency_ns = ns);
}

/// A connection whose ends are both there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    pub id: u32,
    pub dialer: (ProcessId, SocketAddr),
    pub acceptor: (ProcessId, SocketAddr),
}

/// Returns the connections that stand, in the order of their dials.
pub fn connections() -> Vec<Connected> {
    with(|world| {
        let all = world.net.connections.iter().enumerate();
        let up = all.filter(|(_, it)| it.ends.iter().all(|end| end.phase == Phase::Up));
        up.map(|(at, it)| {
            let [dialer, acceptor] = [0, 1].map(|side| (it.ends[side].process, it.ends[side].address));
            Connected { id: at as u32, dialer, acceptor }
        })
        .collect()
    })
}

/// Resets a connection: both ends hear so.
pub fn reset(connection: u32) {
    point();
    with(|world| world.break_connection(connection));
}

/// Flips a bit of the next data that travels from the dialer, or to it.
pub fn flip(connection: u32, from_dialer: bool) {
    with(|world| world.pipe(StreamEnd { connection, side: u8::from(!from_dialer) }).flip = true);
}

/// Lets the next data that travels from the dialer, or to it, arrive twice.
pub fn replay(connection: u32, from_dialer: bool) {
    with(|world| world.pipe(StreamEnd { connection, side: u8::from(!from_dialer) }).replay = true);
}
