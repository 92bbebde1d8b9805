//! A page of registered memory that never comes blocks the thread that touches it. It holds up no other peer, no
//! deadline but that of a transfer whose own memory is in use, and no call of the program.

use crate::common::{self, engine, peer_of, wait_for_region, PATIENCE};
use crate::pages::{Blocked, Pages};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Engine, Fence, Memory, RegionOptions, State, Status, Transfer, TransferOptions};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_millis(300);
const LEASE_MS: &str = "1000";
/// A transfer with a healthy peer; far less than `progress_timeout_ms`, after which a lane would be given up.
const BOUND: Duration = Duration::from_secs(20);

/// Every lane of a kind is served by one thread.
fn one() -> Engine {
    engine(&[
        ("transports", "tcp"),
        ("workers", "1"),
        ("lanes", "1"),
        ("lease_ms", LEASE_MS),
        ("progress_timeout_ms", "60000"),
    ])
}

/// A peer and memory at both ends, none of which blocks.
struct Healthy<'a> {
    engine: &'a Engine,
    peer: PeerId,
    local: Memory,
    remote: Memory,
}

impl<'a> Healthy<'a> {
    fn new(from: &'a Engine, to: &Engine) -> Healthy<'a> {
        let known = from.peers().unwrap().into_iter().find(|peer| {
            from.peer_info(*peer)
                .is_ok_and(|info| to.descriptor().is_ok_and(|it| it.incarnation == info.incarnation))
        });
        let peer = known.unwrap_or_else(|| from.connect(to.address(), Some(PATIENCE)).unwrap());
        let options = RegionOptions::default();
        let (local, remote) = (from.alloc(BYTES, &options).unwrap(), to.alloc(BYTES, &options).unwrap());
        wait_for_region(from, peer, remote.region());
        Healthy { engine: from, peer, local, remote }
    }

    /// Moves large and small both ways, each in time.
    fn check(&self, what: &str) {
        for op in [Op::Write, Op::Read] {
            for length in [BYTES, 64] {
                let request = common::request(&self.local, 0, &self.remote, 0, length);
                let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
                let transfer = self.engine.submit(self.peer, op, &[request], &options).unwrap();
                let result = transfer.wait(Some(BOUND)).unwrap_or_else(|error| {
                    panic!("{what}: {op:?} of {length} with a healthy peer: {error}")
                });
                assert_eq!(result.status, Status::Ok, "{what}: {op:?} of {length}");
            }
        }
    }
}

/// Two engines with a page that blocks at one of them, and a third.
struct Trio {
    a: Engine,
    b: Engine,
    c: Engine,
    b_at_a: PeerId,
    local: Pages,
    remote: Pages,
    region: RegionId,
}

impl Trio {
    fn new() -> Trio {
        Trio::from(one())
    }

    fn from(a: Engine) -> Trio {
        let (b, c) = (one(), one());
        let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
        let pages = BYTES / crate::pages::page_bytes();
        let (local, remote) = (Pages::new(pages), Pages::new(pages));
        local.register(&a);
        let region = remote.register(&b);
        wait_for_region(&a, b_at_a, region);
        Trio { a, b, c, b_at_a, local, remote, region }
    }

    fn submit(&self, op: Op) -> Transfer {
        let request = Request {
            local: self.local.address(),
            remote: self.remote.address(),
            length: BYTES as u64,
            remote_region: self.region,
        };
        let options = TransferOptions { deadline: Deadline::After(DEADLINE), ..TransferOptions::default() };
        self.a.submit(self.b_at_a, op, &[request], &options).unwrap()
    }
}

/// The page is the target's: its thread waits, and the initiator's transfer ends by the lease.
fn target_blocks(op: Op) {
    let trio = Trio::new();
    let Some(blocked) = trio.remote.block(BYTES / 2) else { return };
    // The lanes stand before anything blocks.
    let (third, back) = (Healthy::new(&trio.c, &trio.b), Healthy::new(&trio.b, &trio.c));
    third.check("before");
    let since = Instant::now();
    let transfer = trio.submit(op);
    blocked.wait();
    third.check("while a page of the target blocks");
    back.check("while a page of its own blocks");
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!((result.state, result.fence), (State::TimedOut, Fence::Lease), "after {:?}", since.elapsed());
    Healthy::new(&trio.a, &trio.b).check("on lanes that replace the blocked one");
    let status = trio.b.close(Some(Duration::from_millis(200))).map_err(|error| error.status);
    assert_eq!(status, Err(Status::Busy), "a thread of the engine is in the memory");
    drop(blocked);
    trio.b.close(Some(PATIENCE)).unwrap();
}

#[test]
fn a_write_to_a_page_that_never_comes_holds_up_nobody_else() {
    target_blocks(Op::Write);
}

#[test]
fn a_read_of_a_page_that_never_comes_holds_up_nobody_else() {
    target_blocks(Op::Read);
}

/// The fence of a lane on which a thread of the target waits is not answered. The target answers all else.
#[test]
fn a_page_of_the_target_that_never_comes_costs_no_session() {
    let trio = Trio::from(engine(&[
        ("transports", "tcp"),
        ("lease_ms", LEASE_MS),
        ("progress_timeout_ms", "400"),
        ("reconnect_timeout_ms", "800"),
    ]));
    let Some(blocked) = trio.remote.block(BYTES / 2) else { return };
    let beside = Healthy::new(&trio.a, &trio.b);
    beside.check("before");
    let transfer = trio.submit(Op::Write);
    blocked.wait();
    assert_eq!(transfer.wait(Some(BOUND)).unwrap().fence, Fence::Lease);
    // Several times what a fence and a session that is down have.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        beside.check("while the fence is not answered");
    }
    assert_eq!(trio.a.stats().unwrap().counts.sessions_lost, 0);
    drop(blocked);
    trio.b.close(Some(PATIENCE)).unwrap();
}

