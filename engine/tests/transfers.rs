//! Transfers from the caller's view: statistics, results of each request, the statuses of failures, deadlines, cancel,
//! release, and ORDERED. Above 500 lines: the tests share the pairs and patterns at the top, and each is short.

mod common;

use common::data::{check, contents, fill, pattern, prepare, Random};
use common::{peer_of, request, run, Pair, PATIENCE};
use ferry::blocks::{BlockIds, Layer};
use ferry::notify::{EventBody, WHAT_TRANSFERS};
use ferry::types::{Access, Op, PeerId, RegionId, Request, Shown, TransferId};
use ferry::{Deadline, Engine, Fence, Memory, RegionOptions, State, Status, TransferOptions};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn plain() -> TransferOptions<'static> {
    TransferOptions::default()
}

fn memory(engine: &Engine, length: usize) -> Memory {
    engine.alloc(length, &RegionOptions::default()).unwrap()
}

fn with_access(engine: &Engine, length: usize, access: Access) -> Memory {
    engine.alloc(length, &RegionOptions { access, ..Default::default() }).unwrap()
}

/// Returns a request by address alone, so that only the target can decide whether it may.
fn anonymous(request: Request) -> Request {
    Request { remote_region: RegionId::NONE, ..request }
}

/// Keeps `b` from reaching its lanes' end: enough bytes in flight that later transfers wait.
fn large_write(pair: &Pair, local: &Memory, remote: &Memory, rounds: usize) -> Vec<ferry::Transfer> {
    let whole = [request(local, 0, remote, 0, local.length())];
    (0..rounds).map(|_| pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap()).collect()
}

#[test]
fn contiguous_blocks_become_one_slice_for_each_frame() {
    let pair = Pair::new(&[("transports", "tcp")]);
    let (local, remote) = pair.memories(16 * MIB, 16 * MIB);
    let spans: Vec<_> = (0..1024).map(|n| (n << 14, n << 14, 1 << 14)).collect();
    let work = prepare(Op::Write, &local, &remote, &spans);
    let before = pair.a.stats().unwrap().counts;
    let result = run(&pair.a, pair.b_at_a, Op::Write, &work.requests, &plain());
    assert_eq!((result.requests_in, result.slices_out, result.bytes_confirmed), (1024, 16, 16 << 20));
    // In random order: the plan sorts.
    let mut random = Random::new("contiguous");
    let shuffled: Vec<Request> = random.permutation(1024).into_iter().map(|n| work.requests[n]).collect();
    let result = run(&pair.a, pair.b_at_a, Op::Write, &shuffled, &plain());
    assert_eq!((result.requests_in, result.slices_out), (1024, 16));
    let after = pair.a.stats().unwrap().counts;
    assert_eq!((after.requests_in - before.requests_in, after.slices_out - before.slices_out), (2048, 32));
    check("contiguous", &contents(&remote), &work.expected);
}

/// The example of the docs: src [5,6,7,12,13], dst [2,3,4,8,9] is two slices in each layer.
#[test]
fn blocks_with_consecutive_ids_merge_within_their_layer() {
    const BLOCK: usize = 1000;
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(3 * 16 * BLOCK, 3 * 16 * BLOCK);
    let (source, target) = ([5i32, 6, 7, 12, 13], [2i64, 3, 4, 8, 9]);
    let layers: Vec<Layer> = (0..3)
        .map(|layer| Layer {
            local_base: local.address() + (layer * 16 * BLOCK) as u64,
            remote_base: remote.address() + ((2 - layer) * 16 * BLOCK) as u64,
            local_stride: BLOCK as u64,
            remote_stride: BLOCK as u64,
            block_bytes: BLOCK as u64,
            remote_region: remote.region(),
        })
        .collect();
    let spans: Vec<_> = (0..3)
        .flat_map(|layer| {
            let (from, into) = (layer * 16, (2 - layer) * 16);
            let blocks = source.iter().zip(target);
            blocks.map(move |(a, b)| ((from + *a as usize) * BLOCK, (into + b as usize) * BLOCK, BLOCK))
        })
        .collect();
    for op in [Op::Write, Op::Read] {
        let work = prepare(op, &local, &remote, &spans);
        let ids = (BlockIds::I32(&source), BlockIds::I64(&target));
        let transfer = pair.a.submit_blocks(pair.b_at_a, op, &layers, ids.0, ids.1, &plain()).unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!((result.status, result.requests_in, result.slices_out), (Status::Ok, 15, 6));
        check("blocks", &contents(if op == Op::Write { &remote } else { &local }), &work.expected);
    }
}

