//! A peer's outbox against a simple model of it. For any order of operations, each unit is settled once
//! (`Transfer::settle` asserts that), frames leave in their order, ORDERED transfers run one after the other, and in
//! the end nothing is left. Above 500 lines because all tests share the model, its wishes and its world.

use super::{Class, Ordered, Outbox, PullLimits, Pulled};
use crate::command::Command;
use crate::complete::position::Place;
use crate::complete::transfer::{Failure, Strike};
use crate::complete::{Fence, State, Transfer, TransferFlags, TransferSpec};
use crate::limits::{FRAME_DESCRIPTORS_MAX, NOTIFY_BYTES_MAX};
use crate::peer::strike::SWEEP_TURN;
use crate::peer::tests::new_peer;
use crate::peer::After;
use crate::peer::{Path, PathStatus, Peer};
use crate::region::RemoteMap;
use crate::status::Status;
use crate::sys::map::HashSet;
use crate::types::{
    Monotonic, Op, PeerId, Range, RegionId, Request, Slice, SliceRange, TransferId, Transport,
};
use proptest::prelude::*;
use std::sync::Arc;

const SLICE_BYTES: u32 = 1000;

/// A path that posts nothing by itself: the test pulls.
struct Silent;

impl Path for Silent {
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }
    fn post(&self, _: Class, _: Option<Monotonic>, _: &mut After) {}
    fn nudge(&self, _: &mut After) {}
}

#[derive(Clone, Debug)]
struct Wish {
    slices: u32,
    op: Op,
    priority: u32,
    ordered: bool,
    held: bool,
    notify: bool,
    local: bool,
    only_local: bool,
    deadline_ns: Monotonic,
}

const PLAIN: Wish = Wish {
    slices: 1,
    op: Op::Write,
    priority: 0,
    ordered: false,
    held: false,
    notify: false,
    local: false,
    only_local: false,
    deadline_ns: Monotonic::NEVER,
};

fn transfer(handle: u64, wish: &Wish) -> Arc<Transfer> {
    let length = u64::from(SLICE_BYTES);
    let at = |number: u32| u64::from(number) * length;
    let requests =
        |number| Request { local: at(number), remote: at(number), length, remote_region: RegionId::NONE };
    let slices = |first| Slice {
        local: at(first),
        remote: at(first),
        region: RegionId::NONE,
        first_offset: 0,
        length: SLICE_BYTES,
        first,
    };
    let (transport, allowed) = match (wish.local, wish.only_local) {
        (_, true) => (Transport::Local, Transport::Local.bit()),
        (true, false) => (Transport::Local, u64::MAX),
        (false, false) => (Transport::Tcp, u64::MAX),
    };
    let spec = TransferSpec {
        peer: PeerId::from_raw(7),
        op: wish.op,
        requests: (0..wish.slices).map(requests).collect(),
        order: Vec::new(),
        slices: (0..wish.slices).map(slices).collect(),
        regions: Vec::new(),
        bytes: u64::from(wish.slices) * length,
        flags: TransferFlags::HELD.when(wish.held) | TransferFlags::ORDERED.when(wish.ordered),
        priority: wish.priority,
        notify: (wish.notify || wish.slices == 0).then(|| Box::from(&b"word"[..])),
        channel: 0,
        submitted_ns: Monotonic::ZERO,
        deadline_ns: wish.deadline_ns,
        user_data: 0,
        queue: None,
        transport,
        allowed,
    };
    Arc::new(Transfer::new(TransferId::from_raw(handle), spec))
}

const LIMITS: PullLimits = PullLimits {
    frame_bytes_max: 3 * SLICE_BYTES,
    descriptors_max: FRAME_DESCRIPTORS_MAX,
    notification_bytes_max: Some(NOTIFY_BYTES_MAX),
    read: true,
    write: true,
};

/// A frame that was pulled and is not answered.
enum Out {
    Run(Arc<Transfer>, SliceRange, bool),
    Queued(Arc<Transfer>),
    Skip(u64),
}

struct World {
    peer: Peer,
    all: Vec<Arc<Transfer>>,
    out: Vec<Out>,
    now_ns: Monotonic,
}

