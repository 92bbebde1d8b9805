//! Simulated RDMA devices (NICs), as libibverbs shows them: reliable connections that WRITE, READ and SEND. A NIC takes
//! the liberties that a real one has, because a program must not rely on less:
//!
//! - It reads the memory of a WRITE or a SEND at any moment between the post and the completion, and perhaps again.
//! - The bytes of a WRITE land in pieces, in any order, also after the WRITE's completion. They have landed before a
//!   later READ or SEND of the same queue pair is served, and before the registration or the target's queue pair ends.
//! - A READ's memory is read piece by piece while later WRITEs already land, and its pieces land in any order.
//! - Completions come late. A queue pair in error still sends and receives until its flushed requests complete.
//! - Packets are lost where a way is cut, sent again when the time is over, and may be under way when their queue pair
//!   is gone at both ends. A stopped process's NIC goes on; a dead process's queue pairs end a while after it.
//! - Keys and numbers of queue pairs are given anew soon.
//!
//! ```text
//!  post ─▶ requester: packets ─▶ wire ─▶ responder: landing ─▶ memory of the target
//!              ▲                            └ acknowledgements, answers of READs, refusals
//!              └── retire ─▶ completion queue ─▶ poll, or its channel wakes a poller
//! ```
//! `verbs` has what programs hold, `objects` registers and completes, `fault` what happens to NICs and their ways.

mod completion;
mod fault;
mod objects;
mod requester;
mod responder;
mod verbs;
mod wire;

pub use fault::{break_queue_pair, cut, mend, mend_all, set_faults, set_port, states, Faults, States};
pub use responder::READ_AGAIN;
pub use verbs::{
    device_names, Chain, Channel, Completion, Context, Cq, Event, Gid, GidKind, Limits, LocalSide, Mr, Pd,
    Port, PortState, Qp, QpSpec, Remote, Srq,
};
pub use wire::status;

pub(crate) use completion::{ChannelState, EventQueue};
pub(crate) use wire::Due;

use crate::fd::FileId;
use crate::process::{HostId, ProcessId};
use crate::rng::Rng;
use crate::world::{with, World};
use completion::{CqState, Finish};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::{Landing, Psn, Reply, Send};

/// A device's MTU in bytes, which the program that makes the device does not choose.
pub const MTU: u32 = 4096;

/// A device of a host, for the programs that make worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicId(u32);

/// The abilities of a device.
#[derive(Clone, Debug)]
pub struct Abilities {
    pub qp_wr_max: u32,
    pub cqe_max: u32,
    pub srq_wr_max: u32,
    /// READs that a queue pair serves, and has in flight, at a time.
    pub rd_atom_max: u8,
    pub inline_bytes_max: u32,
    pub mr_bytes_max: u64,
}

impl Default for Abilities {
    fn default() -> Abilities {
        Abilities {
            qp_wr_max: 4096,
            cqe_max: 1 << 16,
            srq_wr_max: 4096,
            rd_atom_max: 16,
            inline_bytes_max: 256,
            mr_bytes_max: 1 << 40,
        }
    }
}

/// Adds a device to a host. Its port is up.
pub fn add(host: HostId, abilities: Abilities) -> NicId {
    with(|world| {
        let nth = world.nics.devices.iter().filter(|device| device.host == host).count() as u8;
        let [high, low] = (host.0 as u16 + 1).to_be_bytes();
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 100 + nth, high, low]);
        let latency_ns = world.nics.rng.log_uniform(1_000, 50_000);
        world.nics.devices.push(Device {
            host,
            name: format!("sim{nth}"),
            gid,
            abilities,
            is_up: true,
            latency_ns,
            free_keys: Vec::new(),
            next_key: 1,
            free_numbers: Vec::new(),
            next_number: 1,
        });
        NicId(world.nics.devices.len() as u32 - 1)
    })
}

struct Device {
    host: HostId,
    name: String,
    gid: [u8; 16],
    abilities: Abilities,
    is_up: bool,
    /// The least time of a packet from here, in nanoseconds.
    latency_ns: u64,
    free_keys: Vec<u32>,
    next_key: u32,
    free_numbers: Vec<u32>,
    next_number: u32,
}

/// A device as one process has opened it.
struct Opened {
    device: u32,
    process: ProcessId,
    events: FileId,
}

/// Registered memory.
#[derive(Clone, Copy)]
struct Registered {
    pd: u32,
    process: ProcessId,
    address: u64,
    length: u64,
    remote_read: bool,
    remote_write: bool,
}

struct Receive {
    id: u64,
    address: u64,
    length: u32,
    lkey: u32,
}

/// A receive queue that queue pairs share.
struct SrqState {
    process: ProcessId,
    capacity: usize,
    receives: VecDeque<Receive>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reset,
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send, too.
    Rts,
    Error,
}

/// A queue pair.
struct QpState {
    device: u32,
    number: u32,
    opened: u32,
    process: ProcessId,
    pd: u32,
    send_cq: u32,
    receive_cq: u32,
    srq: u32,
    send_wr_max: usize,
    inline_bytes_max: u32,
    state: State,
    /// The device and the number of the other end.
    to: (u32, u32),
    mtu: u32,

