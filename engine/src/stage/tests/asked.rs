//! A peer's messages cannot make a target do more than the rights, bounds, leases and numbers allow. The stage's
//! thread is not started; the tests call its turns, so each answer follows from the messages before it only.

use super::super::event::Event;
use super::super::service::{Mover, Stage, StageService, StageSettings, StagedPart};
use super::super::wire::{Block, Blocks, BridgeSlotId, Fault, Message};
use super::*;
use crate::command::{Command, Commands};
use crate::complete::Transfer;
use crate::device::{Drivers, Limits};
use crate::handle::Tag;
use crate::limits::{BRIDGES_MAX, STAGE_QUEUED_BYTES_MAX};
use crate::peer::outbox::Class;
use crate::peer::tests::{peer_with, session_with};
use crate::peer::{After, Kept, Path, PathStatus, Peer, SameHost, TransportService};
use crate::region::grants::{Grants, Use};
use crate::region::holder::{Holder, Pin};
use crate::region::{Region, RegionSpec, Registry, RemoteMap};
use crate::status::{Error, Result};
use crate::sys::clock;
use crate::sys::proven::Proven;
use crate::sys::turns::Sleeper;
use crate::types::{Access, Boottime, BridgeId, Location, Monotonic, OperationId, Range, RegionId, Slice};
use std::collections::VecDeque;

const PEER: u64 = 7;
const BYTES: u64 = 4096;
const DEVICE: Location = Location { kind: MemoryKind::Cuda, device: 0 };
/// The numbers of the peer's operations.
const FIRST: OperationId = OperationId::from_raw(1);
const SECOND: OperationId = OperationId::from_raw(2);
const THIRD: OperationId = OperationId::from_raw(3);
const FOURTH: OperationId = OperationId::from_raw(4);

struct Nowhere;

impl Mover for Nowhere {
    fn submit(&self, _: &Arc<Peer>, _: StagedPart) -> Result<Arc<Transfer>> {
        Err(Error::new(Status::Unavailable, "there is nothing to move"))
    }

    fn forget(&self, _: &Transfer) {}
}

/// A path to a process of this host, namely this process.
struct Near(Arc<Proven>);

impl Path for Near {
    fn carries(&self, _: &[Range], _: &RemoteMap, _: bool) -> bool {
        false
    }
    fn post(&self, _: Class, _: Option<Monotonic>, _: &mut After) {}
    fn nudge(&self, _: &mut After) {}
    fn same_host(&self) -> Option<&dyn SameHost> {
        Some(self)
    }
}

impl SameHost for Near {
    fn copy_now(&self, _: Op, _: &Slice, _: bool, _: Monotonic) -> bool {
        false
    }
    fn keep_registered(&self, _: RegionId, _: Use) -> Result<Kept> {
        Err(Error::new(Status::Unavailable, "nothing is registered"))
    }
    fn process(&self) -> Option<Arc<Proven>> {
        Some(self.0.clone())
    }
}

/// A stage with one peer, and the messages that it sends to the peer.
struct Target {
    fake: Arc<Fake>,
    registry: Arc<Registry>,
    commands: Arc<Commands>,
    service: Arc<StageService>,
    stage: Stage,
    peer: Arc<Peer>,
    _turn: MutexGuard<'static, ()>,
}

impl Target {
    fn new() -> Target {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Fake::get();
        fake.delay_us.store(0, Ordering::SeqCst);
        fake.hangs.store(false, Ordering::SeqCst);
        [&fake.crosses, &fake.shares].into_iter().for_each(|has| has.store(true, Ordering::SeqCst));
        let registry = Arc::new(Registry::new(Tag::from_random(1), Some(Arc::new(Grants::new().unwrap()))));
        let limits = Limits { batch_bytes: MIB, depth: 4, timeout: BOUND };
        let drivers = Arc::new(Drivers::new(vec![fake::library()], limits));
        let (commands, peer) = (Arc::<Commands>::default(), peer_with(PEER));
        let settings = StageSettings { slots: 2 };
        let service =
            StageService::new(settings, registry.clone(), drivers, commands.clone(), Box::new(Nowhere));
        let stage = service.take_stage().unwrap();
        let mut target = Target { fake, registry, commands, service, stage, peer, _turn: turn };
        target.begin();
        target
    }

