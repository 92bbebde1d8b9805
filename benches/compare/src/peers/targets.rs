//! ferry's targets beside the other engines: ratios of figures from the same rounds.

use ferry_bench::layout::Layout;
use ferry_bench::workload::{Workload, KIB};

use super::roster::*;
use super::rows::Row;
use crate::contest::{Beside, Target};
use crate::figures::Quantity;
use crate::judge::Goal;

const VM_1: Beside = Beside::side(RAW_VM_1);
const VM_2: Beside = Beside::side(RAW_VM_2);
const SHARED: Beside = Beside::side(RAW_SHARED);
const NIXL: Beside =
    Beside { name: "NIXL's best", best_of: &[NIXL_AUTO_BEST, NIXL_AUTO, NIXL_TCP_BEST, NIXL_TCP] };
const NIXL_OVER_TCP: Beside = Beside { name: "NIXL's best over TCP", best_of: &[NIXL_TCP_BEST, NIXL_TCP] };
const FERRYS_OWN_TCP: Beside = Beside::side(FERRY_TCP);
const MOONCAKE_EITHER: Beside = Beside { name: "Mooncake's best", best_of: &[MOONCAKE_BEST, MOONCAKE] };
const FORCED: Beside = Beside { name: "better of local and tcp", best_of: &[FERRY_LOCAL, FERRY_TCP] };
const FORCED_ALLOCATED: Beside =
    Beside { name: "better of local and tcp", best_of: &[FERRY_LOCAL_ALLOCATED, FERRY_TCP] };

/// Returns the targets of a row.
pub fn of(row: &Row) -> Vec<Target> {
    match row {
        Row::Throughput(workload) => throughput(workload),
        Row::Latency(bytes) => latency(*bytes),
        Row::Setup | Row::Peers(_) => Vec::new(),
    }
}

fn throughput(workload: &Workload) -> Vec<Target> {
    let mut targets = Vec::new();
    let scattered = workload.layout == Layout::Scattered;
    let small = workload.block_bytes <= 4 * KIB;
    let mut add = |subject, beside, ratio| {
        let goal = Some(Goal::AtLeast(ratio));
        targets.push(Target { quantity: Quantity::GbPerSecond, subject, beside, goal });
    };
    add(FERRY_LOCAL, VM_2, if small { 0.85 } else { 0.95 });
    add(FERRY_LOCAL_ALLOCATED, SHARED, 0.9);
    for subject in [FERRY_LOCAL, FERRY_LOCAL_ALLOCATED] {
        add(subject, NIXL, if scattered { 1.5 } else { 1.0 });
    }
    add(FERRY_AUTO, FORCED, 0.95);
    add(FERRY_AUTO_ALLOCATED, FORCED_ALLOCATED, 0.95);
    let (nixl, mooncake) = match (scattered, small) {
        (true, true) => (4.0, 10.0),
        (true, false) => (2.0, 5.0),
        (false, _) => (1.0, 1.0),
    };
    add(FERRY_TCP, NIXL_OVER_TCP, nixl);
    add(FERRY_TCP, MOONCAKE_EITHER, mooncake);
    // ferry's plugin beside NIXL's own backends, and beside ferry without NIXL.
    add(NIXL_FERRY_TCP, NIXL_OVER_TCP, 1.0);
    add(NIXL_FERRY_AUTO, NIXL, 1.0);
    add(NIXL_FERRY_TCP, FERRYS_OWN_TCP, 0.9);
    targets
}

fn latency(bytes: usize) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |subject, quantity, beside, ratio| {
        let goal = Some(Goal::AtMost(ratio));
        targets.push(Target { quantity, subject, beside, goal });
    };
    if bytes == 4 * KIB {
        for subject in [FERRY_LOCAL, FERRY_LOCAL_ALLOCATED] {
            add(subject, Quantity::P50Us, VM_1, 2.0);
        }
    }
    for quantity in [Quantity::P50Us, Quantity::P99Us] {
        add(FERRY_TCP, quantity, NIXL_OVER_TCP, 1.0);
        add(FERRY_TCP, quantity, MOONCAKE_EITHER, 1.0);
        add(NIXL_FERRY_TCP, quantity, NIXL_OVER_TCP, 1.0);
    }
    targets
}
