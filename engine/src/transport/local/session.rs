//! One peer's same-host path while it is established, and the announcements that follow. `service` calls when the
//! socket is ready; no method blocks.
//!
//! ```text
//! dialer    connects ─▶ ATTACH ─▶         ◀─ ATTACH, REGION …, SETTLED     ─▶ open
//! acceptor  expects     ◀─ ATTACH  ─▶ ATTACH, REGION …, SETTLED            ─▶ open
//! ```

use super::attach::{Keys, Packet, PACKET_BYTES_MAX, PROOF_BYTES};
use super::copier::Copier;
use super::mappings::{Mapped, Mappings};
use super::process::{Obstacle, Process};
use super::proof::{Claim, Proof};
use crate::peer::SessionInfo;
use crate::region::grants::{Grant, Grants, Tally};
use crate::region::{Region, RegionMap};
use crate::status::reason;
use crate::sys::fd::{AsFd, BorrowedFd, OwnedFd};
use crate::sys::map::{Entry, HashMap};
use crate::sys::mapping::Mapping;
use crate::sys::pages::Pages;
use crate::sys::{memfd, packet, unix};
use crate::types::{Monotonic, RegionId};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Why a path is not available, for `ferry_peer_paths`.
pub type Why = String;

/// The peer announces more regions than an engine may have.
pub const TOO_MANY: &str = "the peer announces more regions than an engine may have";

/// The other process, admitted to copy here.
#[derive(Clone)]
pub struct Admitted {
    pub tally: Arc<Tally>,
    pub process: Arc<Process>,
}

/// A packet that waits for room in the socket, with its descriptors.
struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<Arc<OwnedFd>>,
}

pub struct Session {
    pub session_info: SessionInfo,
    /// The name of the acceptor's listener; "" until its message arrives.
    pub name: String,
    pub keys: Keys,
    /// The value that proves to the other side that it reads our memory. Boxed, so that its address does not change.
    value: Box<[u8; PROOF_BYTES]>,
    pub socket: Option<Arc<OwnedFd>>,
    /// The poller's token of the socket; 0 before it has one.
    pub socket_token: u64,
    /// Set until the path is open.
    pub deadline: Option<Monotonic>,
    /// Set when this side attaches. From then on the other process may copy here, whether this side has a path or not.
    pub admitted: Option<Admitted>,
    /// Set when the other side has attached. Filled until the path is opened, then moved to the path.
    pub copier: Option<Copier>,
    /// What the other side's ATTACH claims, until it is looked at.
    pub claim: Option<Claim>,
    /// The look at the other side's memory, once it has begun.
    pub proof: Option<Proof>,
    /// SETTLED has arrived.
    is_settled: bool,
    /// By number, in sending order.
    outgoing: BTreeMap<u64, Outgoing>,
    next_number: u64,
    /// The system allows no more descriptors in flight, and will not report when it allows more: retried by time.
    pub is_stalled: bool,
    /// The regions announced to the other side and still registered, with the numbers of their packets.
    announced: HashMap<RegionId, u64>,
}

/// The effect of a packet.
pub enum PacketEffect {
    Nothing,
    /// The other side has attached, and its memory must be looked at.
    Attached,
    /// A region was announced after SETTLED.
    Mapped(RegionId, Mapped),
    Unmapped(RegionId),
}

impl Session {
    pub fn new(session_info: SessionInfo, deadline: Monotonic) -> Session {
        let keys = Keys::new(&session_info.key, session_info.session_id);
        let value = Box::new(keys.value(session_info.dialer));
        Session {
            session_info,
            name: String::new(),
            keys,
            value,
            socket: None,
            socket_token: 0,
            deadline: Some(deadline),
            admitted: None,
            copier: None,
            claim: None,
            proof: None,
            is_settled: false,
            outgoing: BTreeMap::new(),
            next_number: 0,
            is_stalled: false,
            announced: HashMap::default(),
        }
    }

    pub fn wants_to_connect(&self) -> bool {
        self.session_info.dialer && !self.name.is_empty() && self.socket.is_none() && self.deadline.is_some()
    }

    /// Returns whether this packet is the dialer's ATTACH for this session.
    pub fn expects(&self, packet: &Packet) -> bool {
        let waits = !self.session_info.dialer && self.socket.is_none() && self.deadline.is_some();
        waits && self.keys.check(packet, true).is_some()
    }

