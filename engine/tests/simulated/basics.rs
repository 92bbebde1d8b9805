//! Two engines on two hosts, or on one: data and notifications arrive over TCP, over RDMA or by copies between the
//! processes, and a seed repeats.

use crate::world::{open, pattern, seeded, seeds, within, Buffer, Place, Target, LOCAL, LONG, RDMA, TCP};
use ferry::notify::{Event, WHAT_NOTIFICATIONS};
use ferry::types::Transport;
use ferry::*;
use ferry_sim_kernel::{nic, process, random_u64, Outcome};
use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

const ROLE: &str = "FERRY_TEST_SEED";
const BYTES: usize = 4 << 20;
const SMALL_BYTES: usize = 16 << 10;
const SIZES: [usize; 3] = [64, 4 << 10, BYTES];
const NOTIFICATIONS: u64 = 10;

fn target(settings: &[(&str, &str)], told: &Place<Target>, over: &Place<()>) {
    let engine = open(0, settings);
    let memory = Buffer::new(&engine, BYTES);
    let queue = engine.queue(WHAT_NOTIFICATIONS, 64).unwrap();
    told.put(Target::of(&engine, &memory));
    let mut events: Vec<Event> = Vec::new();
    while events.len() < NOTIFICATIONS as usize {
        queue.drain(&mut events, 64);
        ferry_sim_kernel::task::sleep(Duration::from_millis(1));
    }
    over.get();
    let mut found = vec![0; BYTES];
    memory.read(&mut found);
    assert!(found == pattern(2, BYTES), "the target's memory is not what was written last");
    engine.close(Some(LONG)).unwrap();
}

fn initiator(settings: &[(&str, &str)], told: &Place<Target>, over: &Place<()>) {
    let engine = open(0, settings);
    let memory = Buffer::new(&engine, BYTES);
    let target = told.get();
    let peer = engine.connect(&target.address, Some(LONG)).unwrap();
    let expected = match settings {
        TCP => Transport::Tcp,
        RDMA => Transport::Rdma,
        _ => Transport::Local,
    };
    for (nth, length) in SIZES.into_iter().enumerate() {
        let request = target.request(&memory, length);
        let data = pattern(nth as u64, length);
        memory.write(&data);
        let result = engine.write(peer, &[request], &TransferOptions::default()).unwrap();
        assert_eq!((result.bytes_confirmed, result.transport), (length as u64, expected));
        memory.write(&vec![0; length]);
        engine.read(peer, &[request], &TransferOptions::default()).unwrap();
        let mut found = vec![0; length];
        memory.read(&mut found);
        assert!(found == data, "{length} bytes came back otherwise");
    }
    for nth in 0..NOTIFICATIONS {
        engine.notify(peer, &nth.to_le_bytes(), Deadline::Default).unwrap();
    }
    over.put(());
    engine.close(Some(LONG)).unwrap();
}

/// Two processes: on one host for LOCAL, else on two.
fn exchange(seed: u64, settings: &'static [(&'static str, &'static str)]) -> Outcome {
    seeded(seed, || {
        let hosts = if settings == LOCAL { 1 } else { 2 };
        let made = ["a", "b"][..hosts].iter().map(|name| process::host(name)).collect::<Vec<_>>();
        if settings == RDMA {
            for host in &made {
                nic::add(*host, nic::Abilities::default());
            }
        }
        let (a, b) = (made[0].start("a"), made[hosts - 1].start("b"));
        let (told, over) = (Place::new(), Place::new());
        let (theirs, ended) = (told.clone(), over.clone());
        let other = b.spawn("target", move || target(settings, &theirs, &ended)).unwrap();
        within(a, "initiator", move || initiator(settings, &told, &over));
        other.join().unwrap();
    })
}

