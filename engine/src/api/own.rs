//! The engine as a peer of itself: transfers between its own regions, and notifications to its own queues. They need no
//! session, no socket and no second engine. Host memory is copied by the same threads as between processes of one host,
//! device memory by the same steps.

use super::engine::cores;
use super::Engine;
use crate::config::Config;
use crate::context::Context;
use crate::handle::{self, Kind};
use crate::peer::{Closed, LaneNumbers, Path, Peer, PeerIdentity, SessionInfo, TransportService};
use crate::region::gate::Gate;
use crate::stage::StageService;
use crate::status::{Error, Result, Status};
use crate::sys::once::OnceLock;
use crate::sys::proven::Proven;
use crate::sys::{host, lock::Mutex, unix};
use crate::transport::local::{LocalPath, OwnMemory, OwnNotifier};
use crate::types::{LaneId, PeerId, SessionId};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Engine {
    /// Returns the engine as a peer of itself: the handle takes part in every call that takes a peer, and is the same
    /// at each call. It needs no connect and no listener, is UP until the engine is closed, and is not in `peers`.
    ///
    /// A transfer between regions of this engine needs no access rights and takes one path whatever `transports` and
    /// `transports_allowed` name; CHECKSUM adds nothing, because no byte leaves the process. The regions at both ends
    /// are in use until the transfer is final. If the source of a transfer overlaps its destination, the bytes in the
    /// destination are undefined.
    pub fn own_peer(&self) -> Result<PeerId> {
        self.call("preparing transfers to itself", || {
            self.context()?;
            self.inner.own.begin()
        })
    }
}

/// The engine's part of its own peer: begins it, and ends its path with the engine.
pub struct Own {
    context: Arc<Context>,
    pub stage: Arc<StageService>,
    threads: usize,
    path: OnceLock<Arc<LocalPath<OwnMemory>>>,
    beginning: Mutex<()>,
}

impl Own {
    /// `threads`: how many may copy at once.
    pub fn new(context: Arc<Context>, stage: Arc<StageService>, threads: usize) -> Arc<Own> {
        Arc::new(Own { context, stage, threads, path: OnceLock::new(), beginning: Mutex::new(()) })
    }

    fn begin(&self) -> Result<PeerId> {
        let context = &self.context;
        let _turn = self.beginning.lock();
        if let Some(own) = context.own.get() {
            return Ok(own.handle);
        }
        self.stage.prepare()?;
        let handle = PeerId::from_raw(handle::make(Kind::Peer, context.tag, handle::OWN));
        let peer = Arc::new(Peer::new(handle, identity(context), 0, context.engine_parts()));
        context.registry.announce_to(&peer.remote);
        let pid = host::pid();
        let process = unix::pidfd_of(pid).map(|pidfd| Arc::new(Proven::new(pid, Arc::new(pidfd))));
        let memory = OwnMemory {
            registry: context.registry.clone(),
            pages: context.pages.clone(),
            process: process.ok(),
            copies: Gate::new(),
        };
        let path = LocalPath::new(peer.clone(), memory, self.threads, context.spin_ns, Box::new(|| ()));
        let _ = self.path.set(path.clone());
        // Before a message of the stage comes to the control loop.
        let _ = context.own.set(peer.clone());
        self.stage.begin(SessionInfo {
            peer: peer.clone(),
            dialer: true,
            session_id: SessionId::default(),
            remote: SocketAddr::new(HERE, 0),
            key: [0; 32],
            lane_numbers: Arc::new(LaneNumbers::default()),
        });
        let staged = self.stage.path(handle).map(|(staged, _)| staged);
        let staged = staged.ok_or_else(|| Error::new(Status::Closed, "the engine is closed"))?;
        peer.open_own(path, staged, Arc::new(OwnNotifier(Arc::downgrade(&peer))));
        Ok(handle)
    }
}

/// Returns how many threads may copy at once with one peer of this host.
pub(super) fn local_threads(config: &Config) -> usize {
    match config.local_threads {
        0 => cores() as usize,
        count => count as usize,
    }
}

fn identity(context: &Context) -> PeerIdentity {
    let local = &context.local;
    PeerIdentity {
        engine_id: local.engine_id,
        incarnation: local.incarnation,
        address: local.address.clone(),
        tag: context.tag,
        same_host: true,
        hosts: (HERE, HERE),
        frame_bytes_max: local.frame_bytes_max,
        lanes_max: local.lanes_max,
        reads_max: local.reads_max,
    }
}

/// Only the half that ends: there is no session.
impl TransportService for Own {
    fn begin(&self, _session_info: SessionInfo) {}

    fn path(&self, _peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        None
    }

    fn end(&self, _peer: PeerId) -> Vec<(LaneId, Closed)> {
        Vec::new()
    }

    fn stop(&self) {
        // The path has the peer, which gives it up.
        self.context.own.get().inspect(|own| own.close_own());
        let threads = self.path.get().map(|path| path.close());
        threads.into_iter().flatten().for_each(|thread| drop(thread.join()));
    }

    fn shut(&self) {
        self.path.get().inspect(|path| path.copier().copies.revoke());
    }

    fn bury(&self) -> bool {
        self.path.get().is_none_or(|path| path.copier().copies.users() == 0)
    }
}