impl World {
    fn new() -> World {
        let peer = new_peer(7, 4000);
        peer.set_tcp_path(Some(Arc::new(Silent)));
        World { peer, all: Vec::new(), out: Vec::new(), now_ns: Monotonic::ZERO }
    }

    fn submit(&mut self, wish: &Wish) -> Arc<Transfer> {
        let transfer = transfer(self.all.len() as u64 + 1, wish);
        if self.peer.submit(transfer.clone()).is_ok() {
            self.all.push(transfer.clone());
        }
        transfer
    }

    fn pull(&mut self, transport: Transport, express: bool) -> bool {
        let Some(pulled) = self.peer.pull(transport, express, LIMITS) else { return false };
        self.out.push(match pulled {
            Pulled::Slices { transfer, range, with_notification, .. } => {
                Out::Run(transfer, range, with_notification)
            }
            Pulled::Notify(transfer) => Out::Queued(transfer),
            Pulled::Skip(sequence) => Out::Skip(sequence),
        });
        true
    }

    /// Answers a frame: it was acknowledged, or (`lost`) its lane was lost and fenced.
    fn answer(&mut self, at: usize, lost: bool) {
        match (self.out.swap_remove(at), lost) {
            (Out::Run(transfer, run, notified), false) => {
                let bytes = u64::from(run.count()) * u64::from(SLICE_BYTES);
                self.peer.confirm(&transfer, run, bytes, &[], notified, &mut self.peer.after());
            }
            (Out::Run(transfer, run, notified), true) => {
                self.peer.release_run(&transfer, run, notified, Fence::Confirmed, &mut self.peer.after())
            }
            (Out::Queued(transfer), false) => {
                self.peer.confirm_notification(&transfer, &mut self.peer.after())
            }
            (Out::Queued(transfer), true) => {
                self.peer.release_notification(&transfer, &mut self.peer.after())
            }
            (Out::Skip(_), false) => {}
            (Out::Skip(sequence), true) => self.peer.release_skip(sequence),
        }
    }

    /// Sweeps as the control loop does, without the turns of other peers in between.
    fn sweep(&mut self) {
        self.peer.engine().commands.take();
        while self.peer.sweep(self.now_ns) {}
    }

    /// Pulls and answers until nothing is left. Then every transfer is final, except held ones.
    fn run_dry(&mut self) {
        loop {
            self.sweep();
            let mut pulled = false;
            for transport in [Transport::Tcp, Transport::Local] {
                for express in [true, false] {
                    pulled |= self.pull(transport, express);
                }
            }
            while !self.out.is_empty() {
                self.answer(0, false);
            }
            if !pulled {
                return self.sweep();
            }
        }
    }
}

#[test]
fn higher_priority_goes_first_and_equals_go_in_order() {
    let mut world = World::new();
    let priorities = [0, 5, 3, 5, 0, 9, 3];
    let handles: Vec<TransferId> = priorities
        .iter()
        .map(|priority| world.submit(&Wish { priority: *priority, ..PLAIN }).handle)
        .collect();
    while world.pull(Transport::Tcp, true) {}
    let handle = |out: &Out| match out {
        Out::Run(transfer, ..) => transfer.handle,
        _ => unreachable!(),
    };
    let order: Vec<TransferId> = world.out.iter().map(handle).collect();
    let expected: Vec<TransferId> = [5, 1, 3, 2, 6, 0, 4].iter().map(|at| handles[*at]).collect();
    assert_eq!(order, expected);
}

#[test]
fn what_a_lost_lane_carried_goes_where_it_stood_before() {
    let mut world = World::new();
    let first = world.submit(&Wish { slices: 9, ..PLAIN });
    let second = world.submit(&Wish { slices: 9, ..PLAIN });
    assert!(world.pull(Transport::Tcp, false) && world.pull(Transport::Tcp, false));
    // The records are released in their order, and in the reverse order.
    world.answer(0, true);
    world.answer(0, true);
    let mut seen = Vec::new();
    while world.pull(Transport::Tcp, false) {
        let Some(Out::Run(transfer, run, _)) = world.out.last() else { unreachable!() };
        seen.push((transfer.handle, run.first, run.end));
    }
    let [a, b] = [first.handle, second.handle];
    let runs = [(a, 0, 3), (a, 3, 6), (a, 6, 9), (b, 0, 3), (b, 3, 6), (b, 6, 9)];
    assert_eq!(seen, runs);
}

