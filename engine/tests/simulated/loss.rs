//! Targets that die or are cut off: transfers end as docs/contracts.md says, and what comes back is used again.

use crate::world::{open, pattern, seeded, seeds, within, Buffer, Place, Target, LOCAL, LONG, RDMA, TCP};
use ferry::*;
use ferry_sim_kernel::process::{HostId, ProcessId};
use ferry_sim_kernel::task::sleep;
use ferry_sim_kernel::{net, nic, process, random_u64};
use std::time::Duration;

const BYTES: usize = 256 << 10;
const PORT: u16 = 7000;

type Settings = &'static [(&'static str, &'static str)];

/// Serves its memory until its process is killed.
fn serve(settings: Settings, told: &Place<Target>) {
    let engine = open(PORT, settings);
    let memory = Buffer::new(&engine, BYTES);
    told.put(Target::of(&engine, &memory));
    Place::<()>::new().get();
}

fn start(host: HostId, settings: Settings) -> (ProcessId, Place<Target>) {
    let (process, told) = (host.start("target"), Place::new());
    let theirs = told.clone();
    process.spawn("target", move || serve(settings, &theirs)).unwrap();
    (process, told)
}

/// Reads the target's memory behind its back.
fn look(target: &Target) -> Vec<u8> {
    // SAFETY: memory of the simulation's arena, which stays readable until the run is over.
    unsafe { std::slice::from_raw_parts(target.memory as *const u8, BYTES) }.to_vec()
}

/// A moment between now and 8 ms, each doubling as likely: a copy takes microseconds, a reconnect milliseconds.
fn a_moment() -> Duration {
    Duration::from_nanos(random_u64() % (1 << (random_u64() % 24)))
}

/// Runs a program on the first of two hosts, for many seeds. The hosts are prepared before.
fn on_two_hosts(prepare: fn(HostId), program: fn(HostId, HostId)) {
    for seed in seeds(100) {
        seeded(seed, || {
            let [a, b] = ["a", "b"].map(process::host);
            [a, b].into_iter().for_each(prepare);
            within(a.start("initiator"), "initiator", move || program(a, b));
        })
        .check();
    }
}

fn writes_to_a_target_that_dies(host: HostId, settings: Settings) {
    let engine = open(0, settings);
    let memory = Buffer::new(&engine, BYTES);
    memory.write(&pattern(1, BYTES));
    let (process, told) = start(host, settings);
    let target = told.get();
    let peer = engine.connect(&target.address, Some(LONG)).unwrap();
    let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
    process.kill_after(a_moment());
    let status = loop {
        let length = 1 + random_u64() as usize % BYTES;
        match engine.write(peer, &[target.request(&memory, length)], &options) {
            Ok(result) => assert_eq!(result.bytes_confirmed, length as u64),
            Err(error) => break error.status,
        }
    };
    assert_eq!(status, Status::PeerLost);
    // At the same port, another process is another peer.
    let (_, told) = start(host, settings);
    let target = told.get();
    let next = engine.connect(&target.address, Some(LONG)).unwrap();
    assert_ne!(next, peer);
    engine.write(next, &[target.request(&memory, BYTES)], &options).unwrap();
    assert!(look(&target) == pattern(1, BYTES), "the new target lacks what was confirmed");
    engine.close(Some(LONG)).unwrap();
}

#[test]
fn a_killed_target_is_lost_and_its_successor_at_the_port_is_another_peer() {
    on_two_hosts(|_| (), |_, b| writes_to_a_target_that_dies(b, TCP));
}

#[test]
fn a_killed_target_over_rdma_is_lost_and_its_successor_at_the_port_is_another_peer() {
    let with_a_nic = |host| {
        nic::add(host, nic::Abilities::default());
    };
    on_two_hosts(with_a_nic, |_, b| writes_to_a_target_that_dies(b, RDMA));
}

#[test]
fn a_killed_target_on_the_same_host_is_lost_and_its_successor_is_another_peer() {
    for seed in seeds(100) {
        seeded(seed, || {
            let a = process::host("a");
            within(a.start("initiator"), "initiator", move || writes_to_a_target_that_dies(a, LOCAL));
        })
        .check();
    }
}

fn writes_across_a_cut(host: HostId) {
    let settings = [TCP, &[("reconnect_timeout_ms", "600000")]].concat();
    let engine = open(0, &settings);
    let memory = Buffer::new(&engine, BYTES);
    let (_, told) = start(host, TCP);
    let target = told.get();
    let peer = engine.connect(&target.address, Some(LONG)).unwrap();
    let own = process::current().host();
    let within = |time| TransferOptions { deadline: Deadline::After(time), ..TransferOptions::default() };
    memory.write(&pattern(2, BYTES));
    engine.write(peer, &[target.request(&memory, BYTES)], &within(LONG)).unwrap();
    memory.write(&pattern(3, BYTES));
    match random_u64() % 3 {
        0 => net::partition(own, host),
        1 => net::partition_one_way(own, host),
        _ => net::partition_one_way(host, own),
    }
    let refused = engine.write(peer, &[target.request(&memory, BYTES)], &within(Duration::from_millis(500)));
    assert_eq!(refused.map(|_| ()).map_err(|error| error.status), Err(Status::Timeout));
    // It is over: the memory of both sides is its owners' again.
    let before = look(&target);
    memory.write(&pattern(4, BYTES));
    sleep(Duration::from_millis(random_u64() % 5_000));
    net::heal_all();
    sleep(Duration::from_secs(10));
    assert!(look(&target) == before, "a transfer that was over has landed");
    engine.write(peer, &[target.request(&memory, BYTES)], &within(LONG)).unwrap();
    assert!(look(&target) == pattern(4, BYTES), "the target lacks what was confirmed");
    engine.close(Some(LONG)).unwrap();
}

#[test]
fn a_cut_times_transfers_out_and_nothing_lands_afterwards() {
    on_two_hosts(|_| (), |_, b| writes_across_a_cut(b));
}

/// A host crashes while its session rests, and comes back with another engine, which connects to us.
fn meets_the_successor_on_a_host_that_crashed(host: HostId) {
    let engine = open(PORT, TCP);
    let (_, told) = start(host, TCP);
    let target = told.get();
    let old = engine.connect(&target.address, Some(LONG)).unwrap();
    host.crash();
    sleep(a_moment());
    host.boot_again();
    let (ours, told) = (engine.address().to_owned(), Place::new());
    let theirs = told.clone();
    let program = move || {
        let engine = open(PORT, TCP);
        engine.connect(&ours, Some(LONG)).unwrap();
        theirs.put(engine.address().to_owned());
        Place::<()>::new().get();
    };
    host.start("successor").spawn("successor", program).unwrap();
    let address = told.get();
    assert_eq!(address, target.address);
    // The question to the old engine has a time for its answer.
    sleep(Duration::from_secs(60));
    assert_ne!(
        engine.connect(&address, Some(LONG)).unwrap(),
        old,
        "`connect` returns the engine that is gone"
    );
    engine.close(Some(LONG)).unwrap();
}

#[test]
fn an_engine_on_a_host_that_crashed_gives_way_to_its_successor() {
    on_two_hosts(|_| (), |_, b| meets_the_successor_on_a_host_that_crashed(b));
}
