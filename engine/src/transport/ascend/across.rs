//! Memory of devices of other hosts, by HIXL: one device reads and writes another's memory directly. A port of HIXL
//! accepts every client, and the data is not encrypted. So only memory of ferry's own is exposed, never the program's,
//! and only if the settings allow it.
//!
//! ```text
//! exposing end    Shown: memory, a server, a port ──── offer, by the sealed channel ───▶ attaching end
//! attaching end   memory, a client; connected, its puts and gets are the batches of a queue
//! ```

use super::driver::physical_device;
use crate::device::{Attachment, Batch, Direction, Exposed, Piece, Queue};
use crate::lists::take_where;
use crate::status::{reason, Error, Result, Status};
use crate::sys::acl::{self, Client, Context, DeviceMemory, Hixl, Moving, Runtime, Server};
use crate::sys::clock;
use crate::sys::pause;
use crate::sys::tcp;
use crate::types::{Op, Transport};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// The file with the devices' network addresses.
const ADDRESSES: &str = "/etc/hccn.conf";
/// The first byte of an offer.
const VERSION: u8 = 1;
/// A free port may be taken by another process before the server opens it, so several are tried.
const PORTS_TRIED: u32 = 3;
/// The most servers that cannot be ended yet; beyond this no more memory is exposed.
const ENDING_MAX: usize = 16;
/// The time for which the end of a queue waits for clients that are still attached.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// The interconnect between the devices. Both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Hccs,
    Roce,
}

/// The settings by which devices reach those of other hosts.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub protocol: Protocol,
    /// The path of HIXL's library; empty for the default.
    pub library: String,
    /// The time limit for connecting.
    pub patience: Duration,
}

/// The exposing end's description of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    protocol: Protocol,
    port: u16,
    address: Ipv4Addr,
    physical: u32,
}

impl Offer {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.protocol as u8];
        out.extend_from_slice(&self.port.to_le_bytes());
        out.extend_from_slice(&self.address.octets());
        out.extend_from_slice(&self.physical.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Offer> {
        let refuse = || Error::invalid("the offer of the peer's device cannot be decoded");
        let &[VERSION, protocol, p0, p1, a, b, c, d, d0, d1, d2, d3] = bytes else { return Err(refuse()) };
        let all = [Protocol::Hccs, Protocol::Roce];
        let protocol = all.into_iter().find(|known| *known as u8 == protocol).ok_or_else(refuse)?;
        let (address, physical) = (Ipv4Addr::new(a, b, c, d), u32::from_le_bytes([d0, d1, d2, d3]));
        Ok(Offer { protocol, port: u16::from_le_bytes([p0, p1]), address, physical })
    }

    fn endpoint(&self) -> acl::hixl_endpoint {
        endpoint(self.protocol, self.address, self.physical)
    }
}

fn endpoint(protocol: Protocol, address: Ipv4Addr, physical: u32) -> acl::hixl_endpoint {
    let (protocol, address_type, first) = match protocol {
        Protocol::Hccs => (acl::HIXL_OVER_HCCS, acl::HIXL_ADDRESS_ID, physical.to_ne_bytes()),
        Protocol::Roce => (acl::HIXL_OVER_ROCE, acl::HIXL_ADDRESS_IPV4, address.octets()),
    };
    let mut out = acl::hixl_endpoint {
        protocol,
        address_type,
        address: [0xff; 36],
        location: acl::HIXL_AT_DEVICE,
        physical_device: physical,
        super_device: u32::MAX,
        rest: [0xff; 104],
    };
    out.address[..4].copy_from_slice(&first);
    out
}

/// Returns the device's own network address, which HCCS does not need.
fn network_address(protocol: Protocol, physical: u32) -> Result<Ipv4Addr> {
    if protocol == Protocol::Hccs {
        return Ok(Ipv4Addr::UNSPECIFIED);
    }
    let unavailable = |text: String| Error::new(Status::Unavailable, text).over(Transport::Ascend);
    let text = std::fs::read_to_string(ADDRESSES).map_err(|error| {
        unavailable(format!(
            "{ADDRESSES}, which has the devices' addresses, can't be read: {}",
            reason(&error)
        ))
    })?;
    address_in(&text, physical)
        .ok_or_else(|| unavailable(format!("{ADDRESSES} has no address_{physical}, an IPv4 address")))
}

fn address_in(text: &str, physical: u32) -> Option<Ipv4Addr> {
    let wanted = format!("address_{physical}");
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| name.trim() == wanted).find_map(|(_, value)| value.trim().parse().ok())
}

