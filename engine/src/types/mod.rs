//! The plain data types that every step of the data path shares, for example a caller's request (`Request`) and the
//! slice that a transport posts (`Slice`).

pub(crate) mod ids;
pub(crate) mod numbers;
mod time;

pub(crate) use ids::{BridgeId, Incarnation, OperationId};
pub use ids::{EngineId, PeerId, QueueId, RegionId, TransferId};
#[doc(hidden)]
pub use ids::{LaneId, PlaceId, SessionId};
pub use time::{Boottime, Monotonic, Shown};

/// Displays types by the names of their variants, as their Debug does.
macro_rules! display_as_debug {
    ($($name:ty),*) => {
        $(impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(self, f)
            }
        })*
    };
}
pub(crate) use display_as_debug;
display_as_debug!(Op, MemoryKind, Transport);

/// Direction of a transfer, seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Op {
    /// From the peer's memory into local memory.
    Read = 1,
    /// From local memory into the peer's memory.
    Write = 2,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Read => "READ",
            Op::Write => "WRITE",
        }
    }
}

/// One range of a transfer. Each address is valid in its own process; `length` is in bytes. `remote_region` is the
/// handle that the peer's engine gave the region, or NONE for the region that is registered at that address now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Request {
    pub local: u64,
    pub remote: u64,
    pub length: u64,
    pub remote_region: RegionId,
}

#[doc(hidden)]
/// A range of memory that is contiguous on both sides and within one region on each. `plan` makes ranges of requests,
/// and `route` cuts them into slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub local: u64,
    pub remote: u64,
    pub length: u64,
    /// The requests' `remote_region`, as it goes on the wire; may be NONE.
    pub region: RegionId,
    /// Position of the first request in the plan's order. The range begins where that request begins.
    pub first: u32,
    /// The number of requests, from `first` on, that the range may touch.
    pub count: u32,
}

#[doc(hidden)]
/// The unit that a transport posts: contiguous on both sides, no longer than the path's limit. `first` is the position
/// in the plan's order of the first request that the slice covers; the slice begins at `first_offset` in that request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub local: u64,
    pub remote: u64,
    pub region: RegionId,
    pub first_offset: u64,
    pub length: u32,
    pub first: u32,
}

#[doc(hidden)]
/// Consecutive slices of one transfer: those from `first` on, without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceRange {
    pub first: u32,
    pub end: u32,
}

impl SliceRange {
    pub fn is_empty(self) -> bool {
        self.first >= self.end
    }

    pub fn count(self) -> u32 {
        self.end - self.first
    }

    /// Returns the indexes of the slices.
    pub fn indexes(self) -> std::ops::Range<u32> {
        self.first..self.end
    }

    /// Returns the slices before `index`, and the others.
    pub fn split_at(self, index: u32) -> (SliceRange, SliceRange) {
        (SliceRange { end: index, ..self }, SliceRange { first: index, ..self })
    }

    /// Returns the slices of this range; `slices` are the transfer's.
    pub fn of(self, slices: &[Slice]) -> &[Slice] {
        &slices[self.first as usize..self.end as usize]
    }
}

/// The rights that a region grants to peers: bits of the C ABI's `access`. Without any right the memory is for this
/// engine's own transfers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    pub const REMOTE_READ: Access = Access(1);
    pub const REMOTE_WRITE: Access = Access(2);
    pub const BOTH: Access = Access(3);

    /// True if a peer may run `op` against a region with these rights.
    pub fn allows(self, op: Op) -> bool {
        let needed = match op {
            Op::Read => Access::REMOTE_READ,
            Op::Write => Access::REMOTE_WRITE,
        };
        self.0 & needed.0 != 0
    }
}

/// The kind of memory; the numbers are the C ABI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MemoryKind {
    /// The CPU's.
    Host = 1,
    /// A CUDA device's.
    Cuda = 2,
    /// An Ascend device's.
    Ascend = 3,
    /// CUDA's managed memory, which moves between the CPU and a device.
    Managed = 4,
    /// The CPU's, pinned by CUDA.
    Pinned = 5,
    /// A range of a file or of a block device.
    File = 6,
}

