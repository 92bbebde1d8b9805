//! The owner's side of device memory that processes of this host map. The stage lends a region to each peer that asks,
//! recalls it when the region is unregistered, and frees the driver's state when no process has it mapped. The
//! same-host path counts the mappings: see `region::grants`.

use super::event::{Event, Inbox};
use super::mapped::unproven;
use super::service::Stage;
use super::wire::Message;
use crate::device::Drivers;
use crate::lists::take_where;
use crate::region::holder::Lender;
use crate::region::Region;
use crate::status::{Error, Result, Status};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::{HashMap, HashSet};
use crate::sys::mpsc;
use crate::types::{Location, MemoryKind, PeerId, RegionId, Transport};
use std::sync::Arc;
use std::time::Duration;

/// The time in which a device must withdraw an export.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

struct Loan {
    peer: PeerId,
    /// The device whose queue exported it.
    at: Location,
    memory: Vec<u8>,
}

/// The memory that is lent.
pub struct Loans {
    inbox: Arc<Inbox>,
    drivers: Arc<Drivers>,
    all: Mutex<Lent>,
}

/// Loans by region.
#[derive(Default)]
struct Lent {
    loans: HashMap<RegionId, Vec<Loan>>,
    /// Loans of lost peers that devices are withdrawing. Unregister waits for these too.
    withdrawing: HashMap<RegionId, Vec<mpsc::Receiver<()>>>,
}

impl Loans {
    pub fn new(inbox: Arc<Inbox>, drivers: Arc<Drivers>) -> Loans {
        Loans { inbox, drivers, all: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.all.lock()
    }

    fn find(&self, region: RegionId, peer: PeerId) -> Option<Vec<u8>> {
        let all = self.lock();
        all.loans.get(&region)?.iter().find(|loan| loan.peer == peer).map(|loan| loan.memory.clone())
    }

    /// Withdraws a loan on its device; the receiver hears when that is over.
    fn withdraw(&self, loan: Loan) -> mpsc::Receiver<()> {
        let (over, receiver) = mpsc::sync_channel(1);
        if let Ok(worker) = self.drivers.worker(loan.at) {
            worker.with(move |queue| {
                if let Ok(queue) = queue {
                    queue.withdraw(&loan.memory);
                }
                let _ = over.send(());
            });
        }
        receiver
    }

    /// Withdraws the loans of a peer that can send nothing any more. Waits for no device.
    pub fn take_back_from(&self, peer: PeerId) {
        let mut all = self.lock();
        let Lent { loans, withdrawing } = &mut *all;
        withdrawing.retain(|_, receivers| {
            receivers.retain(|receiver| receiver.try_recv() == Err(mpsc::TryRecvError::Empty));
            !receivers.is_empty()
        });
        loans.retain(|region, loans| {
            for loan in take_where(loans, |loan| loan.peer == peer) {
                // Done under the lock, so that a thread finds the loan in one of the two maps.
                withdrawing.entry(*region).or_default().push(self.withdraw(loan));
            }
            !loans.is_empty()
        });
    }
}

impl Lender for Loans {
    fn recall(&self, region: RegionId) {
        self.inbox.push(Event::Recall(region));
    }

    fn take_back(&self, region: RegionId) {
        let mut all = self.lock();
        let loans = all.loans.remove(&region).unwrap_or_default();
        let mut receivers = all.withdrawing.remove(&region).unwrap_or_default();
        drop(all);
        receivers.extend(loans.into_iter().map(|loan| self.withdraw(loan)));
        // Bounded wait; a device that hangs keeps the memory it has.
        for receiver in receivers {
            let _ = receiver.recv_timeout(PATIENCE);
        }
    }
}

/// The regions that one peer wants to map and does not have yet.
#[derive(Default)]
pub struct Borrower {
    /// Asked for while the peer's process is not known.
    waiting: HashMap<RegionId, (MemoryKind, i32)>,
    /// Regions that devices are exporting.
    exporting: HashSet<RegionId>,
}

impl Borrower {
    /// Forgets the requests of a session that is over. Devices still report the exports under way.
    pub fn disconnected(&mut self) {
        self.waiting.clear();
    }
}

impl Stage {
    /// Handles BORROW: a peer wants to map a region.
    pub fn lend(&mut self, peer: PeerId, id: RegionId, kind: MemoryKind, process: i32) {
        if let Some(memory) = self.loans.find(id, peer) {
            return self.send(peer, Message::Lent { region: id, memory });
        }
        if let Err(error) = self.try_lend(peer, id, kind, process) {
            self.send(peer, Message::refused(id, &error));
        }
    }

    /// Answers the requests that came before the state of the same-host path was known here.
    pub fn lend_to_waiting(&mut self, peer: PeerId) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        if side.borrower.waiting.is_empty() || side.peer.is_pending(Transport::Local) {
            return;
        }
        for (region, (kind, process)) in std::mem::take(&mut side.borrower.waiting) {
            self.lend(peer, region, kind, process);
        }
    }

    fn try_lend(&mut self, peer: PeerId, id: RegionId, kind: MemoryKind, process: i32) -> Result<()> {
        let Some(side) = self.sides.get_mut(&peer) else { return Ok(()) };
        if side.borrower.exporting.contains(&id) {
            return Ok(()); // the first request's answer serves all
        }
        let region = self.registry.get(id)?;
        if !region.is_device() || region.location.kind.driver() != kind.driver() {
            return Err(Error::new(Status::Unsupported, "the region is not memory of this kind of device"));
        }
        let is_granted = side.peer.is_own() || region.access.0 != 0 && self.registry.has_grants();
        if !is_granted {
            return Err(Error::new(Status::Access, "the region may not be reached on the same-host path"));
        }
        let Some(side) = self.sides.get_mut(&peer) else { return Ok(()) };
        // The peer's side of the same-host path may be settled before this side.
        if side.peer.is_pending(Transport::Local) {
            side.borrower.waiting.insert(id, (kind, process));
            return Ok(());
        }
        let path = side.peer.path(Transport::Local);
        let proven = path.and_then(|path| path.same_host()?.process()).ok_or_else(unproven)?;
        let process = self.drivers.get(kind)?.borrower(process, &proven)?;
        let worker = self.drivers.worker(region.location)?;
        if !region.enter() {
            return Err(Error::new(Status::Stale, "the region is being unregistered"));
        }
        side.borrower.exporting.insert(id);
        let inbox = self.inbox.clone();
        worker.with(move |queue| {
            let result = queue.and_then(|queue| queue.export(region.address, region.length, process));
            inbox.push(Event::Exported { peer, region, result });
        });
        Ok(())
    }

    pub fn exported(&mut self, peer: PeerId, region: &Arc<Region>, result: Result<Vec<u8>>) {
        let id = region.id;
        if let Some(side) = self.sides.get_mut(&peer) {
            side.borrower.exporting.remove(&id);
        }
        match result {
            Ok(memory) => {
                let loan = Loan { peer, at: region.location, memory: memory.clone() };
                // Recorded before the region is left: unregistering takes back all recorded loans.
                self.loans.lock().loans.entry(id).or_default().push(loan);
                self.send(peer, Message::Lent { region: id, memory });
            }
            Err(error) => self.send(peer, Message::refused(id, &error)),
        }
        region.leave();
    }

    pub fn recall(&mut self, region: RegionId) {
        let peers: Vec<PeerId> = match self.loans.lock().loans.get(&region) {
            Some(loans) => loans.iter().map(|loan| loan.peer).collect(),
            None => return,
        };
        peers.into_iter().for_each(|peer| self.send(peer, Message::Recalled { region }));
    }
}
