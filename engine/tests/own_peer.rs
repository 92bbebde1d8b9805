//! An engine as a peer of itself: transfers between its own regions, and notifications to its own queues.

mod common;

use common::data::{check, contents, fill, pattern};
use common::{engine, eventually, request, run, Pair, PATIENCE};
use ferry::blocks::{BlockIds, Layer};
use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS};
use ferry::types::{Access, Op, PeerId, RegionId, Request, Transport};
use ferry::{
    Deadline, Engine, Memory, Notification, PeerState, RegionOptions, State, Status, TransferOptions,
};
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
const BOTH: [Op; 2] = [Op::Write, Op::Read];

/// An engine without a listener. The setting names another transport for peers.
struct One {
    engine: Engine,
    own: PeerId,
}

impl One {
    fn new() -> One {
        let engine = engine(&[("listen_address", ""), ("transports", "tcp")]);
        let own = engine.own_peer().unwrap();
        One { engine, own }
    }

    /// Memory that grants peers nothing.
    fn memory(&self, length: usize) -> Memory {
        let options = RegionOptions { access: Access(0), ..RegionOptions::default() };
        self.engine.alloc(length, &options).unwrap()
    }

    fn queue(&self) -> Arc<Queue> {
        self.engine.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, 64).unwrap()
    }

    /// A transfer that is pending until its notification finds a credit, and the queue that holds the credits.
    fn held(&self, requests: &[Request]) -> (ferry::Transfer, Arc<Queue>) {
        let queue = self.engine.channel_queue(WHAT_NOTIFICATIONS, 64, 0).unwrap();
        let pair = Pair::own(self.engine.clone());
        (pair.held(requests), queue)
    }

    fn status_of(&self, op: Op, request: Request) -> Status {
        match self.engine.submit(self.own, op, &[request], &plain()) {
            Ok(transfer) => {
                let result = transfer.wait(Some(PATIENCE)).unwrap();
                assert_eq!(result.status, transfer.results()[0].status);
                result.status
            }
            Err(error) => error.status,
        }
    }
}

fn plain() -> TransferOptions<'static> {
    TransferOptions::default()
}

