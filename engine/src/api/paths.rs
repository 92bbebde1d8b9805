//! Which way a transfer goes: what `submit` chooses, what a small one may do at once, and what
//! `peer_paths` tells a person of it.

use super::transfers::TransferOptions;
use super::Engine;
use crate::complete::TransferResult;
use crate::context::Context;
use crate::peer::{Peer, PeerState, Way};
use crate::plan::{self, Plan, PlanInput};
use crate::region::{RemoteMap, RemoteRegion};
use crate::route::{self, PathState};
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::transport::rdma::why_staged;
use crate::types::{Location, MemoryKind, Op, Range, Request, Transport};

/// What is tried before TCP, the last resort: best first.
const BEFORE_TCP: [Transport; 2] = [Transport::Local, Transport::Rdma];
const KNOWN: u64 = Transport::Tcp.bit() | Transport::Local.bit() | Transport::Rdma.bit();

/// One way to reach a peer, and why it is or is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    pub transport: Transport,
    pub chosen: bool,
    pub why: String,
}

impl Engine {
    /// A small transfer that a process of this host can make by one copy, made here and now: no handle, no
    /// table, no queue. None when it is not such a one, or did not succeed: then it is to be submitted.
    pub fn at_once(
        &self,
        peer: u64,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Option<TransferResult>> {
        self.call("copying", || self.copy_at_once(peer, op, requests, options))
    }

    fn copy_at_once(
        &self,
        peer: u64,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Option<TransferResult>> {
        let context = self.context()?;
        let bare =
            options.notify.is_none() && options.queue.is_none() && !options.ordered && !options.checksum;
        let bare = bare && options.start.is_none();
        if !bare || requests.len() != 1 || allowed(context, options) & Transport::Local.bit() == 0 {
            return Ok(None);
        }
        let peer = context.peers.get(peer)?;
        let Some(link) = peer.link_of(Transport::Local) else { return Ok(None) };
        // Before the engine's state is looked at again: closing waits for it.
        let _busy = peer.busy();
        self.context()?;
        let (local, remote) = (context.registry.snapshot(), peer.remote.snapshot());
        let input = PlanInput {
            op,
            requests,
            coalesce: false,
            local: &local,
            remote: &remote,
            remote_tag: peer.identity.tag,
        };
        let single = plan::single(&input, context.config.express_bytes_max);
        let fit = single.filter(|(_, region)| !region.is_device() && region.enter());
        let Some((slice, region)) = fit else { return Ok(None) };
        let submitted_ns = clock::monotonic_ns();
        let moved = link.at_once(op, &slice, submitted_ns);
        region.leave();
        if !moved {
            return Ok(None);
        }
        context.stats.moved_at_once(op, slice.length as u64);
        Ok(Some(TransferResult::at_once(options.user_data, slice.length as u64, submitted_ns)))
    }

    /// Each path to the peer, chosen or not, and why.
    pub fn peer_paths(&self, peer: u64) -> Result<Vec<PathInfo>> {
        let context = self.context()?;
        let peer = context.peers.get(peer)?;
        let (paths, hows) = states(&peer);
        let loss = peer.last_loss();
        let nics = |transport| match transport {
            Transport::Cuda => reached_by_nics(context, &peer, MemoryKind::Cuda),
            Transport::Ascend => reached_by_nics(context, &peer, MemoryKind::Ascend),
            _ => None,
        };
        let explain = |why: Vec<(Transport, bool, String)>| {
            let with_how = |(transport, chosen, mut why): (Transport, bool, String)| {
                if let (true, Some((_, how))) = (chosen, hows.iter().find(|(via, _)| *via == transport)) {
                    why = format!("{why}: {how}");
                }
                if let Some(reached) = nics(transport) {
                    why = format!("{why}; {reached}");
                }
                if let Some(loss) = loss.as_ref().filter(|loss| loss.transport == transport) {
                    let ago = loss.at.elapsed().unwrap_or_default().as_secs();
                    why = format!("{why}; last lost {ago} s ago: {}", loss.text);
                }
                PathInfo { transport, chosen, why }
            };
            why.into_iter().map(with_how).collect()
        };
        match route::choose(&paths, context.config.transports.0) {
            Ok(choice) => Ok(explain(choice.why)),
            Err(error) => Ok(explain(
                paths
                    .iter()
                    .map(|path| {
                        (path.transport, false, path.usable.clone().err().unwrap_or(error.message.clone()))
                    })
                    .collect(),
            )),
        }
    }
}

/// The transports that a transfer may use: what the engine and the options allow.
pub(super) fn allowed(context: &Context, options: &TransferOptions) -> u64 {
    let any = |mask| if mask == 0 { u64::MAX } else { mask };
    any(context.config.transports.0) & any(options.transports_allowed)
}

/// Whether the NICs of both sides reach all of it by themselves, though some is memory of devices. On one host
/// devices and processes do it without a NIC.
pub(super) fn is_direct(peer: &Peer, plan: &Plan, remote: &RemoteMap, allowed: u64) -> bool {
    let mut here = plan.local_regions.iter().filter(|region| region.is_device());
    let one_host = allowed & Transport::Local.bit() != 0 && peer.link_of(Transport::Local).is_some();
    allowed & Transport::Rdma.bit() != 0
        && !one_host
        && here.all(|region| why_staged(region).is_none())
        && peer.link_of(Transport::Rdma).is_some_and(|link| link.carries(&plan.ranges, remote, false))
}

/// Which way it goes. UNAVAILABLE, with each reason, if there is none.
pub(super) fn choose(
    peer: &Peer,
    ranges: &[Range],
    remote: &RemoteMap,
    allowed: u64,
    checksum: bool,
) -> Result<Transport> {
    let allows = |transport: Transport| allowed & transport.bit() != 0;
    let faster = || BEFORE_TCP.into_iter().filter(|transport| allows(*transport) && !checksum);
    let carries = |via: &Transport| {
        let alone = allowed & !via.bit() & KNOWN == 0;
        peer.link_of(*via).is_some_and(|link| link.carries(ranges, remote, alone))
    };
    if let Some(via) = faster().find(carries) {
        return Ok(via);
    }
    if allows(Transport::Tcp) {
        return Ok(Transport::Tcp);
    }
    if let Some(why) = peer.lost() {
        return Err(Error::new(why, "the peer is lost; connect again"));
    }
    // What is being made, or made again, is worth waiting for: there is nothing else.
    let may_come = |via: &Transport| match peer.way(*via) {
        Way::Pending(_) => true,
        Way::Open(link, _) => link.is_broken(),
        Way::Shut(_) => false,
    };
    if let Some(via) = faster().find(may_come) {
        return Ok(via);
    }
    let mut text = "no path that the setting `transports` and options.transports_allowed leave".to_owned();
    for (nth, path) in states(peer).0.into_iter().enumerate() {
        let why = match (path.transport, path.usable) {
            (transport, _) if !allows(transport) => "not among the allowed transports".to_owned(),
            (_, Err(why)) => why,
            (_, Ok(())) if checksum => "no checksums: nothing is sent".to_owned(),
            (_, Ok(())) => "a remote region can't be reached".to_owned(),
        };
        text += &format!("{} {}: {why}", if nth == 0 { ":" } else { ";" }, path.transport.name());
    }
    Err(Error::new(Status::Unavailable, text))
}

/// Every path to the peer as it is now, and how those that are open work.
fn states(peer: &Peer) -> ([PathState; 5], Vec<(Transport, String)>) {
    let tcp = match (peer.lost(), peer.state()) {
        (Some(why), _) => Err(format!("the peer is lost: {why}")),
        (None, PeerState::Up) => Ok(()),
        (None, _) => Err("the session is being established again".into()),
    };
    let mut hows = Vec::new();
    let mut beside = |transport| match peer.way(transport) {
        Way::Open(_, how) => {
            hows.push((transport, how));
            Ok(())
        }
        Way::Pending(why) | Way::Shut(why) => Err(why),
    };
    let (local, rdma) = (beside(Transport::Local), beside(Transport::Rdma));
    let slice_bytes_max = peer.identity.frame_bytes_max as u64;
    let path = |transport, usable| PathState { transport, usable, weight: 1, slice_bytes_max };
    let device = |transport| path(transport, Err(by_device(peer, transport)));
    let paths = [
        path(Transport::Tcp, tcp),
        path(Transport::Local, local),
        path(Transport::Rdma, rdma),
        device(Transport::Cuda),
        device(Transport::Ascend),
    ];
    (paths, hows)
}

/// Whether devices move what lies in the memory of two of them, or why not. Nothing else goes that way.
fn by_device(peer: &Peer, transport: Transport) -> String {
    let kind = if transport == Transport::Ascend { MemoryKind::Ascend } else { MemoryKind::Cuda };
    let link = peer.link_of(Transport::Staged);
    match peer.way(Transport::Local) {
        Way::Pending(why) | Way::Shut(why) if !link.as_ref().is_some_and(|link| link.crosses(kind)) => {
            return format!("only between processes of one host: {why}");
        }
        _ => {}
    }
    match link.and_then(|link| link.obstacle(kind)) {
        Some(why) => format!("memory of devices goes through the hosts: {why}"),
        None => format!("taken where the memory on both sides is of {} devices", kind.name()),
    }
}

/// What of a kind of device's memory RDMA devices read and write by themselves. None: there is no such memory.
fn reached_by_nics(context: &Context, peer: &Peer, kind: MemoryKind) -> Option<String> {
    let (local, remote) = (context.registry.snapshot(), peer.remote.snapshot());
    let is_such = |at: Location| at.kind.is_device() && at.kind.driver() == kind;
    let link = peer.link_of(Transport::Rdma);
    let given = |region: &&RemoteRegion| {
        let RemoteRegion { id, address, length, .. } = **region;
        let whole =
            Range { local: 0, remote: address, length, region: id, first_offset: 0, first: 0, count: 1 };
        link.as_ref().is_some_and(|link| link.carries(&[whole], &remote, false))
    };
    let ours = || local.iter().filter(|region| is_such(region.location));
    let theirs = || remote.iter().filter(|region| is_such(region.location));
    let (direct, there) = (ours().filter(|region| why_staged(region).is_none()), theirs().filter(given));
    let counts = [direct.count(), ours().count(), there.count(), theirs().count()];
    if counts == [0; 4] {
        return None;
    }
    let mut text = format!(
        "NICs reach {} of {} regions here and {} of {} of the peer's",
        counts[0], counts[1], counts[2], counts[3]
    );
    if let Some(why) = ours().find_map(|region| why_staged(region)) {
        text += &format!(", the others here not because {why}");
    }
    Some(text)
}
