//! Refusals by a target, memory that the target takes back in mid-transfer, and that no byte outside a named range is
//! ever touched.

use crate::support::*;
use ferry::types::{Access, Op, PeerId, RegionId, Request};
use ferry::{Engine, Fence, Memory, RegionOptions, State, Status, TransferOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn region(engine: &Engine, address: u64, bytes: usize, access: Access) -> RegionId {
    let options = RegionOptions { access, ..RegionOptions::default() };
    // SAFETY: the tests register parts of mappings that outlive their engines, through raw addresses.
    unsafe { engine.register(address as *mut u8, bytes, &options) }.unwrap()
}

/// Returns memory that stays mapped, for regions that are registered over it and unregistered.
fn ground(bytes: usize) -> u64 {
    Box::leak(vec![0u64; bytes / 8].into_boxed_slice()).as_mut_ptr() as u64
}

fn look(address: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0u8; bytes];
    // SAFETY: `address` is leaked ground of at least this size; racing writers give old or new bytes.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), bytes) };
    out
}

fn put(address: u64, bytes: &[u8]) {
    // SAFETY: as in `look`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

/// The initiator's planner refuses requests that it knows to be wrong; `hostile/rights.rs` asks the target itself.
#[test]
fn each_wrong_range_is_refused_and_nothing_else_is_touched() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let local = alloc(&a, 16 * PAGE);
    fill(&local, 5);
    let at = ground(8 * PAGE);
    // [guard][read-only][guard][writable][guard]
    let read_only = region(&b, at + PAGE as u64, PAGE, Access::REMOTE_READ);
    let writable = region(&b, at + 3 * PAGE as u64, PAGE, Access::REMOTE_WRITE);
    a.probe(peer, None).unwrap();
    let ask = |op, remote: u64, length: usize, remote_region: RegionId| {
        let request = Request { local: local.address(), remote, length: length as u64, remote_region };
        match a.submit(peer, op, &[request], &options()) {
            Ok(transfer) => finish(&transfer).status,
            Err(error) => error.status,
        }
    };
    let page = |n: usize| at + (n * PAGE) as u64;
    for (op, remote, length, region, expected) in [
        (Op::Write, page(1), PAGE, read_only, Status::Access),
        (Op::Write, page(1), PAGE, RegionId::NONE, Status::Access),
        (Op::Read, page(3), PAGE, writable, Status::Access),
        (Op::Read, page(3), PAGE, RegionId::NONE, Status::Access),
        // The last valid byte, and the first invalid one.
        (Op::Write, page(4) - 8, 16, writable, Status::Invalid),
        (Op::Write, page(3) - 8, 16, writable, Status::Invalid),
        (Op::Write, page(4) - 8, 16, RegionId::NONE, Status::NotRegistered),
        (Op::Write, page(3) - 8, 16, RegionId::NONE, Status::NotRegistered),
        (Op::Write, page(5), 8, RegionId::NONE, Status::NotRegistered),
        (Op::Write, u64::MAX - 7, 16, writable, Status::Invalid),
        (Op::Write, u64::MAX - 7, 16, RegionId::NONE, Status::Invalid),
        (Op::Write, page(3), 0, writable, Status::Invalid),
        (Op::Write, page(3), 8, RegionId::from_raw(12345), Status::Stale),
        (Op::Write, page(3), 8, local.region(), Status::Stale),
    ] {
        assert_eq!(
            ask(op, remote, length, region),
            expected,
            "{op:?} {length} at page {}",
            (remote.wrapping_sub(at)) / PAGE as u64
        );
    }
    assert!(look(at, 8 * PAGE).iter().all(|byte| *byte == 0), "something was touched");
    assert_eq!(ask(Op::Write, page(4) - 8, 8, writable), Status::Ok);
    assert_eq!(ask(Op::Read, page(1), PAGE, read_only), Status::Ok);
    let touched: Vec<usize> =
        look(at, 8 * PAGE).iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(i, _)| i).collect();
    assert!(touched.iter().all(|i| (4 * PAGE - 8..4 * PAGE).contains(i)), "{touched:?}");
}

