//! The plain data of devices, ports and queue pairs. The NICs of the simulated kernel include this file
//! (`sim/kernel/src/nic/verbs.rs`), so that each type is declared once.

/// The device's limits, read when it was opened.
#[derive(Clone, Debug)]
pub struct Limits {
    pub qp_wr_max: u32,
    pub cqe_max: u32,
    pub srq_wr_max: u32,
    /// RDMA READs that one QP serves at a time.
    pub rd_atom_target_max: u8,
    /// RDMA READs that one QP may have in flight at a time.
    pub rd_atom_initiator_max: u8,
    pub mr_bytes_max: u64,
    pub ports: u8,
    pub is_iwarp: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    Down,
    Init,
    Armed,
    Active,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub state: PortState,
    /// The active MTU.
    pub mtu_bytes: u32,
    pub is_ethernet: bool,
    pub lid: u16,
    /// Entries of the GID table, used or not.
    pub gids: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    Ib,
    RoceV1,
    RoceV2,
}

#[derive(Clone, Copy, Debug)]
pub struct Gid {
    pub index: u32,
    pub raw: [u8; 16],
    pub kind: GidKind,
}

#[derive(Clone, Copy, Debug)]
pub struct QpSpec {
    pub send_wr: u32,
    /// A wish: `Qp::inline_bytes` has the result.
    pub inline_bytes: u32,
}

/// The other end, and how packets reach it.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub qp_number: u32,
    /// Packet sequence number of its first packet; 24 bits.
    pub psn: u32,
    pub mtu_bytes: u32,
    pub gid: [u8; 16],
    pub lid: u16,
    /// Addressed by GID if true, by LID otherwise.
    pub is_ethernet: bool,
    /// Index of the local GID that packets come from.
    pub gid_index: u32,
    pub port: u8,
    /// READs of the other end that are served at a time.
    pub rd_atom: u8,
    /// How long a sender waits when there is no receive, in InfiniBand's code.
    pub min_rnr_timer: u8,
    pub traffic_class: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct LocalSide {
    /// Packet sequence number of our first packet; 24 bits.
    pub psn: u32,
    /// READs that may be in flight at a time.
    pub rd_atom: u8,
    /// 4.096 us × 2^timeout until a packet counts as lost; 0 is forever.
    pub timeout: u8,
    /// At most 7. Soft-RoCE retries without end at 7, so 6 is the most that ends everywhere.
    pub retries: u8,
    /// 7 is forever.
    pub rnr_retries: u8,
}