fn text(queue: &Queue, engine: &Engine) -> (PeerId, String) {
    let event = engine.wait_event(queue, Some(PATIENCE)).unwrap();
    match event.body {
        EventBody::Notification { bytes, .. } => (event.peer, String::from_utf8(bytes.to_vec()).unwrap()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_handle_is_one_and_takes_part_in_every_call() {
    let one = One::new();
    let (engine, own) = (&one.engine, one.own);
    assert_eq!(engine.own_peer().unwrap(), own);
    assert_eq!(engine.peers().unwrap(), []);
    assert_eq!(engine.stats().unwrap().peers_up, 0);
    let info = engine.peer_info(own).unwrap();
    assert_eq!((info.handle, info.state, info.same_host), (own, PeerState::Up, true));
    assert_eq!((&*info.address, info.transfers_active, info.lanes), ("", 0, 0));
    assert!(!engine.is_peer_over(own));
    assert_eq!(engine.probe(own, Some(Duration::ZERO)).unwrap(), Duration::ZERO);
    engine.fence(own, Some(Duration::ZERO)).unwrap();
    let error = engine.close_peer(own, None).unwrap_err();
    assert_eq!(error.status, Status::Invalid);
    assert!(error.message.contains("engine itself"), "{error}");
    let paths = engine.peer_paths(own).unwrap();
    for path in &paths {
        assert_eq!(path.chosen, path.transport == Transport::Local, "{path:?}");
        let is_host = matches!(path.transport, Transport::Local | Transport::Tcp | Transport::Rdma);
        assert!(!is_host || path.why.contains("this engine itself"), "{path:?}");
    }
    // A fence and a probe have changed nothing.
    let (local, remote) = (one.memory(64), one.memory(64));
    fill(&local, 1);
    engine.write(own, &[request(&local, 0, &remote, 0, 64)], &plain()).unwrap();
    check("after a fence", &contents(&remote), &pattern(1, 64));
    engine.close(Some(PATIENCE)).unwrap();
    assert_eq!(engine.own_peer().unwrap_err().status, Status::Closed);
    assert_eq!(engine.peer_info(own).unwrap_err().status, Status::Closed);
}

#[test]
fn every_way_to_submit_moves_without_rights() {
    let one = One::new();
    let (engine, own) = (&one.engine, one.own);
    let (local, remote) = (one.memory(2 * MIB), one.memory(2 * MIB));
    let whole = |length| request(&local, 0, &remote, 0, length);
    let only_rdma = TransferOptions { transports_allowed: Transport::Rdma.bit(), ..plain() };
    let summed = TransferOptions { checksum: true, ..plain() };
    for options in [plain(), only_rdma, summed] {
        for length in [1, 4096, 2 * MIB] {
            fill(&local, 1);
            fill(&remote, 2);
            let result = engine.write(own, &[whole(length)], &options).unwrap();
            assert_eq!((result.transport, result.bytes_confirmed), (Transport::Local, length as u64));
            check("written", &contents(&remote)[..length], &pattern(1, length));
            fill(&local, 3);
            engine.read(own, &[whole(length)], &options).unwrap();
            check("read", &contents(&local)[..length], &pattern(1, length));
        }
    }
    // At once, without a handle.
    let small = [whole(64)];
    assert!(engine.at_once(own, Op::Write, &small, &plain()).unwrap().is_some());
    // Paged memory: block n of one side is block 7 - n of the other.
    fill(&local, 4);
    let layer = Layer {
        local_base: local.address(),
        remote_base: remote.address(),
        block_bytes: 4096,
        local_stride: 4096,
        remote_stride: 4096,
        remote_region: remote.region(),
    };
    let (ids, reversed): (Vec<i64>, Vec<i64>) = ((0..8).collect(), (0..8).rev().collect());
    let (ids, reversed) = (BlockIds::I64(&ids), BlockIds::I64(&reversed));
    let transfer = engine.submit_blocks(own, Op::Write, &[layer], ids, reversed, &plain()).unwrap();
    transfer.wait_done().unwrap();
    let (from, to) = (contents(&local), contents(&remote));
    (0..8).for_each(|nth| assert!(from[nth * 4096..][..4096] == to[(7 - nth) * 4096..][..4096], "{nth}"));
    // Between two places of one region, and with a region that nobody named.
    let within = request(&local, 0, &local, MIB, 4096);
    engine.write(own, &[Request { remote_region: RegionId::NONE, ..within }], &plain()).unwrap();
    assert!(contents(&local)[MIB..][..4096] == from[..4096]);
}

#[test]
fn regions_are_told_with_their_rights_and_at_once() {
    let one = One::new();
    let options = RegionOptions { access: Access::REMOTE_READ, name: "pool".into(), location: None };
    let memory = one.engine.alloc(4096, &options).unwrap();
    let regions = one.engine.peer_regions(one.own).unwrap();
    assert_eq!(regions.len(), 1);
    assert_eq!((regions[0].region, regions[0].access), (memory.region(), Access::REMOTE_READ));
    assert_eq!(one.engine.peer_region(one.own, "pool").unwrap().address, memory.address());
    drop(memory);
    assert_eq!(one.engine.peer_regions(one.own).unwrap(), []);
    assert_eq!(one.engine.peer_region(one.own, "pool").unwrap_err().status, Status::NotRegistered);
}

#[test]
fn generations_and_bounds_hold() {
    let one = One::new();
    let (local, gone) = (one.memory(4096), one.memory(4096));
    let old = request(&local, 0, &gone, 0, 4096);
    drop(gone);
    let other = Pair::new(&[]);
    let (_, theirs) = other.memories(64, 4096);
    let remote = one.memory(4096);
    for op in BOTH {
        assert_eq!(one.status_of(op, old), Status::Stale);
        let unnamed = Request { remote: 4096, remote_region: RegionId::NONE, ..old };
        assert_eq!(one.status_of(op, unnamed), Status::NotRegistered);
        assert_eq!(one.status_of(op, request(&local, 0, &theirs, 0, 64)), Status::Stale);
        let beyond = Request { remote: remote.address() + 1, remote_region: remote.region(), ..old };
        assert_eq!(one.status_of(op, beyond), Status::Invalid);
        let unregistered = Request { local: 4096, ..request(&local, 0, &remote, 0, 64) };
        assert_eq!(one.status_of(op, unregistered), Status::NotRegistered);
    }
}

/// Both ends are in use until the transfer is final.
#[test]
fn regions_at_both_ends_are_in_use() {
    let one = One::new();
    let [from, to] = [(); 2].map(|()| Box::leak(vec![0u64; 512].into_boxed_slice()));
    let [from, to] = [from, to].map(|memory| {
        let address = memory.as_mut_ptr().cast();
        // SAFETY: the memory is never freed, and nobody has a reference to it.
        let region = unsafe { one.engine.register(address, 4096, &RegionOptions::default()) };
        (address as u64, region.unwrap())
    });
    let requests = [Request { local: from.0, remote: to.0, length: 4096, remote_region: to.1 }];
    let (transfer, _queue) = one.held(&requests);
    assert_eq!(transfer.state(), State::Pending);
    for (_, region) in [from, to] {
        let error = one.engine.unregister(region, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(error.status, Status::Busy);
        assert!(error.message.contains("1 transfer with"), "{error}");
    }
    transfer.cancel().unwrap();
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Cancelled);
    for (_, region) in [from, to] {
        one.engine.unregister(region, Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(one.status_of(Op::Write, requests[0]), Status::NotRegistered);
}

#[test]
fn notifications_come_to_the_own_queues_in_order_and_after_the_data() {
    let one = One::new();
    let (engine, own, queue) = (&one.engine, one.own, one.queue());
    let other = engine.channel_queue(WHAT_NOTIFICATIONS, 64, 3).unwrap();
    let (local, remote) = (one.memory(MIB), one.memory(MIB));
    engine.notify(own, b"first", Deadline::Default).unwrap();
    assert_eq!(text(&queue, engine), (own, "first".into()));
    for (nth, length) in [(1u32, 64), (2, MIB), (3, 64)] {
        fill(&local, nth);
        let name = format!("after {nth}");
        let options = TransferOptions { notify: Some(name.as_bytes()), ..plain() };
        let result = engine.submit(own, Op::Write, &[request(&local, 0, &remote, 0, length)], &options);
        assert_eq!(text(&queue, engine), (own, name.clone()));
        check(&name, &contents(&remote)[..length], &pattern(nth, length));
        let result = result.unwrap().wait(Some(PATIENCE)).unwrap();
        assert_eq!((result.state, result.notification), (State::Done, Notification::Delivered));
    }
    let options = TransferOptions { notify: Some(b"apart"), channel: 3, ..plain() };
    run(engine, own, Op::Write, &[], &options);
    assert_eq!(text(&other, engine).1, "apart");
    // More than the credits, while a thread drains.
    let count = 3 * ferry::limits::NOTIFY_CREDITS as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 0..count {
                engine.notify(own, nth.to_string().as_bytes(), Deadline::Never).unwrap();
            }
        });
        (0..count).for_each(|nth| assert_eq!(text(&queue, engine).1, nth.to_string()));
    });
}

/// A notification that nobody drains ends by its deadline, and does not hold up data.
#[test]
fn deadlines_end_what_waits() {
    let one = One::new();
    let (local, remote) = (one.memory(64), one.memory(64));
    let requests = [request(&local, 0, &remote, 0, 64)];
    let (_held, queue) = one.held(&requests);
    let late = TransferOptions {
        notify: Some(b"late"),
        deadline: Deadline::After(Duration::from_millis(20)),
        ..plain()
    };
    let result = run(&one.engine, one.own, Op::Write, &requests, &late);
    assert_eq!((result.state, result.notification), (State::TimedOut, Notification::NotSent));
    one.engine.write(one.own, &requests, &plain()).unwrap();
    // The number that was given up holds up none behind it.
    let count = ferry::limits::NOTIFY_CREDITS as usize;
    let last = TransferOptions { notify: Some(b"last"), ..plain() };
    let last = one.engine.submit(one.own, Op::Write, &requests, &last).unwrap();
    let texts: Vec<String> = (0..count + 2).map(|_| text(&queue, &one.engine).1).collect();
    assert_eq!(texts[count..], ["held", "last"]);
    assert_eq!(last.wait(Some(PATIENCE)).unwrap().state, State::Done);
}

#[test]
fn ordered_transfers_follow_each_other() {
    let one = One::new();
    let (local, remote) = (one.memory(16 * MIB), one.memory(8 * MIB));
    for round in 0..20 {
        fill(&local, round);
        let ordered = TransferOptions { ordered: true, ..plain() };
        // Large, then small, over the same bytes: the small one is last.
        let large =
            one.engine.submit(one.own, Op::Write, &[request(&local, 0, &remote, 0, 8 * MIB)], &ordered);
        let small =
            one.engine.submit(one.own, Op::Write, &[request(&local, 8 * MIB, &remote, 0, 64)], &ordered);
        small.unwrap().wait_done().unwrap();
        assert_eq!(large.unwrap().state(), State::Done);
        assert_eq!(contents(&remote)[..64], contents(&local)[8 * MIB..][..64]);
    }
}

/// Overlapping ranges end with some bytes of the source in the destination, and touch nothing else.
#[test]
fn overlapping_ranges_touch_the_destination_alone() {
    let one = One::new();
    let memory = one.memory(4 * MIB);
    for op in BOTH {
        for (from, to, length) in [(64, 64, 4096), (64, 100, 8192), (100, 64, 8192), (0, MIB, 3 * MIB)] {
            fill(&memory, 1);
            let result =
                run(&one.engine, one.own, op, &[request(&memory, from, &memory, to, length)], &plain());
            assert_eq!(result.state, State::Done);
            let (found, before) = (contents(&memory), pattern(1, 4 * MIB));
            let into = if op == Op::Write { to } else { from };
            check("before", &found[..into], &before[..into]);
            check("behind", &found[into + length..], &before[into + length..]);
            if from == to {
                check("onto itself", &found, &before);
            }
        }
    }
}

#[test]
fn closing_ends_what_is_pending() {
    let one = One::new();
    let (local, remote) = (one.memory(64), one.memory(64));
    let (held, _queue) = one.held(&[request(&local, 0, &remote, 0, 64)]);
    one.engine.close(Some(PATIENCE)).unwrap();
    assert_eq!(held.result().unwrap().status, Status::Closed);
}

#[test]
fn a_broken_engine_ends_what_is_pending_with_panic() {
    let one = One::new();
    let (local, remote) = (one.memory(64), one.memory(64));
    one.engine.write(one.own, &[request(&local, 0, &remote, 0, 64)], &plain()).unwrap();
    let (held, _queue) = one.held(&[request(&local, 0, &remote, 0, 64)]);
    assert_eq!(ferry::internals::api::break_engine(&one.engine).unwrap_err().status, Status::Panic);
    assert_eq!(one.engine.own_peer().unwrap_err().status, Status::Panic);
    eventually("the teardown is over", || one.engine.is_over());
    assert_eq!(held.result().unwrap().status, Status::Panic);
    one.engine.close(Some(PATIENCE)).unwrap();
}

/// The error of a connect to the engine's own address tells which call to make instead.
#[test]
fn a_connect_to_the_own_address_names_the_call() {
    let engine = engine(&[]);
    let error = engine.connect(engine.address(), Some(PATIENCE)).unwrap_err();
    assert!(error.message.contains("own_peer"), "{error}");
    assert_eq!(engine.peers().unwrap(), []);
}

/// Threads of one program, each with its own memory, and an unregister in the middle.
#[test]
fn many_threads_move_at_once() {
    let one = One::new();
    std::thread::scope(|scope| {
        for tag in 0..4u32 {
            let one = &one;
            scope.spawn(move || {
                for round in 0..50 {
                    let length = if round % 5 == 0 { 5 * MIB } else { 1000 };
                    let (local, remote) = (one.memory(length), one.memory(length));
                    fill(&local, tag);
                    let requests = [request(&local, 0, &remote, 0, length)];
                    one.engine.write(one.own, &requests, &plain()).unwrap();
                    check("written", &contents(&remote), &pattern(tag, length));
                }
            });
        }
    });
}
