//! The words of the data path that every step shares: what a caller asks for (`Request`) and what a
//! transport posts (`Slice`). Plain data, no behaviour that a single step owns.

/// Direction of a transfer, seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Op {
    /// From the peer's memory into local memory.
    Read = 1,
    /// From local memory into the peer's memory.
    Write = 2,
}

/// One range of a transfer. Addresses are as each process knows its own memory; `length` is in bytes.
/// `remote_region` is the handle that the peer's engine gave the region, or 0 for "whatever is
/// registered at that address now".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Request {
    pub local: u64,
    pub remote: u64,
    pub length: u64,
    pub remote_region: u64,
}

/// What `plan` makes of requests and `route` cuts: one piece of memory, contiguous on both sides and
/// within one region on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub local: u64,
    pub remote: u64,
    pub length: u64,
    /// What goes on the wire: the requests' `remote_region`, which may be 0.
    pub region: u64,
    /// Bytes from the start of request `first` to the start of the range. It may be longer than that
    /// request once `route::split` has cut the range; it then leads into one of the following.
    pub first_offset: u64,
    /// Position in the plan's order of the first request.
    pub first: u32,
    /// How many requests from `first` on the range may touch.
    pub count: u32,
}

/// What a transport posts: one contiguous piece on both sides, no longer than the path's limit.
/// `first` is the position, in the plan's order, of the first request that the slice covers, and
/// `first_offset` where in that request it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub local: u64,
    pub remote: u64,
    pub region: u64,
    pub first_offset: u64,
    pub length: u32,
    pub first: u32,
}

/// What a region lets its peers do: bits of the C ABI's `access`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    pub const REMOTE_READ: Access = Access(1);
    pub const REMOTE_WRITE: Access = Access(2);
    pub const BOTH: Access = Access(3);

    /// Whether a peer may run `op` against a region with these rights.
    pub fn allows(self, op: Op) -> bool {
        let needed = match op {
            Op::Read => Access::REMOTE_READ,
            Op::Write => Access::REMOTE_WRITE,
        };
        self.0 & needed.0 != 0
    }
}

/// One way to reach a peer; the numbers are the C ABI's bit positions in transport masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Transport {
    None = 0,
    Tcp = 1,
    Local = 2,
    Rdma = 3,
    Cuda = 4,
    Ascend = 5,
}

impl Transport {
    /// How many numbers there are.
    pub const COUNT: usize = 6;

    /// The transport with this number; `None` if there is none.
    pub fn from_number(number: u32) -> Transport {
        match number {
            1 => Transport::Tcp,
            2 => Transport::Local,
            3 => Transport::Rdma,
            4 => Transport::Cuda,
            5 => Transport::Ascend,
            _ => Transport::None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Transport::None => "none",
            Transport::Tcp => "tcp",
            Transport::Local => "local",
            Transport::Rdma => "rdma",
            Transport::Cuda => "cuda",
            Transport::Ascend => "ascend",
        }
    }

    /// The bit of this transport in a mask of allowed transports.
    pub const fn bit(self) -> u64 {
        1 << (self as u32)
    }
}

/// `[address, address + length)` without overflow, or None.
pub fn end_of(address: u64, length: u64) -> Option<u64> {
    address.checked_add(length)
}
