//! The interface of device libraries, which CUDA, Ascend and files implement (`transport::cuda`, `transport::ascend`,
//! `transport::file`: `Driver`). `worker` runs one thread for each device in use, and `stage` plans the copies.
//!
//! The host program's contexts, devices and streams stay as they are (contract 14). Calls that need a current context
//! run on the device's thread (`Queue`); the few calls on a caller's thread restore all that they change.

mod drivers;
mod worker;

pub use drivers::{Drivers, Library};
pub use worker::{Job, Limits, Worker};

use crate::status::{Error, Result, Status};
use crate::sys::fd::OwnedFd;
use crate::sys::host;
use crate::sys::proven::Proven;
use crate::types::{Location, MemoryKind, PeerId};
use std::net::IpAddr;
use std::time::Duration;

/// The time for which a device is polled without a pause after an event.
pub const SPIN: Duration = Duration::from_micros(50);
/// The pause between two polls when SPIN is over. A transfer that waits for an event is at most this late.
const PAUSE: Duration = Duration::from_micros(5);

/// A device library that is loaded and works. Any thread may call it.
pub trait Driver: Send + Sync {
    /// `Cuda`, `Ascend` or `File`.
    fn kind(&self) -> MemoryKind;

    /// Returns the allocation at `address`: memory of one of the library's devices, or host memory that the library
    /// pinned or manages. None for other memory. Does not detect freed memory: its address may belong to another
    /// allocation.
    fn locate(&self, address: u64) -> Result<Option<Allocation>>;

    /// Pins host memory, so that copies from and to it are asynchronous. The memory must stay mapped until `unpin`.
    fn pin(&self, address: u64, length: usize) -> Result<()>;
    fn unpin(&self, address: u64);

    /// Returns the most batches under way on one device; `usual` suits a device that copies one after the other.
    fn depth(&self, usual: usize) -> usize {
        usual
    }

    /// Opens a queue of copies on a device, for the calling thread only. At most `depth` batches are under way at
    /// once; a batch from or to the host has at most `batch_bytes`.
    fn open(&self, device: i32, batch_bytes: usize, depth: usize) -> Result<Box<dyn Queue>>;

    /// Returns a point in the program's own work: an event that the program recorded, or the current end of one of its
    /// streams. UNSUPPORTED if the library has no such thing.
    fn point(&self, at: Start) -> Result<Box<dyn Point>>;

    /// Returns the point of an event as it is recorded now: the program may record it again afterwards, or destroy it.
    /// UNSUPPORTED if the library has no such thing.
    fn capture(&self, _event: u64) -> Result<Box<dyn Point>> {
        let text =
            format!("an event of {} cannot be captured as it is now; give its stream", self.kind().name());
        Err(Error::new(Status::Unsupported, text))
    }

    /// Makes all later work of the program's `stream` wait until `Hold::release`.
    fn hold(&self, stream: u64) -> Result<Box<dyn Hold>>;

    /// Returns whether devices of other hosts may reach memory of these devices directly, and the reverse:
    /// `Queue::expose`, `attach`.
    fn crosses(&self) -> bool {
        false
    }

    /// Attaches `length` bytes of new memory on a device to the memory that a device of another host exposes. `offer`
    /// is the peer's, and `host` its address. Takes as long as connecting does. The result is for the calling thread
    /// only.
    fn attach(&self, _device: i32, _length: u64, _offer: &[u8], _host: IpAddr) -> Result<Attachment> {
        Err(not_across())
    }

    /// Returns this process's number in its driver, which a lending peer passes to `borrower`.
    fn process_id(&self) -> i32 {
        host::pid()
    }

    /// Returns the process number for `Queue::export`. `claimed` is the importing process's own `process_id`. An error
    /// if that cannot be the number of the process that was proven to be the peer's.
    fn borrower(&self, claimed: i32, _proven: &Proven) -> Result<i32> {
        Ok(claimed)
    }

    /// Returns the PCI function of a device, as sysfs names it ("0000:3b:00.0"). None: the library does not tell.
    fn pci_address(&self, _device: i32) -> Option<String> {
        None
    }

    /// Returns a dma-buf of device memory, by which a NIC reads and writes it. UNAVAILABLE, with the reason, if there
    /// is none, or if the device needs an extra call to see what the NIC has written.
    fn dmabuf(&self, _address: u64, _length: u64) -> Result<DmaBuf> {
        let text = format!("memory of {} has no dma-buf", self.kind().name());
        Err(Error::new(Status::Unavailable, text))
    }
}

/// Whole pages around the requested range, which begins at `offset`.
#[derive(Debug)]
pub struct DmaBuf {
    pub fd: OwnedFd,
    pub offset: u64,
}

/// Memory of a device here and memory of a device of another host; the device here reads and writes both.
pub struct Attachment {
    /// A queue that copies between the two, one piece in each batch. Dropping it releases both memories.
    pub queue: Box<dyn Queue>,
    /// The start of each memory: here, and in the other device's addresses.
    pub local: u64,
    pub remote: u64,
}

/// Memory of a device here that a device of another host reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    pub address: u64,
    /// The data that the other device needs to attach, at most 512 bytes.
    pub offer: Vec<u8>,
}

fn not_across() -> Error {
    Error::new(Status::Unsupported, "devices of other hosts cannot reach this memory directly")
}

fn not_shared() -> Error {
    Error::new(Status::Unsupported, "this queue does not map memory of other processes")
}