/// The memory that one queue exposes. Used and dropped under the queue's context.
pub struct Exposures {
    runtime: Arc<Runtime>,
    device: i32,
    fabric: Option<Fabric>,
    servers: Vec<Server>,
    /// Servers to be ended, whose clients are still attached.
    ending: Vec<Server>,
}

impl Exposures {
    pub fn new(runtime: &Arc<Runtime>, device: i32, fabric: Option<Fabric>) -> Exposures {
        Exposures { runtime: runtime.clone(), device, fabric, servers: Vec::new(), ending: Vec::new() }
    }

    pub fn expose(&mut self, length: u64, host: IpAddr) -> Result<Exposed> {
        if self.tidy() && self.ending.len() >= ENDING_MAX {
            let text = "devices of other hosts are still attached to too much memory that was taken back";
            return Err(Error::new(Status::NoMemory, text).over(Transport::Ascend));
        }
        let fabric = wanted(self.fabric.as_ref())?;
        let library = Hixl::open(&fabric.library)?;
        let physical = physical_device(&self.runtime, self.device)? as u32;
        let address = network_address(fabric.protocol, physical)?;
        let mut offer = Offer { protocol: fabric.protocol, port: 0, address, physical };
        let mut tried = 1;
        let server = loop {
            let memory = DeviceMemory::huge(&self.runtime, length as usize)?;
            offer.port = free_port(host)?;
            match Server::open(library, &offer.endpoint(), (host, offer.port), (memory, length)) {
                Err(_) if tried < PORTS_TRIED => tried += 1,
                opened => break opened?,
            }
        };
        let exposed = Exposed { address: server.address(), offer: offer.encode() };
        self.servers.push(server);
        Ok(exposed)
    }

    pub fn conceal(&mut self, address: u64) {
        self.ending.extend(take_where(&mut self.servers, |server| server.address() == address));
        self.tidy();
    }

    /// Ends the servers whose clients have gone. Returns whether some are left.
    pub fn tidy(&mut self) -> bool {
        self.ending.retain_mut(|server| !server.end());
        !self.ending.is_empty()
    }
}

impl Drop for Exposures {
    fn drop(&mut self) {
        self.ending.append(&mut self.servers);
        let since = clock::now();
        while self.tidy() && clock::now().duration_since(since) < PATIENCE {
            pause::sleep(PAUSE);
        }
    }
}

fn wanted(fabric: Option<&Fabric>) -> Result<&Fabric> {
    fabric.ok_or_else(|| {
        let text = "the setting ascend_fabric is off, so devices of other hosts cannot reach these devices";
        Error::new(Status::Unsupported, text).over(Transport::Ascend)
    })
}

/// Returns a port of the host that is free at this moment; the library does not accept 0.
fn free_port(host: IpAddr) -> Result<u16> {
    tcp::free_port(host).map_err(|error| Error::system("looking for a free port", &error))
}

/// The client and its operations, used by one thread.
struct Attached {
    // In the order in which they must be dropped.
    client: Client,
    _context: Context,
    local: (u64, u64),
    /// The operations under way, from batch `first` on.
    running: VecDeque<Moving>,
    first: u64,
    /// The reason why no operation is started any more.
    lost: Option<Error>,
}

pub fn attach(
    runtime: &Arc<Runtime>,
    fabric: Option<&Fabric>,
    (device, length): (i32, u64),
    offer: &[u8],
    host: IpAddr,
) -> Result<Attachment> {
    let fabric = wanted(fabric)?;
    let offer = Offer::decode(offer)?;
    if offer.protocol != fabric.protocol {
        let text = format!("ascend_fabric differs: {:?} here, {:?} there", fabric.protocol, offer.protocol);
        return Err(Error::new(Status::Unsupported, text.to_lowercase()).over(Transport::Ascend));
    }
    let library = Hixl::open(&fabric.library)?;
    let physical = physical_device(runtime, device)? as u32;
    let address = network_address(fabric.protocol, physical)?;
    let context = Context::create(runtime, device)?;
    let memory = DeviceMemory::huge(runtime, length as usize)?;
    let ends = (&endpoint(fabric.protocol, address, physical), &offer.endpoint());
    let client = Client::connect(library, ends, (host, offer.port), (memory, length), fabric.patience)?;
    let (local, (remote, there)) = (client.address(), client.remote());
    if there < length {
        let text = format!("the peer exposes {there} bytes instead of {length}");
        return Err(Error::new(Status::Unavailable, text).over(Transport::Ascend));
    }
    let running = VecDeque::new();
    let queue = Attached { client, _context: context, local: (local, length), running, first: 0, lost: None };
    Ok(Attachment { queue: Box::new(queue), local, remote })
}