/// On this host the initiator copies: no call of the program waits for a page of the peer's, nor for one of its own
/// that the call does not name.
#[test]
fn no_call_waits_for_a_page_on_this_host_that_never_comes() {
    for (is_ours, op) in [(false, Op::Write), (false, Op::Read), (true, Op::Write), (true, Op::Read)] {
        let host = || engine(&[("transports", "local,tcp"), ("lease_ms", LEASE_MS)]);
        let (a, b) = (host(), host());
        let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
        let [local, remote] = [(), ()].map(|()| Pages::new(2 * BYTES / crate::pages::page_bytes()));
        (0..2 * BYTES).step_by(crate::pages::page_bytes()).for_each(|at| {
            local.write(at, &[1]);
            remote.write(at, &[2]);
        });
        local.register(&a);
        let region = remote.register(&b);
        wait_for_region(&a, b_at_a, region);
        let blocked = if is_ours { local.block(BYTES / 2) } else { remote.block(BYTES / 2) };
        let Some(blocked) = blocked else { return };
        // The page was there before, for copies of both sizes.
        let request = |at: usize, length: usize| Request {
            local: local.address() + at as u64,
            remote: remote.address() + at as u64,
            length: length as u64,
            remote_region: region,
        };
        let begun = Instant::now();
        let in_time = |what: &str| assert!(begun.elapsed() < PATIENCE / 4, "{what}: {:?}", begun.elapsed());
        let lengths = if is_ours { &[BYTES][..] } else { &[64, BYTES] };
        let held: Vec<Transfer> = lengths
            .iter()
            .map(|&length| {
                let one = [request(if length == 64 { BYTES / 2 } else { 0 }, length)];
                let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
                assert!(a.at_once(b_at_a, op, &one, &options).unwrap().is_none());
                let transfer = a.submit(b_at_a, op, &one, &options).unwrap();
                in_time("submit");
                let status = transfer.wait(Some(DEADLINE)).map(|_| ()).map_err(|error| error.status);
                assert_eq!(status, Err(Status::Timeout), "{length}");
                in_time("wait");
                transfer
            })
            .collect();
        blocked.wait();
        // The rest of the memory is there.
        for length in [64, BYTES / 2] {
            let result =
                a.submit(b_at_a, op, &[request(BYTES, length)], &TransferOptions::default()).unwrap();
            let result = result.wait(Some(BOUND)).unwrap();
            assert_eq!(result.status, Status::Ok, "beside the page: {length}");
        }
        drop(blocked);
        held.iter()
            .for_each(|transfer| assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().status, Status::Ok));
        let far = if op == Op::Write { &remote } else { &local };
        assert_eq!(far.read(BYTES - 1, 1), local.read(BYTES - 1, 1));
        a.close(Some(PATIENCE)).unwrap();
        b.close(Some(PATIENCE)).unwrap();
    }
}

