//! Tests of the router: a row for each rule, and properties for arbitrary facts. `tests/plan_properties.rs` has the
//! general properties of the bytes of slices.

use super::*;
use crate::limits::{NOTIFY_BYTES_MAX, RDMA_NOTIFY_BYTES_MAX};
use crate::plan::Range;
use crate::status::Status;
use crate::types::{MemoryKind, RegionId, Request, Slice, Transport};
use proptest::prelude::*;
use PathState::*;
use Transport::{Cuda, Local, Loopback, None as Nothing, Rdma, Staged, Tcp};

const HOSTS: [Transport; 3] = [Tcp, Local, Rdma];
const ALL: [Transport; 5] = [Tcp, Local, Rdma, Loopback, Staged];

fn mask(all: &[Transport]) -> u64 {
    all.iter().fold(0, |mask, transport| mask | transport.bit())
}

/// All paths except the test transport's are open, and everything is allowed.
fn facts() -> Facts {
    let mut facts = Facts::new(7, [Open; Transport::COUNT], Asked::plain(u64::MAX));
    facts.set_state(Loopback, Shut);
    facts
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts();
    change(&mut facts);
    facts
}

/// Facts without the same-host path, and with these states of the other two.
fn apart(rdma: PathState, tcp: PathState) -> Facts {
    with(|facts| {
        facts.set_state(Local, Shut);
        facts.set_state(Rdma, rdma);
        facts.set_state(Tcp, tcp);
    })
}

fn device(change: impl FnOnce(&mut Facts)) -> Facts {
    with(|facts| {
        facts.set_state(Local, Shut);
        facts.memory = Memory { device_here: true, device_there: true, nics_here: true, is_part: false };
        change(facts);
    })
}

