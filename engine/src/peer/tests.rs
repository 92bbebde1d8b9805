//! A peer's queued, lost and given-up work, without a transport.

use super::outbox::{PullLimits, Pulled};
use super::{EngineParts, Path, PathStatus, Peer, PeerIdentity, PeerState, SessionInfo};
use crate::complete::transfer::{Failure, Strike};
use crate::complete::{Fence, Notification, State, Table, Transfer, TransferFlags, TransferSpec};
use crate::handle::Tag;
use crate::limits::{FRAME_DESCRIPTORS_MAX, NOTIFY_BYTES_MAX, RDMA_NOTIFY_BYTES_MAX};
use crate::notify::Hub;
use crate::peer::outbox::Class;
use crate::peer::After;
use crate::region::RemoteMap;
use crate::route::{Asked, PathState};
use crate::status::Status;
use crate::sys::pages::Pages;
use crate::types::{
    EngineId, Monotonic, Op, PeerId, Range, RegionId, Request, SessionId, Slice, SliceRange, TransferId,
    Transport,
};
use std::net::Ipv4Addr;
use std::sync::Arc;

const KIB: u32 = 1 << 10;
const CANCEL: Strike = Strike { status: Status::Cancelled, os_error: 0 };

pub fn peer() -> Arc<Peer> {
    peer_with(1)
}

/// Returns a peer with this handle.
pub fn peer_with(handle: u64) -> Arc<Peer> {
    Arc::new(new_peer(handle, 64 * KIB))
}

/// Returns a session with this peer; its ID is of the peer's handle.
pub fn session_with(peer: Arc<Peer>, dialer: bool) -> SessionInfo {
    let mut session_id = SessionId([0; 16]);
    session_id.0[..8].copy_from_slice(&peer.handle.raw().to_le_bytes());
    let remote = (Ipv4Addr::LOCALHOST, 1).into();
    SessionInfo { peer, dialer, session_id, remote, key: [7; 32], lane_numbers: Arc::default() }
}

