//! RDMA: the NIC reads and writes registered memory on both sides, and no CPU takes part at the target.
//!
//! ```text
//! service ─ one thread: what peers' services say (`wire`), endpoints made, given up or put to `idle`; `transport` is
//!           how the control loop calls it
//!    └ session ─ one peer: its devices and keys, which pairs of devices have an endpoint; `setup` makes one
//! link ─ a peer's endpoints as one path: which of them posts what
//!    └▶ endpoint ─ queue pairs between two devices: `batch`es are posted, `reaping` settles them, `closing` flushes,
//!                `flushing` has those that flush late
//! poller ─ a thread per device: polls while there is work, sleeps on the completion channel otherwise
//! discovery, device, memory, keys, topology: what is found, opened, registered, told by peers, and paired with what
//! place: how far a device is from memory
//! direct: memory of GPUs and NPUs that the NICs reach by themselves
//! ```
//! Sessions are the TCP transport's, which keeps this one as a `peer::TransportService`: an endpoint is a lane to
//! it, fenced as such. Short notifications go by SEND (`notifications`), when their data is known to be visible.

mod batch;
mod closing;
mod device;
mod direct;
mod discovery;
mod endpoint;
#[cfg(test)]
mod fault_tests;
mod flushing;
mod idle;
mod key_holders;
mod keys;
mod locality;
mod memory;
mod notifications;
mod path;
mod poller;
mod reaping;
mod retries;
mod service;
mod session;
mod sessions;
mod setup;
mod topology;
mod transport;
mod unacknowledged;
mod wire;

pub use device::DeviceStats;
pub use direct::{why_staged, Direct};
pub use service::{Service, Settings};

/// What a device is opened with.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    pub gid_index: Option<u32>,
    pub mtu: u32,
    pub inline_bytes: u32,
    pub ack_timeout_ms: u32,
    pub retries: u32,
    pub mr_bytes_max: u64,
}
