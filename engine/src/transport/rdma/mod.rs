//! RDMA: the NIC reads and writes registered memory on both sides. The target's CPU takes no part in it.
//!
//! ```text
//! service ─ one thread: handles the messages of peers' services (`wire`), makes endpoints, and gives them up when
//!           `idle`; `transport` is its interface to the control loop
//!    └ session ─ one peer: its devices and keys, and the pairs of devices with an endpoint; `setup` makes endpoints
//! path ─ all endpoints to one peer: chooses the endpoint for each chain of work requests
//!    └▶ endpoint ─ queue pairs between two devices: posts `batch`es, `flight` has them until `reaping` settles them,
//!                `watch` says which thread reaps, `pace` how fast the endpoint is; `closing` ends it, `flushing` has
//!                the closed endpoints that still flush
//! poller ─ a thread per device: polls while requests are posted, otherwise sleeps on the completion channel
//! discovery, device, memory, keys, topology: find and open devices, register memory, keep peers' keys, pair devices
//! locality: how far a device is from memory
//! direct: memory of GPUs and NPUs that the NICs access directly
//! ```
//! The control loop keeps the sessions and uses this transport as a `peer::TransportService`. An endpoint is a lane and
//! is fenced like one. A SEND carries a short notification (`notifications`) once its data is proven visible.

mod batch;
mod closing;
mod device;
mod direct;
mod discovery;
mod endpoint;
#[cfg(test)]
mod fault_tests;
mod flight;
mod flushing;
mod idle;
mod key_holders;
mod keys;
mod locality;
mod memory;
mod notifications;
mod pace;
mod path;
mod poller;
mod reaping;
mod retries;
mod room;
mod service;
mod session;
mod sessions;
mod setup;
mod topology;
mod transport;
mod unacknowledged;
mod watch;
pub mod wire;

pub use direct::{why_staged, Direct};
pub use service::{RdmaService, RdmaSettings};

/// A device, an address or an endpoint, or the sentence that says to a person why it can't be used.
type Usable<T> = Result<T, String>;

/// Settings of the RDMA devices that an engine opens.
#[derive(Clone, Debug)]
pub struct DeviceSettings {
    pub gid_index: Option<u32>,
    pub mtu: u32,
    pub inline_bytes: u32,
    pub ack_timeout_ms: u32,
    pub retries: u32,
    pub mr_bytes_max: u64,
}