    /// Returns why the path was not established in time.
    pub fn late(&self) -> Why {
        match (&self.socket, self.session_info.dialer) {
            (None, false) => "the peer has not connected over AF_UNIX".into(),
            (None, true) if self.name.is_empty() => "the peer has not named its AF_UNIX listener".into(),
            (None, true) => "the peer's process does not accept connections over AF_UNIX".into(),
            (Some(_), _) => "the peer's process does not answer over AF_UNIX".into(),
        }
    }

    /// Connects to the acceptor. False: its backlog is full; try again later.
    pub fn connect(&mut self, grants: &Grants) -> Result<bool, Why> {
        let socket = match unix::connect_abstract(self.name.as_bytes(), unix::PACKETS.into()) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err("the peer is on another host, or in another network namespace".into());
            }
            Err(error) => return Err(format!("the AF_UNIX connection failed: {}", reason(&error))),
        };
        check_user(socket.as_fd())?;
        self.socket = Some(Arc::new(socket));
        self.attach(grants)?;
        Ok(true)
    }

    /// Admits the other process to the grants, and sends ATTACH.
    pub fn attach(&mut self, grants: &Grants) -> Result<(), Why> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let process = Process::of((**socket).as_fd())
            .map_err(|error| format!("the peer's process can't be watched: {}", reason(&error)))?;
        let (tally, fd) = grants
            .admit(process.pid)
            .map_err(|error| format!("the page of grants can't be shared: {}", reason(&error)))?;
        self.admitted = Some(Admitted { tally, process: Arc::new(process) });
        let attach = self.keys.attach(self.session_info.dialer, self.value.as_ptr() as u64);
        self.push(&attach, vec![grants.board().clone(), Arc::new(fd)]);
        Ok(())
    }

    /// Announces every region that can be mapped, then SETTLED.
    pub fn announce_all(&mut self, regions: &RegionMap) {
        regions.shared().iter().for_each(|region| self.announce(region));
        self.push(&Packet::Settled, Vec::new());
    }

    /// Announces a region. Does nothing before the other side is connected: `announce_all` follows then.
    pub fn announce(&mut self, region: &Region) {
        let Some(memfd) = region.memfd.as_ref().filter(|_| self.socket.is_some()) else { return };
        if let Entry::Vacant(announced) = self.announced.entry(region.id) {
            announced.insert(self.next_number);
            let packet = Packet::Region { id: region.id, address: region.address, length: region.length };
            self.push(&packet, vec![memfd.clone()]);
        }
    }

    /// Announces that a region is not registered any more. An announcement that is still queued is dropped instead, so
    /// that the queue stays small while the other process is stopped.
    pub fn announce_gone(&mut self, id: RegionId) {
        let Some(number) = self.announced.remove(&id) else { return };
        if self.outgoing.remove(&number).is_none() {
            self.push(&Packet::Gone { id }, Vec::new());
        }
    }

    fn push(&mut self, packet: &Packet, descriptors: Vec<Arc<OwnedFd>>) {
        self.outgoing.insert(self.next_number, Outgoing { bytes: packet.encode(), descriptors });
        self.next_number += 1;
    }

    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends packets until the socket is full.
    pub fn flush(&mut self) -> Result<(), Why> {
        let Some(socket) = &self.socket else { return Ok(()) };
        self.is_stalled = false;
        while let Some(next) = self.outgoing.first_entry() {
            let descriptors: Vec<BorrowedFd<'_>> =
                next.get().descriptors.iter().map(|fd| fd.as_fd()).collect();
            match packet::send((**socket).as_fd(), &next.get().bytes, &descriptors) {
                Ok(()) => drop(next.remove()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                    self.is_stalled = true;
                    return Ok(());
                }
                Err(error) => return Err(format!("the AF_UNIX connection failed: {}", reason(&error))),
            };
        }
        Ok(())
    }

    /// Receives the next packet, if one has arrived.
    pub fn receive(&mut self) -> Result<Option<(Packet, Vec<OwnedFd>)>, Why> {
        let Some(socket) = &self.socket else { return Ok(None) };
        receive((**socket).as_fd())
    }

    pub fn handle(&mut self, packet: Packet, mut descriptors: Vec<OwnedFd>) -> Result<PacketEffect, Why> {
        match (packet, &self.copier) {
            (attach @ Packet::Attach { .. }, None) if self.deadline.is_some() => {
                let (copier, claim) = self.attached(&attach, &descriptors)?;
                (self.copier, self.claim) = (Some(copier), Some(claim));
                Ok(PacketEffect::Attached)
            }
            (Packet::Region { id, address, length }, _) => {
                let mapped = map(descriptors.pop(), address, length)?;
                match (&self.copier, self.deadline) {
                    (Some(copier), Some(_)) => {
                        if copier.mappings.add(id, mapped) {
                            Ok(PacketEffect::Nothing)
                        } else {
                            Err(TOO_MANY.into())
                        }
                    }
                    (_, None) => Ok(PacketEffect::Mapped(id, mapped)),
                    (None, _) => Err("the peer sent AF_UNIX packets in a wrong order".into()),
                }
            }
            (Packet::Gone { id }, Some(copier)) => {
                copier.mappings.remove(id);
                Ok(PacketEffect::Nothing)
            }
            (Packet::Gone { id }, None) if self.deadline.is_none() => Ok(PacketEffect::Unmapped(id)),
            (Packet::Settled, Some(_)) => {
                self.is_settled = true;
                Ok(PacketEffect::Nothing)
            }
            _ => Err("the peer sent AF_UNIX packets in a wrong order".into()),
        }
    }

    /// Returns whether the path can be opened: the other side has announced all its regions, and its memory was looked
    /// at. `is_late`: what has not been seen by now counts as unreadable.
    pub fn take_findings(&mut self, is_late: bool) -> bool {
        let Some(copier) = self.copier.as_mut().filter(|_| self.is_settled) else { return false };
        let found = match self.proof.as_ref().and_then(Proof::found) {
            Some(found) => found.clone(),
            None if is_late => {
                Err(Obstacle::Unreadable("a page of the peer's memory did not come in time".into()))
            }
            None => return false,
        };
        let proven = copier.process.proven(&found).zip(self.socket.as_ref());
        copier.proven = proven.map(|(proven, socket)| Arc::new(proven.while_connected(socket)));
        copier.by_call = found.map_err(Obstacle::why);
        true
    }

    /// Checks the other side's ATTACH, which claims that it is the session's peer, and opens its grants.
    fn attached(&self, attach: &Packet, descriptors: &[OwnedFd]) -> Result<(Copier, Claim), Why> {
        let theirs = !self.session_info.dialer;
        let address = self.keys.check(attach, theirs).ok_or("the peer could not prove its session")?;
        let ([board, tally], Some(Admitted { process, .. })) = (descriptors, &self.admitted) else {
            return Err("the peer's ATTACH carries no grants".into());
        };
        let grant = Arc::new(
            Grant::new(board, tally)
                .map_err(|error| format!("the page of grants can't be shared: {}", reason(&error)))?,
        );
        let (process, place) = (process.clone(), grant.landmark());
        let claim = Claim { process: process.clone(), place, address, value: self.keys.value(theirs) };
        let by_call = Err("the peer's memory was not looked at yet".into());
        let (mappings, pages) = (Mappings::default(), Pages::of(Some(process.pid)));
        Ok((Copier { grant, process, proven: None, mappings, by_call, pages }, claim))
    }
}

