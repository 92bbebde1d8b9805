//! Peers: those we connect to, and those that connect to us.

use super::Engine;
use crate::command::{Command, Reply};
use crate::notify::{Event, EventBody, Queue};
use crate::peer::{Peer, PeerState};
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::types::{Access, Location, PeerId};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What is known of a peer.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    pub handle: PeerId,
    pub engine_id: [u8; 16],
    pub incarnation: u64,
    /// "host:port" at which it can be dialed, "" if it does not listen, or does not say where.
    pub address: String,
    pub state: PeerState,
    pub same_host: bool,
    /// Of the last probe, nanoseconds; 0 before one.
    pub round_trip_ns: u64,
    pub transfers_active: u64,
    pub lanes: usize,
}

/// A region that a peer registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRegionInfo {
    pub region: u64,
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
}

impl Engine {
    /// Connects to the engine at `host:port` and waits until transfers can be submitted. A peer that is
    /// connected already is returned as it is.
    pub fn connect(&self, address: &str, timeout: Option<Duration>) -> Result<PeerId> {
        let resolved = self.resolve_open(address)?;
        self.call("connecting", || {
            let (reply, answer) = Reply::pair();
            self.dial(address, resolved, timeout, reply)?;
            answer.wait(timeout, &format!("connecting to {address}"))
        })
    }

    /// The same without waiting for the peer (looking its name up may block): `queue`, which takes
    /// WHAT_PEERS, gets one PeerConnect event. Room for it is taken now: LIMIT when there is none.
    pub fn connect_async(
        &self,
        address: &str,
        timeout: Option<Duration>,
        queue: &Arc<Queue>,
        user_data: u64,
    ) -> Result<()> {
        let resolved = self.resolve_open(address)?;
        queue.reserve_connect()?;
        let queue = queue.clone();
        let reply = Reply::new(move |result: Result<PeerId>| {
            let (peer, status) =
                result.map_or_else(|error| (PeerId::NONE, error.status), |peer| (peer, Status::Ok));
            queue.push_reserved(Event::new(peer, EventBody::PeerConnect { user_data, status }), || ());
        });
        // From here on the event tells: a reply that is dropped answers CLOSED.
        let _ = self.call("connecting", || self.dial(address, resolved, timeout, reply));
        Ok(())
    }

    fn resolve_open(&self, address: &str) -> Result<Vec<SocketAddr>> {
        self.context()?;
        Engine::resolve(address)
    }

    fn dial(
        &self,
        address: &str,
        resolved: Vec<SocketAddr>,
        timeout: Option<Duration>,
        reply: Reply<PeerId>,
    ) -> Result<()> {
        let context = self.context()?;
        let configured = Duration::from_millis(context.config.connect_timeout_ms);
        let patience = timeout.map_or(configured, |timeout| timeout.min(configured));
        let deadline = clock::now() + patience;
        context.commands.push(Command::Dial { address: address.to_owned(), resolved, deadline, reply });
        Ok(())
    }

    fn peer(&self, peer: PeerId) -> Result<Arc<Peer>> {
        self.context()?.peers.get(peer)
    }

    /// Every peer that is known, lost ones included.
    pub fn peers(&self) -> Result<Vec<PeerId>> {
        Ok(self.context()?.peers.list().iter().map(|peer| peer.handle).collect())
    }

    pub fn peer_info(&self, peer: PeerId) -> Result<PeerInfo> {
        let peer = self.peer(peer)?;
        Ok(PeerInfo {
            handle: peer.handle,
            engine_id: peer.identity.engine_id,
            incarnation: peer.identity.incarnation,
            address: peer.identity.address.clone(),
            state: peer.state(),
            same_host: peer.identity.same_host,
            round_trip_ns: peer.stats.round_trip_ns.load(Ordering::Relaxed),
            transfers_active: peer.active(),
            lanes: peer.tcp_path().map_or(0, |path| path.lanes()),
        })
    }

    /// What the peer has registered, as far as it has told us, in order of address.
    pub fn peer_regions(&self, peer: PeerId) -> Result<Vec<RemoteRegionInfo>> {
        let map = self.peer(peer)?.remote.snapshot();
        let mut regions: Vec<RemoteRegionInfo> = map
            .iter()
            .filter(|region| !region.staging)
            .map(|region| RemoteRegionInfo {
                region: region.id,
                address: region.address,
                length: region.length,
                access: region.access,
                name: region.name.clone(),
                location: region.location,
            })
            .collect();
        regions.sort_by_key(|region| region.address);
        Ok(regions)
    }

    /// Asks the peer for a sign of life; the round trip.
    pub fn probe(&self, peer: PeerId, timeout: Option<Duration>) -> Result<Duration> {
        let peer = self.peer(peer)?;
        if let Some(why) = peer.lost() {
            return Err(Error::new(why, "the peer is lost"));
        }
        self.call("probing a peer", || {
            let (reply, answer) = Reply::pair();
            self.context()?.commands.push(Command::Probe { peer: peer.handle, reply });
            answer.wait(timeout, "probing the peer").map(Duration::from_nanos)
        })
    }

    /// Returns when nothing of this peer can land here any more: its lanes are closed, and this
    /// incarnation of it is refused until it is connected to from here.
    pub fn fence(&self, peer: PeerId, timeout: Option<Duration>) -> Result<()> {
        let peer = self.peer(peer)?;
        self.call("fencing a peer", || {
            let (reply, answer) = Reply::pair();
            self.context()?.commands.push(Command::FencePeer { peer: peer.handle, reply });
            answer.wait(timeout, "fencing the peer")
        })
    }

    /// Ends the session with a peer. Its transfers fail with CLOSED; returns when they are final.
    pub fn close_peer(&self, peer: PeerId, timeout: Option<Duration>) -> Result<()> {
        let peer = self.peer(peer)?;
        let closed = self.call("closing a peer", || {
            let (reply, answer) = Reply::pair();
            self.context()?.commands.push(Command::ClosePeer { peer: peer.handle, reply });
            answer.wait(timeout, "closing the peer")
        });
        closed.map_err(|error| match error.status {
            Status::Timeout => {
                Error::new(Status::Busy, "transfers are still draining; the peer is still closing")
            }
            _ => error,
        })
    }
}
