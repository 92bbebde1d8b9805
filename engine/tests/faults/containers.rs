//! Engines in containers of one network, as in one pod: each in a pid namespace of its own (docs/containers.md).

use crate::child::Child;
use crate::support::*;

/// The peer's process has no number here, so that nobody can trace it: memory that ferry allocated is shared, other
/// memory is reached by TCP.
#[test]
fn containers_of_one_network_share_what_ferry_allocated() {
    let _turn = alone();
    if !is_root("containers_of_one_network_share_what_ferry_allocated", "make namespaces") {
        return;
    }
    let [mut one, mut other] = [Child::in_pid_namespace(), Child::in_pid_namespace()];
    let address = other.ask("open transports=auto");
    one.ask("open transports=auto");
    let peer = one.number(&format!("connect {address}"));
    let allocated = other.alloc(MIB, 3);
    let own = other.own(MIB);
    one.alloc(MIB, 5);
    wait_until("the path is there", || one.ask(&format!("path {peer}")).starts_with("local;"));
    let why = one.ask(&format!("path {peer}"));
    assert!(why.ends_with("only where ferry allocated the peer's memory: the peer's process has no pid in this pid namespace"), "{why}");
    let mut moved = |(region, address)| {
        let before = one.number("stat bytes_local");
        assert_eq!(one.number(&format!("write {peer} {region} {address} {MIB}")), MIB as u64);
        one.number("stat bytes_local") - before
    };
    // The mapping comes over a connection of its own, perhaps after the region is known.
    wait_until("what ferry allocated is shared", || moved(allocated) == MIB as u64);
    assert_eq!(moved(own), 0);
}
