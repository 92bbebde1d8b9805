//! Device memory: which libraries an engine may open, and how staging submits its parts.

use super::transfers::{prepare, submit_to, Deadline, TransferOptions};
use super::Engine;
use crate::complete::transfer::Strike;
use crate::complete::{Transfer, TransferFlags, TransferSpec};
use crate::config::{AscendFabric, Config};
use crate::context::Context;
use crate::device::{Drivers, Hold, Library, Limits, Point, Start, Worker};
use crate::limits::STAGE_BYTES;
use crate::peer::Peer;
use crate::stage::{Mover, StageService, StageSettings, StagedPart};
use crate::status::{Error, Result, Status};
use crate::transport::ascend;
use crate::transport::file::{self, Files};
use crate::types::{MemoryKind, Transport};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

/// Batches in progress on one device: one is copied, another waits behind it, and the next is prepared.
const DEPTH: usize = 4;

pub(super) fn drivers(config: &Config) -> (Arc<Files>, Arc<Drivers>) {
    let files = Arc::new(Files::new(config.file_io));
    let mut libraries: Vec<Library> = vec![file::library(files.clone())];
    if config.cuda {
        libraries.push(cuda_library(config));
    }
    if config.ascend {
        libraries.push(ascend::library(&config.ascend_library, fabric(config)));
    }
    let limits = Limits {
        batch_bytes: STAGE_BYTES as usize,
        depth: DEPTH,
        timeout: Duration::from_millis(config.device_timeout_ms),
    };
    (files, Arc::new(Drivers::new(libraries, limits)))
}

fn fabric(config: &Config) -> Option<ascend::Fabric> {
    let protocol = match config.ascend_fabric {
        AscendFabric::Off => return None,
        AscendFabric::Hccs => ascend::Protocol::Hccs,
        AscendFabric::Roce => ascend::Protocol::Roce,
    };
    let patience = Duration::from_millis(config.connect_timeout_ms);
    Some(ascend::Fabric { protocol, library: config.hixl_library.clone(), patience })
}

#[cfg(not(test))]
fn cuda_library(config: &Config) -> Library {
    crate::transport::cuda::library(&config.cuda_library)
}

/// The engine's own tests use a simulated device.
#[cfg(test)]
fn cuda_library(_config: &Config) -> Library {
    crate::stage::tests::fake::library()
}

pub(super) fn stage(context: &Arc<Context>, drivers: Arc<Drivers>) -> Arc<StageService> {
    let settings = StageSettings { slots: context.config.staging_slots };
    let mover = Box::new(Submitter(context.clone()));
    StageService::new(settings, context.registry.clone(), drivers, context.commands.clone(), mover)
}

struct Submitter(Arc<Context>);

impl Mover for Submitter {
    fn submit(&self, peer: &Arc<Peer>, part: StagedPart) -> Result<Arc<Transfer>> {
        let options = TransferOptions {
            deadline: Deadline::Never,
            transports_allowed: part.allowed,
            priority: part.priority,
            checksum: part.checksum,
            ..TransferOptions::default()
        };
        let spec = prepare(&self.0, peer, part.op, part.requests, &options)?;
        // The peer has announced since then that the memory is a device's. A part must not wait for another slot of
        // staging, so the whole transfer is staged again.
        if spec.transport == Transport::Staged {
            return Err(Error::new(Status::Unsupported, "the peer's memory is a device's"));
        }
        submit_to(&self.0, peer, TransferSpec { flags: spec.flags | TransferFlags::PART, ..spec })
    }

    fn forget(&self, part: &Transfer) {
        let _ = self.0.transfers.remove(part.handle);
    }
}

impl Engine {
    /// Returns a point in the program's own work on a device, and the thread that polls for it.
    pub(super) fn point(&self, kind: MemoryKind, at: Start) -> Result<(Arc<Worker>, Box<dyn Point>)> {
        let drivers = &self.inner.drivers;
        let point = drivers.get(kind)?.point(at)?;
        Ok((drivers.any_worker(kind)?, point))
    }

    /// Holds a stream of the program until the transfer is final, in any state. UNAVAILABLE if the device's library is
    /// not present, UNSUPPORTED if the library cannot hold streams.
    ///
    /// # Safety
    /// `stream` is a stream of the library of `kind`, and exists during the call.
    pub unsafe fn hold_stream(&self, transfer: &Arc<Transfer>, kind: MemoryKind, stream: u64) -> Result<()> {
        self.context()?;
        let hold = self.inner.drivers.get(kind)?.hold(stream)?;
        let held = Arc::new(Held { hold, transfer: Arc::downgrade(transfer) });
        self.attend(transfer)?;
        held.check();
        Ok(())
    }
}

/// A stream that waits for a transfer.
struct Held {
    hold: Box<dyn Hold>,
    transfer: Weak<Transfer>,
}

impl Held {
    /// Releases the stream if the transfer is final. Otherwise registers to look again when it is.
    fn check(self: Arc<Held>) {
        let Some(transfer) = self.transfer.upgrade() else { return self.hold.release() };
        if !transfer.is_final() {
            transfer.waiter.register_own(&Waker::from(self.clone()));
        }
        if transfer.is_final() {
            self.hold.release();
        }
    }
}

impl Wake for Held {
    fn wake(self: Arc<Held>) {
        self.check();
    }
}

/// Starts a held transfer when the point is reached. If the work before the point fails, the transfer fails.
pub(super) fn start_at(worker: &Worker, point: Box<dyn Point>, peer: &Arc<Peer>, transfer: &Arc<Transfer>) {
    let until = Until { point, transfer: transfer.clone() };
    let (peer, transfer) = (peer.clone(), transfer.clone());
    let reached = move |result: Result<()>| match result {
        Ok(()) => peer.start(&transfer),
        Err(error) => {
            peer.strike(&transfer, Strike { status: error.status, os_error: error.os_error });
        }
    };
    worker.wait_for(Box::new(until), Box::new(reached));
}

/// A point that counts as reached once the transfer is struck, so that the device's thread stops polling for it.
struct Until {
    point: Box<dyn Point>,
    transfer: Arc<Transfer>,
}

impl Point for Until {
    fn is_reached(&self) -> Result<bool> {
        // The program may destroy its event as soon as the transfer is final.
        self.transfer.while_pending(|| self.point.is_reached()).unwrap_or(Ok(true))
    }
}