/// The rule, the facts, the chosen path, the woken paths, and the reason against another path.
type Row = (&'static str, Facts, Transport, u64, (Transport, Why));

fn rows_of_host_memory() -> Vec<Row> {
    let only = |mut facts: Facts, all: &[Transport]| {
        facts.asked.allowed = mask(all);
        facts
    };
    let summed = |mut facts: Facts| {
        facts.asked.checksum = true;
        facts
    };
    let unreached = |mut facts: Facts, transport| {
        facts.set_reaches(transport, false);
        facts
    };
    vec![
        ("the same-host path is the best", facts(), Local, 0, (Rdma, Why::Worse(Local))),
        ("TCP is the last choice", apart(Open, Open), Rdma, 0, (Tcp, Why::Worse(Rdma))),
        ("TCP carries what no other path does", apart(Shut, Open), Tcp, 0, (Rdma, Why::Shut)),
        ("a transport must be allowed", only(facts(), &[Tcp, Rdma]), Rdma, 0, (Local, Why::NotAllowed)),
        ("TCP must be allowed too", only(facts(), &[Cuda]), Nothing, 0, (Tcp, Why::NotAllowed)),
        ("TCP alone has checksums", summed(facts()), Tcp, 0, (Local, Why::Checksum)),
        ("no checksum without TCP", only(summed(facts()), &[Local]), Nothing, 0, (Local, Why::Checksum)),
        ("a path must reach the ranges", unreached(facts(), Local), Rdma, 0, (Local, Why::Unreached)),
        ("a path that is being made is not waited for", apart(Pending, Open), Tcp, 0, (Rdma, Why::Pending)),
        ("a failed path is not waited for", apart(Broken, Open), Tcp, 0, (Rdma, Why::Broken)),
        ("an idle path is woken", apart(Idle, Open), Tcp, Rdma.bit(), (Rdma, Why::Idle)),
        ("no wake if not allowed", only(apart(Idle, Open), &[Tcp]), Tcp, 0, (Rdma, Why::NotAllowed)),
        ("no wake for checksums", summed(apart(Idle, Open)), Tcp, 0, (Rdma, Why::Checksum)),
        (
            "an idle path is not woken if a better one is open",
            with(|facts| facts.set_state(Rdma, Idle)),
            Local,
            0,
            (Tcp, Why::Worse(Local)),
        ),
        ("TCP is waited for first", apart(Pending, Pending), Tcp, 0, (Rdma, Why::Pending)),
        ("RDMA alone is waited for", only(apart(Pending, Open), &[Rdma]), Rdma, 0, (Tcp, Why::NotAllowed)),
        ("even if broken", only(apart(Broken, Open), &[Rdma]), Rdma, 0, (Rdma, Why::Broken)),
        ("even if idle", only(apart(Idle, Open), &[Rdma]), Rdma, Rdma.bit(), (Rdma, Why::Idle)),
        ("but not if shut", only(apart(Shut, Open), &[Rdma]), Nothing, 0, (Rdma, Why::Shut)),
        (
            "RDMA alone is no path if it does not reach the ranges",
            only(unreached(apart(Open, Open), Rdma), &[Rdma]),
            Nothing,
            0,
            (Rdma, Why::Unreached),
        ),
        (
            "a lost peer is not waited for",
            with(|facts| {
                facts.is_lost = true;
                HOSTS.iter().for_each(|transport| facts.set_state(*transport, Pending));
                facts.set_state(Tcp, Shut);
            }),
            Nothing,
            0,
            (Tcp, Why::Shut),
        ),
        (
            "a frame that may have arrived with its notification is sent again by TCP, whatever is allowed",
            only(with(|facts| facts.is_replay = true), &[Local]),
            Tcp,
            0,
            (Local, Why::Replay),
        ),
    ]
}

fn rows_of_devices() -> Vec<Row> {
    vec![
        ("the NICs reach the memory at both ends", device(|_| ()), Rdma, 0, (Staged, Why::Worse(Rdma))),
        (
            "the NIC reaches the memory at one end, and the other end is host memory",
            device(|facts| facts.memory = Memory { device_there: true, ..Memory::default() }),
            Rdma,
            0,
            (Tcp, Why::DeviceMemory),
        ),
        (
            "RDMA needs keys here",
            device(|facts| facts.memory.nics_here = false),
            Staged,
            0,
            (Rdma, Why::NicsHere),
        ),
        (
            "RDMA needs keys at the peer",
            device(|facts| facts.set_reaches(Rdma, false)),
            Staged,
            0,
            (Rdma, Why::Unreached),
        ),
        (
            "device memory does not go by RDMA within one host",
            device(|facts| facts.set_state(Local, Open)),
            Staged,
            0,
            (Rdma, Why::OneHost),
        ),
        (
            "it does if the same-host path is not allowed",
            device(|facts| {
                facts.set_state(Local, Open);
                facts.asked.allowed &= !Local.bit();
            }),
            Rdma,
            0,
            (Local, Why::NotAllowed),
        ),
        (
            "device memory with a checksum is staged",
            device(|facts| facts.asked.checksum = true),
            Staged,
            0,
            (Rdma, Why::Checksum),
        ),
        (
            "device memory is staged while RDMA is idle",
            device(|facts| facts.set_state(Rdma, Idle)),
            Staged,
            Rdma.bit(),
            (Rdma, Why::Idle),
        ),
        (
            "staging needs some allowed transport, and its parts decide again",
            device(|facts| facts.asked.allowed = Local.bit()),
            Staged,
            0,
            (Tcp, Why::NotAllowed),
        ),
        (
            "nothing is staged if no transport is allowed",
            device(|facts| facts.asked.allowed = 0),
            Nothing,
            0,
            (Staged, Why::NotAllowed),
        ),
        (
            "staging is waited for",
            device(|facts| {
                facts.set_state(Rdma, Pending);
                facts.set_state(Staged, Pending);
            }),
            Staged,
            0,
            (Rdma, Why::Pending),
        ),
        (
            "RDMA is not waited for, because it may not reach device memory",
            device(|facts| {
                facts.set_state(Rdma, Pending);
                facts.set_state(Staged, Shut);
            }),
            Nothing,
            0,
            (Staged, Why::Shut),
        ),
        (
            "a part is never staged",
            device(|facts| {
                facts.set_state(Rdma, Shut);
                facts.memory.is_part = true;
            }),
            Tcp,
            0,
            (Staged, Why::HostMemory),
        ),
    ]
}

#[test]
fn each_rule_has_its_row() {
    for (rule, facts, path, wake, (other, expected)) in [rows_of_host_memory(), rows_of_devices()].concat() {
        let decision = decide(&facts);
        assert_eq!((decision.path, decision.wake), (path, wake), "{rule}: {facts:?}");
        let is_there = path != Nothing && facts.state(path) == Open;
        assert_eq!(decision.waits, path != Nothing && !is_there, "{rule}");
        assert_eq!(why(&facts, other), expected, "{rule}: {facts:?}");
        if is_there {
            assert_eq!(why(&facts, path), Why::Best, "{rule}");
        }
    }
}

#[test]
fn memory_between_devices() {
    use Between::*;
    let (cuda, ascend) = (MemoryKind::Cuda, MemoryKind::Ascend);
    let plain = Asked::plain(u64::MAX);
    let [summed, barred] = [Asked { checksum: true, ..plain }, Asked::plain(!Cuda.bit())];
    for (asked, kinds, same_host, crosses, expected) in [
        (plain, (cuda, cuda), true, false, (Mapped, None)),
        (plain, (ascend, ascend), true, true, (Mapped, None)),
        (plain, (ascend, ascend), false, true, (Bridged, None)),
        (plain, (cuda, cuda), false, false, (Hosts, Some(Why::OtherHost))),
        (plain, (cuda, ascend), true, true, (Hosts, Some(Why::OtherDevices))),
        (summed, (cuda, cuda), true, true, (Hosts, Some(Why::Checksum))),
        (barred, (cuda, cuda), true, true, (Hosts, Some(Why::NotAllowed))),
        (barred, (ascend, ascend), true, true, (Mapped, None)),
    ] {
        assert_eq!(between_devices(&asked, kinds, same_host, crosses), expected, "{asked:?} {kinds:?}");
    }
}

#[test]
fn what_is_refused_as_a_device_s_is_staged_once() {
    for status in [Status::Unsupported, Status::Access] {
        assert!(stages_refused(true, status));
        assert!(!stages_refused(false, status));
    }
    assert!(!stages_refused(true, Status::Stale));
}

#[test]
fn a_notification_apart_from_its_data_has_a_path_of_its_own() {
    let longest = RDMA_NOTIFY_BYTES_MAX;
    for (rule, allowed, bytes, open, path) in [
        ("RDMA carries short notifications", u64::MAX, 4, mask(&[Rdma]), Rdma),
        ("even if data has a better path", u64::MAX, 4, mask(&[Local, Rdma, Staged]), Rdma),
        ("even if TCP is not allowed", mask(&[Rdma]), 0, mask(&[Rdma]), Rdma),
        ("TCP does while RDMA is not open", u64::MAX, 4, mask(&[Local, Staged, Loopback]), Tcp),
        ("TCP does while no path is open", u64::MAX, 4, 0, Tcp),
        ("TCP does if RDMA is not allowed", !Rdma.bit(), 4, u64::MAX, Tcp),
        ("TCP does whatever is allowed", mask(&[Local]), 4, mask(&[Local]), Tcp),
        ("the longest notification by RDMA", u64::MAX, longest, u64::MAX, Rdma),
        ("a longer one goes by TCP", u64::MAX, longest + 1, u64::MAX, Tcp),
    ] {
        assert_eq!(NotificationPaths::of(allowed, bytes).now(open), path, "{rule}");
    }
    for (open, path) in [(Rdma.bit(), Rdma), (!Rdma.bit(), Tcp)] {
        assert_eq!(NotificationPaths::OF_SKIPS.now(open), path, "a skip is a short notification");
    }
}

/// Each reason has a text, and no two share it.
#[test]
fn every_reason_has_words_of_its_own() {
    use Why::*;
    let all = [
        Best,
        Worse(Local),
        NotAllowed,
        Checksum,
        DeviceMemory,
        HostMemory,
        OneHost,
        OtherDevices,
        OtherHost,
        NicsHere,
        Unreached,
        Replay,
        Why::Idle,
        Why::Broken,
        Why::Pending,
        Why::Shut,
    ];
    let mut texts = all.map(|why| why.to_string()).to_vec();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), all.len());
    assert!(texts.iter().all(|text| !text.is_empty()));
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let state =
        prop_oneof![3 => Just(Open), 1 => Just(Pending), 1 => Just(Shut), 1 => Just(Idle), 1 => Just(Broken)];
    let states = prop::collection::vec(state, Transport::COUNT);
    let allowed = prop_oneof![1 => Just(u64::MAX), 2 => 0..1u64 << Transport::COUNT];
    let reaches = prop::array::uniform3(prop::option::of(any::<bool>()));
    let flags = prop::array::uniform10(prop::bool::weighted(0.3));
    (states, allowed, reaches, flags).prop_map(|(states, allowed, reaches, flags)| {
        let [checksum, ordered, notify, held, device_here, device_there, nics_here, is_part, is_replay, is_lost] =
            flags;
        let states = std::array::from_fn(|at| states[at]);
        let asked = Asked { allowed, checksum, ordered, notify, held };
        let mut facts = Facts::new(1, states, asked);
        facts.memory = Memory { device_here, device_there, nics_here, is_part };
        (facts.is_replay, facts.is_lost) = (is_replay && !is_part, is_lost);
        for (transport, reaches) in FASTER.iter().copied().zip(reaches) {
            reaches.into_iter().for_each(|reaches| facts.set_reaches(transport, reaches));
        }
        facts
    })
}

