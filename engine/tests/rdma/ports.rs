//! Ports that go down and come back in mid-transfer: the other device carries on, then TCP where that is allowed, and
//! a port that is back is used again.

use crate::guest::{self, connect, down, engine, enter, leads_over, memories, pair, path, sent, up};
use crate::proxy::Proxy;
use crate::support::*;
use ferry::types::{Op, PeerId, Transport};
use ferry::{Deadline, Engine, Memory, State, Status, Transfer, TransferOptions, TransferResult};
use std::time::{Duration, Instant};

const BYTES: usize = 8 * MIB;
/// `reconnect_timeout_ms` of these tests.
const PATIENCE: Duration = Duration::from_millis(3000);

/// Moves the whole memory again and again: long enough to be met in the middle.
fn start(a: &Engine, peer: PeerId, local: &Memory, remote: &Memory, times: usize) -> Transfer {
    let requests = rounds(local.address(), remote.address(), remote.region(), BYTES, times);
    let options = TransferOptions { deadline: Deadline::After(BOUND), ..options() };
    let started = Instant::now();
    let transfer = a.submit(peer, Op::Write, &requests, &options).unwrap();
    println!("submit took {:?}", started.elapsed());
    transfer
}

/// Starts a transfer that is under way and far from done. If the transfer was done before this thread ran again, on a
/// busy machine, starts another.
fn start_and_meet(a: &Engine, peer: PeerId, local: &Memory, remote: &Memory, times: usize) -> Transfer {
    for _ in 0..10 {
        remote.write(0, &[0; 8]);
        let transfer = start(a, peer, local, remote, times);
        wait_until("it is under way", || read(remote, 0, 8) != [0; 8]);
        if transfer.state() == State::Pending {
            return transfer;
        }
        finish(&transfer);
    }
    panic!("ten transfers were done before they were seen to begin");
}

#[track_caller]
fn assert_all_arrived(result: &TransferResult, remote: &Memory, seed: u64, times: usize) {
    assert_eq!((result.state, result.status), (State::Done, Status::Ok));
    assert_eq!(result.bytes_confirmed, (times * BYTES) as u64);
    assert_pattern(remote, seed, 0, BYTES);
}

fn one_goes_down(interface: &str) {
    const TIMES: usize = 12;
    let (a, b, peer) = pair(&[]);
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, BYTES, 5);
    let transfer = start_and_meet(&a, peer, &local, &remote, TIMES);
    let (before, started) = (sent("vb0"), Instant::now());
    down(interface);
    let result = finish(&transfer);
    let took = started.elapsed();
    println!("{interface} down: the rest of {TIMES} x {BYTES} bytes took {took:?}");
    assert_all_arrived(&result, &remote, 5, TIMES);
    assert_eq!(result.transport, Transport::Rdma);
    assert!(sent("vb0") - before > BYTES as u64, "the other device carries on");
    assert!(took < Duration::from_secs(3) + 2 * SLACK, "{took:?}");

    leads_over(&a, peer, &["rvb0"]);
    up(interface);
    let started = Instant::now();
    leads_over(&a, peer, &["rva0", "rvb0"]);
    println!("{interface} up: used again after {:?}", started.elapsed());
    fill(&local, 6);
    let before = sent("va0");
    let result = finish(&start(&a, peer, &local, &remote, 2));
    assert_all_arrived(&result, &remote, 6, 2);
    assert!(sent("va0") - before > MIB as u64, "the device is used again");
}

#[test]
fn a_device_that_goes_down_in_mid_transfer_loses_nothing_and_comes_back() {
    let Some(_guest) = enter("ports::a_device_that_goes_down_in_mid_transfer_loses_nothing_and_comes_back")
    else {
        return;
    };
    one_goes_down("va0");
}

#[test]
fn a_device_of_the_peer_that_goes_down_in_mid_transfer_loses_nothing_and_comes_back() {
    let name = "ports::a_device_of_the_peer_that_goes_down_in_mid_transfer_loses_nothing_and_comes_back";
    let Some(_guest) = enter(name) else { return };
    one_goes_down("va1");
}