#[test]
fn what_the_initiator_can_see_is_refused_before_anything_is_done() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(8192, 8192);
    let good = request(&local, 0, &remote, 0, 4096);
    let fails = |bad: Request, status: Status| {
        let error = pair.a.submit(pair.b_at_a, Op::Write, &[good, bad], &plain()).err().unwrap();
        assert_eq!((error.status, error.request_index), (status, Some(1)), "{error}");
        assert!(pair.a.submit(pair.b_at_a, Op::Write, &[bad], &plain()).is_err());
    };
    fails(Request { length: 0, ..good }, Status::Invalid);
    fails(Request { local: local.address() + 4097, ..good }, Status::NotRegistered);
    fails(Request { local: 8, ..good }, Status::NotRegistered);
    fails(Request { length: 8193, ..good }, Status::NotRegistered);
    fails(Request { local: u64::MAX - 100, ..good }, Status::Invalid);
    fails(Request { remote: u64::MAX - 100, ..good }, Status::Invalid);
    fails(Request { remote: remote.address() + 4097, ..good }, Status::Invalid);
    // A region handle is no peer handle, and a peer handle is no region handle.
    let error =
        pair.a.submit(PeerId::from_raw(remote.region().raw()), Op::Write, &[good], &plain()).err().unwrap();
    assert_eq!(error.status, Status::Invalid);
    assert_eq!(pair.a.submit(pair.b_at_a, Op::Write, &[], &plain()).err().unwrap().status, Status::Invalid);
    // The last byte is fine.
    let last = request(&local, 8191, &remote, 8191, 1);
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &[last], &plain()).status, Status::Ok);
    assert_eq!(pair.a.stats().unwrap().counts.transfers_submitted, 1, "a refused submit is no transfer");
}

/// A request that names a region of another engine than the peer: STALE, nothing sent.
#[test]
fn a_region_of_another_engine_is_stale() {
    let pair = Pair::new(&[]);
    let other = common::engine(&[]);
    let (local, remote, elsewhere) = (memory(&pair.a, 64), memory(&pair.b, 64), memory(&other, 64));
    let wrong = Request { remote_region: elsewhere.region(), ..request(&local, 0, &remote, 0, 8) };
    let error = pair.a.submit(pair.b_at_a, Op::Write, &[wrong], &plain()).err().unwrap();
    assert_eq!((error.status, error.request_index), (Status::Stale, Some(0)));
    let ours = Request { remote_region: local.region(), ..request(&local, 0, &remote, 0, 8) };
    assert_eq!(pair.a.submit(pair.b_at_a, Op::Write, &[ours], &plain()).err().unwrap().status, Status::Stale);
}

