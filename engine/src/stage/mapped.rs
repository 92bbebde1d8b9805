//! Maps device memory of another process of this host for a device here. One copy then replaces the three steps of
//! staging. A region is asked for when a device first needs it, and stays mapped until its owner recalls it or the
//! session ends.
//!
//! The same-host path counts a mapping as a use (MAP) until the mapping is closed, so that the owner cannot free the
//! memory before. Each copy is a use of its own (COPY), so that no copy begins when the region or the session is over.
//! Memory that cannot be mapped is staged.

use super::event::Event;
use super::operation::{Method, Operation, OperationStep};
use super::service::Stage;
use super::steps::{add, Batches};
use super::wire::Message;
use crate::complete::Fence;
use crate::device::{Borrowed, Direction, Piece, Worker};
use crate::peer::{Kept, Path};
use crate::region::grants::Use;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::map::HashMap;
use crate::types::{end_of, Location, Monotonic, Op, OperationId, PeerId, RegionId, Slice, Transport};
use std::sync::Arc;

/// A region of the peer, and the device here that reaches it.
pub type MappingKey = (RegionId, Location);

/// A device here and a device of the peer.
pub type Pair = (Location, Location);

/// The memory of one peer that devices here reach, in the current session.
#[derive(Default)]
pub struct Reached(HashMap<MappingKey, Reach>);

impl Reached {
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

enum Reach {
    /// The peer was asked for the driver's description of the memory.
    Asked,
    /// The driver is mapping the memory.
    Mapping,
    Mapped(Arc<Mapped>),
    /// The memory cannot be mapped, and is staged. It is asked for again from this time on.
    Refused {
        again_ns: Monotonic,
    },
}

/// A device that had no memory for the mapping may have some later. Other reasons last as long as the session.
const MEMORY_PAUSE_NS: u64 = 1_000_000_000;

impl Reach {
    fn refused(why: Status, now_ns: Monotonic) -> Reach {
        Reach::Refused {
            again_ns: if why == Status::NoMemory { now_ns + MEMORY_PAUSE_NS } else { Monotonic::NEVER },
        }
    }

    fn is_due(&self, now_ns: Monotonic) -> bool {
        matches!(self, Reach::Refused { again_ns } if *again_ns <= now_ns)
    }
}

/// A mapped region. Dropping it closes the mapping.
pub struct Mapped {
    /// The region's address for the device here, and the mapped length.
    address: u64,
    length: u64,
    worker: Arc<Worker>,
    path: Arc<dyn Path>,
    kept: Option<Kept>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let (address, kept) = (self.address, self.kept.take());
        self.worker.with(move |queue| {
            if queue.and_then(|queue| queue.close(address)).is_err() {
                // The memory may still be mapped, so its owner has to keep it until this process ends: no driver
                // reports that a failed or destroyed context has no mapping any more.
                std::mem::forget(kept);
            }
        });
    }
}

/// A copy's hold on mapped memory until the copy has ended: the region's use, and its mapping.
pub type Held = (Kept, Arc<Mapped>);

/// Device memory is mapped and lent only between processes whose identity the same-host path has proven.
pub fn unproven() -> Error {
    let text = "the same-host path could not prove which process of this host the peer is";
    Error::new(Status::Unavailable, text)
}

/// Returns the location by which device threads are told apart.
pub fn device(at: Location) -> Location {
    Location { kind: at.kind.driver(), device: at.device }
}

impl Stage {
    /// Copies over mapped memory, or first asks for the mappings that are missing.
    pub fn reach(&mut self, peer: PeerId, op: OperationId) {
        let Some(mapping_keys) = self.mapping_keys(peer, op) else { return self.stage_instead(peer, op) };
        let now_ns = clock::monotonic_ns();
        for key in &mapping_keys {
            let Some(side) = self.sides.get_mut(&peer) else { return };
            if side.is_connected() && side.reached.0.get(key).is_none_or(|reach| reach.is_due(now_ns)) {
                side.reached.0.insert(*key, Reach::Asked);
                self.borrow(peer, *key);
            }
        }
        let Some(side) = self.sides.get(&peer) else { return };
        let all = || mapping_keys.iter().map(|key| side.reached.0.get(key));
        if all().any(|reach| matches!(reach, Some(Reach::Refused { .. }))) {
            return self.stage_instead(peer, op);
        }
        let ready = all().all(|reach| matches!(reach, Some(Reach::Mapped(_))));
        match (ready, self.operations.get_mut(peer, op)) {
            (true, _) => self.copy_over(peer, op),
            (false, Some(operation)) => operation.step = OperationStep::Reach,
            (false, None) => {}
        }
    }