impl MemoryKind {
    /// Returns the kind with this number.
    pub fn from_number(number: u32) -> Option<MemoryKind> {
        use MemoryKind::*;
        [Host, Cuda, Ascend, Managed, Pinned, File].into_iter().find(|kind| *kind as u32 == number)
    }

    /// Returns the kind of device whose library knows this memory.
    pub fn driver(self) -> MemoryKind {
        match self {
            MemoryKind::Managed | MemoryKind::Pinned => MemoryKind::Cuda,
            other => other,
        }
    }

    /// True if only the device's library can copy from and to this memory.
    pub fn is_device(self) -> bool {
        !matches!(self, MemoryKind::Host | MemoryKind::Pinned)
    }

    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Host => "host",
            MemoryKind::Cuda => "cuda",
            MemoryKind::Ascend => "ascend",
            MemoryKind::Managed => "cuda_managed",
            MemoryKind::Pinned => "pinned",
            MemoryKind::File => "file",
        }
    }
}

/// The location of memory. Host memory has device 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    pub kind: MemoryKind,
    /// The device's number in its process.
    pub device: i32,
}

impl Location {
    pub const HOST: Location = Location { kind: MemoryKind::Host, device: 0 };
}

/// Makes the enum and its tables from one list, in the order of the numbers.
macro_rules! transports {
    ($($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $variant:ident = $number:literal, $name:literal;)*) => {
/// A means of moving data to a peer; the numbers are the C ABI's bit positions in transport masks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Transport { $($(#[doc = $doc])* $(#[cfg($cfg)])? $variant = $number,)* }

        impl Transport {
            /// In the order of their numbers.
            pub const ALL: &'static [Transport] = &[$($(#[cfg($cfg)])? Transport::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $($(#[cfg($cfg)])? Transport::$variant => $name,)* }
            }
        }
    };
}

transports! {
    None = 0, "none";
    Tcp = 1, "tcp";
    Local = 2, "local";
    Rdma = 3, "rdma";
    Cuda = 4, "cuda";
    Ascend = 5, "ascend";
    /// Internal to the engine: splits transfers of device memory into parts, which the other transports carry. Results
    /// name the transport of the parts.
    Staged = 6, "staged";
    /// For the engine's own tests alone (`transport/loopback.rs`). Its number is no part of the ABI: it is the next
    /// free one.
    #[cfg(test)] Loopback = 7, "loopback";
}

impl Transport {
    /// The number of values.
    pub const COUNT: usize = Transport::ALL.len();

    /// Returns the transports that settings and messages name.
    pub fn named() -> impl Iterator<Item = Transport> {
        let is_named = |transport: &Transport| !matches!(transport, Transport::None | Transport::Staged);
        Transport::ALL.iter().copied().filter(is_named)
    }

    /// The transport with this number; `None` if there is none.
    pub fn from_number(number: u32) -> Transport {
        Transport::ALL.get(number as usize).copied().unwrap_or(Transport::None)
    }

    /// Returns the transport by which devices of this kind move data themselves.
    pub fn of_devices(kind: MemoryKind) -> Transport {
        match kind {
            MemoryKind::Ascend => Transport::Ascend,
            _ => Transport::Cuda,
        }
    }

    /// Returns the bit of this transport in a mask of allowed transports.
    pub const fn bit(self) -> u64 {
        1 << (self as u32)
    }
}

/// Returns the end of `[address, address + length)`; None if it overflows.
pub(crate) fn end_of(address: u64, length: u64) -> Option<u64> {
    address.checked_add(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_stands_at_its_number() {
        for (number, transport) in Transport::ALL.iter().enumerate() {
            assert_eq!(*transport as usize, number, "{}", transport.name());
            assert_eq!(Transport::from_number(number as u32), *transport);
        }
        assert_eq!(Transport::from_number(Transport::COUNT as u32), Transport::None);
    }
}