/// Requests that the target refuses, among requests that it accepts, in one frame and over many: the transfer is
/// PARTIAL, each request has its own result, and refused requests move nothing. Contract 8.
#[test]
fn the_target_refuses_single_requests() {
    for (op, length) in [(Op::Write, 512), (Op::Read, 512), (Op::Write, 300_000), (Op::Read, 300_000)] {
        let pair = Pair::new(&[("transports", "tcp")]);
        let local = memory(&pair.a, 8 * length);
        let remote = memory(&pair.b, 8 * length);
        let other = if op == Op::Write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let closed = with_access(&pair.b, length, other);
        let gone = memory(&pair.b, length);
        let (gone_region, gone_address) = (gone.region(), gone.address());
        gone.free(Some(PATIENCE)).map_err(|(_, error)| error).unwrap();
        common::eventually("the region's end is known", || {
            pair.a.peer_regions(pair.b_at_a).unwrap().iter().all(|region| region.region != gone_region)
        });
        fill(&closed, 9);
        let spans: Vec<_> = (0..8).map(|n| (n * length, n * length, length)).collect();
        let mut work = prepare(op, &local, &remote, &spans);
        // 1: nothing is registered there. 3: unregistered. 6: leaves the region. The initiator cannot know: the
        // regions are not in its list, or the request names none.
        work.requests[1] =
            Request { remote: gone_address, remote_region: RegionId::NONE, ..work.requests[1] };
        work.requests[3] = Request { remote: gone_address, remote_region: gone_region, ..work.requests[3] };
        let beyond = remote.address() + (8 * length - 1) as u64;
        work.requests[6] = Request { remote: beyond, remote_region: RegionId::NONE, ..work.requests[6] };
        let expected = [
            Status::Ok,
            Status::NotRegistered,
            Status::Ok,
            Status::Stale,
            Status::Ok,
            Status::Ok,
            Status::NotRegistered,
            Status::Ok,
        ];
        let refused_before = pair.b.stats().unwrap().counts;
        let transfer = pair.a.submit(pair.b_at_a, op, &work.requests, &plain()).unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!((result.state, result.status), (State::Failed, Status::Partial), "{op:?} {length}");
        assert_eq!((result.requests_failed, result.fence), (3, Fence::Confirmed));
        assert_eq!(result.bytes_confirmed, 5 * length as u64);
        for (index, request) in transfer.results().iter().enumerate() {
            let bytes = if expected[index] == Status::Ok { length as u64 } else { 0 };
            let found = (request.index, request.status, request.bytes_confirmed);
            assert_eq!(found, (index as u64, expected[index], bytes), "{op:?} {length}");
        }
        let error = transfer.wait_done().unwrap_err();
        assert_eq!((error.status, error.request_index), (Status::Partial, Some(1)));
        // Refused requests left their ranges as they were.
        let (source, destination, own) = match op {
            Op::Write => (pattern(1, 8 * length), &remote, pattern(2, 8 * length)),
            Op::Read => (pattern(2, 8 * length), &local, pattern(1, 8 * length)),
        };
        let image: Vec<u8> = (0..8 * length)
            .map(|at| if expected[at / length] == Status::Ok { source[at] } else { own[at] })
            .collect();
        check("partial", &contents(destination), &image);
        check("not granted", &contents(&closed), &pattern(9, length));
        let after = pair.b.stats().unwrap().counts;
        assert!(after.requests_refused - refused_before.requests_refused >= 3);
        let (moved, counted) = match op {
            Op::Write => (after.bytes_applied - refused_before.bytes_applied, "applied"),
            Op::Read => (after.bytes_served - refused_before.bytes_served, "served"),
        };
        assert_eq!(moved, 5 * length as u64, "bytes {counted} are those of granted requests");
    }
}

/// All requests are refused for one cause: the transfer's status is that cause, and not PARTIAL.
#[test]
fn a_transfer_refused_whole_has_the_status_of_its_cause() {
    let pair = Pair::new(&[]);
    let local = memory(&pair.a, 4096);
    let remote = memory(&pair.b, 4096);
    let bad = Request {
        remote: remote.address() + 4096,
        remote_region: RegionId::NONE,
        ..request(&local, 0, &remote, 0, 64)
    };
    let transfer = pair.a.submit(pair.b_at_a, Op::Write, &[bad], &plain()).unwrap();
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    assert_eq!((result.state, result.status), (State::Failed, Status::NotRegistered));
    assert_eq!(transfer.wait_done().unwrap_err().request_index, Some(0));
}