pub fn new_peer(handle: u64, express_bytes_max: u32) -> Peer {
    let identity = PeerIdentity {
        engine_id: EngineId([1; 16]),
        incarnation: 1,
        address: String::new(),
        tag: Tag::from_random(1),
        same_host: true,
        hosts: (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        frame_bytes_max: 1024 * KIB,
        lanes_max: 1,
        reads_max: 16,
    };
    let engine = EngineParts {
        commands: Arc::default(),
        hub: Arc::new(Hub::new(Tag::from_random(1))),
        stats: Arc::default(),
        conversation: Arc::default(),
        transfers: Arc::new(Table::new(Tag::from_random(1), 16)),
        lease_ns: 1_000_000_000,
        express_bytes_max: express_bytes_max.into(),
        pages: Arc::new(Pages::of(None)),
    };
    Peer::new(PeerId::from_raw(handle), identity, 1, engine)
}

/// Submits a WRITE of this many slices of 64 KiB, with a notification.
pub fn submit(peer: &Peer, handle: u64, slices: u64) -> Arc<Transfer> {
    submit_with(peer, handle, slices, |_| ())
}

/// Submits a WRITE as `submit` does, without a notification.
pub fn submit_plain(peer: &Peer, handle: u64, slices: u64) -> Arc<Transfer> {
    submit_with(peer, handle, slices, |spec| spec.notify = None)
}

/// Submits a WRITE as `submit` does, after `change`.
pub fn submit_with(
    peer: &Peer,
    handle: u64,
    slices: u64,
    change: impl FnOnce(&mut TransferSpec),
) -> Arc<Transfer> {
    let length = 64 * KIB;
    let at = |index: u64| 0x10000 + index * u64::from(length);
    let slice = |index: u64| Slice {
        local: at(index),
        remote: at(index),
        region: RegionId::from_raw(9),
        first_offset: 0,
        length,
        first: index as u32,
    };
    let request = |index| Request {
        local: at(index),
        remote: at(index),
        length: length.into(),
        remote_region: RegionId::from_raw(9),
    };
    let mut spec = TransferSpec {
        peer: peer.handle,
        op: Op::Write,
        requests: (0..slices).map(request).collect(),
        order: Vec::new(),
        slices: (0..slices).map(slice).collect(),
        regions: Vec::new(),
        bytes: slices * u64::from(length),
        flags: TransferFlags::NONE,
        priority: 0,
        notify: Some(Box::from(*b"word")),
        channel: 0,
        submitted_ns: Monotonic::from_ns(1),
        deadline_ns: Monotonic::NEVER,
        user_data: 0,
        queue: None,
        transport: Transport::Tcp,
        allowed: u64::MAX,
    };
    change(&mut spec);
    let transfer = Arc::new(Transfer::new(TransferId::from_raw(handle), spec));
    peer.submit(transfer.clone()).unwrap();
    transfer
}

/// Bulk lanes post less at a time beside a conversation. A notification for each layer must not slow the layers down.
#[test]
fn small_transfers_are_a_conversation_and_notifications_alone_are_none() {
    for (slices, converses) in [(0, false), (1, true), (2, false)] {
        let peer = peer();
        submit(&peer, 1, slices);
        assert_eq!(peer.stats.conversation.goes_on(), converses, "{slices} slices of 64 KiB");
    }
}

fn limits(frame_bytes_max: u32, descriptors_max: usize) -> PullLimits {
    PullLimits {
        frame_bytes_max,
        descriptors_max,
        notification_bytes_max: Some(1000),
        read: true,
        write: true,
    }
}

const WIDE: u32 = 1024 * KIB;

fn pull(peer: &Peer, express: bool, frame_bytes_max: u32) -> Option<Pulled> {
    peer.pull(Transport::Tcp, express, limits(frame_bytes_max, FRAME_DESCRIPTORS_MAX))
}

/// Pulls the only transfer's data, which must be one frame with its notification.
#[track_caller]
fn pull_whole(peer: &Peer, frame_bytes_max: u32) -> SliceRange {
    match pull(peer, false, frame_bytes_max) {
        Some(Pulled::Slices { range, with_notification: true, .. }) => range,
        Some(Pulled::Slices { range, .. }) => panic!("{range:?} without the number"),
        _ => panic!("no data is queued"),
    }
}

pub fn pull_notification(peer: &Peer, transport: Transport) -> Option<Pulled> {
    peer.pull(transport, true, limits(WIDE, FRAME_DESCRIPTORS_MAX))
}

/// Pulls the numbers of all queued skips.
pub fn skips(peer: &Peer, transport: Transport) -> Vec<u64> {
    std::iter::from_fn(|| pull_notification(peer, transport))
        .map(|pulled| match pulled {
            Pulled::Skip(number) => number,
            Pulled::Notify(_) => panic!("a notification is queued"),
            Pulled::Slices { .. } => panic!("data is queued"),
        })
        .collect()
}

#[test]
fn what_went_with_its_number_goes_again_with_it_and_whole() {
    let peer = peer();
    let transfer = submit(&peer, 1, 8);
    let run = pull_whole(&peer, WIDE);
    assert_eq!(run, SliceRange { first: 0, end: 8 });
    // Its lane is lost, and the current limits are small.
    peer.release_run(&transfer, run, true, Fence::Confirmed, &mut peer.after());
    assert_eq!(pull_whole(&peer, 128 * KIB), run);
    peer.release_run(&transfer, run, true, Fence::Confirmed, &mut peer.after());
    match peer.pull(Transport::Tcp, false, limits(WIDE, 3)) {
        Some(Pulled::Slices {
            range: SliceRange { first: 0, end: 8 },
            with_notification: true,
            bytes,
            ..
        }) => {
            assert_eq!(bytes, 8 * 64 * KIB);
        }
        _ => panic!("cut by the number of descriptors"),
    }
    peer.confirm(&transfer, run, u64::from(8 * 64 * KIB), &[], true, &mut peer.after());
    let result = transfer.result().unwrap();
    assert_eq!((result.state, result.notification), (State::Done, Notification::Delivered));
}

#[test]
fn what_went_without_a_number_goes_again_as_it_fits() {
    let peer = peer();
    let transfer = submit(&peer, 1, 8);
    assert!(matches!(
        pull(&peer, false, 128 * KIB),
        Some(Pulled::Slices { range: SliceRange { first: 0, end: 2 }, with_notification: false, .. })
    ));
    peer.release_run(&transfer, SliceRange { first: 0, end: 2 }, false, Fence::Confirmed, &mut peer.after());
    assert!(matches!(
        pull(&peer, false, 64 * KIB),
        Some(Pulled::Slices { range: SliceRange { first: 0, end: 1 }, .. })
    ));
}

#[test]
fn a_number_that_was_posted_is_skipped_when_its_frame_is_given_up() {
    let peer = peer();
    let transfer = submit(&peer, 1, 2);
    let run = pull_whole(&peer, WIDE);
    assert!(peer.strike(&transfer, CANCEL));
    assert_eq!(skips(&peer, Transport::Tcp), []);
    peer.release_run(&transfer, run, true, Fence::Lease, &mut peer.after());
    assert_eq!(skips(&peer, Transport::Tcp), [0]);
    let result = transfer.result().unwrap();
    assert_eq!((result.state, result.notification), (State::Cancelled, Notification::Unknown));
    assert_eq!(result.fence, Fence::Lease);
}

#[test]
fn a_number_that_was_posted_is_skipped_when_its_notification_is_given_up() {
    let peer = peer();
    let transfer = submit(&peer, 1, 0);
    assert!(matches!(pull(&peer, true, WIDE), Some(Pulled::Notify(_))));
    assert!(peer.strike(&transfer, CANCEL));
    peer.release_notification(&transfer, &mut peer.after());
    assert_eq!(skips(&peer, Transport::Tcp), [0]);
    assert_eq!(transfer.result().unwrap().notification, Notification::Unknown);
    // A lost skip is posted again.
    peer.release_skip(0);
    assert_eq!(skips(&peer, Transport::Tcp), [0]);
}

/// A notification that waits to be sent again may have arrived the first time: its state is not NOT_SENT.
#[test]
fn what_waits_to_go_again_is_in_doubt_when_it_is_struck() {
    let peer = peer();
    let transfer = submit(&peer, 1, 2);
    let run = pull_whole(&peer, WIDE);
    peer.release_run(&transfer, run, true, Fence::Confirmed, &mut peer.after());
    assert!(peer.strike(&transfer, CANCEL));
    assert_eq!(transfer.result().unwrap().notification, Notification::Unknown);
    let notification = submit(&peer, 2, 0);
    assert!(matches!(pull(&peer, true, WIDE), Some(Pulled::Skip(0))));
    assert!(matches!(pull(&peer, true, WIDE), Some(Pulled::Notify(_))));
    peer.release_notification(&notification, &mut peer.after());
    assert!(peer.strike(&notification, CANCEL));
    assert_eq!(notification.result().unwrap().notification, Notification::Unknown);
    // A notification that was never posted is NOT_SENT.
    let fresh = submit(&peer, 3, 2);
    assert!(peer.strike(&fresh, CANCEL));
    assert_eq!(fresh.result().unwrap().notification, Notification::NotSent);
    assert_eq!(skips(&peer, Transport::Tcp), [1, 2]);
}

/// The strike comes too late: all frames are posted, and all of them are acknowledged.
#[test]
fn what_is_confirmed_all_the_same_is_done_and_not_cancelled() {
    let peer = peer();
    for late in [CANCEL, Strike { status: Status::Timeout, os_error: libc::ETIMEDOUT }] {
        let with_notification = submit(&peer, 1, 2);
        let run = pull_whole(&peer, WIDE);
        let alone = submit_with(&peer, 2, 2, |spec| spec.notify = None);
        assert!(matches!(
            pull(&peer, false, WIDE),
            Some(Pulled::Slices { range: SliceRange { first: 0, end: 2 }, .. })
        ));
        for (transfer, notification) in
            [(&with_notification, Notification::Delivered), (&alone, Notification::None)]
        {
            assert!(peer.strike(transfer, late));
            let notified = notification == Notification::Delivered;
            peer.confirm(transfer, run, u64::from(2 * 64 * KIB), &[], notified, &mut peer.after());
            let result = transfer.result().unwrap();
            assert_eq!((result.state, result.status), (State::Done, Status::Ok));
            assert_eq!((result.fence, result.notification), (Fence::Confirmed, notification));
        }
    }
}

/// Slices are sent again behind a lease. A target that was stopped in the middle of the first frame may still apply
/// that frame after the transfer's end. So the fence of this transfer, although DONE, is not CONFIRMED.
#[test]
fn what_was_sent_again_behind_a_lease_keeps_that_fence() {
    let peer = peer();
    for (first, second, expected) in [
        (Fence::Lease, Fence::Confirmed, Fence::Lease),
        (Fence::Confirmed, Fence::Lease, Fence::Lease),
        (Fence::Confirmed, Fence::Confirmed, Fence::Confirmed),
    ] {
        let transfer = submit_plain(&peer, 1, 2);
        let posted = || match pull(&peer, false, WIDE) {
            Some(Pulled::Slices { range, .. }) => range,
            _ => panic!("slices wait"),
        };
        for fence in [first, second] {
            peer.release_run(&transfer, posted(), false, fence, &mut peer.after());
        }
        peer.confirm(&transfer, posted(), u64::from(2 * 64 * KIB), &[], false, &mut peer.after());
        let result = transfer.result().unwrap();
        assert_eq!((result.state, result.fence), (State::Done, expected));
    }
}

/// The records of a lost peer's lanes may be released before the sweep strikes their transfers.
#[test]
fn what_a_lost_peer_leaves_never_ends_ok() {
    let peer = peer();
    let (data, unposted) = (submit_plain(&peer, 1, 2), submit_plain(&peer, 2, 2));
    assert!(matches!(
        pull(&peer, false, 64 * KIB),
        Some(Pulled::Slices { range: SliceRange { first: 0, end: 1 }, .. })
    ));
    let notification = submit(&peer, 3, 0);
    assert!(matches!(pull_notification(&peer, Transport::Tcp), Some(Pulled::Notify(_))));
    peer.set_lost(Status::Closed);
    peer.release_run(&data, SliceRange { first: 0, end: 1 }, false, Fence::Lease, &mut peer.after());
    peer.release_notification(&notification, &mut peer.after());
    let ended = |transfer: &Transfer| {
        let result = transfer.result().unwrap();
        (result.state, result.status, result.fence, result.notification)
    };
    assert_eq!(ended(&data), (State::Failed, Status::Closed, Fence::Lease, Notification::None));
    assert_eq!(
        ended(&notification),
        (State::Failed, Status::Closed, Fence::Confirmed, Notification::Unknown)
    );
    assert!(unposted.is_pending());
    assert!(!peer.sweep(Monotonic::from_ns(1)));
    assert_eq!(ended(&unposted), (State::Failed, Status::Closed, Fence::Confirmed, Notification::None));
}

#[test]
fn data_confirmed_by_a_lost_peer_does_not_end_ok_without_its_notification() {
    let peer = peer();
    let transfer = submit(&peer, 1, 2);
    assert!(matches!(
        pull(&peer, false, 64 * KIB),
        Some(Pulled::Slices { range: SliceRange { first: 0, end: 1 }, .. })
    ));
    assert!(matches!(
        pull(&peer, false, 64 * KIB),
        Some(Pulled::Slices { range: SliceRange { first: 1, end: 2 }, .. })
    ));
    peer.set_lost(Status::PeerLost);
    peer.confirm(
        &transfer,
        SliceRange { first: 0, end: 2 },
        u64::from(2 * 64 * KIB),
        &[],
        false,
        &mut peer.after(),
    );
    let result = transfer.result().unwrap();
    assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost));
    assert_eq!(result.notification, Notification::NotSent);
}