#[test]
fn with_all_devices_down_tcp_takes_over_and_rdma_returns() {
    const TIMES: usize = 12;
    let Some(_guest) = enter("ports::with_all_devices_down_tcp_takes_over_and_rdma_returns") else { return };
    let either = [("transports", "rdma,tcp"), ("local", "false")];
    let (a, b) = (engine(0, &either), engine(1, &either));
    let peer = connect(&a, b.address());
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, BYTES, 5);
    // A transfer that was done before both ports were down is repeated.
    let down_in_time = || {
        let transfer = start_and_meet(&a, peer, &local, &remote, TIMES);
        ["va0", "vb0"].into_iter().for_each(down);
        if transfer.state() == State::Pending {
            return Some(transfer);
        }
        ["va0", "vb0"].into_iter().for_each(up);
        leads_over(&a, peer, &["rva0", "rvb0"]);
        None
    };
    let transfer = (0..10).find_map(|_| down_in_time()).expect("a transfer that the ports leave behind");
    let started = Instant::now();
    let result = finish(&transfer);
    println!("both down: the rest took {:?}, by {:?}", started.elapsed(), result.transport);
    assert_all_arrived(&result, &remote, 5, TIMES);
    assert_eq!(result.transport, Transport::Tcp);
    let (chosen, why) = path(&a, peer);
    println!("rdma meanwhile: {why}");
    assert!(!chosen && why.contains("the port is down"), "{why}");
    fill(&local, 6);
    let result = finish(&start(&a, peer, &local, &remote, 1));
    assert_all_arrived(&result, &remote, 6, 1);
    assert_eq!(result.transport, Transport::Tcp);

    up("va0");
    up("vb0");
    leads_over(&a, peer, &["rva0", "rvb0"]);
    fill(&local, 7);
    let result = finish(&start(&a, peer, &local, &remote, 2));
    assert_all_arrived(&result, &remote, 7, 2);
    assert_eq!(result.transport, Transport::Rdma);
}

/// If only RDMA is allowed, the engine waits `reconnect_timeout_ms` for the ports: then transfers under way and later
/// ones end UNAVAILABLE, with the reason.
#[test]
fn with_all_devices_down_and_rdma_alone_transfers_are_unavailable() {
    let name = "ports::with_all_devices_down_and_rdma_alone_transfers_are_unavailable";
    let Some(_guest) = enter(name) else { return };
    let (a, b, peer) = pair(&[]);
    let (local, remote) = memories(&a, &b, peer, BYTES, 5);
    let transfer = start(&a, peer, &local, &remote, 100);
    wait_until("it is under way", || read(&remote, 0, 8) != [0; 8]);
    let started = Instant::now();
    down("va0");
    down("vb0");
    let result = finish(&transfer);
    let took = started.elapsed();
    println!("final after {took:?}: {:?} {}", result.state, result.status);
    assert_eq!((result.state, result.status), (State::Failed, Status::Unavailable));
    assert!(took >= PATIENCE, "{took:?}");
    // The transfer is final: nothing of it lands any more.
    remote.write(0, &pattern(9, 0, BYTES));
    let request = [request(&local, &remote, 0, BYTES)];
    let refused = a.submit(peer, Op::Write, &request, &options()).map(|_| ()).unwrap_err();
    println!("refused: {refused}");
    assert_eq!(refused.status, Status::Unavailable);
    assert!(refused.message.contains("the port is down"), "{refused}");
    up("va0");
    up("vb0");
    leads_over(&a, peer, &["rva0", "rvb0"]);
    guest::is_quiet(|| read(&remote, 0, BYTES), Duration::from_millis(500));
    assert_pattern(&remote, 9, 0, BYTES);
    a.write(peer, &request, &options()).unwrap();
    assert_pattern(&remote, 5, 0, BYTES);
}