/// A direction that was not granted: the initiator refuses when it knows the region, and the target in any case.
#[test]
fn access_is_checked_on_both_sides() {
    let pair = Pair::new(&[]);
    let local = memory(&pair.a, 4096);
    let read_only = with_access(&pair.b, 4096, Access::REMOTE_READ);
    let write_only = with_access(&pair.b, 4096, Access::REMOTE_WRITE);
    common::eventually("both regions are known", || pair.a.peer_regions(pair.b_at_a).unwrap().len() == 2);
    for (op, closed, open) in [(Op::Write, &read_only, &write_only), (Op::Read, &write_only, &read_only)] {
        let bad = request(&local, 0, closed, 0, 64);
        assert_eq!(pair.a.submit(pair.b_at_a, op, &[bad], &plain()).err().unwrap().status, Status::Access);
        let error = pair.a.submit(pair.b_at_a, op, &[anonymous(bad)], &plain()).err().unwrap();
        assert_eq!((error.status, error.request_index), (Status::Access, Some(0)));
        assert_eq!(
            run(&pair.a, pair.b_at_a, op, &[request(&local, 0, open, 0, 64)], &plain()).status,
            Status::Ok
        );
    }
}

#[test]
fn a_transfer_is_released_once_and_only_when_final() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 64 * MIB);
    let whole = [request(&local, 0, &remote, 0, 64 * MIB)];
    let core = pair.a.submit_core(pair.b_at_a, Op::Write, &whole, &plain()).unwrap();
    // 64 MiB do not pass between two lines; should they ever, the wait below checks as much.
    if !core.is_final() {
        let early = pair.a.release(core.handle);
        assert!(early.is_ok() == core.is_final() || early.is_err_and(|error| error.status == Status::Busy));
    }
    pair.a.wait(&core, Some(PATIENCE)).unwrap();
    assert_eq!(pair.a.transfer(core.handle).unwrap().handle, core.handle);
    pair.a.release(core.handle).unwrap();
    assert_eq!(pair.a.release(core.handle).unwrap_err().status, Status::Stale);
    assert_eq!(pair.a.transfer(core.handle).err().unwrap().status, Status::Stale);
    assert_eq!(pair.b.release(core.handle).unwrap_err().status, Status::Stale, "another engine's");
    assert_eq!(pair.a.release(TransferId::NONE).unwrap_err().status, Status::Invalid);
    // A `Transfer` releases itself, also when it is dropped before it is final.
    drop(pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap());
    common::eventually("the dropped transfer is forgotten", || {
        run(&pair.a, pair.b_at_a, Op::Write, &[request(&local, 0, &remote, 0, 1)], &plain());
        pair.a.stats().unwrap().transfers == 0
    });
}

#[test]
fn no_more_transfers_than_configured() {
    let pair = Pair::new(&[("transfers_max", "16")]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    let all: Vec<_> =
        (0..16).map(|_| pair.a.submit_core(pair.b_at_a, Op::Write, &one, &plain()).unwrap()).collect();
    let error = pair.a.submit(pair.b_at_a, Op::Write, &one, &plain()).err().unwrap();
    assert_eq!(error.status, Status::Limit);
    pair.a.wait(&all[3], Some(PATIENCE)).unwrap();
    pair.a.release(all[3].handle).unwrap();
    pair.a.submit(pair.b_at_a, Op::Write, &one, &plain()).unwrap().wait(Some(PATIENCE)).unwrap();
    // The refused request left nothing behind: its region can be freed.
    all.iter().for_each(|core| {
        pair.a.wait(core, Some(PATIENCE)).unwrap();
    });
    local.free(Some(common::at_once())).map_err(|(_, error)| error).unwrap();
}

/// A deadline in the past: TIMED_OUT, or DONE if the bytes were faster; final soon in both cases.
#[test]
fn deadlines_end_transfers() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 64 * MIB);
    let whole = [request(&local, 0, &remote, 0, 64 * MIB)];
    let mut timed_out = 0;
    for deadline in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(2)] {
        // Behind others, so that even a fast machine is not done in time.
        let busy = large_write(&pair, &local, &remote, 4);
        for op in [Op::Write, Op::Read] {
            let options = TransferOptions { deadline: Deadline::After(deadline), ..plain() };
            let transfer = pair.a.submit(pair.b_at_a, op, &whole, &options).unwrap();
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            let expected = (State::TimedOut, Status::Timeout);
            assert!((result.state, result.status) == expected || result.state == State::Done, "{result:?}");
            timed_out += usize::from(result.state == State::TimedOut);
            if result.state == State::TimedOut {
                assert_eq!(result.os_error, libc::ETIMEDOUT);
                let first = transfer.results()[0];
                assert_eq!((first.status, first.os_error), (Status::Timeout, libc::ETIMEDOUT));
                assert!(first.bytes_confirmed < 64 << 20 && first.bytes_confirmed == result.bytes_confirmed);
            }
        }
        // Cancel and deadline do not harm other transfers.
        for transfer in busy {
            assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        }
    }
    assert!(timed_out >= 4, "only {timed_out} of 6 met their deadline");
    assert!(pair.a.stats().unwrap().counts.transfers_timed_out == timed_out as u64);
    let fine = TransferOptions { deadline: Deadline::After(Duration::from_secs(3600)), ..plain() };
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &whole, &fine).state, State::Done);
    let never = TransferOptions { deadline: Deadline::Never, ..plain() };
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Read, &whole, &never).state, State::Done);
}

