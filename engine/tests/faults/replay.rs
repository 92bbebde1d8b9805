//! Frames with a notification's number whose acknowledgement is lost: the replay is identical, and its data never
//! overwrites what the target's application wrote after the notification. And numbers that are skipped: later
//! notifications arrive, in order and once.

use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::*;
use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{
    Deadline, Engine, Memory, Notification, RegionOptions, State, Status, Transfer, TransferOptions,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

const PIECE: usize = 64 << 10;
const PIECES: usize = 8;
const BYTES: usize = PIECES * PIECE;

/// Two engines with a proxy between them that can lose the bytes of lanes, in one direction.
struct Scene {
    a: Engine,
    b: Engine,
    peer: PeerId,
    proxy: Proxy,
    local: Memory,
    queue: Arc<Queue>,
    numbers: Vec<u64>,
    loses: Arc<Loses>,
}

/// Selects lost bytes: of lanes with a connection number below the bound, in this direction, except the greeting.
#[derive(Default)]
struct Loses {
    forth: AtomicUsize,
    back: AtomicUsize,
    /// Loses bytes of express lanes only.
    express_only: AtomicBool,
    control_back: AtomicBool,
    /// Pieces lost in direction `Forth`: on express lanes, on the others.
    lost: [AtomicUsize; 2],
}

impl Loses {
    fn judge(&self, passing: &mut Passing) -> Verdict {
        let Some(lane) = passing.greeting else {
            let lost = passing.way == Way::Back && self.control_back.load(Ordering::SeqCst);
            return if lost { Verdict::Swallow } else { Verdict::Pass };
        };
        let bound = if passing.way == Way::Forth { &self.forth } else { &self.back };
        let spared = lane.slot > 0 && self.express_only.load(Ordering::SeqCst);
        if passing.at == 0 || spared || passing.connection >= bound.load(Ordering::SeqCst) {
            return Verdict::Pass;
        }
        if passing.way == Way::Forth {
            self.lost[lane.slot.min(1) as usize].fetch_add(1, Ordering::SeqCst);
        }
        Verdict::Swallow
    }

    fn lost(&self, slot: usize) -> usize {
        self.lost[slot].load(Ordering::SeqCst)
    }
}

impl Scene {
    /// Long leases: these tests are about replay, not about expiry on a slow machine.
    fn new() -> Scene {
        let settings =
            &[("lease_ms", "3000"), ("reconnect_timeout_ms", "8000"), ("progress_timeout_ms", "5000")];
        let (a, b) = (engine(settings), engine(settings));
        let loses = Arc::new(Loses::default());
        let judged = loses.clone();
        let proxy = Proxy::with_judge(b.address(), move |passing: &mut Passing| judged.judge(passing));
        let peer = connect(&a, &proxy.address);
        open_lanes(&a, &b, peer);
        let local = alloc(&a, BYTES);
        fill(&local, 3);
        let queue = b.queue(WHAT_NOTIFICATIONS, 16).unwrap();
        Scene { a, b, peer, proxy, local, queue, numbers: Vec::new(), loses }
    }

    /// Allocates memory of the target that the initiator knows: data for an unknown region is sent without its number.
    fn target(&self, bytes: usize) -> Memory {
        let remote = alloc(&self.b, bytes);
        self.a.probe(self.peer, None).unwrap();
        remote
    }

    /// Makes the present lanes lose everything that comes back on them.
    fn lose_answers(&self) {
        self.loses.back.store(self.proxy.connections().len(), Ordering::SeqCst);
    }

    fn submit(&self, requests: &[Request], word: u64) -> Transfer {
        let word = word.to_le_bytes();
        let options = TransferOptions { notify: Some(&word), deadline: Deadline::After(BOUND), ..options() };
        self.a.submit(self.peer, Op::Write, requests, &options).unwrap()
    }

    fn look(&mut self) {
        let mut events = Vec::new();
        self.queue.drain(&mut events, 1024);
        for event in events {
            let EventBody::Notification { bytes, .. } = event.body else { panic!("not a notification") };
            self.numbers.push(u64::from_le_bytes(bytes[..].try_into().unwrap()));
        }
    }

    #[track_caller]
    fn wait_for_numbers(&mut self, expected: &[u64]) {
        wait_until("the notifications come", || {
            self.look();
            self.numbers.len() >= expected.len()
        });
        assert_eq!(self.numbers, expected);
    }

    /// Sends small transfers one after another while `act` runs, so that large ones are gentle.
    fn while_conversing<T>(&self, act: impl FnOnce() -> T) -> T {
        let (here, there) = (alloc(&self.a, 8), alloc(&self.b, 8));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let one = request(&here, &there, 0, 8);
                    let Ok(small) = self.a.submit(self.peer, Op::Write, &[one], &options()) else { return };
                    // No longer: without a lane the conversation would not count as continuing.
                    let _ = small.wait(Some(Duration::from_millis(1)));
                }
            });
            let result = act();
            over.store(true, Ordering::SeqCst);
            result
        })
    }
}

/// Returns requests that a gentle lane would send in several frames.
fn pieces(local: &Memory, remote: u64, remote_region: RegionId) -> Vec<Request> {
    let piece = |at: usize| Request {
        local: local.address() + at as u64,
        remote: remote + at as u64,
        length: PIECE as u64,
        remote_region,
    };
    (0..PIECES).map(|index| piece(index * PIECE)).collect()
}

