//! Paths of transfers: gathers the facts from which `route` decides, copies a small transfer at once where possible,
//! and reports the decision to the caller (`peer_paths`).

use super::transfers::TransferOptions;
use super::Engine;
use crate::complete::TransferResult;
use crate::context::Context;
use crate::peer::{Condition, Path, PathStatus, Peer, OWN};
use crate::plan::{self, PlanInput};
use crate::region::{Region, RegionMap, RemoteMap, RemoteRegion};
use crate::route::{self, Asked, Between, Decision, Facts, PathState, Why};
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::map::HashSet;
use crate::transport::rdma::why_staged;
use crate::types::{Location, MemoryKind, Op, PeerId, Range, RegionId, Request, Transport};
use std::sync::Arc;

/// A path to a peer, and why the path is or is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    pub transport: Transport,
    pub chosen: bool,
    pub why: String,
}

impl Engine {
    /// Copies a small transfer to or from a process of this host at once, without a handle, the table or the queue.
    /// None if the transfer does not qualify or the copy failed; the caller then submits the transfer.
    pub fn at_once(
        &self,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Option<TransferResult>> {
        self.call("copying", || self.copy_at_once(peer, op, requests, options))
    }

    fn copy_at_once(
        &self,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Option<TransferResult>> {
        let context = self.context()?;
        let peer = context.peer(peer)?;
        let may = route::copies_at_once(&asked(context, &peer, options));
        if !may || requests.len() != 1 || options.queue.is_some() {
            return Ok(None);
        }
        let Some(path) = peer.path(Transport::Local) else { return Ok(None) };
        // Counted before the second check of the engine's state, because closing waits for this count.
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
        let is_ours = region.is_ours();
        let moved = path.same_host().is_some_and(|here| here.copy_now(op, &slice, is_ours, submitted_ns));
        region.leave();
        if !moved {
            return Ok(None);
        }
        context.stats.moved_at_once(op, slice.length as u64);
        Ok(Some(TransferResult::at_once(options.user_data, slice.length as u64, submitted_ns)))
    }

    /// Returns each path to the peer and why it is or is not chosen: the present decision for host memory, without
    /// options. Wakes no idle path.
    pub fn peer_paths(&self, peer: PeerId) -> Result<Vec<PathInfo>> {
        let context = self.context()?;
        let peer = context.peer(peer)?;
        let facts = ask_paths(&peer, begin(context, &peer, asked_of_all(context, &peer)), |_, _| true);
        let Decision { path, waits, .. } = route::decide(&facts);
        // An idle path counts as existing, because a transfer that needs it wakes it.
        let is_there = !waits || facts.state(path) == PathState::Idle;
        let loss = peer.last_loss();
        let tell = |transport: Transport| {
            let mut why = match transport {
                Transport::Cuda | Transport::Ascend => by_device(context, &peer, transport),
                _ => sentence(&peer, &facts, transport),
            };
            if transport == path && waits {
                why += "; transfers wait for it";
            }
            if let Some(loss) = loss.as_ref().filter(|loss| loss.transport == transport) {
                let ago = clock::wall().duration_since(loss.at).unwrap_or_default().as_secs();
                why = format!("{why}; last lost {ago} s ago: {}", loss.text);
            }
            PathInfo { transport, chosen: transport == path && is_there, why }
        };
        Ok(Transport::named().map(tell).collect())
    }
}

/// Returns the part of the options that bears on the path.
#[inline]
fn asked(context: &Context, peer: &Peer, options: &TransferOptions) -> Asked {
    // Nothing of a transfer to oneself leaves the process: it has one path, and nothing to verify.
    let is_own = peer.is_own();
    Asked {
        allowed: if is_own { u64::MAX } else { allowed(context, options) },
        checksum: options.checksum && !is_own,
        ordered: options.ordered,
        notify: options.notify.is_some(),
        held: options.start.is_some(),
    }
}

fn asked_of_all(context: &Context, peer: &Peer) -> Asked {
    asked(context, peer, &TransferOptions::default())
}

/// Returns the transports that both the engine's settings and the options allow.
pub(super) fn allowed(context: &Context, options: &TransferOptions) -> u64 {
    let any = |mask| if mask == 0 { u64::MAX } else { mask };
    any(context.config.transports.0) & any(options.transports_allowed)
}

/// Begins the facts with the state of the paths. The caller must take the snapshots of the regions afterwards.
fn begin(context: &Context, peer: &Peer, asked: Asked) -> Facts {
    let mut facts = peer.facts(asked);
    facts.version = facts.version.wrapping_add(context.registry.version());
    facts
}

/// Begins the facts of a transfer with these options.
pub(super) fn begin_facts(context: &Context, peer: &Peer, options: &TransferOptions) -> Facts {
    begin(context, peer, asked(context, peer, options))
}

/// Adds the kinds of memory that the transfer touches, and which paths reach the ranges.
pub(super) fn gather(
    peer: &Peer,
    mut facts: Facts,
    ranges: &[Range],
    local: &[Arc<Region>],
    remote: &RemoteMap,
) -> Facts {
    let there = |range: &Range| remote.location_at(range.region, range.remote, range.length);
    let memory = &mut facts.memory;
    memory.device_here = local.iter().any(|region| region.is_device());
    memory.device_there =
        remote.has_devices() && ranges.iter().any(|range| there(range).is_some_and(|at| at.kind.is_device()));
    memory.nics_here = memory.device_here
        && local.iter().filter(|region| region.is_device()).all(|region| why_staged(region).is_none());
    ask_paths(peer, facts, |path, alone| path.carries(ranges, remote, alone))
}

/// Adds the regions at the far end of an engine's transfer to itself, each once: they are in use like the others.
pub(super) fn add_far_regions(map: &RegionMap, ranges: &[Range], regions: &mut Vec<Arc<Region>>) {
    let mut seen: HashSet<RegionId> = regions.iter().map(|region| region.id).collect();
    let mut last: Option<&Arc<Region>> = None;
    for range in ranges {
        let is_last = |it: &&Arc<Region>| it.id == range.region || it.contains(range.remote, range.length);
        if last.filter(is_last).is_some() {
            continue;
        }
        let found = match range.region {
            RegionId::NONE => map.find(range.remote, range.length),
            id => map.get(id),
        };
        last = found.filter(|region| !region.is_revoked());
        regions.extend(last.filter(|region| seen.insert(region.id)).cloned());
    }
}

/// Asks each path on which the decision depends for its state and, once, whether the path reaches all ranges.
fn ask_paths(peer: &Peer, mut facts: Facts, reaches: impl Fn(&dyn Path, bool) -> bool) -> Facts {
    while let Some(transport) = route::asks(&facts) {
        let path = peer.path(transport);
        let state = match &path {
            Some(path) => match path.condition() {
                Condition::Works => PathState::Open,
                Condition::Idle => PathState::Idle,
                Condition::Broken => PathState::Broken,
            },
            // The path is gone since the facts were begun, so their version is old.
            None => match peer.path_state(transport) {
                PathState::Open => PathState::Broken,
                state => state,
            },
        };
        facts.set_state(transport, state);
        if let Some(path) = path.filter(|_| state == PathState::Open) {
            facts.set_reaches(transport, reaches(&*path, facts.is_alone(transport)));
        }
    }
    facts
}

/// Returns the path that the router decides on, and wakes idle paths that would be better. If no path applies,
/// UNAVAILABLE with a reason for each path.
pub(super) fn choose(peer: &Peer, facts: &Facts) -> Result<Transport> {
    let Decision { path, wake, .. } = route::decide(facts);
    let idle = Transport::named().filter(|transport| wake & transport.bit() != 0);
    idle.filter_map(|transport| peer.path(transport)).for_each(|path| path.rouse());
    if path != Transport::None {
        return Ok(path);
    }
    if let Some(why) = peer.lost() {
        return Err(Error::new(why, "the peer is lost; connect again"));
    }
    // What the peer said of its paths may be out of date.
    peer.ask_if_silent();
    let mut text = "no path is left by the setting `transports` and options.transports_allowed".to_owned();
    for (nth, transport) in Transport::named().enumerate() {
        let why = sentence(peer, facts, transport);
        text += &format!("{} {}: {why}", if nth == 0 { ":" } else { ";" }, transport.name());
    }
    Err(Error::new(Status::Unavailable, text))
}

/// Returns why a path does or does not carry a transfer, with the path's own text if there is one.
fn sentence(peer: &Peer, facts: &Facts, transport: Transport) -> String {
    let why = route::why(facts, transport);
    let own = match transport {
        Transport::Tcp if peer.is_own() => Some(OWN.to_owned()),
        Transport::Tcp => match peer.lost() {
            Some(why) => Some(format!("the peer is lost: {why}")),
            None => Some("the session is being established again".to_owned()),
        },
        _ => match peer.path_status(transport) {
            PathStatus::Open(_, how) if why == Why::Best => return format!("{why}: {how}"),
            PathStatus::Open(..) => None,
            PathStatus::Pending(own) | PathStatus::Shut(own) => Some(own),
        },
    };
    match (why, own) {
        (Why::Worse(better), _) if transport == Transport::Tcp => {
            format!("the last resort, and {} is usable", better.name())
        }
        (_, Some(own)) if why.is_explained_by_path() => own,
        _ => why.to_string(),
    }
}

/// Returns the text for a transport of devices, which moves data only between memory of two devices.
fn by_device(context: &Context, peer: &Peer, transport: Transport) -> String {
    let kind = if transport == Transport::Ascend { MemoryKind::Ascend } else { MemoryKind::Cuda };
    let path = peer.path(Transport::Staged);
    let crosses = path.as_ref().and_then(|path| path.devices()).is_some_and(|devices| devices.crosses(kind));
    let same_host = peer.path(Transport::Local).is_some();
    let told = match route::between_devices(&asked_of_all(context, peer), (kind, kind), same_host, crosses) {
        (Between::Hosts, Some(why)) => match peer.path_status(Transport::Local) {
            PathStatus::Pending(own) | PathStatus::Shut(own) if why == Why::OtherHost => {
                format!("{why}: {own}")
            }
            _ => why.to_string(),
        },
        _ => match path.as_ref().and_then(|path| path.devices()?.obstacle(kind)) {
            Some(why) => format!("memory of devices goes through the hosts: {why}"),
            None => format!("taken where the memory on both sides is of {} devices", kind.name()),
        },
    };
    match reached_by_nics(context, peer, kind) {
        Some(reached) => format!("{told}; {reached}"),
        None => told,
    }
}

/// Returns how many regions of this kind of device memory RDMA devices read and write directly. None if no such region
/// exists.
fn reached_by_nics(context: &Context, peer: &Peer, kind: MemoryKind) -> Option<String> {
    let (local, remote) = (context.registry.snapshot(), peer.remote.snapshot());
    let is_such = |at: Location| at.kind.is_device() && at.kind.driver() == kind;
    let path = peer.path(Transport::Rdma);
    let given = |region: &&RemoteRegion| {
        let RemoteRegion { id, address, length, .. } = **region;
        let whole = Range { local: 0, remote: address, length, region: id, first: 0, count: 1 };
        path.as_ref().is_some_and(|path| path.carries(&[whole], &remote, false))
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
        text += &format!(", the others here are not reached because {why}");
    }
    Some(text)
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
