//! Peers: engines that this engine connects to, and engines that connect to it.

use super::unrest::name_of;
use super::Engine;
use crate::command::{Answer, Command, Reply};
use crate::config::check_address;
use crate::notify::{Event, EventBody, Queue};
use crate::peer::{Peer, PeerState};
use crate::region::RemoteRegion;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::Ordering;
use crate::sys::{clock, names};
use crate::types::{Access, EngineId, Location, PeerId, RegionId, Transport};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a connect whose timeout has passed waits for the control loop's answer. The loop answers at once, unless
/// its thread has no processor; then the caller must not wait for it.
const ANSWER_GRACE: Duration = Duration::from_millis(100);

/// The present state of a peer.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    pub handle: PeerId,
    pub engine_id: EngineId,
    pub incarnation: u64,
    /// "host:port" at which the peer can be dialed; "" if the peer does not listen or does not announce an address.
    pub address: String,
    pub state: PeerState,
    /// The peer has proven that it is on this host.
    pub same_host: bool,
    /// The last probe's round trip in nanoseconds; 0 before the first probe.
    pub round_trip_ns: u64,
    pub transfers_active: u64,
    pub lanes: usize,
}

/// A probe that is under way. Dropping it gives it up.
pub struct Probe(Arc<Answer<u64>>);

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl Probe {
    /// Returns the round trip, or why there is none, once when it is known.
    pub fn take(&self) -> Option<Result<Duration>> {
        Some(self.0.take()?.map(Duration::from_nanos))
    }
}

/// The address of a connect, how long the connect may take, and the name of the timeout or setting that says so.
#[derive(Clone)]
struct DialBound {
    address: String,
    patience: Duration,
    name: String,
}

impl DialBound {
    /// Completes the sentence of a connect that failed: with the bound if it has passed, and with the address as the
    /// caller wrote it.
    fn explain(&self, mut error: Error) -> Error {
        if error.status == Status::Timeout {
            let within = match self.patience.as_secs_f64() {
                seconds if seconds < 1.0 => format!("{} ms", self.patience.as_millis()),
                seconds => format!("{seconds:.1} s"),
            };
            error.message += &format!(" within {within} ({})", self.name);
        }
        let is_the_peers = error.status != Status::Closed && error.status != Status::Panic;
        if is_the_peers && !error.message.contains(&self.address) {
            error.message = format!("{}: {}", self.address, error.message);
        }
        error
    }
}

/// A region of a peer, as announced here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRegionInfo {
    pub region: RegionId,
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// Rises with each region that the peer registers.
    pub order: u64,
}

impl Engine {
    /// Connects to the engine at `host:port` and waits until transfers can be submitted. For a connected peer, returns
    /// its handle at once. TIMEOUT if `timeout`, or the setting connect_timeout_ms, passes before that, also while a
    /// name server has not answered.
    pub fn connect(&self, address: &str, timeout: Option<Duration>) -> Result<PeerId> {
        let resolved = self.resolve_open(address)?;
        self.call("connecting", || {
            let (reply, answer) = Reply::pair();
            let bound = self.dial_bound(address, timeout)?;
            self.dial(&bound, resolved, reply)?;
            // The control loop answers when the timeout has passed, and says at which step the attempt stood.
            let patience = timeout.map(|timeout| timeout.saturating_add(ANSWER_GRACE));
            let connected = answer.wait(patience, &format!("no answer from {address}"));
            connected.map_err(|error| bound.explain(error))
        })
    }

    /// Connects without waiting, neither for the peer nor for a name server. `queue`, which must take WHAT_PEERS, gets
    /// one PeerConnect event. The event's room is reserved now: LIMIT if the queue is full.
    pub fn connect_async(
        &self,
        address: &str,
        timeout: Option<Duration>,
        queue: &Arc<Queue>,
        user_data: u64,
    ) -> Result<()> {
        let (resolved, bound) = (self.resolve_open(address)?, self.dial_bound(address, timeout)?);
        self.context()?.hub.check_own(queue)?;
        queue.reserve_connect()?;
        let (queue, explained) = (queue.clone(), bound.clone());
        let reply = Reply::new(move |result: Result<PeerId>| {
            let (peer, status, os_error, why) = match result.map_err(|error| explained.explain(error)) {
                Ok(peer) => (peer, Status::Ok, 0, String::new()),
                Err(error) => (PeerId::NONE, error.status, error.os_error, error.message),
            };
            let body = EventBody::PeerConnect { user_data, status, os_error, why: why.into() };
            queue.push_reserved(Event::new(peer, body), || ());
        });
        // From here on the event reports the outcome: a reply that is dropped answers CLOSED.
        let _ = self.call("connecting", || self.dial(&bound, resolved, reply));
        Ok(())
    }

    /// Returns where the address leads; None if its name must be looked up. INVALID for a text that is no host:port.
    fn resolve_open(&self, address: &str) -> Result<Option<Vec<SocketAddr>>> {
        self.context()?;
        check_address(address, "address")?;
        let found = names::numeric(address).transpose();
        let found = found.map_err(|error| Error::unreachable(address, &error))?;
        Ok(found.map(|found| vec![found]))
    }

    fn dial_bound(&self, address: &str, timeout: Option<Duration>) -> Result<DialBound> {
        let config = &self.context()?.config;
        let setting = Duration::from_millis(config.connect_timeout_ms);
        let (patience, name) = match timeout.filter(|timeout| *timeout < setting) {
            Some(timeout) => (timeout, "the call's timeout".to_owned()),
            None => (setting, config.name_of("connect_timeout_ms")),
        };
        Ok(DialBound { address: address.to_owned(), patience, name })
    }

