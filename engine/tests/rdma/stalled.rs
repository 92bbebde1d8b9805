//! Stalled transfers that are struck, by their deadline or by cancel: final in time, and bytes that the network still
//! holds never overwrite a memory's new content.

use crate::child::Child;
use crate::guest::{
    calm, connect, disturb, engine, enter, is_quiet, knows, leads_over, memories, words, LEASE,
};
use crate::support::*;
use ferry::types::{Op, PeerId};
use ferry::{Deadline, Engine, Fence, Memory, State, Status, Transfer, TransferOptions};
use std::time::{Duration, Instant};

const BYTES: usize = 2 * MIB;
/// One device, so that no other can continue.
const ONE: [[(&str, &str); 1]; 2] = [[("rdma_devices", "rva0")], [("rdma_devices", "rva1")]];

struct Stalled {
    a: Engine,
    b: Engine,
    peer: PeerId,
    local: Memory,
    remote: Memory,
}

impl Stalled {
    fn new() -> Stalled {
        let (a, b) = (engine(0, &ONE[0]), engine(1, &ONE[1]));
        let peer = connect(&a, b.address());
        let (local, remote) = memories(&a, &b, peer, BYTES, 5);
        Stalled { a, b, peer, local, remote }
    }

    fn start(&self, op: Op, deadline: Duration) -> Transfer {
        let (local, remote) = (&self.local, &self.remote);
        let requests = rounds(local.address(), remote.address(), remote.region(), BYTES, 256);
        let options = TransferOptions { deadline: Deadline::After(deadline), ..options() };
        self.a.submit(self.peer, op, &requests, &options).unwrap()
    }

    /// Both memories are their owners' again: bytes that these write stay, while the network may hold packets
    /// (`held`), and after the network has recovered.
    fn is_over(&self, held: Duration, come_back: impl FnOnce()) {
        self.local.write(0, &pattern(8, 0, BYTES));
        self.remote.write(0, &pattern(9, 0, BYTES));
        is_quiet(|| read(&self.remote, 0, BYTES), held);
        come_back();
        is_quiet(|| read(&self.remote, 0, BYTES), Duration::from_millis(1000));
        assert_pattern(&self.local, 8, 0, BYTES);
        assert_pattern(&self.remote, 9, 0, BYTES);
        // The path works again.
        leads_over(&self.a, self.peer, &["rva0"]);
        let again = [request(&self.local, &self.remote, 0, BYTES)];
        wait_until("it goes on", || self.a.write(self.peer, &again, &options()).is_ok());
        assert_pattern(&self.remote, 8, 0, BYTES);
        self.b.stats().unwrap();
    }
}

fn final_in_time(transfer: &Transfer, since: Instant, deadline: Duration, lease: Duration) {
    let result = finish(transfer);
    let took = since.elapsed();
    println!("final after {took:?} of {deadline:?}: {:?} {} {:?}", result.state, result.status, result.fence);
    assert_eq!((result.state, result.status), (State::TimedOut, Status::Timeout));
    assert!(took >= deadline && took < deadline + lease + SLACK, "{took:?}");
    assert!(result.bytes_confirmed < 256 * BYTES as u64);
    let confirmed: u64 = transfer.results().iter().map(|request| request.bytes_confirmed).sum();
    assert_eq!(confirmed, result.bytes_confirmed);
}

/// Packets take longer than the deadline: they arrive long after the transfer is final.
#[test]
fn a_deadline_while_the_network_holds_packets_and_nothing_lands_late() {
    let name = "stalled::a_deadline_while_the_network_holds_packets_and_nothing_lands_late";
    let Some(_guest) = enter(name) else { return };
    for op in [Op::Write, Op::Read] {
        let it = Stalled::new();
        if op == Op::Read {
            fill(&it.remote, 6);
        }
        // The side that sends the payload is slow.
        let slow = if op == Op::Write { "va0" } else { "va1" };
        disturb(slow, "delay 2000ms limit 100000");
        let (since, deadline) = (Instant::now(), Duration::from_millis(300));
        let transfer = it.start(op, deadline);
        final_in_time(&transfer, since, deadline, LEASE);
        // Removing the delay would drop the packets that it holds.
        it.is_over(Duration::from_millis(2500), || calm(slow));
    }
}

