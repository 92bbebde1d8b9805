//! The other process is killed while a device copies.

use crate::common::eventually;
use crate::ends::{list, whole, End, Ends, BOTH, MIB, NEW};
use ferry::types::{Op, PeerId};

const SETTINGS: &str = "transports=auto lease_ms=400 drain_ms=50 reconnect_timeout_ms=1500 staging_slots=2";

/// The initiator learns that the target ended, and its own device has finished with its memory.
#[test]
fn a_target_that_is_killed_fails_the_transfer() {
    for (places, library) in [
        (("host", "cuda0"), "cuda"),
        (("host", "ascend0"), "ascend"),
        (("cuda0", "ascend0"), "ascend"),
        (("ascend0", "cuda0"), "cuda"),
    ] {
        for op in BOTH {
            let mut ends = Ends::new(SETTINGS);
            let (local, remote) = ends.places(places, 16 * MIB);
            ends.a.fill(local, 1);
            ends.b.fill(remote, 2);
            ends.b.knob(library, "COPY_US", "100000");
            let before = ends.b.calls(library, "task");
            let transfer = ends.submit(op, "-", &list(local, remote, &whole(local)));
            eventually("the device copies", || ends.b.calls(library, "task") > before);
            ends.b.kill();
            let ended = ends.wait(transfer);
            assert_eq!(
                (ended.state.as_str(), ended.status.as_str()),
                ("Failed", "PEER_LOST"),
                "{places:?} {op:?}"
            );
            // The memory is the caller's again, and the engine works with another peer.
            ends.b = End::new(&ends.folder.0, NEW, SETTINGS);
            ends.peer = PeerId::from_raw(ends.a.number(&format!("connect {}", ends.b.address)));
            let remote = ends.b.place(places.1, 16 * MIB);
            ends.a.ok(&format!("knows {} {}", ends.peer, remote.region));
            ends.case("with another target", op, "-", local, remote, &whole(local));
        }
    }
}

/// The target frees the dead initiator's slots, and nothing late overwrites another initiator's data.
#[test]
fn an_initiator_that_is_killed_leaves_nothing_behind() {
    for (place, library) in [("cuda0", "cuda"), ("ascend0", "ascend")] {
        for op in BOTH {
            let mut ends = Ends::new(SETTINGS);
            let (local, remote) = ends.places(("host", place), 16 * MIB);
            ends.a.fill(local, 1);
            ends.b.fill(remote, 2);
            ends.b.knob(library, "COPY_US", "100000");
            let before = ends.b.calls(library, "task");
            ends.submit(op, "-", &list(local, remote, &whole(local)));
            eventually("the device copies", || ends.b.calls(library, "task") > before);
            ends.a.kill();
            ends.a = End::new(&ends.folder.0, NEW, SETTINGS);
            ends.peer = PeerId::from_raw(ends.a.number(&format!("connect {}", ends.b.address)));
            ends.b.knob(library, "COPY_US", "0");
            let local = ends.a.place("host", 16 * MIB);
            ends.a.ok(&format!("knows {} {}", ends.peer, remote.region));
            // More than all slots, in both directions.
            for op in [Op::Write, Op::Read] {
                ends.case("by another initiator", op, "-", local, remote, &whole(local));
            }
        }
    }
}