/// Only a TCP frame has room for both.
#[test]
fn data_and_its_notification_go_in_one_frame_by_tcp_alone() {
    for transport in [Transport::Tcp, Transport::Local] {
        let mut outbox = Outbox::new();
        outbox.open(Transport::Local);
        let wish = Wish { notify: true, local: transport == Transport::Local, ..PLAIN };
        outbox.submit(transfer(1, &wish), Class::Express);
        let pulled = outbox.pull(transport, true, LIMITS);
        let Some(Pulled::Slices { with_notification, .. }) = pulled else { panic!("{transport:?}") };
        assert_eq!(with_notification, transport == Transport::Tcp, "{transport:?}");
    }
}

/// Data that was posted with its notification on a lost lane is posted with it again by TCP, regardless of
/// the transfer's path by then. No other transport carries both in one frame, and the target takes data behind a number
/// that it already has for a repetition.
#[test]
fn a_replay_with_its_notification_goes_by_tcp_alone() {
    let mut outbox = Outbox::new();
    outbox.open(Transport::Staged);
    let replay = transfer(1, &Wish { slices: 2, notify: true, ..PLAIN });
    let other = transfer(2, &Wish { slices: 2, ..PLAIN });
    outbox.submit(replay.clone(), Class::Express);
    let first = outbox.pull(Transport::Tcp, true, LIMITS);
    assert!(matches!(
        first,
        Some(Pulled::Slices { with_notification: true, range: SliceRange { first: 0, end: 2 }, .. })
    ));
    for (it, notified) in [(&replay, true), (&other, false)] {
        it.set_transport(Transport::Staged);
        outbox.requeue(it.clone(), SliceRange { first: 0, end: 2 }, Class::Express, notified);
    }
    let mut pull = |transport| match outbox.pull(transport, true, LIMITS)? {
        Pulled::Slices { transfer, range, .. } => Some((transfer.handle, range.end)),
        _ => None,
    };
    assert_eq!(pull(Transport::Staged), Some((other.handle, 2)));
    assert_eq!(pull(Transport::Staged), None);
    assert_eq!(pull(Transport::Tcp), Some((replay.handle, 2)));
}

#[test]
fn those_before_the_end_of_an_ordered_transfer_that_fails_fail_with_it_and_later_ones_do_not() {
    let mut world = World::new();
    let ordered = Wish { ordered: true, ..PLAIN };
    let early: Vec<_> = (0..200).map(|_| world.submit(&ordered)).collect();
    let strike = Strike { status: Status::Timeout, os_error: 0 };
    assert!(world.peer.strike(&early[100], strike));
    let states = |of: &[Arc<Transfer>]| of.iter().map(|it| it.state()).collect::<Vec<_>>();
    assert_eq!(early[100].state(), State::TimedOut);
    assert_eq!(early[101].state(), State::Pending, "the sweep strikes it");
    let late = world.submit(&ordered);
    world.run_dry();
    assert_eq!(states(&early[..100]), [State::Done; 100]);
    assert_eq!(states(&early[101..]), [State::Cancelled; 99]);
    assert_eq!(late.state(), State::Cancelled);
    let later = world.submit(&ordered);
    world.run_dry();
    assert_eq!(later.state(), State::Done);
}