impl Attached {
    /// Records the failure; afterwards nothing is started or queried.
    fn lose(&mut self, error: Error) -> Error {
        self.client.give_up();
        self.lost.get_or_insert(error).clone()
    }
}

impl Queue for Attached {
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let (op, sides, length) = match (direction, pieces) {
            (Direction::DeviceToHost, [piece]) => (Op::Write, (piece.from, piece.to), piece.length),
            (Direction::HostToDevice, [piece]) => (Op::Read, (piece.to, piece.from), piece.length),
            _ => {
                return Err(Error::invalid(
                    "this queue copies one piece at a time, from or to attached memory",
                ))
            }
        };
        let (begin, all) = self.local;
        let inside = sides.0.checked_sub(begin).is_some_and(|at| at <= all && length <= all - at);
        if !inside {
            return Err(Error::invalid("the piece is not within the attached memory"));
        }
        // SAFETY: the local side is within the client's memory, as was seen above.
        let moving = unsafe { self.client.start(op, sides, length) }.map_err(|error| self.lose(error))?;
        self.running.push_back(moving);
        Ok(Batch(self.first + self.running.len() as u64 - 1))
    }

    /// After one operation has failed, the state of the others is unknown, and all count as failed.
    fn poll_done(&mut self, batch: Batch) -> Result<bool> {
        while self.first <= batch.0 {
            if let Some(lost) = &self.lost {
                return Err(lost.clone());
            }
            let Some(moving) = self.running.front() else { break };
            // SAFETY: ended operations leave the list, and after a failure none is queried.
            match unsafe { self.client.poll_done(moving) } {
                Ok(true) => drop(self.running.pop_front()),
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.lose(error)),
            }
            self.first += 1;
        }
        Ok(true)
    }

    /// Operations that cannot be stopped continue in memory that is never freed.
    fn abort(&mut self) -> bool {
        if !self.running.is_empty() {
            self.lose(Error::new(Status::Unavailable, "the copies between the devices were given up"));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer =
        Offer { protocol: Protocol::Roce, port: 40_001, address: Ipv4Addr::new(10, 20, 30, 40), physical: 5 };

    #[test]
    fn an_offer_is_read_back_and_nothing_else_is() {
        let bytes = OFFER.encode();
        assert_eq!(Offer::decode(&bytes).unwrap(), OFFER);
        let hccs = Offer { protocol: Protocol::Hccs, ..OFFER };
        assert_eq!(Offer::decode(&hccs.encode()).unwrap(), hccs);
        for length in (0..bytes.len()).chain([bytes.len() + 1]) {
            let mut cut = bytes.clone();
            cut.resize(length, 0);
            assert_eq!(Offer::decode(&cut).unwrap_err().status, Status::Invalid, "{length} bytes");
        }
        for (at, byte) in [(0, 0), (0, 2), (1, 2)] {
            let mut bad = bytes.clone();
            bad[at] = byte;
            assert!(Offer::decode(&bad).is_err(), "{at}");
        }
    }

    #[test]
    fn an_endpoint_says_where_the_device_is_and_nothing_more() {
        let roce = OFFER.endpoint();
        assert_eq!((roce.protocol, roce.address_type, roce.location), (1, 0, 0));
        assert_eq!((&roce.address[..5], roce.physical_device), (&[10, 20, 30, 40, 0xff][..], 5));
        assert_eq!((roce.super_device, roce.rest), (u32::MAX, [0xff; 104]));
        let hccs = Offer { protocol: Protocol::Hccs, physical: 0x0102, ..OFFER }.endpoint();
        assert_eq!((hccs.protocol, hccs.address_type), (0, 2));
        assert_eq!(&hccs.address[..5], &[2, 1, 0, 0, 0xff]);
    }

    #[test]
    fn a_device_s_address_is_found_by_its_whole_number() {
        let text =
            "# addresses\naddress_1=10.0.0.1\nnetmask_1=255.0.0.0\n address_12 = 10.0.0.12 \naddress_3=ten\n";
        assert_eq!(address_in(text, 1), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(address_in(text, 12), Some(Ipv4Addr::new(10, 0, 0, 12)));
        assert_eq!([address_in(text, 2), address_in(text, 3), address_in("", 1)], [None; 3]);
    }

    #[test]
    fn hccs_needs_no_address() {
        assert!(network_address(Protocol::Hccs, 0).is_ok());
    }
}