/// The target does not decide a number whose data it refused: it waits for the skip.
#[test]
fn the_number_of_data_that_was_refused_in_part_is_skipped() {
    let peer = peer();
    let transfer = submit(&peer, 1, 2);
    let run = pull_whole(&peer, WIDE);
    let refused = Failure { slice: 1, status: Status::Stale, os_error: 0, vendor_error: 0 };
    peer.confirm(&transfer, run, u64::from(2 * 64 * KIB), &[refused], true, &mut peer.after());
    assert_eq!(skips(&peer, Transport::Tcp), [0]);
    assert_eq!(transfer.result().unwrap().notification, Notification::NotSent);
}

/// A path that posts nothing by itself.
pub struct Still;

impl Path for Still {
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }
    fn post(&self, _: Class, _: Option<Monotonic>, _: &mut After) {}
    fn nudge(&self, _: &mut After) {}
    fn lanes(&self) -> usize {
        1
    }
}

/// Opens a path other than TCP; the test pulls its frames.
pub fn open(peer: &Peer, transport: Transport) {
    peer.set_path(transport, PathStatus::Open(Arc::new(Still), String::new()));
}

/// Each transport takes the notifications that the router leaves to it, the lowest number first.
#[test]
fn notifications_apart_from_data_change_their_transport_with_the_path_of_rdma() {
    let peer = peer();
    let submit = |number: u64, allowed: u64, bytes: usize| {
        submit_with(&peer, number, 0, |spec| {
            (spec.allowed, spec.notify) = (allowed, Some(vec![number as u8; bytes].into()));
        })
    };
    let (all, tcp, longest) = (u64::MAX, Transport::Tcp.bit(), RDMA_NOTIFY_BYTES_MAX);
    let wishes = [(all, longest + 1), (all, 1), (all, longest), (tcp, 1), (all, 1), (all, 1), (tcp, 1)];
    let transfers: Vec<_> =
        (0..).zip(wishes).map(|(number, (allowed, bytes))| submit(number, allowed, bytes)).collect();
    let words =
        PullLimits { notification_bytes_max: Some(NOTIFY_BYTES_MAX), ..limits(WIDE, FRAME_DESCRIPTORS_MAX) };
    let pull = |transport| match peer.pull(transport, true, words) {
        Some(Pulled::Notify(transfer)) => Some(Ok(transfer.handle.raw())),
        Some(Pulled::Skip(number)) => Some(Err(number)),
        Some(Pulled::Slices { .. }) => panic!("data is queued"),
        None => None,
    };
    open(&peer, Transport::Rdma);
    assert_eq!([pull(Transport::Rdma), pull(Transport::Tcp)], [Some(Ok(1)), Some(Ok(0))]);
    // A notification that was posted is given up: RDMA carries the skip of its number, before higher numbers.
    assert!(peer.strike(&transfers[1], CANCEL));
    peer.release_notification(&transfers[1], &mut peer.after());
    assert_eq!([pull(Transport::Rdma), pull(Transport::Rdma)], [Some(Err(1)), Some(Ok(2))]);
    assert!(peer.strike(&transfers[5], CANCEL), "not posted yet");
    peer.set_path(Transport::Rdma, PathStatus::Pending("it is being made again".into()));
    assert!(!peer.has_work(Transport::Rdma, true));
    assert_eq!([pull(Transport::Tcp), pull(Transport::Tcp)], [Some(Ok(3)), Some(Ok(4))]);
    open(&peer, Transport::Rdma);
    assert_eq!([pull(Transport::Tcp), pull(Transport::Tcp)], [Some(Ok(6)), None]);
    assert!(peer.has_work(Transport::Rdma, true) && !peer.has_work(Transport::Tcp, true));
    assert_eq!([pull(Transport::Rdma), pull(Transport::Rdma)], [Some(Err(5)), None]);
    assert!(!peer.has_work(Transport::Rdma, true));
}