/// The outbox knows of an end before the application can see it. What is submitted between the two fails too.
#[test]
fn an_ordered_transfer_fails_until_the_end_of_those_before_it_can_be_seen() {
    let mut ordered = Ordered::default();
    let [active, doomed, early, later, latest] = [1, 2, 3, 4, 5].map(|handle| transfer(handle, &PLAIN));
    assert!(ordered.submit(&active) && !ordered.submit(&doomed));
    assert!(ordered.ended(&active, false).is_none());
    assert!(!ordered.submit(&early), "nobody can see that the active one is final");
    active.publish(State::Failed);
    let struck =
        |ordered: &mut Ordered| std::iter::from_fn(|| ordered.next_doomed()).map(|it| it.handle).collect();
    let all: Vec<_> = struck(&mut ordered);
    assert_eq!(all, [doomed.handle, early.handle]);
    doomed.publish(State::Cancelled);
    assert!(!ordered.submit(&later), "nobody can see that the third one is final");
    let all: Vec<_> = struck(&mut ordered);
    assert_eq!(all, [later.handle]);
    early.publish(State::Cancelled);
    assert!(ordered.ended(&later, false).is_none());
    assert_eq!(Arc::strong_count(&early), 1, "those that are final are not kept until the next submission");
    later.publish(State::Cancelled);
    assert!(ordered.submit(&latest));
    // Nobody waits behind this one.
    assert!(ordered.ended(&latest, false).is_none());
    let [early, anew] = [6, 7].map(|handle| transfer(handle, &PLAIN));
    assert!(!ordered.submit(&early), "nobody can see that the fifth one is final");
    latest.publish(State::Failed);
    early.publish(State::Cancelled);
    assert!(ordered.submit(&anew));
}

/// Those behind an ORDERED transfer also fail if the target refuses its data, so that it ends without a strike.
#[test]
fn those_behind_an_ordered_transfer_that_is_refused_fail_with_it() {
    let mut world = World::new();
    let all: Vec<_> = (0..3).map(|_| world.submit(&Wish { ordered: true, ..PLAIN })).collect();
    assert!(world.pull(Transport::Tcp, true) && !world.pull(Transport::Tcp, true), "one has its turn");
    world.out.clear();
    let refused = Failure { slice: 0, status: Status::Stale, os_error: 0, vendor_error: 0 };
    world.peer.confirm(
        &all[0],
        SliceRange { first: 0, end: 1 },
        0,
        &[refused],
        false,
        &mut world.peer.after(),
    );
    world.run_dry();
    let states: Vec<_> = all.iter().map(|it| it.state()).collect();
    assert_eq!(states, [State::Failed, State::Cancelled, State::Cancelled]);
}

/// A doomed transfer is struck by a cancel before the sweep strikes it.
#[test]
fn a_doomed_transfer_that_is_cancelled_first_is_settled_once() {
    let mut world = World::new();
    let ordered = Wish { ordered: true, slices: 5, notify: true, ..PLAIN };
    let all: Vec<_> = (0..5).map(|_| world.submit(&ordered)).collect();
    let cancel = Strike { status: Status::Cancelled, os_error: 0 };
    world.peer.strike(&all[1], cancel);
    world.peer.strike(&all[3], Strike { status: Status::Closed, ..cancel });
    world.run_dry();
    let states: Vec<_> = all.iter().map(|it| it.state()).collect();
    use State::*;
    assert_eq!(states, [Done, Cancelled, Cancelled, Failed, Cancelled]);
}

#[test]
fn what_waits_for_a_transport_that_goes_away_goes_another_way_a_turn_at_a_time() {
    let mut world = World::new();
    let path: Arc<dyn Path> = Arc::new(Silent);
    world.peer.set_path(Transport::Local, PathStatus::Open(path, String::new()));
    let count = 1000;
    let all: Vec<_> = (0..count).map(|_| world.submit(&Wish { local: true, ..PLAIN })).collect();
    let stuck: Vec<_> = (0..count).map(|_| world.submit(&Wish { only_local: true, ..PLAIN })).collect();
    world.peer.engine().commands.take();
    world.peer.set_path(Transport::Local, PathStatus::Shut(String::new()));
    let asked = world.peer.engine().commands.take();
    assert!(matches!(asked.front(), Some(Command::Sweep { peer }) if peer.raw() == 7));
    assert!(!world.pull(Transport::Local, true), "the transport carries nothing any more");
    let mut turns = 1;
    while world.peer.sweep(Monotonic::ZERO) {
        turns += 1;
    }
    assert!(turns >= 2 * count / SWEEP_TURN, "{turns} turns");
    assert!(stuck.iter().all(|it| it.result().is_some_and(|it| it.status == Status::Unavailable)));
    assert!(all.iter().all(|it| it.is_pending() && it.transport() == Transport::Tcp));
    world.run_dry();
    assert!(all.iter().all(|it| it.state() == State::Done));
}