/// All ports go down and come back: transfers that only RDMA may carry continue, whichever side's ports they were, and
/// so do transfers that are submitted meanwhile.
#[test]
fn a_flap_of_all_ports_is_waited_out() {
    const TIMES: usize = 12;
    let Some(_guest) = enter("ports::a_flap_of_all_ports_is_waited_out") else { return };
    // On a busy machine links change slowly, and endpoints close slowly; the session waits for both.
    let (a, b, peer) = pair(&[("reconnect_timeout_ms", "30000"), ("progress_timeout_ms", "30000")]);
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, BYTES, 5);
    for ports in [["va0", "vb0"], ["va1", "vb1"]] {
        let transfer = start_and_meet(&a, peer, &local, &remote, TIMES);
        ports.into_iter().for_each(down);
        wait_until("the path is gone", || !path(&a, peer).0);
        let meanwhile = start(&a, peer, &local, &remote, 1);
        let flapped = Instant::now();
        ports.into_iter().for_each(up);
        assert_all_arrived(&finish(&transfer), &remote, 5, TIMES);
        assert_all_arrived(&finish(&meanwhile), &remote, 5, 1);
        println!("{ports:?} up: the rest took {:?}", flapped.elapsed());
        leads_over(&a, peer, &["rva0", "rvb0"]);
    }
}

/// The session is lost and reconnected while all ports are down. The engine waits for the ports as if the session had
/// stood.
#[test]
fn a_session_made_anew_between_ports_that_went_down_waits_for_them_too() {
    const TIMES: usize = 12;
    let name = "ports::a_session_made_anew_between_ports_that_went_down_waits_for_them_too";
    let Some(_guest) = enter(name) else { return };
    let patient = [("reconnect_timeout_ms", "30000"), ("progress_timeout_ms", "30000")];
    let (a, b) = (engine(0, &patient), engine(1, &patient));
    let proxy = Proxy::new(b.address());
    let peer = connect(&a, &proxy.address);
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, BYTES, 5);
    let transfer = start_and_meet(&a, peer, &local, &remote, TIMES);
    ["va0", "vb0"].into_iter().for_each(down);
    wait_until("the path is gone", || !path(&a, peer).0);
    proxy.cut(true);
    let sessions = |engine: &Engine| engine.stats().unwrap().counts.sessions_up;
    wait_until("there is another session", || sessions(&a) == 2 && sessions(&b) == 2);
    wait_until("both have said what they have", || path(&a, peer).1.contains("the port is down"));
    let meanwhile = start(&a, peer, &local, &remote, 1);
    ["va0", "vb0"].into_iter().for_each(up);
    assert_all_arrived(&finish(&transfer), &remote, 5, TIMES);
    assert_all_arrived(&finish(&meanwhile), &remote, 5, 1);
}

#[test]
fn a_large_request_is_shared_by_both_devices() {
    const LARGE: usize = 48 * MIB;
    let Some(_guest) = enter("ports::a_large_request_is_shared_by_both_devices") else { return };
    let (a, b, peer) = pair(&[]);
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, LARGE, 5);
    // The best of three: a busy machine decides which device is faster at the moment.
    let shares = (0..3).map(|_| {
        remote.write(0, &vec![0; LARGE]);
        let before = [sent("va0"), sent("vb0")];
        let started = Instant::now();
        a.write(peer, &[request(&local, &remote, 0, LARGE)], &TransferOptions::default()).unwrap();
        let took = started.elapsed();
        let [first, second] = [sent("va0") - before[0], sent("vb0") - before[1]];
        println!("{LARGE} bytes in {took:?}: {first} by va0, {second} by vb0");
        assert_pattern(&remote, 5, 0, LARGE);
        assert!(first + second > LARGE as u64);
        (first, second)
    });
    // Within 20 % of even.
    let mut even = shares.map(|(first, second)| first.abs_diff(second) * 10 <= (first + second) * 2);
    assert!(even.any(|even| even));
}