    /// Returns the regions to map for an operation, each once. None: the peer's regions have changed.
    fn mapping_keys(&self, peer: PeerId, op: OperationId) -> Option<Vec<MappingKey>> {
        let mut mapping_keys = Vec::new();
        for (_, key, _) in self.spots(peer, op)? {
            if !mapping_keys.contains(&key) {
                mapping_keys.push(key);
            }
        }
        Some(mapping_keys)
    }

    /// Returns each slice of an operation with its region, its device, and its offset in the region.
    fn spots(&self, peer: PeerId, op: OperationId) -> Option<Vec<(Slice, MappingKey, u64)>> {
        let (side, operation) = (self.sides.get(&peer)?, self.operations.get(peer, op)?);
        let (local, remote) = (self.registry.snapshot(), side.peer.remote.snapshot());
        let spot = |slice: &Slice| {
            let length = u64::from(slice.length);
            let region = match slice.region {
                RegionId::NONE => remote.find(slice.remote, length)?,
                id => remote.get(id)?,
            };
            let inside = region.contains(slice.remote, length) && region.access.allows(operation.op());
            let here = local.find(slice.local, length)?.location;
            inside.then(|| (*slice, (region.id, device(here)), slice.remote - region.address))
        };
        operation.slices().iter().map(spot).collect()
    }

    fn borrow(&mut self, peer: PeerId, key: MappingKey) {
        let (region, at) = key;
        match self.drivers.get(at.kind) {
            Ok(driver) => {
                self.send(peer, Message::Borrow { region, kind: at.kind, process: driver.process_id() });
            }
            Err(error) => self.refuse(peer, key, &error),
        }
    }

    /// Handles LENT: maps the region for each device that waits.
    pub fn lent(&mut self, peer: PeerId, region: RegionId, memory: &[u8]) {
        let Some(side) = self.sides.get(&peer) else { return };
        let asked =
            side.reached.0.iter().filter(|(key, reach)| key.0 == region && matches!(reach, Reach::Asked));
        let asked: Vec<MappingKey> = asked.map(|(key, _)| *key).collect();
        for key in asked {
            if let Err(error) = self.map(peer, key, memory.to_vec()) {
                self.refuse(peer, key, &error);
            }
        }
        self.check_waiting(peer);
    }

    fn map(&mut self, peer: PeerId, key: MappingKey, memory: Vec<u8>) -> Result<()> {
        let Some(side) = self.sides.get_mut(&peer) else { return Ok(()) };
        let none = || Error::new(Status::Unavailable, "the same-host path to the peer is gone");
        let path = side.peer.path(Transport::Local).ok_or_else(none)?;
        let here = path.same_host().ok_or_else(none)?;
        let owner = here.process().ok_or_else(unproven)?;
        let length = side.peer.remote.snapshot().get(key.0).ok_or_else(none)?.length;
        let kept = here.keep_registered(key.0, Use::Map)?;
        let worker = self.drivers.worker(key.1)?;
        side.reached.0.insert(key, Reach::Mapping);
        let (inbox, own, session) = (self.inbox.clone(), worker.clone(), side.session());
        worker.with(move |queue| {
            let borrowed = Borrowed { exported: &memory, length, peer, owner: &owner };
            let result = queue.and_then(|queue| queue.import(&borrowed)).map(|address| {
                let kept = Some(kept);
                Arc::new(Mapped { address, length, worker: own, path, kept })
            });
            inbox.push(Event::Mapped { peer, session, key, result });
        });
        Ok(())
    }