/// The cost of one turn does not grow with the number of waiting transfers, because other peers wait for the turn.
#[test]
fn a_turn_of_a_lost_peer_strikes_a_few() {
    let mut world = World::new();
    let all: Vec<_> = (0..10_000).map(|_| world.submit(&PLAIN)).collect();
    world.peer.set_lost(Status::PeerLost);
    let mut left = all.len();
    loop {
        let more = world.peer.sweep(Monotonic::ZERO);
        let pending = all.iter().filter(|it| !it.is_final()).count();
        assert!(left - pending <= SWEEP_TURN);
        left = pending;
        if !more {
            break;
        }
    }
    assert_eq!((left, world.peer.active()), (0, 0));
    assert!(world.peer.is_swept());
}

#[derive(Clone, Debug)]
enum OutboxStep {
    Submit(Wish),
    Pull { local: bool, express: bool },
    Answer { at: prop::sample::Index, lost: bool },
    Strike(prop::sample::Index),
    Start(prop::sample::Index),
    Sweep,
    Pass(u64),
    PathStatus { open: bool, pending: bool },
    Grant,
}

fn wish() -> impl Strategy<Value = Wish> {
    let flags = prop::array::uniform6(prop::bool::weighted(0.3));
    let slices = prop_oneof![4 => 0..12u32, 1 => Just(5000)];
    let deadline_ns = prop_oneof![3 => Just(Monotonic::NEVER), 1 => (1..200u64).prop_map(Monotonic::from_ns)];
    (slices, 0..3u32, flags, deadline_ns).prop_map(|(slices, priority, flags, deadline_ns)| {
        let [read, ordered, held, notify, local, only_local] = flags;
        let op = if read && slices > 0 { Op::Read } else { Op::Write };
        let notify = notify && op == Op::Write;
        Wish {
            slices,
            op,
            priority,
            ordered,
            held,
            notify,
            local,
            only_local,
            deadline_ns: Monotonic::from_ns(deadline_ns.ns()),
        }
    })
}

fn step() -> impl Strategy<Value = OutboxStep> {
    use prop::sample::Index;
    prop_oneof![
        6 => wish().prop_map(OutboxStep::Submit),
        6 => any::<(bool, bool)>().prop_map(|(local, express)| OutboxStep::Pull { local, express }),
        4 => any::<(Index, bool)>().prop_map(|(at, lost)| OutboxStep::Answer { at, lost }),
        2 => any::<Index>().prop_map(OutboxStep::Strike),
        2 => any::<Index>().prop_map(OutboxStep::Start),
        2 => Just(OutboxStep::Sweep),
        1 => (1..50u64).prop_map(OutboxStep::Pass),
        1 => any::<(bool, bool)>().prop_map(|(open, pending)| OutboxStep::PathStatus { open, pending }),
        1 => Just(OutboxStep::Grant),
    ]
}

/// The queue as a list that is searched: the slices that have not been pulled, in posting order.
#[derive(Default)]
struct Model {
    slices: Vec<(Arc<Transfer>, u32)>,
    /// Transfers that were added before.
    seen: HashSet<TransferId>,
}

impl Model {
    /// Adds transfers that have been queued since, and removes struck ones.
    fn catch_up(&mut self, all: &[Arc<Transfer>]) {
        for transfer in all {
            if transfer.position.place() == Place::Out && self.seen.insert(transfer.handle) {
                self.queue(transfer, 0..transfer.spec.slices.len() as u32);
            }
        }
        self.slices.retain(|(transfer, _)| transfer.is_pending());
    }

    fn key(transfer: &Transfer, slice: u32) -> (std::cmp::Reverse<u32>, TransferId, u32) {
        // Handles are in order of submission.
        (std::cmp::Reverse(transfer.spec.priority), transfer.handle, slice)
    }