    fn begin(&mut self) {
        self.service.begin(session_with(self.peer.clone(), false));
        self.stage.inbox.take().into_iter().for_each(|event| self.stage.event(event));
        assert!(matches!(self.answers()[..], [Message::Live { .. }]));
    }

    fn region(&self, location: Location, access: Access) -> Arc<Region> {
        let address = self.fake.alloc(location.device, BYTES as usize, 0xee);
        let spec = RegionSpec { address, length: BYTES, location, access, ..RegionSpec::default() };
        self.registry.register(&[spec]).unwrap().remove(0)
    }

    /// Returns the messages sent to the peer so far. Events of devices are not handled meanwhile.
    fn answers(&mut self) -> Vec<Message> {
        self.stage.turn(clock::monotonic_ns());
        let bodies = self.commands.take().into_iter().filter_map(|command| match command {
            Command::ServiceMessage { body, .. } => Some(body),
            _ => None,
        });
        bodies.flat_map(|body| Message::decode_all(&body).unwrap()).collect()
    }

    /// Handles a message as if the peer had sent it.
    fn receive(&mut self, message: Message) {
        let mut body = Vec::new();
        message.encode(&mut body);
        self.stage.event(Event::Received(PeerId::from_raw(PEER), body));
    }

    /// Returns the answer to a message, after the devices have ended their part.
    fn ask(&mut self, message: Message) -> Message {
        self.receive(message);
        loop {
            if let Some(message) = self.answers().pop() {
                return message;
            }
            let events = self.events();
            assert!(!events.is_empty(), "no answer");
            events.into_iter().for_each(|event| self.stage.event(event));
        }
    }

    /// Returns the events that have come, after the first one has.
    fn events(&self) -> VecDeque<Event> {
        self.stage.inbox.sleep(&mut Vec::new(), Some(BOUND.as_nanos() as u64));
        self.stage.inbox.take()
    }

    fn begun(&self) -> u64 {
        self.fake.begun.load(Ordering::SeqCst)
    }

    fn hides(&mut self, bridge: BridgeId, slots: u32) -> bool {
        self.receive(Message::Expose { bridge, at: DEVICE, slots });
        matches!(self.answers()[..], [Message::Hidden { bridge: it, .. }] if it == bridge)
    }
}

/// All tests of the process share one device, so each test waits until the device has released the test's memory.
impl Drop for Target {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.receive(Message::Live { ops: Vec::new(), bridges: Vec::new() });
            let kept = [&self.fake.shown, &self.fake.exported];
            until("devices have let go", || kept.iter().all(|kept| kept.load(Ordering::SeqCst) == 0));
        }
    }
}

/// The region is unregistered while a copy is inside.
fn revoke(target: &Target, region: &Region) {
    assert!(region.enter());
    let busy = target.registry.unregister(region.id, Some(Duration::from_millis(1))).unwrap_err();
    assert!(busy.status == Status::Busy && region.is_revoked());
}

fn later_ns() -> Boottime {
    clock::boottime_ns() + BOUND.as_nanos() as u64
}

