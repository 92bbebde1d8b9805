//! RDMA between two hosts with two NICs each. The hosts and the NICs are those of the virtual machine that
//! `make test-rdma` starts (scripts/rdma-vm.sh); elsewhere each test says that it was skipped.

#[path = "../common/mod.rs"]
mod common;

use common::suite::Setup;
use std::io::Write;

/// The devices of the virtual machine: host 0 and host 1 on network a, the same on network b.
const DEVICES: [&str; 4] = ["rva0", "rva1", "rvb0", "rvb1"];

/// Whether this is the virtual machine. If it isn't, says so for `test`, past libtest's capture.
fn in_guest(test: &str) -> bool {
    let in_guest = std::env::var("FERRY_TEST_RDMA").is_ok_and(|value| value == "1");
    if !in_guest {
        let reason = "make test-rdma runs this in its virtual machine";
        let _ = writeln!(std::io::stderr(), "SKIPPED: rdma::{test} ({reason})");
    }
    in_guest
}

#[test]
fn four_devices_are_active() {
    if !in_guest("four_devices_are_active") {
        return;
    }
    for device in DEVICES {
        let path = format!("/sys/class/infiniband/{device}/ports/1/state");
        let state = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(state.trim(), "4: ACTIVE", "{device}");
    }
}

#[test]
fn conformance() {
    if in_guest("conformance") {
        Setup::rdma("rdma", &[]).all();
    }
}