    /// Handles the result of a device's mapping.
    pub fn mapped(&mut self, peer: PeerId, key: MappingKey, result: Result<Arc<Mapped>>) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        let Some(reach @ Reach::Mapping) = side.reached.0.get_mut(&key) else { return };
        match result {
            Ok(mapped) => *reach = Reach::Mapped(mapped),
            Err(error) => self.refuse(peer, key, &error),
        }
        self.check_waiting(peer);
    }

    fn refuse(&mut self, peer: PeerId, key: MappingKey, error: &Error) {
        self.note_obstacle(peer, key.1.kind, &error.message);
        if let Some(side) = self.sides.get_mut(&peer) {
            side.reached.0.insert(key, Reach::refused(error.status, clock::monotonic_ns()));
        }
    }

    pub fn refused(&mut self, peer: PeerId, region: RegionId, error: &Error) {
        let Some(side) = self.sides.get(&peer) else { return };
        let mapping_keys: Vec<MappingKey> =
            side.reached.0.keys().filter(|key| key.0 == region).copied().collect();
        mapping_keys.into_iter().for_each(|key| self.refuse(peer, key, error));
        self.check_waiting(peer);
    }

    /// Handles RECALLED: mappings of the region are closed as soon as the last copy has ended.
    pub fn recalled(&mut self, peer: PeerId, region: RegionId) {
        if let Some(side) = self.sides.get_mut(&peer) {
            side.reached.0.retain(|key, _| key.0 != region);
        }
        self.check_waiting(peer);
    }

    pub fn check_waiting(&mut self, peer: PeerId) {
        let waiting = self.operations.of(peer, |operation| operation.step == OperationStep::Reach);
        waiting.into_iter().for_each(|op| self.begin(peer, op));
    }

    /// Starts the copies over mapped memory, one batch for each device here.
    fn copy_over(&mut self, peer: PeerId, op: OperationId) {
        let Some((batches, held)) = self.plan_over(peer, op) else { return self.stage_instead(peer, op) };
        if let Some(operation) = self.operations.get_mut(peer, op) {
            operation.held = held;
        }
        let started = self.start_copies(peer, op, Direction::DeviceToDevice, batches);
        self.note_start(peer, op, started);
    }

    /// Plans the copies. None: a region is being unregistered, or the session is over.
    fn plan_over(&self, peer: PeerId, op: OperationId) -> Option<(Batches, Vec<Held>)> {
        let (side, operation) = (self.sides.get(&peer)?, self.operations.get(peer, op)?);
        let (mut batches, mut held, mut entered) = (Batches::new(), Vec::new(), Vec::new());
        for (slice, key, offset) in self.spots(peer, op)? {
            let Some(Reach::Mapped(mapped)) = side.reached.0.get(&key) else { return None };
            // The region's length may have changed since it was mapped.
            if end_of(offset, u64::from(slice.length)).is_none_or(|end| end > mapped.length) {
                return None;
            }
            if !entered.contains(&key) {
                entered.push(key);
                let kept = mapped.path.same_host()?.keep_registered(key.0, Use::Copy).ok()?;
                held.push((kept, mapped.clone()));
            }
            let (here, there) = (slice.local, mapped.address + offset);
            let (to, from) = if operation.op() == Op::Write { (there, here) } else { (here, there) };
            add(&mut batches, key.1, 0, Piece { to, from, length: u64::from(slice.length) });
        }
        Some((batches, held))
    }

    /// Ends copies over mapped memory.
    pub fn copied_over(&mut self, peer: PeerId, op: OperationId) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        operation.held.clear();
        if let Method::Mapped(kind) = operation.method {
            operation.transfer.report_transport(Transport::of_devices(kind));
        }
        self.finish(peer, op, None);
    }

    /// Stages the run through host memory instead.
    pub fn stage_instead(&mut self, peer: PeerId, op: OperationId) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        if operation.is_struck() {
            return self.finish(peer, op, Some(Fence::Confirmed));
        }
        let Some(Operation { transfer, range, .. }) = self.operations.take(peer, op) else { return };
        self.send(peer, Message::Release { op });
        self.split(peer, &transfer, range, true, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lacked_memory_is_asked_for_again_and_not_at_once() {
        let lacking = Reach::refused(Status::NoMemory, Monotonic::from_ns(5));
        assert!(
            !lacking.is_due(Monotonic::from_ns(5 + MEMORY_PAUSE_NS - 1))
                && lacking.is_due(Monotonic::from_ns(5 + MEMORY_PAUSE_NS))
        );
        for why in [Status::Unsupported, Status::Unavailable, Status::Access, Status::System] {
            assert!(
                !Reach::refused(why, Monotonic::from_ns(5)).is_due(Monotonic::from_ns(u64::MAX - 1)),
                "{why:?}"
            );
        }
        assert!(!Reach::Asked.is_due(Monotonic::NEVER) && !Reach::Mapping.is_due(Monotonic::NEVER));
    }
}