/// Data that may have arrived with its notification is not posted on a path that does not know notification numbers.
#[test]
fn what_went_with_its_number_stays_on_tcp() {
    let peer = peer();
    let transfer = submit(&peer, 1, 2);
    let run = pull_whole(&peer, WIDE);
    for transport in [Transport::Local, Transport::Rdma, Transport::Staged] {
        open(&peer, transport);
    }
    peer.release_run(&transfer, run, true, Fence::Confirmed, &mut peer.after());
    for transport in [Transport::Local, Transport::Rdma, Transport::Staged] {
        assert!(peer.pull(transport, false, limits(WIDE, FRAME_DESCRIPTORS_MAX)).is_none());
    }
    assert_eq!(pull_whole(&peer, 64 * KIB), run);
}

/// A target that knows its memory would refuse the slices there again.
#[test]
fn what_turned_out_to_be_a_device_s_does_not_go_back_to_tcp() {
    let peer = peer();
    open(&peer, Transport::Staged);
    let transfer =
        submit_with(&peer, 1, 2, |spec| (spec.flags, spec.notify) = (TransferFlags::UNKNOWN, None));
    assert!(matches!(
        pull(&peer, false, WIDE),
        Some(Pulled::Slices { range: SliceRange { first: 0, end: 2 }, .. })
    ));
    let refused = |slice| Failure { slice, status: Status::Unsupported, os_error: 0, vendor_error: 0 };
    peer.answered(
        &transfer,
        SliceRange { first: 0, end: 2 },
        u64::from(2 * 64 * KIB),
        &[refused(0), refused(1)],
        false,
        &mut peer.after(),
    );
    peer.set_path(Transport::Staged, PathStatus::Pending("it is being made again".into()));
    assert!(pull(&peer, false, WIDE).is_none(), "it is queued for TCP");
    open(&peer, Transport::Staged);
    let staged = peer.pull(Transport::Staged, false, limits(WIDE, FRAME_DESCRIPTORS_MAX));
    assert!(matches!(
        staged,
        Some(Pulled::Slices { range: SliceRange { first: 0, end: 2 }, is_device: true, .. })
    ));
}