/// The acknowledgement of data and notification is lost, and the replay would be cut into small frames: bytes that the
/// application wrote after its notification stay (contract 10).
#[test]
fn a_gentle_replay_is_not_applied_over_what_the_application_wrote() {
    let _turn = alone();
    for connection_too in [false, true] {
        let mut scene = Scene::new();
        let remote = scene.target(BYTES);
        scene.lose_answers();
        let requests = pieces(&scene.local, remote.address(), remote.region());
        let transfer = scene.submit(&requests, 5);
        // The notification without an answer is repeated only with its data.
        scene.wait_for_numbers(&[5]);
        assert_pattern(&remote, 3, 0, BYTES);
        fill(&remote, 9);
        let result = scene.while_conversing(|| {
            scene.proxy.cut(connection_too);
            finish(&transfer)
        });
        assert_eq!((result.state, result.notification), (State::Done, Notification::Delivered));
        assert_pattern(&remote, 9, 0, BYTES);
        scene.wait_for_numbers(&[5]);
    }
}

/// Part of the data is refused, the refusal is lost, and the replay is accepted: the result states the true outcome of
/// the notification.
#[test]
fn a_replay_that_is_accepted_after_a_refusal_announces_what_it_says() {
    let _turn = alone();
    let mut scene = Scene::new();
    let ground = Box::leak(vec![0u64; BYTES / 8].into_boxed_slice()).as_mut_ptr() as u64;
    let register = |half: usize| {
        let address = ground + (half * BYTES / 2) as u64;
        // SAFETY: the memory is leaked.
        unsafe { scene.b.register(address as *mut u8, BYTES / 2, &RegionOptions::default()) }.unwrap()
    };
    let (_, second) = (register(0), register(1));
    scene.a.probe(scene.peer, None).unwrap();
    scene.loses.control_back.store(true, Ordering::SeqCst);
    scene.lose_answers();
    scene.b.unregister(second, Some(BOUND)).unwrap();
    let requests = pieces(&scene.local, ground, RegionId::NONE);
    let transfer = scene.submit(&requests, 5);
    wait_until("half of it is refused", || {
        scene.b.stats().unwrap().counts.requests_refused >= PIECES as u64 / 2
    });
    register(1);
    let result = scene.while_conversing(|| {
        scene.loses.control_back.store(false, Ordering::SeqCst);
        scene.proxy.cut(true);
        finish(&transfer)
    });
    assert_eq!((result.state, result.notification), (State::Done, Notification::Delivered), "{result:?}");
    scene.wait_for_numbers(&[5]);
    let mut found = vec![0u8; BYTES];
    // SAFETY: the memory is leaked, and nobody writes it any more.
    unsafe { std::ptr::copy_nonoverlapping(ground as *const u8, found.as_mut_ptr(), BYTES) };
    assert_eq!(misplaced(&found, 3, 0), None);
}

/// The manner in which the first notification is given up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GivenUp {
    /// Posted, and not delivered.
    Lost,
    /// Posted and not delivered, and the skip is lost too.
    LostTwice,
    /// Delivered, but the answer is lost.
    Unanswered,
    /// Its lane is lost, and it waits for another lane.
    Waiting,
}

/// A notification that is given up in doubt holds up no later notification.
#[test]
fn a_notification_given_up_in_doubt_holds_up_none_behind_it() {
    let _turn = alone();
    for given_up in [GivenUp::Lost, GivenUp::LostTwice, GivenUp::Unanswered, GivenUp::Waiting] {
        for apart in [false, true] {
            println!("{given_up:?}; apart from its data: {apart}");
            hold_up(given_up, apart);
        }
    }
}

/// `apart`: the notification follows the data on the express lane, not in one frame with the data.
fn hold_up(given_up: GivenUp, apart: bool) {
    let mut scene = Scene::new();
    let remote = scene.target(4 * MIB);
    let local = alloc(&scene.a, 4 * MIB);
    let requests = if apart {
        vec![request(&local, &remote, 0, 4 * MIB)]
    } else {
        pieces(&scene.local, remote.address(), remote.region())
    };
    scene.loses.express_only.store(apart, Ordering::SeqCst);
    let slot = if apart { 0 } else { 1 };
    let stand = scene.proxy.connections().len();
    match given_up {
        GivenUp::Unanswered => scene.lose_answers(),
        GivenUp::LostTwice => scene.loses.forth.store(usize::MAX, Ordering::SeqCst),
        GivenUp::Lost | GivenUp::Waiting => scene.loses.forth.store(stand, Ordering::SeqCst),
    }
    let first = scene.submit(&requests, 0);
    match given_up {
        GivenUp::Unanswered => scene.wait_for_numbers(&[0]),
        _ => wait_until("it is posted", || scene.loses.lost(slot) > 0),
    }
    if given_up == GivenUp::Waiting {
        let lost = || scene.a.stats().unwrap().counts.lanes_lost;
        let all = lost() + scene.a.peer_info(scene.peer).unwrap().lanes as u64;
        scene.proxy.refuse(true);
        scene.proxy.cut(false);
        wait_until("the lanes are lost", || lost() >= all);
        // A peer that has answered has answered the lanes' fences too.
        scene.a.probe(scene.peer, None).unwrap();
    }
    first.cancel().unwrap();
    let result = finish(&first);
    assert_eq!((result.status, result.notification), (Status::Cancelled, Notification::Unknown));
    scene.proxy.refuse(false);
    if given_up == GivenUp::LostTwice {
        let numbers = if apart { 2 } else { 1 };
        wait_until("the skip is lost", || scene.loses.lost(0) >= numbers);
        scene.loses.forth.store(0, Ordering::SeqCst);
        scene.proxy.cut(false);
    }
    for word in 1..4u64 {
        scene.a.notify(scene.peer, &word.to_le_bytes(), Deadline::After(BOUND)).unwrap();
    }
    let came = if given_up == GivenUp::Unanswered { &[0][..] } else { &[] };
    scene.wait_for_numbers(&[came, &[1, 2, 3]].concat());
}
