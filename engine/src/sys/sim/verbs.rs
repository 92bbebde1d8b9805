//! The simulated side of `sys::verbs`: the NICs of the simulated kernel.

#[path = "../os/verbs/wc.rs"]
pub mod wc;

use ferry_sim_kernel::nic;
pub use ferry_sim_kernel::nic::{
    Chain, Channel, Completion, Context, Cq, Gid, GidKind, LocalSide, Mr, Pd, PortState, Qp, QpSpec, Remote,
    Srq,
};

/// Returns an error if there are none, never an empty list, so that no code looks for devices of this machine.
pub fn device_names() -> Result<Vec<String>, String> {
    let names = nic::device_names();
    if names.is_empty() {
        Err("this host has no RDMA device".to_owned())
    } else {
        Ok(names)
    }
}
