//! The hosts of the virtual machine with RDMA devices (tests/rdma-vm/network.sh): two hosts with two NICs each, in one
//! network namespace. Sessions and TCP between them go over lo, which nothing disturbs. netem loses, delays and
//! duplicates what RDMA sends; when a NIC's packets are all lost, the engines take the other NIC, or TCP.
//!
//! No link goes down: Soft-RoCE of Linux 6.1 may loop for ever in its kernel when a port goes down under traffic. The
//! NIC's packets are lost instead, both ways.

use crate::network::{Network, Rule};
use std::fs::File;
use std::process::Command;

pub struct Devices;

/// The NICs of a host.
const NICS: [[&str; 2]; 2] = [["va0", "vb0"], ["va1", "vb1"]];

/// The devices of a host, for the setting `rdma_devices`.
pub const RDMA: [&str; 2] = ["rva0,rvb0", "rva1,rvb1"];

fn tc(line: &str) {
    let done = Command::new("tc").args(line.split_whitespace()).output().expect("tc is installed");
    assert!(done.status.success(), "tc {line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Replaces what happens to packets that leave the NIC. netem of no loss and no delay passes all.
fn netem(nic: &str, rule: Rule) {
    let loss = if rule.cut { 1000 } else { rule.loss_permille };
    tc(&format!(
        "qdisc replace dev {nic} root netem limit 100000 delay {}us {}us loss {}.{}% duplicate {}.{}%",
        rule.delay_us,
        rule.jitter_us,
        loss / 10,
        loss % 10,
        rule.duplicate_permille / 10,
        rule.duplicate_permille % 10
    ));
}

impl Network for Devices {
    fn address(&self, host: usize) -> String {
        format!("10.1.0.{}", host + 1)
    }

    fn namespace(&self, _: usize) -> File {
        File::open("/proc/self/ns/net").unwrap()
    }

    fn rule(&self, from: usize, _: usize, rule: Rule) {
        NICS[from].iter().for_each(|nic| netem(nic, rule));
    }

    fn link(&self, _: usize, up: bool) {
        // Both ends of network a: whichever host is meant, its NIC there is cut off.
        NICS.iter().for_each(|[nic, _]| netem(nic, Rule { cut: !up, ..Rule::default() }));
    }

    fn heal(&self) {
        NICS.iter().flatten().for_each(|nic| netem(nic, Rule::default()));
    }
}