/// Checks that the other end has the same effective user.
pub fn check_user(socket: BorrowedFd<'_>) -> Result<(), Why> {
    unix::same_user_credentials(socket).map(|_| ()).map_err(|error| reason(&error))
}

pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Packet, Vec<OwnedFd>)>, Why> {
    let mut bytes = [0; PACKET_BYTES_MAX];
    match packet::receive(socket, &mut bytes) {
        Ok((0, _)) => Err("the peer has ended the path".into()),
        Ok((length, descriptors)) => match Packet::decode(&bytes[..length]) {
            Some(packet) => Ok(Some((packet, descriptors))),
            None => Err("the peer sent an unknown packet over AF_UNIX".into()),
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(format!("the AF_UNIX connection failed: {}", reason(&error))),
    }
}

fn map(memfd: Option<OwnedFd>, address: u64, length: u64) -> Result<Mapped, Why> {
    let no_memory = || "the peer announced a region without its memory".to_string();
    let memfd = memfd.ok_or_else(no_memory)?;
    let length = usize::try_from(length).ok().filter(|length| *length > 0).ok_or_else(no_memory)?;
    let mapping = memfd::check(memfd.as_fd(), length).and_then(|()| Mapping::of(memfd.as_fd(), length, true));
    Ok(Mapped::new(
        address,
        mapping.map_err(|error| format!("mapping the peer's memory: {}", reason(&error)))?,
    ))
}
