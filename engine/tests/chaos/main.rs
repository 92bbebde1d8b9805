//! Chaos: engines in real processes, on hosts that are network namespaces, under faults that a seed draws, all at
//! once. `make chaos ROUNDS=n [SEED=s]` runs it; docs/internals/testing.md says more.
//!
//! `main` enters namespaces of its own, so that all that the program makes ends with the program, also when it is
//! killed. `round` plays a round, `faults` draws its faults, `judge` compares memory and lives with the contracts.
//! `place` has the hosts: `network` those that are network namespaces, with the wire between them, `devices` those of
//! the virtual machine with RDMA devices, if CHAOS_RDMA says that this is it. `process` and `node` have the two ends
//! of a node's process, `arena` its memory. CHAOS_NODES has the programs of nodes in other languages
//! (scripts/chaos.sh).

mod arena;
mod devices;
mod faults;
mod judge;
mod network;
mod node;
mod operation;
mod place;
mod process;
mod round;
#[path = "../faults/support.rs"]
#[allow(dead_code, unused_imports)]
mod support;
mod tally;
#[path = "../rdma/times.rs"]
mod times;

use std::process::{exit, Command};
use std::time::Instant;

/// Says that this process is inside the namespaces.
const INSIDE: &str = "CHAOS_INSIDE";

fn main() {
    if let Ok(descriptor) = std::env::var(node::ARENA) {
        return node::run(&descriptor);
    }
    let languages = process::Languages::of(&std::env::var("CHAOS_NODES").unwrap_or_default());
    if std::env::var_os("CHAOS_RDMA").is_some() {
        return play(&place::Place::of_devices(languages), "the hosts are those of the virtual machine");
    }
    if std::env::var_os(INSIDE).is_none() {
        exit(enter());
    }
    if !Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status().is_ok_and(|done| done.success())
    {
        give_up("cannot mount a file system for the names of network namespaces");
    }
    network::ip("link set lo up");
    play(&place::Place::of_namespaces(languages), netem());
}

fn play(place: &place::Place, about: &str) {
    let rounds: u64 = number("ROUNDS").unwrap_or(20);
    let seed = number("SEED").unwrap_or_else(|| ferry::internals::sys::random_u64() >> 24);
    println!("chaos: {rounds} rounds from SEED={seed}; {about}");
    let (mut tally, started) = (tally::Tally::default(), Instant::now());
    for at in 0..rounds {
        let seed = seed + at;
        if let Err(failure) = round::play(seed, place, &mut tally) {
            println!("{failure}");
            println!(
                "chaos: round {at} FAILED; `make chaos ROUNDS=1 SEED={seed}` draws the same round again"
            );
            tally.print(at + 1, started.elapsed());
            exit(1);
        }
        if (at + 1) % 10 == 0 {
            println!("chaos: {} rounds in {} s", at + 1, started.elapsed().as_secs());
        }
    }
    tally.print(rounds, started.elapsed());
    println!("chaos: {rounds} rounds, nothing lost, nothing late");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| give_up(&format!("{name} is not a number: {text}"))))
}

fn give_up(why: &str) -> ! {
    println!("chaos: FAILED, it cannot run here: {why}");
    exit(1)
}

/// Runs this program again in namespaces of its own: the first process of a pid namespace takes all others with it.
fn enter() -> i32 {
    // SAFETY: no memory is involved.
    let root = unsafe { libc::geteuid() } == 0;
    let user: &[&str] = if root { &[] } else { &["--user", "--map-root-user"] };
    let arguments = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(user).args(arguments);
        command
    };
    let probe = unshare().args(["ip", "link", "add", "wire0", "type", "veth"]).output();
    match probe {
        Err(error) => give_up(&format!("unshare: {error}")),
        Ok(output) if !output.status.success() => {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            give_up(&format!("it needs root or user namespaces, `ip` and veth: {words}"))
        }
        Ok(_) => {}
    }
    let status = unshare().arg(std::env::current_exe().unwrap()).env(INSIDE, "1").status();
    status.ok().and_then(|status| status.code()).unwrap_or(1)
}

/// Says whether the kernel has netem. The wire does the same to frames, on every kernel.
fn netem() -> &'static str {
    let done =
        Command::new("tc").args(["qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]).output();
    let _ = Command::new("tc").args(["qdisc", "del", "dev", "lo", "root"]).output();
    match done {
        Ok(output) if output.status.success() => {
            "netem is there and not needed: the wire delays and loses frames"
        }
        _ => "no netem here: the wire delays, loses, reorders and duplicates frames by itself",
    }
}
