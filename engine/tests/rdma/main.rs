//! RDMA between two hosts with two NICs each, and its faults. The hosts and the NICs are those of the virtual machine
//! that `make test-rdma` starts (scripts/rdma-vm.sh); elsewhere each test reports that it was skipped.
//!
//! `guest` is the machine: its links go down and up, its NICs count bytes. Sessions use TCP over loopback, which the
//! tests leave alone. Other processes and patterns are those of the fault tests over TCP.

#[path = "../faults/child.rs"]
#[allow(dead_code)]
mod child;
#[path = "../common/mod.rs"]
mod common;
use common::role;
mod guest;
#[path = "../common/proxy/mod.rs"]
mod proxy;
#[path = "../faults/support.rs"]
#[allow(dead_code)]
mod support;

mod access;
mod devices;
mod late;
mod lost;
mod many;
mod ports;
mod rest;
mod stalled;
mod times;
mod unattended;
mod unregister;
mod wakers;

use common::suite::Setup;

#[test]
fn four_devices_are_active() {
    let Some(_guest) = guest::enter("four_devices_are_active") else { return };
    for device in guest::DEVICES {
        assert_eq!(guest::port_state(device), "4: ACTIVE", "{device}");
    }
}

#[test]
fn conformance() {
    let Some(_guest) = guest::enter("conformance") else { return };
    Setup::rdma("rdma", &[]).all();
}