#[test]
fn partial_failure_names_the_requests_and_touches_only_the_others() {
    let _turn = alone();
    for (each, no_coalesce) in [(64usize, true), (64, false), (64 << 10, true), (MIB, false)] {
        let (a, b, peer) = pair(&[]);
        let (local, remote) = (alloc(&a, 16 * each), alloc(&b, 32 * each));
        fill(&local, 5);
        // Blocks at every second place, so that each has guards beside it; every third block is out of bounds.
        let requests: Vec<Request> = (0..16)
            .map(|i| Request {
                local: local.address() + (i * each) as u64,
                remote: if i % 3 == 2 { 4096 } else { remote.address() + (2 * i * each) as u64 },
                length: each as u64,
                remote_region: RegionId::NONE,
            })
            .collect();
        let transfer = a
            .submit(peer, Op::Write, &requests, &TransferOptions { no_coalesce, ..Default::default() })
            .unwrap();
        let result = finish(&transfer);
        assert_eq!((result.state, result.status), (State::Failed, Status::Partial));
        assert_eq!((result.requests_failed, result.bytes_confirmed), (5, 11 * each as u64));
        for (i, request) in transfer.results().iter().enumerate() {
            assert_eq!(request.index, i as u64);
            if i % 3 == 2 {
                assert_eq!((request.status, request.bytes_confirmed), (Status::NotRegistered, 0));
                assert_zero(&remote, 2 * i * each, each);
            } else {
                assert_eq!((request.status, request.bytes_confirmed), (Status::Ok, each as u64));
                assert_eq!(misplaced(&read(&remote, 2 * i * each, each), 5, i * each), None);
            }
            assert_zero(&remote, (2 * i + 1) * each, each);
        }
    }
}

/// Runs several transfers at a time, until told to stop.
fn storm<'a>(
    scope: &'a std::thread::Scope<'a, '_>,
    a: &'a Engine,
    peer: PeerId,
    local: &'a Memory,
    target: (u64, RegionId, usize),
    over: &'a AtomicBool,
) {
    let (remote, remote_region, bytes) = target;
    for length in [bytes, 64 << 10, 4096] {
        scope.spawn(move || {
            let requests = rounds(local.address(), remote, remote_region, length, 2);
            while !over.load(Ordering::SeqCst) {
                let Ok(transfer) = a.submit(peer, Op::Write, &requests, &options()) else { return };
                let result = finish(&transfer);
                assert!(matches!(result.status, Status::Ok | Status::Stale | Status::Partial), "{result:?}");
                if result.status != Status::Ok {
                    return;
                }
            }
        });
    }
}

/// Unregister returns quickly however much is in flight, and a canary written after it stays (contract 12).
#[test]
fn unregister_under_a_storm_returns_quickly_and_nothing_lands_later() {
    let _turn = alone();
    const BYTES: usize = 16 * MIB;
    for poller in ["epoll", "io_uring"] {
        let (a, b, peer) = pair(&[("tcp_poller", poller)]);
        let local = alloc(&a, BYTES);
        fill(&local, 5);
        let at = ground(BYTES);
        for _ in 0..5 {
            let id = region(&b, at, BYTES, Access::BOTH);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                storm(scope, &a, peer, &local, (at, id, BYTES), &over);
                let before = b.stats().unwrap().counts.bytes_applied;
                wait_until("the storm blows", || {
                    b.stats().unwrap().counts.bytes_applied > before + 2 * BYTES as u64
                });
                let started = Instant::now();
                b.unregister(id, None).unwrap();
                assert!(started.elapsed() < SLACK, "unregister took {:?}", started.elapsed());
                put(at, &pattern(9, 0, BYTES));
                // The storm ends by itself: its transfers are refused.
            });
            over.store(true, Ordering::SeqCst);
            a.probe(peer, Some(BOUND)).unwrap();
            assert_eq!(misplaced(&look(at, BYTES), 9, 0), None, "something landed after unregister");
            assert_eq!(b.unregister(id, None).unwrap_err().status, Status::Stale);
        }
    }
}

/// Contract 7: the same address with another generation; the old handle never reaches it.
#[test]
fn a_region_registered_anew_at_the_same_address_is_another_one() {
    let _turn = alone();
    const BYTES: usize = 16 * MIB;
    let (a, b, peer) = pair(&[]);
    let local = alloc(&a, BYTES);
    fill(&local, 5);
    let at = ground(BYTES);
    let old = region(&b, at, BYTES, Access::BOTH);
    a.probe(peer, None).unwrap();
    let over = AtomicBool::new(false);
    let new = std::thread::scope(|scope| {
        storm(scope, &a, peer, &local, (at, old, BYTES), &over);
        let before = b.stats().unwrap().counts.bytes_applied;
        wait_until("the storm blows", || b.stats().unwrap().counts.bytes_applied > before + BYTES as u64);
        b.unregister(old, None).unwrap();
        put(at, &pattern(9, 0, BYTES));
        region(&b, at, BYTES, Access::BOTH)
    });
    assert_eq!(misplaced(&look(at, BYTES), 9, 0), None, "the old handle reached the new region");
    assert_ne!(old, new);
    let requests = rounds(local.address(), at, new, BYTES, 1);
    a.write(peer, &requests, &options()).unwrap();
    assert_eq!(misplaced(&look(at, BYTES), 5, 0), None);
    let stale = a.submit(peer, Op::Write, &rounds(local.address(), at, old, 8, 1), &options());
    let status = stale.map_or_else(|error| error.status, |transfer| finish(&transfer).status);
    assert_eq!(status, Status::Stale);
}

