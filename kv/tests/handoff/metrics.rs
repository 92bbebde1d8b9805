//! Compares what a machine has counted with what its story has seen. Nothing is under way any more.

use std::time::Duration;

use ferry::Status;
use ferry_kv::handoff::{End, Event, Stats};

use crate::world::{Life, World};

/// Checks a node's metrics when its story is over. `is_whole`: everything has arrived.
pub fn check_metrics(world: &World, node: usize, is_whole: bool) {
    let it = &world.nodes[node];
    let metrics = it.machine.stats(world.now);
    let count = |end: End, status: Option<Status>| {
        let is_it = |event: &&Event| {
            matches!(event, Event::Ended { end: of, status: with, .. }
                if *of == end && status.is_none_or(|status| *with == status))
        };
        it.ends.iter().filter(is_it).count() as u64
    };
    let ends = metrics.ends;
    let told = [ends.sent, ends.received, ends.cancelled, ends.peer_lost, ends.expired_lease, ends.failed()];
    let seen = [End::Sent, End::Received, End::Cancelled, End::PeerLost, End::Expired, End::Failed];
    assert_eq!(told, seen.map(|end| count(end, None)), "node {node}");
    for status in Status::ALL {
        assert_eq!(ends.failed_with(*status), count(End::Failed, Some(*status)), "node {node}, {status}");
    }
    assert_eq!((ends.expired_pressure, metrics.late_applies), (0, 0));
    check_bytes(world, node, &metrics, is_whole);
    // A dead machine stands still.
    if it.life == Life::Runs {
        let Stats { offers, takes, takes_waiting, parts, transfers, .. } = metrics;
        assert_eq!([offers, takes, takes_waiting, parts, transfers], [0; 5], "node {node}");
        let Stats { leased_blocks, oldest_lease, unfenced_blocks, .. } = metrics;
        assert_eq!((leased_blocks, oldest_lease, unfenced_blocks), (0, Duration::ZERO, 0), "node {node}");
    }
}

/// A producer learns what was read of takes that end well, a consumer what was written for takes that have not ended.
fn check_bytes(world: &World, node: usize, metrics: &Stats, is_whole: bool) {
    let it = &world.nodes[node];
    let (sent, received) = (metrics.bytes_sent, metrics.bytes_received);
    assert!(sent >= it.written, "node {node}: {sent} sent, and {} written", it.written);
    assert!((it.read..=it.read + it.written_by_peers).contains(&received), "node {node}: {received}");
    if is_whole {
        assert_eq!(sent, it.written + it.read_by_peers, "node {node}");
        assert_eq!(received, it.read + it.written_by_peers, "node {node}");
    }
}