/// Cancel of a queued transfer moves nothing; a posted transfer ends in time; a done transfer does not change. Other
/// transfers are not harmed. Contract 2.
#[test]
fn cancel_is_a_request() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 65 * MIB);
    fill(&local, 1);
    fill(&remote, 2);
    let busy = large_write(&pair, &local, &remote, 4);
    let aside = [request(&local, 0, &remote, 64 * MIB, MIB)];
    // ORDERED behind a transfer that waits for the lanes: certainly not posted.
    let ordered = TransferOptions { ordered: true, ..plain() };
    let whole = [request(&local, 0, &remote, 0, 64 * MIB)];
    let first = pair.a.submit(pair.b_at_a, Op::Write, &whole, &ordered).unwrap();
    let second = pair.a.submit(pair.b_at_a, Op::Write, &aside, &ordered).unwrap();
    second.cancel().unwrap();
    let result = second.wait(Some(PATIENCE)).unwrap();
    assert_eq!(
        (result.state, result.status, result.bytes_confirmed),
        (State::Cancelled, Status::Cancelled, 0)
    );
    assert_eq!(
        (result.fence, result.started_ns, result.os_error),
        (Fence::Confirmed, Shown::ZERO, libc::ECANCELED)
    );
    first.cancel().unwrap();
    first.cancel().unwrap();
    let result = first.wait(Some(PATIENCE)).unwrap();
    assert!(matches!(result.state, State::Cancelled | State::Done), "{result:?}");
    for transfer in busy {
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        transfer.cancel().unwrap();
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    }
    let mut tail = vec![0; MIB];
    remote.read(64 * MIB, &mut tail);
    check("cancelled", &tail, &pattern(2, 65 * MIB)[64 * MIB..]);
}