/// READs of a region that goes away end STALE, or complete, and never with bytes written after unregister.
#[test]
fn a_region_unregistered_while_it_is_read_is_stale() {
    let _turn = alone();
    const BYTES: usize = 16 * MIB;
    for checksum in [false, true] {
        let (a, b, peer) = pair(&[]);
        let local = alloc(&a, BYTES);
        let at = ground(BYTES);
        put(at, &pattern(5, 0, BYTES));
        let id = region(&b, at, BYTES, Access::BOTH);
        a.probe(peer, None).unwrap();
        let options = TransferOptions { checksum, ..options() };
        let requests = rounds(local.address(), at, id, BYTES, 512);
        let transfer = a.submit(peer, Op::Read, &requests, &options).unwrap();
        wait_until("bytes arrive", || b.stats().unwrap().counts.bytes_served > 2 * BYTES as u64);
        b.unregister(id, None).unwrap();
        put(at, &pattern(9, 0, BYTES));
        let result = finish(&transfer);
        assert!(matches!(result.status, Status::Stale | Status::Partial), "{result:?}");
        // The bytes that arrived are of the region as it was. A lane that was cut leaves 8 bytes half written, if no
        // other lane had written them before.
        let got = read(&local, 0, BYTES);
        let is_cut = |chunk: &[u8], whole: [u8; 8]| {
            (0..=8).any(|here| chunk[..here] == whole[..here] && chunk[here..].iter().all(|byte| *byte == 0))
        };
        let foreign = got
            .chunks_exact(8)
            .enumerate()
            .find(|(i, chunk)| !is_cut(chunk, word(5, i * 8).to_le_bytes()))
            .map(|(i, chunk)| (i * 8, chunk, word(5, i * 8).to_le_bytes(), word(9, i * 8).to_le_bytes()));
        assert!(foreign.is_none(), "neither there nor missing (offset, found, before, after): {foreign:x?}");
        // The peer still works.
        let id = region(&b, at, BYTES, Access::BOTH);
        a.read(peer, &rounds(local.address(), at, id, BYTES, 1), &options).unwrap();
        assert_pattern(&local, 9, 0, BYTES);
    }
}

#[test]
fn unregistering_local_memory_in_use_is_busy_or_waits() {
    let _turn = alone();
    const BYTES: usize = 16 * MIB;
    let (a, b, peer) = pair(&[]);
    let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES));
    fill(&local, 5);
    let requests = rounds(local.address(), remote.address(), remote.region(), BYTES, 64);
    let transfer = a.submit(peer, Op::Write, &requests, &options()).unwrap();
    assert_eq!(local.unregister(Some(Duration::ZERO)).unwrap_err().status, Status::Busy);
    // Nothing changed: the region can be used.
    a.write(peer, &[request(&local, &remote, 0, 8)], &options()).unwrap();
    let waited = local.unregister(Some(Duration::from_millis(1))).unwrap_err();
    assert_eq!(waited.status, Status::Busy);
    // Now the region is revoked for new work.
    let refused = a.submit(peer, Op::Write, &[request(&local, &remote, 0, 8)], &options());
    assert_eq!(refused.map(|_| ()).unwrap_err().status, Status::NotRegistered);
    local.unregister(Some(BOUND)).unwrap();
    // The transfer no longer uses its memory, so that it is final or about to be.
    assert_eq!(finish(&transfer).state, State::Done);
    assert_pattern(&remote, 5, 0, BYTES);
}

/// Cancel ends one transfer; other transfers on the same lanes are done, with the right bytes.
#[test]
fn cancel_in_mid_transfer_leaves_the_neighbours_unharmed() {
    let _turn = alone();
    const BYTES: usize = 8 * MIB;
    let (a, b, peer) = pair(&[("lease_ms", "3000")]);
    let (local, remote) = (alloc(&a, 4 * BYTES), alloc(&b, 4 * BYTES));
    fill(&local, 5);
    for _ in 0..8 {
        let (before, victim, took) = cancel_between(&a, peer, &local, &remote, [8, 256, 8, 8]);
        assert_eq!(finish(&victim).fence, Fence::Confirmed);
        // The promised bound is the lease; without load it is drain_ms at most.
        assert!(took < Duration::from_millis(3000) + SLACK, "{took:?}");
        // A second cancel, and a cancel of a final transfer, change nothing.
        victim.cancel().unwrap();
        before.cancel().unwrap();
        assert_eq!(before.result().unwrap().state, State::Done);
    }
}