    /// Posted requests that are not retired, in their order.
    sends: VecDeque<Send>,
    /// Places of the send queue that are taken: a place is free again when a completion behind it was polled.
    taken: usize,
    /// Retired requests since the last one that completes.
    silent: usize,
    /// The number of the next request's first packet, of the next packet to send, of the oldest that is unanswered.
    psn: Psn,
    next: Psn,
    oldest: Psn,
    /// When the device sends on, if that is planned.
    send_at: Option<u64>,
    paused_until: u64,
    /// In error, and packets may still leave.
    lingers: bool,
    reads_out_max: usize,
    /// None: packets are awaited for ever.
    timeout_ns: Option<u64>,
    /// When packets count as lost, while some are unanswered.
    deadline: Option<u64>,
    timer_planned: bool,
    tries: u8,
    tries_max: u8,
    receiver_tries: u8,
    receiver_tries_max: u8,

    /// The number of the packet that the other end sends next.
    expected: Psn,
    reads_max: usize,
    /// A packet is missing, and the other end was told.
    has_complained: bool,
    /// The request that was refused is the last: the refusal is among `replies`.
    refuses: bool,
    replies: VecDeque<Reply>,
    reply_planned: bool,
    /// Pieces that are on their way into memory.
    landing: Vec<Landing>,
    landings: u64,
    /// Packets keep their order.
    last_at: u64,
    finished: VecDeque<Finish>,
}

pub(crate) struct Nics {
    rng: Rng,
    faults: Faults,
    devices: Vec<Device>,
    opened: Vec<Option<Opened>>,
    domains: u32,
    /// By device and key.
    keys: BTreeMap<(u32, u32), Registered>,
    cqs: BTreeMap<u32, CqState>,
    srqs: BTreeMap<u32, SrqState>,
    /// By serial number.
    qps: BTreeMap<u64, QpState>,
    /// Serial numbers by device and number.
    numbers: BTreeMap<(u32, u32), u64>,
    made: u64,
    /// Ways between hosts on which no packet of a NIC passes.
    cuts: BTreeSet<(HostId, HostId)>,
    /// Work of suspended hosts' NICs, due when the hosts wake up.
    asleep: Vec<(HostId, Due)>,
    refusals: u64,
}

impl Nics {
    pub fn new(seed: u64) -> Nics {
        Nics {
            rng: Rng::new(seed, 4),
            faults: Faults::default(),
            devices: Vec::new(),
            opened: Vec::new(),
            domains: 0,
            keys: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            numbers: BTreeMap::new(),
            made: 0,
            cuts: BTreeSet::new(),
            asleep: Vec::new(),
            refusals: 0,
        }
    }

    /// Returns memory that a key of a device names, if all of it is registered in this domain.
    fn find(&self, device: u32, pd: u32, key: u32, address: u64, length: u64) -> Option<Registered> {
        let found = self.keys.get(&(device, key)).filter(|it| it.pd == pd)?;
        let offset = address.checked_sub(found.address)?;
        (length <= found.length && offset <= found.length - length).then_some(*found)
    }
}

impl World {
    /// Does what is due at a NIC.
    pub(crate) fn nic_due(&mut self, due: Due) {
        let device = match &due {
            Due::Arrive(packet) => return self.nic_arrives(packet),
            Due::Bury(process) => return self.bury_nics(*process),
            Due::Send(serial) | Due::Reply(serial) | Due::Complete(serial) | Due::Timeout(serial) => {
                self.nics.qps.get(serial).map(|qp| qp.device)
            }
            Due::Land(serial, _) => self.nics.qps.get(serial).map(|qp| qp.device),
        };
        let Some(device) = device else { return };
        let host = self.nics.devices[device as usize].host;
        // Bytes that a NIC has received are written by the bus, which does not wait for the processors.
        let is_of_bus = matches!(due, Due::Land(..));
        if self.clock_of(host).suspended_at.is_some() && !is_of_bus {
            return self.nics.asleep.push((host, due));
        }
        match due {
            Due::Send(serial) => self.nic_sends(serial),
            Due::Reply(serial) => self.nic_replies(serial),
            Due::Complete(serial) => self.nic_completes(serial),
            Due::Timeout(serial) => self.nic_looks_at_timer(serial),
            Due::Land(serial, number) => self.nic_lands(serial, number),
            Due::Arrive(_) | Due::Bury(_) => {}
        }
    }

    /// A host that was suspended goes on.
    pub(crate) fn nics_wake_up(&mut self, host: HostId) {
        let all = std::mem::take(&mut self.nics.asleep);
        let (own, others) = all.into_iter().partition(|(of, _)| *of == host);
        self.nics.asleep = others;
        let own: Vec<(HostId, Due)> = own;
        for (_, due) in own {
            self.plan(self.now, crate::timer::Event::Nic(due));
        }
    }

    /// The kernel takes the objects of a dead process back, a while after its end.
    pub(crate) fn nics_of_dead(&mut self, process: ProcessId) {
        if self.nics.opened.iter().flatten().any(|opened| opened.process == process) {
            let ns = self.nics.rng.log_uniform(1_000, 50_000_000);
            self.plan(self.now + ns, crate::timer::Event::Nic(Due::Bury(process)));
        }
    }

    /// Takes all objects of a process away.
    pub(crate) fn bury_nics(&mut self, process: ProcessId) {
        let own = |nics: &Nics| -> Vec<u64> {
            nics.qps.iter().filter(|(_, qp)| qp.process == process).map(|(serial, _)| *serial).collect()
        };
        own(&self.nics).into_iter().for_each(|serial| self.destroy_qp(serial));
        let keys = self.nics.keys.iter().filter(|(_, it)| it.process == process);
        let keys: Vec<(u32, u32)> = keys.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|(device, key)| self.deregister(device, key));
        self.nics.cqs.retain(|_, cq| cq.process != process);
        self.nics.srqs.retain(|_, srq| srq.process != process);
        for opened in &mut self.nics.opened {
            opened.take_if(|it| it.process == process);
        }
    }
}
