//! Memory of devices, whoever makes them: what the rest of the engine asks of CUDA and of Ascend.
//! `transport::cuda` and `transport::ascend` implement `Driver`, `worker` runs one thread for each device in
//! use, and `stage` plans what goes through it.
//!
//! The host program's own contexts, devices and streams are left as they are: what needs a current context
//! happens on the device's thread (`Queue`), and the few calls on a caller's thread restore what they change.

mod drivers;
mod worker;

pub use drivers::{Drivers, Library};
pub use worker::{Job, Limits, Worker};

use crate::status::{Error, Result, Status};
use crate::sys::proven::Proven;
use crate::types::{Location, MemoryKind, PeerId};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A device library that is loaded and works. Any thread.
pub trait Driver: Send + Sync {
    /// `Cuda` or `Ascend`.
    fn kind(&self) -> MemoryKind;

    /// For a person: versions and devices.
    fn describe(&self) -> String;

    /// What lies at `address`: memory of one of its devices, or host memory that it has locked or manages.
    /// None for anything else. STALE and the like are not found out here: memory that was freed is
    /// somebody else's.
    fn locate(&self, address: u64) -> Result<Option<Allocation>>;

    /// Locks host memory, so that copies from and to it are asynchronous. It stays mapped until `unpin`.
    fn pin(&self, address: u64, length: usize) -> Result<()>;
    fn unpin(&self, address: u64);

    /// A queue of copies on a device, for the calling thread alone. At most `depth` batches are under way at one
    /// time, of at most `batch_bytes` where they are from or to the host.
    fn open(&self, device: i32, batch_bytes: usize, depth: usize) -> Result<Box<dyn Queue>>;

    /// A point that the program's own work reaches: an event it has recorded, or where one of its streams is
    /// now. UNSUPPORTED for what this library doesn't have.
    fn point(&self, at: Start) -> Result<Box<dyn Point>>;

    /// Makes all later work of the program's `stream` wait until `Hold::release`.
    fn hold(&self, stream: u64) -> Result<Box<dyn Hold>>;

    /// Whether devices of other hosts are to reach memory of these by themselves, and these theirs: `Queue::expose`,
    /// `attach`.
    fn crosses(&self) -> bool {
        false
    }

    /// Attaches new memory of a device, `length` bytes, to what a device of another host exposes: the peer made
    /// `offer`, and is at `host`. Takes as long as connecting may. For the calling thread alone.
    fn attach(&self, _device: i32, _length: u64, _offer: &[u8], _host: IpAddr) -> Result<Attachment> {
        Err(not_across())
    }

    /// This process as its driver knows it: what a peer that lends memory to it hands to `borrower`.
    fn process_id(&self) -> i32 {
        std::process::id() as i32
    }

    /// What `Queue::export` is told of a process that is to import: `said` is its own `process_id`. An error if that
    /// can't be the number of the process that was proven to be the peer's.
    fn borrower(&self, said: i32, _proven: &Proven) -> Result<i32> {
        Ok(said)
    }

    /// The PCI function that a device is, as sysfs names it ("0000:3b:00.0"). None: the library doesn't tell.
    fn pci_address(&self, _device: i32) -> Option<String> {
        None
    }

    /// The dma-buf behind device memory, by which a NIC reads and writes it. UNAVAILABLE with the reason, also where
    /// the device's work wouldn't see what the NIC has written without a call in between.
    fn dmabuf(&self, _address: u64, _length: u64) -> Result<DmaBuf> {
        let text = format!("memory of {} has no dma-buf", self.kind().name());
        Err(Error::new(Status::Unavailable, text))
    }
}

/// Whole pages that hold the range asked for, which begins at `offset`.
#[derive(Debug)]
pub struct DmaBuf {
    pub fd: OwnedFd,
    pub offset: u64,
}

/// Memory of a device here and memory of a device of another host, which this one reads and writes by itself.
pub struct Attachment {
    /// Its pieces go from the one to the other, one in each batch. Dropped, both are free to go.
    pub queue: Box<dyn Queue>,
    /// Where they begin: here, and there as the other device knows it.
    pub local: u64,
    pub remote: u64,
}