    fn dial(&self, bound: &DialBound, resolved: Option<Vec<SocketAddr>>, reply: Reply<PeerId>) -> Result<()> {
        let (address, deadline) = (bound.address.clone(), clock::monotonic_ns() + bound.patience);
        self.context()?.commands.push(Command::Dial { address, resolved, deadline, reply });
        Ok(())
    }

    fn peer(&self, peer: PeerId) -> Result<Arc<Peer>> {
        self.context()?.peer(peer)
    }

    /// True if nothing of a lost peer can land here any more: PEER_LOST has been reported, or is about to be. Also true
    /// for a handle that is not known, or not any more.
    pub fn is_peer_over(&self, peer: PeerId) -> bool {
        self.inner.context.peer(peer).map_or(true, |peer| peer.is_over())
    }

    /// Returns every known peer, lost peers included.
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
            same_host: peer.same_host(),
            round_trip_ns: peer.stats.round_trip_ns.load(Ordering::Relaxed),
            transfers_active: peer.active(),
            lanes: peer.path(Transport::Tcp).map_or(0, |path| path.lanes()),
        })
    }

    /// Returns the peer's regions that have been announced here, in order of address.
    pub fn peer_regions(&self, peer: PeerId) -> Result<Vec<RemoteRegionInfo>> {
        let peer = self.peer(peer)?;
        let (map, own) = (peer.remote.snapshot(), self.inner.context.registry.snapshot());
        // The engine itself may do anything with its regions; it is told what peers may.
        let granted =
            |region: &RemoteRegion| own.get(region.id).filter(|_| peer.is_own()).map(|it| it.access);
        let mut regions: Vec<RemoteRegionInfo> = map
            .iter()
            .filter(|region| !region.staging)
            .map(|region| RemoteRegionInfo {
                region: region.id,
                address: region.address,
                length: region.length,
                access: granted(region).unwrap_or(region.access),
                name: region.name.clone(),
                location: region.location,
                order: region.order,
            })
            .collect();
        regions.sort_by_key(|region| region.address);
        Ok(regions)
    }

    /// Returns the peer's region of this name; of several, the region that was registered last. NOT_REGISTERED if the
    /// peer has announced none.
    pub fn peer_region(&self, peer: PeerId, name: &str) -> Result<RemoteRegionInfo> {
        let regions = self.peer_regions(peer)?;
        let newest =
            regions.into_iter().filter(|region| &*region.name == name).max_by_key(|region| region.order);
        newest.ok_or_else(|| {
            let text = format!("name: the peer has announced no region named {name:?}");
            Error::new(Status::NotRegistered, text)
        })
    }

    /// Sends a probe to the peer and returns the round trip.
    pub fn probe(&self, peer: PeerId, timeout: Option<Duration>) -> Result<Duration> {
        let Probe(answer) = self.probe_begin(peer)?;
        self.call("probing a peer", || {
            answer.wait(timeout, "no answer to the probe in time").map(Duration::from_nanos)
        })
    }

    /// Sends a probe to the peer and does not wait for the answer.
    pub fn probe_begin(&self, peer: PeerId) -> Result<Probe> {
        let peer = self.peer(peer)?;
        if let Some(why) = peer.lost() {
            return Err(Error::new(why, "the peer is lost"));
        }
        self.call("probing a peer", || {
            let (reply, answer) = Reply::pair();
            if peer.is_own() {
                reply.send(Ok(0));
                return Ok(Probe(answer));
            }
            self.context()?.commands.push(Command::Probe { peer: peer.handle, reply });
            Ok(Probe(answer))
        })
    }

    /// Fences a peer. Returns when nothing of the peer can land here any more: its lanes are closed, and this
    /// incarnation of the peer is refused until this engine connects to it. Returns at once for the engine itself:
    /// what it moves ends with its transfers.
    pub fn fence(&self, peer: PeerId, timeout: Option<Duration>) -> Result<()> {
        let peer = self.peer(peer)?;
        if peer.is_own() {
            return Ok(());
        }
        self.call("fencing a peer", || {
            let name = name_of(&peer);
            let (reply, answer) = Reply::pair();
            // Contract 6: the answer comes when the peer's lanes are closed.
            self.context()?.commands.push(Command::FencePeer { peer: peer.handle, reply });
            answer.wait(timeout, "").map_err(|error| match error.status {
                Status::Timeout => {
                    let text = format!("fencing {name} takes longer: {}", self.unrest_of(&peer));
                    Error::new(Status::Timeout, text)
                }
                _ => error,
            })
        })
    }

    /// Ends the session with a peer and waits until its transfers are final. They fail with CLOSED. Over TCP what is
    /// under way is final after `lease_ms`: wait for it, or cancel it, before. INVALID for the engine itself.
    pub fn close_peer(&self, peer: PeerId, timeout: Option<Duration>) -> Result<()> {
        let peer = self.peer(peer)?;
        if peer.is_own() {
            return Err(Error::invalid("peer: this is the engine itself, which ends when it is closed"));
        }
        let name = name_of(&peer);
        let closed = self.call("closing a peer", || {
            let (reply, answer) = Reply::pair();
            self.context()?.commands.push(Command::ClosePeer { peer: peer.handle, reply });
            answer.wait(timeout, "closing the peer")
        });
        closed.map_err(|error| match error.status {
            Status::Timeout => {
                let active = peer.active();
                let text = format!("{name} is still closing: {active} transfers to it are not final yet");
                Error::new(Status::Busy, text)
            }
            _ => error,
        })
    }
}