/// The target is stopped and can't acknowledge the fence, but its NIC would accept packets that the network holds: the
/// transfer is final only when no packet can arrive any more.
#[test]
fn a_deadline_while_the_target_is_stopped_waits_for_the_network() {
    let name = "stalled::a_deadline_while_the_target_is_stopped_waits_for_the_network";
    let Some(_guest) = enter(name) else { return };
    // This test is not about silence on the session. The lease is long enough for draining and the network together,
    // and too short for both behind one another and the lease.
    let lease = Duration::from_secs(5);
    let slow = [("progress_timeout_ms", "20000"), ("lease_ms", "5000"), ("drain_ms", "3500")];
    let settings = |host: usize| [&ONE[host][..], &slow[..]].concat();
    let (mut child, address) = Child::engine(&words(1, &settings(1)));
    let (region, remote) = child.alloc(BYTES, 0);
    let a = engine(0, &settings(0));
    let local = alloc(&a, BYTES);
    fill(&local, 5);
    let peer = connect(&a, &address);
    knows(&a, peer, region);
    child.stop();
    // Less than the second for which the network may hold packets.
    disturb("va0", "delay 600ms limit 100000");
    let (since, deadline) = (Instant::now(), Duration::from_millis(300));
    let requests = rounds(local.address(), remote, region, BYTES, 256);
    let struck = TransferOptions { deadline: Deadline::After(deadline), ..options() };
    let transfer = a.submit(peer, Op::Write, &requests, &struck).unwrap();
    final_in_time(&transfer, since, deadline, lease);
    assert_eq!(transfer.result().unwrap().fence, Fence::Lease);
    let before = child.peek(remote, BYTES);
    is_quiet(|| child.peek(remote, BYTES), Duration::from_millis(1500));
    calm("va0");
    child.resume();
    child.number("rounds");
    assert!(child.peek(remote, BYTES) == before, "bytes landed after the final state");
    // The path works again.
    let again = rounds(local.address(), remote, region, BYTES, 1);
    wait_until("it goes on", || a.write(peer, &again, &options()).is_ok());
    assert_eq!(misplaced(&child.peek(remote, BYTES), 5, 0), None);
}

/// Every packet is lost for a while.
#[test]
fn a_deadline_while_packets_are_lost() {
    let Some(_guest) = enter("stalled::a_deadline_while_packets_are_lost") else { return };
    let it = Stalled::new();
    disturb("va0", "loss 100%");
    let (since, deadline) = (Instant::now(), Duration::from_millis(1500));
    let transfer = it.start(Op::Write, deadline);
    final_in_time(&transfer, since, deadline, LEASE);
    it.is_over(Duration::ZERO, || calm("va0"));
}

/// The acknowledgements of the peer's NIC are lost: the bytes land, but the initiator does not learn of it.
#[test]
fn a_cancel_while_acknowledgements_are_lost() {
    let Some(_guest) = enter("stalled::a_cancel_while_acknowledgements_are_lost") else { return };
    let it = Stalled::new();
    let transfer = it.start(Op::Write, BOUND);
    wait_until("it is under way", || read(&it.remote, 0, 8) != [0; 8]);
    disturb("va1", "loss 100%");
    let since = Instant::now();
    transfer.cancel().unwrap();
    let result = finish(&transfer);
    println!("final {:?} after the cancel: {:?} {:?}", since.elapsed(), result.state, result.fence);
    assert_eq!((result.state, result.status), (State::Cancelled, Status::Cancelled));
    assert!(since.elapsed() < LEASE + SLACK, "{:?}", since.elapsed());
    it.is_over(Duration::ZERO, || calm("va1"));
}