/// A second implementation that does not depend on the order of the rules: returns true if this path stands and may
/// carry the transfer.
fn fits(facts: &Facts, transport: Transport) -> bool {
    let Facts { asked, memory, .. } = facts;
    let device = memory.device_here || memory.device_there;
    let plain = asked.allows(transport) && !asked.checksum && facts.reaches(transport) != Some(false);
    let one_host = asked.allows(Local) && facts.state(Local) == Open;
    let open = facts.state(transport) == Open;
    match transport {
        Tcp => open && (facts.is_replay || asked.allows(Tcp) && (!device || memory.is_part)),
        _ if facts.is_replay => false,
        Local | Loopback => open && plain && !device,
        Rdma => open && plain && (!device || !one_host && (memory.nics_here || !memory.device_here)),
        Staged => open && device && !memory.is_part && asked.allowed != 0,
        _ => false,
    }
}

proptest! {
    #![proptest_config(crate::cases::most(4096))]

    /// The chosen path may carry the transfer, or is waited for; and if a path fits, a fitting path is chosen.
    #[test]
    fn what_is_chosen_fits_and_what_fits_is_chosen(facts in any_facts()) {
        let Decision { path, waits, wake } = decide(&facts);
        let best = ORDER.iter().copied().find(|transport| fits(&facts, *transport));
        if path != Nothing && !waits {
            prop_assert_eq!(Some(path), best);
        }
        // TCP and staging are waited for, but not if another path is open.
        prop_assert!(best.is_none() || !waits || matches!(path, Staged | Tcp) && facts.state(path) == Pending);
        prop_assert!(best.is_none() || path != Nothing);
        if waits {
            prop_assert!(path == Staged && facts.asked.allowed != 0 || facts.is_replay || facts.asked.allows(path));
            prop_assert!(facts.state(path) != Open && facts.state(path) != Shut);
        }
        // A woken path is idle, may carry the transfer, and would then be chosen.
        for transport in ALL.into_iter().filter(|transport| wake & transport.bit() != 0) {
            prop_assert_eq!(facts.state(transport), Idle);
            let mut awake = facts;
            awake.set_state(transport, Open);
            prop_assert_eq!(decide(&awake).path, transport);
        }
        prop_assert_eq!(wake & !mask(&ALL), 0);
    }

    /// At most one path is reported as the best, and it is the decided path. Every other path has a reason that is
    /// true.
    #[test]
    fn what_is_told_is_what_is_decided(facts in any_facts()) {
        let Decision { path, waits, .. } = decide(&facts);
        for transport in ALL {
            match why(&facts, transport) {
                Why::Best => prop_assert!(transport == path && !waits),
                Why::Worse(better) => prop_assert!(better == path && fits(&facts, transport)),
                Why::NotAllowed => prop_assert!(!facts.asked.allows(transport) && (transport != Staged || facts.asked.allowed == 0)),
                Why::Checksum => prop_assert!(facts.asked.checksum),
                Why::Unreached => prop_assert_eq!(facts.reaches(transport), Some(false)),
                Why::Pending => prop_assert_eq!(facts.state(transport), Pending),
                Why::Shut => prop_assert_eq!(facts.state(transport), Shut),
                Why::Idle => prop_assert_eq!(facts.state(transport), Idle),
                Why::Broken => prop_assert_eq!(facts.state(transport), Broken),
                Why::Replay => prop_assert!(facts.is_replay),
                Why::DeviceMemory | Why::OneHost | Why::NicsHere => prop_assert!(facts.memory.has_device()),
                Why::HostMemory => prop_assert!(transport == Staged),
                Why::OtherDevices | Why::OtherHost => prop_assert!(false, "of two devices"),
            }
            if why(&facts, transport) != Why::Best {
                prop_assert!(waits || transport != path);
            }
        }
    }

    /// Paths are asked until the decision depends on no further answer, each path once.
    #[test]
    fn each_path_is_asked_once(facts in any_facts(), answers in prop::array::uniform3(any::<bool>())) {
        let mut facts = facts;
        let mut asked = Vec::new();
        while let Some(transport) = asks(&facts) {
            prop_assert!(!asked.contains(&transport) && FASTER.contains(&transport));
            prop_assert!(facts.reaches(transport).is_none() && fits(&facts, transport), "asked in vain");
            asked.push(transport);
            facts.set_reaches(transport, answers[asked.len() - 1]);
        }
        let Decision { path, waits, .. } = decide(&facts);
        prop_assert!(waits || !FASTER.contains(&path) || facts.reaches(path) == Some(true));
    }

    /// A transport posts a notification if it is one that is asked for notifications, and RDMA exactly if it is open,
    /// allowed, and takes notifications of that length.
    #[test]
    fn each_notification_is_posted_by_a_transport_that_is_asked(
        allowed in any::<u64>(),
        open in any::<u64>(),
        bytes in 0..=NOTIFY_BYTES_MAX,
        short in 0..2 * RDMA_NOTIFY_BYTES_MAX,
    ) {
        for bytes in [bytes, short] {
            let path = NotificationPaths::of(allowed, bytes).now(open);
            prop_assert!(NOTIFIERS.contains(&path));
            let goes_by_rdma = open & allowed & mask(&[Rdma]) != 0 && bytes < RDMA_NOTIFY_BYTES_MAX + 1;
            prop_assert_eq!(path == Rdma, goes_by_rdma);
        }
    }

    /// A copy past the queue uses the path that the router would choose.
    #[test]
    fn what_is_copied_at_once_would_have_gone_the_same_way(facts in any_facts()) {
        let mut facts = facts;
        facts.memory = Memory::default();
        facts.is_replay = false;
        facts.set_state(Local, Open);
        facts.set_reaches(Local, true);
        if copies_at_once(&facts.asked) {
            prop_assert_eq!(decide(&facts).path, Local);
        }
    }
}