/// ORDERED transfers of all sizes, each over all bytes of the earlier ones: the last one's bytes stay, and a later one
/// is never done before an earlier one. Contract 11.
#[test]
fn ordered_transfers_are_applied_in_order() {
    let pair = Pair::new(&[]);
    let mut random = Random::new("ordered");
    let remote = memory(&pair.b, 3 * MIB);
    let queue = pair.a.queue(WHAT_TRANSFERS, 64).unwrap();
    for _ in 0..4 {
        let all: Vec<(Memory, ferry::Transfer, usize)> = (0..24)
            .map(|number| {
                let length = [1, 100, 4096, 70_000, 3 * MIB][random.below(5)].min(3 * MIB);
                let source = memory(&pair.a, length);
                fill(&source, 100 + number as u32);
                let options = TransferOptions {
                    ordered: true,
                    user_data: number as u64,
                    queue: Some(queue.clone()),
                    no_coalesce: random.below(2) == 0,
                    ..plain()
                };
                let write = [request(&source, 0, &remote, 0, length)];
                let transfer = pair.a.submit(pair.b_at_a, Op::Write, &write, &options).unwrap();
                (source, transfer, length)
            })
            .collect();
        // No thread waits, and so drives: the thread that ends a transfer must begin the next.
        let mut events = Vec::new();
        common::eventually("all events are there", || {
            queue.drain(&mut events, 64);
            events.len() == 24
        });
        let mut expected = contents(&remote);
        for (number, (_, transfer, length)) in all.iter().enumerate() {
            assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
            expected[..*length].copy_from_slice(&pattern(100 + number as u32, *length));
        }
        check("ordered", &contents(&remote), &expected);
        for (number, event) in events.iter().enumerate() {
            let EventBody::Transfer { user_data, .. } = event.body else { panic!("{event:?}") };
            assert_eq!(user_data, number as u64, "ORDERED transfers end in order");
        }
        let finished: Vec<Shown> =
            all.iter().map(|(_, transfer, _)| transfer.result().unwrap().finished_ns).collect();
        assert!(finished.is_sorted());
    }
}

/// A failed transfer fails the ORDERED transfers that wait behind it; nothing of them moves. Transfers that are
/// submitted once all of these have ended start anew.
#[test]
fn a_failed_ordered_transfer_fails_those_that_wait() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 64 * MIB);
    fill(&local, 1);
    fill(&remote, 2);
    let ordered = TransferOptions { ordered: true, ..plain() };
    let mut rounds = 0;
    for round in 0..20 {
        let good = [request(&local, 0, &remote, 0, 4096)];
        let bad = [Request {
            remote: remote.address() + remote.length() as u64,
            remote_region: RegionId::NONE,
            ..good[0]
        }];
        let long = [request(&local, MIB, &remote, MIB, 31 * MIB)];
        let aside = [request(&local, 0, &remote, 8192, 4096)];
        let submit =
            |requests: &[Request]| pair.a.submit(pair.b_at_a, Op::Write, requests, &ordered).unwrap();
        let (first, failing) = (submit(&long), submit(&bad));
        let later = [submit(&aside), submit(&aside), submit(&aside)];
        if failing.state().is_final() {
            // The failure came early: some transfers were submitted after it.
            later.into_iter().for_each(|transfer| {
                transfer.wait(Some(PATIENCE)).unwrap();
            });
            remote.write(8192, &pattern(2, 16384)[8192..12288]);
            continue;
        }
        rounds += 1;
        assert_eq!(first.wait(Some(PATIENCE)).unwrap().state, State::Done);
        assert_eq!(failing.wait(Some(PATIENCE)).unwrap().status, Status::NotRegistered);
        for transfer in later {
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            assert_eq!((result.bytes_confirmed, result.started_ns), (0, Shown::ZERO), "{result:?}");
            assert_ne!(result.state, State::Done);
        }
        let anew = submit(&good);
        assert_eq!(anew.wait(Some(PATIENCE)).unwrap().state, State::Done, "round {round}");
    }
    assert!(rounds > 0, "never were three submitted while 31 MiB moved");
    let mut aside = vec![0; 4096];
    remote.read(8192, &mut aside);
    check("behind a failure", &aside, &pattern(2, 16384)[8192..12288]);
}