/// Device memory that was allocated as one piece. If the library does not tell the bounds, `base` is the address asked
/// for and `length` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub location: Location,
    pub base: u64,
    pub length: u64,
}

/// Memory that another process of this host lends.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a> {
    /// The data that the owner's queue exported, as received from the peer.
    pub exported: &'a [u8],
    /// The number of bytes to map.
    pub length: u64,
    /// The peer's handle. Memory lent by two peers is never treated as the same memory, whatever the peers claim.
    pub peer: PeerId,
    /// The peer's process. The memory is taken from this process and no other.
    pub owner: &'a Proven,
}

/// The start condition of a transfer: an event or a stream of the program, for which the transfer waits before it
/// touches memory here. The device's library reads what the handle points to, so making a `Start` of one is unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    #[non_exhaustive]
    Event(u64),
    #[non_exhaustive]
    Stream(u64),
}

impl Start {
    /// The point of the program's work that an event records: a CUevent, or an aclrtEvent.
    ///
    /// # Safety
    /// The event belongs to the library of the `MemoryKind` that goes with the `Start`. It exists as long as the call
    /// that takes the `Start` says; for a transfer, until it is final.
    pub unsafe fn event(event: u64) -> Start {
        Start::Event(event)
    }

    /// All work that a stream has been given before the call that takes the `Start`: a CUstream, or an aclrtStream.
    ///
    /// # Safety
    /// The stream belongs to the library of the `MemoryKind` that goes with the `Start`, and exists during that call.
    pub unsafe fn stream(stream: u64) -> Start {
        Start::Stream(stream)
    }
}

/// See `Driver::point`.
pub trait Point: Send {
    /// Returns whether the point is reached. An error is the device's: the work before the point has failed.
    fn is_reached(&self) -> Result<bool>;
}

/// See `Driver::hold`. Dropping it releases the stream.
pub trait Hold: Send + Sync {
    fn release(&self);
}

/// The two sides of a batch's copies. Host memory is pinned by the same driver. Device memory is of the queue's
/// device, of another device of this process, or imported. For an `Attachment` the memory at the other end takes the
/// host's role, because addresses alone do not tell the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub to: u64,
    pub from: u64,
    pub length: u64,
}

/// A piece of a batch that could not be copied, by its position, while others were.
#[derive(Clone, Debug)]
pub struct PieceFault {
    pub piece: usize,
    pub error: Error,
}

/// Copies on one device. Neither the batches under way nor the pieces of one batch have an order (`is_ordered` is about
/// their ends). An error belongs to its batch and has the library's code in
/// `vendor_error`. UNAVAILABLE and PEER_LOST mean that the device cannot be used any more.
pub trait Queue {
    /// Starts a batch. An error means that nothing of the batch was started, or that all started copies have ended.
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch>;

    /// Starts a batch that ends when written pieces of files would survive a loss of power.
    fn copy_durably(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        self.copy(direction, pieces)
    }

    /// Returns whether this batch, and if the queue is ordered all before it, have ended, with written device memory
    /// visible there. Called for each batch until true, in order if the queue is ordered.
    fn poll_done(&mut self, batch: Batch) -> Result<bool>;

    /// Returns the pieces that failed in the batch whose end `poll_done` has just told, if the library tells pieces
    /// apart.
    fn take_faults(&mut self) -> Vec<PieceFault> {
        Vec::new()
    }

    /// Returns the pause before the next poll, while nothing has begun or ended for the time `quiet`.
    fn pause(&self, quiet: Duration) -> Duration {
        if quiet <= SPIN {
            Duration::ZERO
        } else {
            PAUSE
        }
    }

    /// Returns whether the ends of batches are reported in the order of the batches.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Returns whether the device is used again once all that took too long has ended.
    fn recovers(&self) -> bool {
        false
    }

    /// Stops everything under way. True: nothing under way touches memory any more. False: unknown, so the memory must
    /// be kept.
    fn abort(&mut self) -> bool;

    /// Returns the data by which another process of this host (`pid`: see `Driver::borrower`) reaches this memory with
    /// `import`, at most 512 bytes. The memory must be kept until that process has closed it or ended.
    fn export(&mut self, _address: u64, _length: u64, _pid: i32) -> Result<Vec<u8>> {
        Err(not_shared())
    }

    /// Drops the state that the queue keeps for future importers of an export. Processes that have imported the memory
    /// keep it.
    fn withdraw(&mut self, _exported: &[u8]) {}

    /// Maps exported memory, and returns its address for the queue's device. At least `length` bytes are mapped from
    /// there on, whatever the exporting process claims.
    fn import(&mut self, _borrowed: &Borrowed<'_>) -> Result<u64> {
        Err(not_shared())
    }

    /// Unmaps what `import` mapped. No copy with it is under way.
    fn close(&mut self, _imported: u64) -> Result<()> {
        Err(not_shared())
    }

    /// Allocates `length` bytes on this device, which one device of another host may attach to and then read and write
    /// directly. `host` is this host's address as the peer knows it.
    fn expose(&mut self, _length: u64, _host: IpAddr) -> Result<Exposed> {
        Err(not_across())
    }

    /// Takes exposed memory back. The memory is freed when the other device has detached.
    fn conceal(&mut self, _address: u64) {}

    /// Frees concealed memory that could not be freed before. Returns whether some is left.
    fn tidy(&mut self) -> bool {
        false
    }
}

/// The number of a batch of one queue. Numbers rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Batch(pub u64);