fn by(seeds: Range<u64>, what: &str, run: impl Fn(u64) -> Outcome) {
    let (count, begin, mut steps, mut switches) = (seeds.end - seeds.start, Instant::now(), 0, 0);
    for seed in seeds {
        let outcome = run(seed).check();
        steps += outcome.steps;
        switches += outcome.switches;
    }
    let ms = begin.elapsed().as_secs_f64() * 1e3 / count as f64;
    println!(
        "{what}: {count} seeds; each {ms:.1} ms, {} steps, {} switches",
        steps / count,
        switches / count
    );
}

#[test]
fn a_seed_repeats() {
    for settings in [TCP, LOCAL, RDMA] {
        for seed in 1..4 {
            let [one, two] = [exchange(seed, settings).check(), exchange(seed, settings).check()];
            assert_eq!(told(&one), told(&two), "seed {seed}, {settings:?}");
        }
    }
}

#[test]
fn what_is_written_is_read_back_whatever_the_seed() {
    by(seeds(100), "an exchange of two hosts", |seed| exchange(seed, TCP));
}

#[test]
fn what_is_written_over_rdma_is_read_back_whatever_the_seed() {
    by(seeds(100), "an exchange over RDMA", |seed| exchange(seed, RDMA));
}

#[test]
fn what_is_written_on_one_host_is_read_back_whatever_the_seed() {
    by(seeds(100), "an exchange on one host", |seed| exchange(seed, LOCAL));
}

/// The steps that most seeds of a simulation take, so that they can be timed.
fn small_transfers(seed: u64) -> Outcome {
    seeded(seed, || {
        let [a, b] = ["a", "b"].map(|name| process::host(name).start(name));
        let (told, over) = (Place::new(), Place::<()>::new());
        let (theirs, ended) = (told.clone(), over.clone());
        let other = b.spawn("target", move || {
            let engine = open(0, TCP);
            let memory = Buffer::new(&engine, SMALL_BYTES);
            theirs.put(Target::of(&engine, &memory));
            ended.get();
            engine.close(Some(LONG)).unwrap();
        });
        within(a, "initiator", move || {
            let engine = open(0, TCP);
            let memory = Buffer::new(&engine, SMALL_BYTES);
            let target = told.get();
            let peer = engine.connect(&target.address, Some(LONG)).unwrap();
            for _ in 0..100 {
                let request = target.request(&memory, 1 + random_u64() as usize % SMALL_BYTES);
                let options = TransferOptions::default();
                match random_u64() % 2 {
                    0 => engine.write(peer, &[request], &options).unwrap(),
                    _ => engine.read(peer, &[request], &options).unwrap(),
                };
            }
            over.put(());
            engine.close(Some(LONG)).unwrap();
        });
        other.unwrap().join().unwrap();
    })
}

#[test]
fn a_hundred_small_transfers_all_end() {
    by(seeds(100), "a hundred small transfers", small_transfers);
}

/// Not a test: tells what a seed comes to in this process.
#[test]
#[ignore = "the other process of a test"]
fn tells_what_a_seed_comes_to() {
    if let Ok(seed) = std::env::var(ROLE) {
        let seed = seed.parse().unwrap();
        println!("@@ {}{}", told(&exchange(seed, TCP)), told(&exchange(seed, LOCAL)));
    }
}

fn told(it: &Outcome) -> String {
    format!("{:?}", (it.hash, it.events, it.steps, it.switches, it.end_ns, &it.failures))
}

/// Addresses differ from one process of the operating system to the next, and random hashers would.
#[test]
fn a_seed_repeats_in_another_process() {
    for seed in [1, 7, 42] {
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "basics::tells_what_a_seed_comes_to", "--ignored", "--nocapture"]);
        let output = other.env(ROLE, seed.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let theirs = said.split("@@ ").nth(1).and_then(|rest| rest.lines().next());
        let ours = told(&exchange(seed, TCP)) + &told(&exchange(seed, LOCAL));
        assert_eq!(theirs, Some(&*ours), "seed {seed}: {said}");
    }
}