#[test]
fn blocks_are_checked_against_the_rights_and_bounds_of_their_regions() {
    let mut target = Target::new();
    let both = target.region(DEVICE, Access::BOTH);
    let [read, write] = [Access::REMOTE_READ, Access::REMOTE_WRITE].map(|it| target.region(DEVICE, it));
    let host = target.region(Location::HOST, Access::BOTH);
    let revoked = target.region(DEVICE, Access::BOTH);
    revoke(&target, &revoked);
    let block = |region: &Region, offset: u64, length| Block {
        region: region.id,
        address: region.address.wrapping_add(offset),
        length,
    };
    let nameless = |block: Block| Block { region: RegionId::NONE, ..block };
    for op in [Op::Write, Op::Read] {
        let (may, may_not) = if op == Op::Write { (&write, &read) } else { (&read, &write) };
        let cases = [
            (block(&both, BYTES - 64, 64), None),
            (block(&both, BYTES - 64, 65), Some(Status::Invalid)),
            (block(&both, 0_u64.wrapping_sub(1), 64), Some(Status::Invalid)),
            (nameless(block(&both, 0, 64)), None),
            (nameless(block(&both, BYTES - 64, 65)), Some(Status::NotRegistered)),
            (block(may, 0, 64), None),
            (block(may_not, 0, 64), Some(Status::Access)),
            (nameless(block(may_not, 0, 64)), Some(Status::Access)),
            (block(&host, 0, 64), Some(Status::Unsupported)),
            (block(&revoked, 0, 64), Some(Status::Stale)),
        ];
        let fault = |(at, case): (usize, &(Block, Option<Status>))| {
            case.1.map(|status| Fault { block: at as u32, status, os_error: 0, vendor_error: 0 })
        };
        let expected: Vec<Fault> = cases.iter().enumerate().filter_map(fault).collect();
        let list = cases.iter().map(|case| case.0).collect();
        let blocks = Blocks { not_after_ns: later_ns(), bridge_slot: None, durable: false, list };
        let before = target.fake.copies.load(Ordering::SeqCst);
        let faults = match op {
            Op::Write => {
                assert!(matches!(target.ask(Message::Want { op: FIRST }), Message::Grant { op: FIRST, .. }));
                let Message::Done { op: FIRST, faults } = target.ask(Message::Commit { op: FIRST, blocks })
                else {
                    panic!()
                };
                faults
            }
            Op::Read => {
                let answer = target.ask(Message::Fetch { op: SECOND, blocks });
                let Message::Ready { op: SECOND, faults, .. } = answer else { panic!("{answer:?}") };
                faults
            }
        };
        assert_eq!(faults, expected, "{op:?}");
        assert_eq!(
            target.fake.copies.load(Ordering::SeqCst) - before,
            3,
            "what was not refused, by its pieces"
        );
        assert!([&both, &read, &write, &host].iter().all(|region| region.is_idle()));
    }
    revoked.leave();
}

#[test]
fn nothing_begins_when_the_lease_is_over_and_all_of_it_when_there_is_another() {
    let mut target = Target::new();
    let region = target.region(DEVICE, Access::BOTH);
    assert!(matches!(target.ask(Message::Want { op: FIRST }), Message::Grant { op: FIRST, .. }));
    let begun = target.begun();
    let list = vec![Block { region: region.id, address: region.address, length: 64 }];
    let blocks =
        |not_after_ns| Blocks { not_after_ns, bridge_slot: None, durable: false, list: list.clone() };
    for message in [|op, blocks| Message::Commit { op, blocks }, |op, blocks| Message::Fetch { op, blocks }] {
        let op = if matches!(message(FIRST, blocks(Boottime::ZERO)), Message::Commit { .. }) {
            FIRST
        } else {
            SECOND
        };
        target.receive(message(op, blocks(clock::boottime_ns())));
        // A copy enters the region first, on this thread.
        assert!(target.answers().is_empty() && region.is_idle(), "it has begun");
        let answer = target.ask(message(op, blocks(later_ns())));
        assert!(
            matches!(&answer, Message::Done { faults, .. } | Message::Ready { faults, .. } if faults.is_empty())
        );
    }
    assert_eq!(target.begun() - begun, 2);
}