/// Another thread's transfer, of memory of the program's own, is on the lane that a waiting thread drives: one that
/// sends from the page, in its submit, and one that receives into it.
#[test]
fn no_wait_for_another_transfer_waits_for_a_page_that_never_comes() {
    for op in [Op::Write, Op::Read] {
        let (a, b) = (one(), one());
        let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
        let [local, remote] = [(), ()].map(|()| Pages::new(4));
        local.register(&a);
        let region = remote.register(&b);
        let beside = Healthy::new(&a, &b);
        beside.check("before");
        wait_for_region(&a, b_at_a, region);
        let Some(blocked) = local.block(0) else { return };
        let request =
            Request { local: local.address(), remote: remote.address(), length: 64, remote_region: region };
        let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
        std::thread::scope(|scope| {
            let held = scope.spawn(|| a.submit(b_at_a, op, &[request], &options).unwrap());
            if op == Op::Write {
                blocked.wait();
            }
            for op in [Op::Write, Op::Read] {
                let small = [common::request(&beside.local, 0, &beside.remote, 0, 64)];
                // It may be behind the page, on the one lane of small transfers. Its submit does not send.
                let transfer = a.submit(b_at_a, op, &small, &options).unwrap();
                let begun = Instant::now();
                let _ = transfer.wait(Some(DEADLINE));
                assert!(begun.elapsed() < DEADLINE + Duration::from_secs(1), "{:?}", begun.elapsed());
            }
            blocked.wait();
            drop(blocked);
            assert_eq!(held.join().unwrap().wait(Some(PATIENCE)).unwrap().status, Status::Ok);
        });
        beside.check("after");
        a.close(Some(PATIENCE)).unwrap();
        b.close(Some(PATIENCE)).unwrap();
    }
}

#[test]
fn memory_is_registered_whose_first_page_never_comes() {
    let (own, pages) = (one(), Pages::new(4));
    let Some(blocked) = pages.block(0) else { return };
    let begun = Instant::now();
    let region = pages.register(&own);
    assert!(begun.elapsed() < BOUND / 2, "{:?}", begun.elapsed());
    own.unregister(region, Some(PATIENCE)).unwrap();
    own.close(Some(PATIENCE)).unwrap();
    drop(blocked);
}

/// The page is the initiator's: its transfer stays DRAINING, because its memory is in use, and harms nobody.
fn initiator_blocks(op: Op) {
    let trio = Trio::new();
    let Some(blocked) = trio.local.block(BYTES / 2) else { return };
    let (third, beside) = (Healthy::new(&trio.a, &trio.c), Healthy::new(&trio.a, &trio.b));
    third.check("before");
    let transfer = trio.submit(op);
    blocked.wait();
    third.check("while a page of the initiator blocks");
    let until = Instant::now() + DEADLINE + Duration::from_millis(200);
    while Instant::now() < until {
        assert!(transfer.result().is_none(), "a thread is in the transfer's memory");
        std::thread::yield_now();
    }
    assert_eq!(transfer.state(), State::Draining, "its deadline is kept");
    beside.check("beside the blocked transfer");
    third.check("after its deadline");
    let status = trio.a.close(Some(Duration::from_millis(200))).map_err(|error| error.status);
    assert_eq!(status, Err(Status::Busy));
    drop(blocked);
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    assert!(matches!(result.state, State::TimedOut | State::Failed | State::Done), "{result:?}");
    trio.a.close(Some(PATIENCE)).unwrap();
}

#[test]
fn a_write_from_a_page_that_never_comes_holds_up_nobody_else() {
    initiator_blocks(Op::Write);
}

#[test]
fn a_read_into_a_page_that_never_comes_holds_up_nobody_else() {
    initiator_blocks(Op::Read);
}

/// More pages than one: each costs the engine a thread and no peer anything.
#[test]
fn several_pages_that_never_come_hold_up_nobody_else() {
    let trios: Vec<Trio> = (0..3).map(|_| Trio::new()).collect();
    let target = one();
    let third = Healthy::new(&trios[0].c, &target);
    third.check("before");
    let mut held: Vec<(Blocked, Pages, Transfer)> = Vec::new();
    for trio in &trios {
        let pages = Pages::new(BYTES / crate::pages::page_bytes());
        let region = pages.register(&target);
        let peer = trio.a.connect(target.address(), Some(PATIENCE)).unwrap();
        wait_for_region(&trio.a, peer, region);
        let Some(blocked) = pages.block(0) else { return };
        let request = Request {
            local: trio.local.address(),
            remote: pages.address(),
            length: BYTES as u64,
            remote_region: region,
        };
        let options = TransferOptions { deadline: Deadline::After(DEADLINE), ..TransferOptions::default() };
        let transfer = trio.a.submit(peer, Op::Write, &[request], &options).unwrap();
        blocked.wait();
        held.push((blocked, pages, transfer));
        third.check("while pages block");
    }
    for (_, _, transfer) in &held {
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::TimedOut);
    }
    let _ = peer_of(&target, &trios[0].c);
    held.into_iter().for_each(|(blocked, pages, _)| {
        drop(blocked);
        std::mem::forget(pages);
    });
    target.close(Some(PATIENCE)).unwrap();
}