    /// Removes a pulled run, which must begin with the first slice of its kind.
    fn pulled(&mut self, transfer: &Arc<Transfer>, range: SliceRange, class: impl Fn(&Transfer) -> Class) {
        let alike = |other: &Transfer| {
            class(other) == class(transfer)
                && other.spec.op == transfer.spec.op
                && other.transport() == transfer.transport()
        };
        let mine = Model::key(transfer, range.first);
        let before =
            self.slices.iter().find(|(other, slice)| alike(other) && Model::key(other, *slice) < mine);
        assert!(before.is_none(), "{} left before {}", transfer.handle, before.unwrap().0.handle);
        let had = self.slices.len();
        self.slices
            .retain(|(other, slice)| other.handle != transfer.handle || !range.indexes().contains(slice));
        assert_eq!(had - self.slices.len(), range.count() as usize, "slices left that were not queued");
    }

    fn queue(&mut self, transfer: &Arc<Transfer>, slices: std::ops::Range<u32>) {
        self.slices.extend(slices.map(|slice| (transfer.clone(), slice)));
    }
}

proptest! {
    #![proptest_config(crate::cases::most(256))]

    #[test]
    fn each_unit_is_settled_once_and_frames_leave_in_order(
        steps in prop::collection::vec(step(), 1..120),
        loses in any::<bool>(),
    ) {
        let mut world = World::new();
        let path: Arc<dyn Path> = Arc::new(Silent);
        let mut model = Model::default();
        for step in steps {
            match step {
                OutboxStep::Submit(wish) => drop(world.submit(&wish)),
                OutboxStep::Pull { local, express } => {
                    let transport = if local { Transport::Local } else { Transport::Tcp };
                    model.catch_up(&world.all);
                    if world.pull(transport, express) {
                        if let Some(Out::Run(transfer, run, _)) = world.out.last() {
                            model.pulled(transfer, *run, |it| world.peer.class_of(it));
                        }
                    }
                }
                OutboxStep::Answer { at, lost } if !world.out.is_empty() => {
                    let at = at.index(world.out.len());
                    let run = match &world.out[at] {
                        Out::Run(transfer, run, _) => Some((transfer.clone(), *run)),
                        _ => None,
                    };
                    world.answer(at, lost);
                    if let Some((transfer, run)) = run.filter(|(it, _)| lost && it.is_pending()) {
                        // Only after the model knows the transfer; otherwise its slices would be added twice.
                        model.catch_up(&world.all);
                        model.queue(&transfer, run.indexes());
                    }
                }
                OutboxStep::Strike(at) if !world.all.is_empty() => {
                    let transfer = at.get(&world.all).clone();
                    world.peer.strike(&transfer, Strike { status: Status::Cancelled, os_error: 0 });
                }
                OutboxStep::Start(at) if !world.all.is_empty() => world.peer.start(at.get(&world.all)),
                OutboxStep::Sweep => drop(world.peer.sweep(world.now_ns)),
                OutboxStep::Pass(ns) => world.now_ns += ns,
                OutboxStep::PathStatus { open, pending } => {
                    let status = match (open, pending) {
                        (true, _) => PathStatus::Open(path.clone(), String::new()),
                        (_, true) => PathStatus::Pending(String::new()),
                        _ => PathStatus::Shut(String::new()),
                    };
                    world.peer.set_path(Transport::Local, status);
                    // The model has no runs that are being moved.
                    world.sweep();
                }
                OutboxStep::Grant => assert!(world.peer.grant(1 << 20)),
                _ => {}
            }
        }
        if loses {
            world.peer.set_lost(Status::PeerLost);
            while !world.out.is_empty() {
                world.answer(0, true);
            }
            world.sweep();
        } else {
            world.peer.set_path(Transport::Local, PathStatus::Open(path, String::new()));
            world.peer.grant(1 << 20);
            let all = world.all.clone();
            for _ in 0..2 {
                while !world.out.is_empty() {
                    world.answer(0, false);
                }
                all.iter().for_each(|transfer| world.peer.start(transfer));
                world.run_dry();
            }
        }
        for transfer in &world.all {
            prop_assert!(transfer.is_final(), "{:?} {:?}", transfer.handle, transfer.state());
        }
        prop_assert_eq!(world.peer.active(), 0);
        prop_assert!(world.peer.is_swept());
    }
}