/// A lost peer's slot that someone may still reach is given up, and another is made in its place when nobody does.
#[test]
fn a_slot_that_is_still_reached_makes_room_later_and_nobody_waits_for_it() {
    let mut target = Target::new();
    let want = |op| Message::Want { op: OperationId::from_raw(op) };
    let Message::Grant { region, .. } = target.ask(want(1)) else { panic!("no slot") };
    assert!(matches!(target.ask(want(2)), Message::Grant { .. }), "the other slot");
    let reached = target.registry.get(region).unwrap();
    assert!(reached.enter());
    let peer = PeerId::from_raw(PEER);
    target.stage.event(Event::Forget(peer));
    target.stage.event(Event::Quiet(peer));
    assert!(reached.is_revoked(), "data for it is refused");
    target.begin();
    assert!(
        matches!(target.ask(want(3)), Message::Grant { .. }),
        "the slot that nobody reaches has made room"
    );
    target.receive(want(4));
    assert!(target.answers().is_empty(), "the other has not");
    let at = target.stage.next_check_ns().unwrap();
    target.stage.turn(at);
    assert!(target.answers().is_empty());
    reached.leave();
    target.stage.turn(target.stage.next_check_ns().unwrap());
    assert!(matches!(target.answers()[..], [Message::Grant { .. }]));
    assert_eq!(target.stage.next_check_ns(), None);
}

/// Memory that is shown counts, and so do requests that a device still works on, wanted or not.
#[test]
fn bridges_are_bounded_by_what_is_shown_and_by_what_devices_are_busy_with() {
    let mut target = Target::new();
    let _region = target.region(DEVICE, Access::BOTH);
    let most = BRIDGES_MAX as u64;
    assert!((1..=most).map(BridgeId::from_raw).all(|bridge| !target.hides(bridge, 1)));
    (1..=most).map(BridgeId::from_raw).for_each(|bridge| target.receive(Message::Conceal { bridge }));
    assert!(target.hides(BridgeId::from_raw(most + 1), 1), "the device has answered for none of them");
    let exposed = |target: &mut Target, bridge| {
        matches!(target.ask(Message::Expose { bridge, at: DEVICE, slots: 1 }), Message::Exposed { .. })
    };
    let mut answered = 0;
    while answered < most {
        let events = target.events();
        assert!(!events.is_empty());
        answered += events.len() as u64;
        events.into_iter().for_each(|event| target.stage.event(event));
    }
    assert!((100..100 + most).map(BridgeId::from_raw).all(|bridge| exposed(&mut target, bridge)));
    assert!(target.hides(BridgeId::from_raw(99), 1), "so many are shown");
    target.receive(Message::Conceal { bridge: BridgeId::from_raw(100) });
    assert!(exposed(&mut target, BridgeId::from_raw(99)));
}

#[test]
fn a_bridge_has_its_number_and_its_slots_alone() {
    let mut target = Target::new();
    let region = target.region(DEVICE, Access::BOTH);
    let ascend = target.region(Location { kind: MemoryKind::Ascend, ..DEVICE }, Access::BOTH);
    let exposures = target.fake.exposures.load(Ordering::SeqCst);
    let shown = target.ask(Message::Expose { bridge: BridgeId::from_raw(1), at: DEVICE, slots: 1 });
    assert!(matches!(shown, Message::Exposed { bridge, slots: 1, .. } if bridge == BridgeId::from_raw(1)));
    assert!(target.hides(BridgeId::from_raw(1), 1), "the number is a bridge's");
    assert!(target.hides(BridgeId::from_raw(2), 0), "no slots");
    assert_eq!(target.fake.exposures.load(Ordering::SeqCst) - exposures, 1);
    let mut commit = |op, (bridge, slot), region: &Region| {
        let list = vec![Block { region: region.id, address: region.address, length: 64 }];
        let bridge_slot = Some(BridgeSlotId { bridge: BridgeId::from_raw(bridge), slot });
        let answer = target.ask(Message::Commit {
            op,
            blocks: Blocks { not_after_ns: later_ns(), bridge_slot, durable: false, list },
        });
        target.receive(Message::Release { op });
        answer
    };
    assert_eq!(commit(FIRST, (1, 1), &region), Message::Unknown { op: FIRST }, "a slot beyond its last");
    assert_eq!(commit(SECOND, (2, 0), &region), Message::Unknown { op: SECOND }, "no such bridge");
    let unsupported = Fault { block: 0, status: Status::Unsupported, os_error: 0, vendor_error: 0 };
    let refused = Message::Done { op: THIRD, faults: vec![unsupported] };
    assert_eq!(commit(THIRD, (1, 0), &ascend), refused, "memory of another library's device");
    assert_eq!(commit(FOURTH, (1, 0), &region), Message::Done { op: FOURTH, faults: Vec::new() });
}

