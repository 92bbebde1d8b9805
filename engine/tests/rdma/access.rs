//! Rights of the target's regions, regions in pieces, and the limit of memory that may be pinned.

use crate::guest::{self, elsewhere, enter, knows, leads_over, memories, pair};
use crate::support::*;
use ferry::types::{Access, Op, RegionId, Request};
use ferry::{RegionOptions, Status};
use std::time::Duration;

const PAGE: usize = 4096;

#[test]
fn a_region_without_the_right_is_refused_and_nothing_moves() {
    let Some(_guest) = enter("access::a_region_without_the_right_is_refused_and_nothing_moves") else {
        return;
    };
    let (a, b, peer) = pair(&[]);
    let local = alloc(&a, PAGE);
    fill(&local, 5);
    let limited = |access| b.alloc(PAGE, &RegionOptions { access, ..RegionOptions::default() }).unwrap();
    let (read_only, write_only) = (limited(Access::REMOTE_READ), limited(Access::REMOTE_WRITE));
    let gone = alloc(&b, PAGE);
    let stale = gone.region();
    knows(&a, peer, stale);
    gone.unregister(None).unwrap();
    wait_until("that is known here", || {
        a.peer_regions(peer).unwrap().iter().all(|known| known.region != stale)
    });
    for (op, memory, region, length, expected) in [
        (Op::Write, &read_only, read_only.region(), PAGE, Status::Access),
        (Op::Write, &read_only, RegionId::NONE, PAGE, Status::Access),
        (Op::Read, &write_only, write_only.region(), PAGE, Status::Access),
        (Op::Read, &write_only, RegionId::NONE, PAGE, Status::Access),
        // The first invalid byte.
        (Op::Write, &write_only, write_only.region(), PAGE + 8, Status::Invalid),
        (Op::Write, &write_only, stale, PAGE, Status::Stale),
        (Op::Write, &gone, stale, PAGE, Status::Stale),
        (Op::Write, &gone, RegionId::NONE, PAGE, Status::NotRegistered),
    ] {
        let one = Request {
            local: local.address(),
            remote: memory.address(),
            length: length.min(PAGE) as u64,
            remote_region: region,
        };
        let one = Request { remote: one.remote + (length - length.min(PAGE)) as u64, ..one };
        let error =
            a.submit(peer, op, &[one], &options()).and_then(|transfer| transfer.wait_done()).unwrap_err();
        assert_eq!(error.status, expected, "{op:?} {region:#x} {length}");
        let range = format!("remote {:#x} + {}", one.remote, one.length);
        assert!(error.message.contains(&range), "{error}");
    }
    for memory in [&read_only, &write_only, &gone] {
        assert_zero(memory, 0, PAGE);
    }
    assert_pattern(&local, 5, 0, PAGE);
    // Accesses that are granted. The WRITE is proven visible although its region may not be READ.
    a.write(peer, &[request(&local, &write_only, 0, PAGE)], &options()).unwrap();
    assert_pattern(&write_only, 5, 0, PAGE);
    fill(&read_only, 6);
    a.read(peer, &[request(&local, &read_only, 0, PAGE)], &options()).unwrap();
    assert_pattern(&local, 6, 0, PAGE);
}

/// Pieces of 1 MiB at either end or both, of memory that begins anywhere.
#[test]
fn transfers_cross_the_pieces_of_a_region() {
    const BYTES: usize = 5 * MIB + PAGE;
    let Some(_guest) = enter("access::transfers_cross_the_pieces_of_a_region") else { return };
    let pieces = ("rdma_mr_bytes_max", "1048576");
    let whole = ("rdma_mr_bytes_max", "0");
    for (here, there) in [(pieces, pieces), (whole, pieces), (pieces, whole)] {
        let (a, b) = (guest::engine(0, &[here]), guest::engine(1, &[there]));
        let peer = guest::connect(&a, b.address());
        leads_over(&a, peer, &["rva0", "rvb0"]);
        let (local, remote) = memories(&a, &b, peer, BYTES, 5);
        a.write(peer, &[request(&local, &remote, 0, BYTES)], &options()).unwrap();
        assert_pattern(&remote, 5, 0, BYTES);
        // Small transfers across each piece's end, shifted against each other.
        fill(&remote, 6);
        local.write(0, &vec![0; BYTES]);
        let ends: Vec<Request> = (1..=5)
            .map(|n| Request {
                local: local.address() + (n * MIB - 16) as u64,
                remote: remote.address() + (n * MIB - 8 * n) as u64,
                length: 64,
                remote_region: remote.region(),
            })
            .collect();
        a.read(peer, &ends, &options()).unwrap();
        for n in 1..=5 {
            assert_eq!(misplaced(&read(&local, n * MIB - 16, 64), 6, n * MIB - 8 * n), None, "end {n}");
            assert_zero(&local, n * MIB - 80, 64);
            assert_zero(&local, n * MIB + 48, 64);
        }
    }
}

#[test]
fn too_little_lockable_memory_is_named_and_leaves_nothing_behind() {
    let name = "access::too_little_lockable_memory_is_named_and_leaves_nothing_behind";
    let Some(_guest) = enter(name) else { return };
    // A process with CAP_IPC_LOCK has no limit.
    let unprivileged = ["setpriv", "--inh-caps", "-ipc_lock", "--bounding-set", "-ipc_lock"];
    elsewhere(&unprivileged, "access::with_a_limit_of_locked_memory");
}

fn limit_locked(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is read during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
}

/// Returns the bytes that this process has pinned for devices.
fn pinned() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
#[ignore = "runs without the right to lock any amount of memory"]
fn with_a_limit_of_locked_memory() {
    let (a, b, peer) = pair(&[]);
    let before = pinned();
    // Enough for one device, not for both.
    limit_locked(before + 3 * MIB as u64);
    let error = a.alloc(2 * MIB, &RegionOptions::default()).err().unwrap();
    println!("{error}");
    assert_eq!(error.status, Status::NoMemory);
    assert!(error.message.contains("ulimit -l"), "{error}");
    assert_eq!(pinned(), before, "something stayed registered");
    limit_locked(before + 4 * MIB as u64);
    let local = a.alloc(2 * MIB, &RegionOptions::default()).unwrap();
    limit_locked(libc::RLIM_INFINITY);
    let remote = alloc(&b, 2 * MIB);
    knows(&a, peer, remote.region());
    fill(&local, 5);
    a.write(peer, &[request(&local, &remote, 0, 2 * MIB)], &options()).unwrap();
    assert_pattern(&remote, 5, 0, 2 * MIB);
    local.free(Some(Duration::from_secs(10))).map_err(|(_, error)| error).unwrap();
}
