//! Peers and transfers without an engine's threads, for the targets that post.

use ferry::internals::command::Commands;
use ferry::internals::complete::{transfer, Table, TransferFlags, TransferSpec};
use ferry::internals::handle::Tag;
use ferry::internals::notify::hub;
use ferry::internals::peer::{After, Class, EngineParts, Path, Peer, PeerIdentity};
use ferry::internals::region::RemoteMap;
use ferry::internals::sys::pages::Pages;
use ferry::types::{EngineId, Monotonic, Op, PeerId, RegionId, Request, Slice, TransferId, Transport};
use ferry::TransferCore;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A path that posts nothing by itself: the target pulls.
pub struct Silent;

impl Path for Silent {
    fn carries(&self, _: &[ferry::internals::plan::Range], _: &RemoteMap, _: bool) -> bool {
        true
    }
    fn post(&self, _: Class, _: Option<Monotonic>, _: &mut After) {}
    fn nudge(&self, _: &mut After) {}
}

pub fn identity() -> PeerIdentity {
    PeerIdentity {
        engine_id: EngineId([1; 16]),
        incarnation: 1,
        address: String::new(),
        tag: Tag::from_random(1),
        same_host: true,
        hosts: (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        frame_bytes_max: 1 << 20,
        lanes_max: 1,
        reads_max: 16,
    }
}

pub fn peer() -> Peer {
    let tag = Tag::from_random(1);
    let engine = EngineParts {
        commands: Arc::new(Commands::default()),
        hub: Arc::new(hub(tag)),
        stats: Arc::default(),
        conversation: Arc::default(),
        transfers: Arc::new(Table::new(tag, 16)),
        lease_ns: 1_000_000_000,
        express_bytes_max: 4000,
        pages: Arc::new(Pages::of(None)),
    };
    Peer::new(PeerId::from_raw(7), identity(), 1, engine)
}

/// The specification of a transfer.
#[derive(Clone, Debug)]
pub struct Wish {
    pub op: Op,
    pub priority: u32,
    pub flags: TransferFlags,
    /// Has a notification.
    pub notify: bool,
    /// The local address and the length of each slice.
    pub slices: Vec<(u64, u32)>,
    pub deadline_ns: Monotonic,
    pub transport: Transport,
    /// Mask of `Transport::bit`.
    pub allowed: u64,
}

impl Wish {
    pub fn new(op: Op, slices: Vec<(u64, u32)>) -> Wish {
        Wish {
            op,
            priority: 0,
            flags: TransferFlags::NONE,
            notify: false,
            slices,
            deadline_ns: Monotonic::NEVER,
            transport: Transport::Tcp,
            allowed: u64::MAX,
        }
    }

    /// Makes the transfer, with a request for each slice.
    pub fn transfer(&self, handle: u64) -> Arc<TransferCore> {
        let request = |&(local, length): &(u64, u32)| Request {
            local,
            remote: local,
            length: length.into(),
            remote_region: RegionId::NONE,
        };
        let slice = |(nth, &(local, length)): (usize, &(u64, u32))| Slice {
            local,
            remote: local,
            region: RegionId::NONE,
            first_offset: 0,
            length,
            first: nth as u32,
        };
        let spec = TransferSpec {
            peer: PeerId::from_raw(7),
            op: self.op,
            requests: self.slices.iter().map(request).collect(),
            order: Vec::new(),
            slices: self.slices.iter().enumerate().map(slice).collect(),
            regions: Vec::new(),
            bytes: self.slices.iter().map(|(_, length)| u64::from(*length)).sum(),
            flags: self.flags,
            priority: self.priority,
            notify: (self.notify || self.slices.is_empty()).then(|| Box::from(&b"word"[..])),
            channel: 0,
            submitted_ns: Monotonic::ZERO,
            deadline_ns: self.deadline_ns,
            user_data: 0,
            queue: None,
            transport: self.transport,
            allowed: self.allowed,
        };
        transfer(TransferId::from_raw(handle), spec)
    }
}