/// Memory of a device here that a device of another host reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    pub address: u64,
    /// What the other attaches by, at most 512 bytes.
    pub offer: Vec<u8>,
}

fn not_across() -> Error {
    Error::new(Status::Unsupported, "devices of other hosts don't reach this memory by themselves")
}

fn not_shared() -> Error {
    Error::new(Status::Unsupported, "nothing is mapped by this queue")
}

/// A piece of device memory that was allocated as one. Where the library can't tell what was, it begins at
/// the address asked for and its length is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub location: Location,
    pub base: u64,
    pub length: u64,
}

/// Memory that another process of this host lends.
#[derive(Clone, Copy, Debug)]
pub struct Borrowed<'a> {
    /// What the owner's queue exported, as the peer says.
    pub exported: &'a [u8],
    /// The bytes that are wanted of it.
    pub length: u64,
    /// The peer's handle: what two peers lend is never one thing, whatever they say.
    pub peer: PeerId,
    /// The peer's process. The memory is taken from it and from no other.
    pub owner: &'a Proven,
}

/// What a transfer waits for before it reads or writes memory here: handles of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Event(u64),
    Stream(u64),
}

/// See `Driver::point`.
pub trait Point: Send {
    /// An error is the device's: the work before the point has failed.
    fn is_reached(&self) -> Result<bool>;
}

/// See `Driver::hold`. Dropped unreleased, it releases.
pub trait Hold: Send + Sync {
    fn release(&self);
}

/// Between what a batch copies. Host memory is locked by the same driver; device memory is of the queue's
/// device, of another one of this process, or imported. Of an `Attachment` the memory at the other end stands for the
/// host's: addresses alone don't tell the two apart.
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

/// Copies on one device. Batches that are under way together have no order among each other, and neither
/// have the pieces of one; what has ended is told in the order of the batches. An error is of the batch,
/// with the library's own code in `vendor_error`; one that is UNAVAILABLE or PEER_LOST means that the device
/// is of no use any more.
pub trait Queue {
    /// Starts a batch. An error: nothing of it has been started, or all that was has ended.
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch>;

    /// Whether everything up to this batch has ended, and where device memory was written is visible there.
    /// Each is asked for until it has, in order.
    fn is_done(&mut self, batch: Batch) -> Result<bool>;

    /// Stops everything under way. True: nothing of it touches memory any more. False: that is not known,
    /// and the memory must be kept.
    fn abort(&mut self) -> bool;

    /// What another process of this host (`pid`: see `Driver::borrower`) needs to reach this memory, with `import`: at
    /// most 512 bytes. The memory must be kept until the other has closed it, or has ended.
    fn export(&mut self, _address: u64, _length: u64, _pid: i32) -> Result<Vec<u8>> {
        Err(not_shared())
    }

    /// Gives up what this queue keeps for those who have yet to import what it exported. Who has imported it
    /// keeps it.
    fn withdraw(&mut self, _exported: &[u8]) {}

    /// Maps what another process exported: the address at which the queue's device knows it. From there all the
    /// bytes that are wanted are mapped, whatever that process said.
    fn import(&mut self, _borrowed: &Borrowed<'_>) -> Result<u64> {
        Err(not_shared())
    }

    /// Unmaps what `import` mapped; nothing of it is under way.
    fn close(&mut self, _imported: u64) -> Result<()> {
        Err(not_shared())
    }

    /// New memory of this device, `length` bytes, which one device of another host may attach to and then reads
    /// and writes by itself. `host`: this host's address, as the other knows it.
    fn expose(&mut self, _length: u64, _host: IpAddr) -> Result<Exposed> {
        Err(not_across())
    }

    /// Takes exposed memory back. It is freed when the other has let go of it.
    fn conceal(&mut self, _address: u64) {}

    /// Frees what was concealed and could not be freed yet. Whether some is left.
    fn tidy(&mut self) -> bool {
        false
    }
}

/// Names a batch of one queue. They rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Batch(pub u64);
