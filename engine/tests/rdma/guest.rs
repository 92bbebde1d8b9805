//! The virtual machine: whether this is the guest, its links and NICs (tests/rdma-vm/network.sh), and engines on its
//! two hosts.

use crate::support::{self, alone, wait_until};
use crate::times::EMULATED;
use ferry::types::{PeerId, RegionId, Transport};
use ferry::{Engine, Memory};
use std::io::Write;
use std::process::Command;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// The devices of the virtual machine: host 0 and host 1 on network a, the same on network b.
pub const DEVICES: [&str; 4] = ["rva0", "rva1", "rvb0", "rvb1"];
pub const HOST: [(&str, &str); 2] = [("rdma_devices", "rva0,rvb0"), ("rdma_devices", "rva1,rvb1")];
pub const RDMA: (&str, &str) = ("transports", "rdma");

pub const LEASE: Duration = Duration::from_millis(1500);
/// A test's exclusive use of the machine; the drop brings its links up again, however the test ended.
pub struct Guest {
    _turn: MutexGuard<'static, ()>,
}

/// Returns a guest in the virtual machine. Elsewhere prints for `test` that it is skipped, past libtest's capture.
pub fn enter(test: &str) -> Option<Guest> {
    if !is_here() {
        let reason = "make test-rdma runs this in its virtual machine";
        let _ = writeln!(std::io::stderr(), "SKIPPED: rdma::{test} ({reason})");
        return None;
    }
    Some(Guest { _turn: alone() })
}

pub fn is_here() -> bool {
    std::env::var("FERRY_TEST_RDMA").is_ok_and(|value| value == "1")
}

impl Drop for Guest {
    fn drop(&mut self) {
        for device in DEVICES {
            let _ = Command::new("tc").args(["qdisc", "del", "dev", &device[1..], "root"]).output();
        }
        if DEVICES.iter().any(|device| port_state(device) != "4: ACTIVE") {
            DEVICES.iter().for_each(|device| up(&device[1..]));
        }
    }
}

fn command(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn port_state(device: &str) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/1/state");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

/// Takes an interface down; its port is down when this returns.
pub fn down(interface: &str) {
    command(&format!("ip link set {interface} down"));
    wait_until("the port is down", || !port_state(&format!("r{interface}")).contains("ACTIVE"));
}

/// Brings an interface up again, with the neighbour entry that it forgot.
pub fn up(interface: &str) {
    command(&format!("ip link set {interface} up"));
    let (net, end) = (&interface[..2], &interface[2..]);
    let peer = format!("{net}{}", if end == "0" { 1 } else { 0 });
    let network = if net == "va" { 1 } else { 2 };
    for (here, there) in [(interface, &peer[..]), (&peer[..], interface)] {
        let address = std::fs::read_to_string(format!("/sys/class/net/{there}/address")).unwrap();
        let host = if there.ends_with('0') { 1 } else { 2 };
        command(&format!(
            "ip neigh replace 10.{network}.0.{host} lladdr {} nud permanent dev {here}",
            address.trim()
        ));
    }
}

/// Delays or drops packets that leave this interface, as `tc netem` specifies.
pub fn disturb(interface: &str, how: &str) {
    command(&format!("tc qdisc replace dev {interface} root netem {how}"));
}

pub fn calm(interface: &str) {
    command(&format!("tc qdisc del dev {interface} root"));
}

/// Returns the bytes that left the interface so far.
pub fn sent(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Returns the number of queue pairs of a device, the driver's own included.
pub fn queue_pairs(device: &str) -> usize {
    let output = Command::new("rdma").args(["resource", "show", "qp", "link", device]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.iter().filter(|byte| **byte == b'\n').count()
}

/// Returns settings of an engine on a host, RDMA alone unless `extra` says otherwise.
pub fn settings<'a>(host: usize, extra: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&EMULATED[..], &[RDMA, HOST[host]], extra].concat()
}

/// Returns these settings as words for a child.
pub fn words(host: usize, extra: &[(&str, &str)]) -> String {
    settings(host, extra).iter().map(|(key, value)| format!(" {key}={value}")).collect()
}

pub fn engine(host: usize, extra: &[(&str, &str)]) -> Engine {
    support::engine(&settings(host, extra))
}

pub fn connect(from: &Engine, to: &str) -> PeerId {
    from.connect(to, Some(Duration::from_secs(15))).unwrap()
}

/// Opens engines on both hosts: (initiator on host 0, target on host 1, the target's handle at the initiator).
pub fn pair(extra: &[(&str, &str)]) -> (Engine, Engine, PeerId) {
    let (a, b) = (engine(0, extra), engine(1, extra));
    let peer = connect(&a, b.address());
    (a, b, peer)
}

/// Allocates memory of both; the local one is filled with pattern `seed`, the remote one is known to the initiator.
pub fn memories(a: &Engine, b: &Engine, peer: PeerId, bytes: usize, seed: u64) -> (Memory, Memory) {
    let (local, remote) = (support::alloc(a, bytes), support::alloc(b, bytes));
    support::fill(&local, seed);
    knows(a, peer, remote.region());
    (local, remote)
}

/// Waits until `engine` knows this region of the peer.
pub fn knows(engine: &Engine, peer: PeerId, region: RegionId) {
    wait_until("the region is announced", || {
        engine.peer_regions(peer).unwrap().iter().any(|known| known.region == region)
    });
}

/// Returns whether RDMA is the chosen path, and the path's state in words.
pub fn path(engine: &Engine, peer: PeerId) -> (bool, String) {
    let paths = engine.peer_paths(peer).unwrap();
    let path = paths.into_iter().find(|path| path.transport == Transport::Rdma).unwrap();
    (path.chosen, path.why)
}

/// Waits until the path to the peer uses these devices of ours, and no others.
pub fn leads_over(engine: &Engine, peer: PeerId, devices: &[&str]) {
    let mut last = String::new();
    let started = Instant::now();
    loop {
        let (chosen, why) = path(engine, peer);
        let (now, _) = why.split_once("; last lost").unwrap_or((&why, ""));
        let used = DEVICES.iter().filter(|device| now.contains(&format!("{device} to "))).count();
        let all = devices.iter().all(|device| now.contains(&format!("{device} to ")));
        if chosen && all && used == devices.len() {
            return;
        }
        if last != why {
            println!("{:?}: {why}", started.elapsed());
            last = why;
        }
        assert!(started.elapsed() < support::BOUND, "never over {devices:?}: {last}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Watches memory for a while and asserts that nobody writes to it; no event reports that.
#[track_caller]
pub fn is_quiet(memory: impl Fn() -> Vec<u8>, period: Duration) {
    let before = memory();
    let end = Instant::now() + period;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        assert!(memory() == before, "the memory changed");
    }
}

/// Runs an ignored test of this binary in a process of its own, behind `prefix`: with another user's rights, or
/// another view of the file system. The test must pass.
pub fn elsewhere(prefix: &[&str], test: &str) {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--ignored", "--nocapture", "--test-threads=1"];
    let mut line: Vec<&std::ffi::OsStr> = prefix.iter().map(|word| word.as_ref()).collect();
    line.push(program.as_os_str());
    let output = Command::new(line[0]).args(&line[1..]).args(arguments).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // Indented, so that the results are not counted beside ours.
    text.lines().for_each(|line| println!("    {line}"));
    assert!(output.status.success() && text.contains("1 passed"), "{test} failed behind {prefix:?}");
}