#[test]
fn slices_stop_at_the_limit() {
    let range =
        |length| Range { local: 0, remote: 1 << 40, length, region: RegionId::NONE, first: 0, count: 1 };
    let requests = [Request { local: 0, remote: 1 << 40, length: 10, remote_region: RegionId::NONE }];
    let of = |limit| slice(&[range(10)], &[], &requests, limit);
    assert_eq!(of(0).unwrap_err().status, Status::Invalid);
    assert_eq!(of(10).unwrap().len(), 1);
    assert_eq!(of(1).unwrap().len(), 10);
    let last = Slice {
        local: 9,
        remote: (1 << 40) + 9,
        region: RegionId::NONE,
        first_offset: 9,
        length: 1,
        first: 0,
    };
    assert_eq!(of(9).unwrap()[1], last);
}

#[test]
fn a_slice_knows_the_request_in_which_it_begins() {
    let requests: Vec<Request> = (0..4)
        .map(|nth| Request {
            local: nth * 3000,
            remote: nth * 3000,
            length: 3000,
            remote_region: RegionId::NONE,
        })
        .collect();
    let merged = Range { local: 0, remote: 0, length: 12000, region: RegionId::NONE, first: 0, count: 4 };
    let slices = slice(&[merged], &[], &requests, 4096).unwrap();
    let begins: Vec<_> = slices.iter().map(|slice| (slice.first, slice.first_offset)).collect();
    assert_eq!(begins, [(0, 0), (1, 1096), (2, 2192)]);
    let covered: Vec<_> = crate::request_map::requests_of(&[], &requests, &slices[2]).collect();
    assert_eq!(covered, [(2, 2192, 808), (3, 0, 3000)]);
}

#[test]
fn more_slices_than_memory_is_an_error() {
    let requests = [Request { local: 0, remote: 0, length: u64::MAX, remote_region: RegionId::NONE }];
    let whole = Range { local: 0, remote: 0, length: u64::MAX, region: RegionId::NONE, first: 0, count: 1 };
    assert_eq!(slice(&[whole, whole], &[], &requests, 1).unwrap_err().status, Status::NoMemory);
    assert_eq!(slice(&[whole], &[], &requests, 1).unwrap_err().status, Status::NoMemory);
}