#[test]
fn messages_that_are_not_handled_yet_are_bounded() {
    let target = Target::new();
    let messages = vec![0xff; MIB];
    let waiting = STAGE_QUEUED_BYTES_MAX / MIB;
    assert!((0..waiting).all(|_| target.service.message(PeerId::from_raw(PEER), &messages)));
    assert!(!target.service.message(PeerId::from_raw(PEER), &messages), "one more than can wait");
    let said = target.stage.inbox.take();
    assert_eq!(said.len(), waiting, "what was one too many is not kept");
}

/// A peer that has memory mapped reaches all of it without asking again.
#[test]
fn memory_is_lent_to_processes_that_are_proven_and_may_reach_it() {
    let mut target = Target::new();
    let region = target.region(DEVICE, Access::BOTH);
    let nobodys = target.region(DEVICE, Access(0));
    let host = target.region(Location::HOST, Access::BOTH);
    let revoked = target.region(DEVICE, Access::BOTH);
    revoke(&target, &revoked);
    let process = std::process::id() as i32;
    let refused = |target: &mut Target, region: &Region, kind| match target.ask(Message::Borrow {
        region: region.id,
        kind,
        process,
    }) {
        Message::Refused { region: it, status, .. } if it == region.id => Some(status),
        Message::Lent { region: it, memory } if it == region.id && !memory.is_empty() => None,
        message => panic!("{message:?}"),
    };
    target.peer.set_path(Transport::Local, PathStatus::Shut(String::new()));
    assert_eq!(
        refused(&mut target, &region, MemoryKind::Cuda),
        Some(Status::Unavailable),
        "nobody is proven"
    );
    let nothing = std::fs::File::open("/dev/null").unwrap();
    let near = Near(Arc::new(Proven::new(process, Arc::new(nothing.into()))));
    target.peer.set_path(Transport::Local, PathStatus::Open(Arc::new(near), String::new()));
    for (of, kind, expected) in [
        (&host, MemoryKind::Host, Status::Unsupported),
        (&region, MemoryKind::Ascend, Status::Unsupported),
        (&nobodys, MemoryKind::Cuda, Status::Access),
        (&revoked, MemoryKind::Cuda, Status::Stale),
    ] {
        assert_eq!(refused(&mut target, of, kind), Some(expected));
        assert_eq!(of.is_idle(), !of.is_revoked(), "nobody has entered it");
    }
    assert_eq!(refused(&mut target, &region, MemoryKind::Cuda), None);
    revoked.leave();
    target.registry.unregister(region.id, Some(BOUND)).unwrap();
}

/// A device that registers no memory.
struct Full;

impl Holder for Full {
    fn pin(&self, _: &[RegionSpec]) -> Result<Vec<Pin>> {
        Err(Error::new(Status::NoMemory, "the device is full"))
    }
    fn revoke(&self, _: RegionId) {}
    fn revoke_if_unheld(&self, _: RegionId, revoke: &mut dyn FnMut() -> bool) -> bool {
        revoke()
    }
    fn wait_unheld(&self, _: RegionId, _: Option<Instant>) -> bool {
        true
    }
    fn unpin(&self, _: &Region) {}
}

/// The first answer may be lost with its connection; then the initiator asks once more.
#[test]
fn a_request_without_a_slot_is_refused_each_time() {
    let mut target = Target::new();
    target.registry.set_holder(Arc::new(Full));
    for _ in 0..2 {
        let answer = target.ask(Message::Want { op: FIRST });
        assert!(matches!(&answer, Message::Done { op: FIRST, faults } if !faults.is_empty()), "{answer:?}");
    }
}