#[test]
fn whatever_bears_on_a_path_is_another_version() {
    let peer = peer();
    let plain = Asked::plain(u64::MAX);
    let mut last = peer.facts(plain).version;
    let mut is_new = |what: &str| {
        let version = std::mem::replace(&mut last, peer.facts(plain).version);
        assert!(version < last, "{what}");
    };
    let states = |expected: [PathState; 2]| {
        let facts = peer.facts(plain);
        assert_eq!([Transport::Tcp, Transport::Rdma].map(|transport| facts.state(transport)), expected);
    };
    states([PathState::Pending; 2]);
    peer.set_state(PeerState::Up);
    is_new("the session stands");
    open(&peer, Transport::Rdma);
    is_new("a path is open");
    states([PathState::Open; 2]);
    peer.note_change();
    is_new("a path says so");
    peer.remote.add(Vec::new());
    is_new("regions are announced");
    peer.remote.remove(&[RegionId::from_raw(1)]);
    is_new("regions are gone");
    peer.set_path(Transport::Rdma, PathStatus::Pending(String::new()));
    is_new("a path is made again");
    peer.set_state(PeerState::Down);
    is_new("the session is lost");
    states([PathState::Pending; 2]);
    peer.set_path(Transport::Rdma, PathStatus::Shut(String::new()));
    peer.set_lost(Status::PeerLost);
    is_new("the peer is lost");
    peer.set_state(PeerState::Up);
    assert!(peer.facts(plain).is_lost);
    states([PathState::Shut; 2]);
}
