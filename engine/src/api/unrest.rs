//! Says what a call that ended with BUSY or TIMEOUT waited for: the users of a region, or activity of a fenced peer.
//! The sentences are for people; `memory` and `peers` put them into their errors. Users come and go, so a sentence may
//! be out of date.

use super::Engine;
use crate::complete::Transfer;
use crate::peer::Peer;
use crate::region::Region;
use crate::status::{Error, Status};
use crate::sys::map::HashMap;
use crate::types::{PeerId, RegionId, Transport};
use std::sync::Arc;

/// Returns the name of a peer for people: its address, and its process if the peer is on this host.
pub(super) fn name_of(peer: &Peer) -> String {
    let identity = &peer.identity;
    let address = if identity.address.is_empty() {
        format!("an engine of {} that does not listen", identity.hosts.1)
    } else {
        identity.address.clone()
    };
    let path = peer.path(Transport::Local);
    match path.as_ref().and_then(|path| path.same_host()?.process()) {
        Some(process) if process.pid != 0 => format!("{address} (process {})", process.pid),
        _ => address,
    }
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "copy") => format!("{count} copies"),
        _ => format!("{count} {what}s"),
    }
}

impl Engine {
    /// Adds to BUSY of an unregister which region is in use, and by whom.
    pub(super) fn with_users(&self, handle: RegionId, error: Error) -> Error {
        let registry = &self.inner.context.registry;
        match registry.get(handle) {
            Ok(region) if error.status == Status::Busy => {
                Error { message: format!("{}: {}", error.message, self.users_of(&region)), ..error }
            }
            _ => error,
        }
    }

    /// Returns the transfers of this engine that use a region and have not ended.
    pub(super) fn transfers_of<'a>(
        &self,
        region: &'a Arc<Region>,
    ) -> impl Iterator<Item = Arc<Transfer>> + 'a {
        let all = self.inner.context.transfers.list().into_iter();
        all.filter(|it| !it.is_final() && it.spec.regions.iter().any(|used| Arc::ptr_eq(used, region)))
    }

    fn users_of(&self, region: &Arc<Region>) -> String {
        let context = &self.inner.context;
        let name = if region.name.is_empty() { String::new() } else { format!("{:?} ", region.name) };
        let mut parts = Vec::new();
        let users = context.registry.users(region);
        let mut transfers: HashMap<PeerId, u64> = HashMap::default();
        for transfer in self.transfers_of(region) {
            *transfers.entry(transfer.spec.peer).or_default() += 1;
        }
        for (peer, count) in &transfers {
            parts.push(format!("{} with {}", counted(*count, "transfer"), self.name_of_handle(*peer)));
        }
        let others = users.here.saturating_sub(transfers.values().sum());
        if others > 0 {
            parts.push(format!("{others} of peers' accesses or devices' copies here"));
        }
        for it in &users.processes {
            let uses =
                [(it.copies, counted(it.copies, "copy")), (it.mappings, counted(it.mappings, "mapping"))];
            let uses: Vec<String> =
                uses.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
            parts.push(format!("{} of process {}", uses.join(" and "), it.pid));
        }
        for peer in &users.holders {
            parts.push(format!("RDMA keys of {}", self.name_of_handle(*peer)));
        }
        let users = if parts.is_empty() { "no user any more".to_owned() } else { parts.join(", ") };
        format!("{name}at {:#x} + {} has {users}", region.address, region.length)
    }

    fn name_of_handle(&self, peer: PeerId) -> String {
        self.inner.context.peer(peer).map_or_else(|_| "a forgotten peer".to_owned(), |peer| name_of(&peer))
    }

    /// For a fence that timed out: says which activity of the peer, whose sessions are over, may still land here.
    pub(super) fn unrest_of(&self, fenced: &Peer) -> String {
        let theirs = (fenced.identity.engine_id, fenced.identity.incarnation);
        let mut parts = Vec::new();
        // The incarnation may have had several sessions.
        for peer in self.inner.context.peers.list() {
            if (peer.identity.engine_id, peer.identity.incarnation) == theirs {
                parts.extend(self.inner.services.iter().filter_map(|service| service.unrest(peer.handle)));
            }
        }
        if parts.is_empty() {
            "its lanes are being closed".to_owned()
        } else {
            parts.join("; ")
        }
    }
}
