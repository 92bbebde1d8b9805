//! Tests of lanes that are opened before a transfer needs them. `tests/lanes.rs` has the lanes that a transfer needs.

use crate::command::Command;
use crate::control::tests::{engine, until, BOUND};
use crate::types::{PeerId, Transport};
use crate::Engine;
use std::sync::atomic::Ordering;

const FASTER: Transport = Transport::Loopback;

/// Two engines with a path that is faster than TCP. Each comes with its handle of the other.
fn pair() -> [(Engine, PeerId); 2] {
    let over = [("transports", "loopback,tcp"), ("lanes", "2")];
    let [a, b] = [engine(&over), engine(&over)];
    let b_at_a = a.connect(b.address(), Some(BOUND)).unwrap();
    let a_at_b = b.peers().unwrap()[0];
    let ends = [(a, b_at_a), (b, a_at_b)];
    for (at, peer) in &ends {
        let object = at.whole().peers.get(*peer).unwrap();
        until("the faster path stands", || object.path(FASTER).is_some());
    }
    ends
}

fn lanes(ends: &[(Engine, PeerId); 2]) -> [u32; 2] {
    [0, 1].map(|end| ends[end].0.peer_info(ends[end].1).unwrap().lanes as u32)
}

/// A faster path of the dialer or of the acceptor stops. The next transfer finds every lane of TCP open.
#[test]
fn all_lanes_are_opened_at_once_when_a_faster_path_stops() {
    let is_made_again = |peer| {
        let why = Some("the device is reset".to_owned());
        Command::PathSettled { peer, transport: FASTER, why, pending: true }
    };
    let has_broken = |peer| Command::PathBroken { peer, transport: FASTER };
    let reports: [&dyn Fn(PeerId) -> Command; 2] = [&is_made_again, &has_broken];
    for (end, report) in [0, 1].into_iter().flat_map(|end| reports.map(|report| (end, report))) {
        let ends = pair();
        assert_eq!(lanes(&ends), [0, 0], "nothing needs TCP yet");
        let (at, peer) = &ends[end];
        at.whole().commands.push(report(*peer));
        until("the express lane and both bulk lanes stand", || lanes(&ends) == [3, 3]);
        for (at, _) in &ends {
            let submitted = &at.whole().stats.transfers_submitted;
            assert_eq!(submitted.load(Ordering::Relaxed), 0, "no transfer asked for lanes");
        }
    }
}