/// A cancelled waiting transfer was not done, so transfers behind it fail too.
#[test]
fn a_cancelled_ordered_transfer_fails_those_behind_it() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 65 * MIB);
    fill(&remote, 2);
    let ordered = TransferOptions { ordered: true, ..plain() };
    let long = [request(&local, 0, &remote, 0, 64 * MIB)];
    let aside = [request(&local, 0, &remote, 64 * MIB, 4096)];
    let submit = |requests: &[Request]| pair.a.submit(pair.b_at_a, Op::Write, requests, &ordered).unwrap();
    let busy = large_write(&pair, &local, &remote, 2);
    let (first, second, third, fourth) = (submit(&long), submit(&long), submit(&aside), submit(&aside));
    second.cancel().unwrap();
    assert_eq!(second.wait(Some(PATIENCE)).unwrap().state, State::Cancelled);
    for transfer in [third, fourth] {
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!((result.bytes_confirmed, result.state == State::Done), (0, false), "{result:?}");
    }
    assert_eq!(first.wait(Some(PATIENCE)).unwrap().state, State::Done, "it was ahead of the cancelled one");
    busy.into_iter().for_each(|transfer| {
        transfer.wait(Some(PATIENCE)).unwrap();
    });
    let mut tail = vec![0; 4096];
    remote.read(64 * MIB, &mut tail);
    check("behind a cancelled one", &tail, &pattern(2, 64 * MIB + 4096)[64 * MIB..]);
}

/// While half a gibibyte moves, small WRITEs take a small part of the remaining time.
#[test]
fn small_transfers_overtake_large_ones() {
    const LARGE: usize = 512 << 20;
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(LARGE, LARGE + 8192);
    let large = [request(&local, 0, &remote, 0, LARGE)];
    let small = [request(&local, 0, &remote, LARGE, 4096)];
    let transfer = pair.a.submit(pair.b_at_a, Op::Write, &large, &plain()).unwrap();
    let started = Instant::now();
    let mut during = Vec::new();
    while !transfer.state().is_final() {
        let before = Instant::now();
        let result = run(&pair.a, pair.b_at_a, Op::Write, &small, &plain());
        assert_eq!(result.state, State::Done);
        during.push(before.elapsed());
    }
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    let whole = started.elapsed();
    during.sort();
    let median = during[during.len() / 2];
    println!("512 MiB took {whole:?}; {} small WRITEs meanwhile, median {median:?}", during.len());
    assert!(during.len() >= 20, "only {} small WRITEs in {whole:?}", during.len());
    assert!(median * 20 < whole, "median {median:?} of {whole:?}");
}

/// The largest transfers have no advantage over transfers of a few MiB either.
#[test]
fn medium_transfers_share_the_lanes_with_large_ones() {
    const LARGE: usize = 512 << 20;
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(LARGE, LARGE + 2 * MIB);
    let large = [request(&local, 0, &remote, 0, LARGE)];
    let medium = [request(&local, 0, &remote, LARGE, MIB)];
    let transfer = pair.a.submit(pair.b_at_a, Op::Write, &large, &plain()).unwrap();
    let mut overtook = 0;
    while !transfer.state().is_final() {
        assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &medium, &plain()).state, State::Done);
        overtook += 1;
    }
    assert!(overtook >= 5, "{overtook} of 1 MiB passed one of 512 MiB");
}

#[test]
fn the_other_side_transfers_over_the_same_session() {
    // The dialer does not even listen.
    let (dialer, listener) = (common::engine(&[("listen_address", "")]), common::engine(&[]));
    assert_eq!(dialer.address(), "");
    assert_eq!(dialer.descriptor().unwrap_err().status, Status::Unavailable);
    let there = dialer.connect(listener.address(), Some(PATIENCE)).unwrap();
    let back = peer_of(&listener, &dialer);
    assert_eq!(listener.peer_info(back).unwrap().address, "");
    let (mine, theirs) = (memory(&dialer, 3 * MIB), memory(&listener, 3 * MIB));
    for (engine, peer, local, remote) in [(&dialer, there, &mine, &theirs), (&listener, back, &theirs, &mine)]
    {
        for op in [Op::Write, Op::Read] {
            let work = prepare(op, local, remote, &[(5, 900, 100), (2000, 3000, 2 * MIB)]);
            assert_eq!(run(engine, peer, op, &work.requests, &plain()).state, State::Done);
            check("both ways", &contents(if op == Op::Write { remote } else { local }), &work.expected);
        }
        engine.notify(peer, b"over here", Deadline::Default).unwrap();
    }
}
