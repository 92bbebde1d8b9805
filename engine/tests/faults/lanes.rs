//! Lanes whose data is cut, delayed and altered: transfers end DONE with the right bytes, and notifications arrive
//! once and in order.

use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::*;
use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS};
use ferry::types::{Op, PeerId};
use ferry::{Deadline, Engine, Memory, State, Status, TransferOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

const BYTES: usize = 16 * MIB;

struct Scene {
    a: Engine,
    b: Engine,
    proxy: Proxy,
    peer: PeerId,
    local: Memory,
    remote: Memory,
}

/// Two engines with a proxy between them. The lease is long: these tests are about replay, and a machine that is slow
/// for a moment must not add expired frames.
fn scene(settings: &[(&str, &str)]) -> Scene {
    let settings = &[&[("lease_ms", "3000"), ("reconnect_timeout_ms", "8000")], settings].concat()[..];
    let (a, b) = (engine(settings), engine(settings));
    let proxy = Proxy::new(b.address());
    let peer = connect(&a, &proxy.address);
    let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES + 16));
    Scene { a, b, proxy, peer, local, remote }
}

fn drain_numbers(queue: &Queue, into: &mut Vec<u64>) {
    let mut events = Vec::new();
    queue.drain(&mut events, 1024);
    for event in events {
        let EventBody::Notification { bytes, .. } = event.body else { panic!("not a notification") };
        into.push(u64::from_le_bytes(bytes[..].try_into().unwrap()));
    }
}

/// Runs transfers with notifications, large and small, while `harm` damages the lanes; returns how many lanes were
/// lost. Every transfer must be DONE, its data in place, and each notification delivered once.
fn survive(scene: &Scene, count: u64, mut harm: impl FnMut(&Scene, u64)) -> u64 {
    let queue = scene.b.queue(WHAT_NOTIFICATIONS, 16).unwrap();
    let mut numbers = Vec::new();
    for round in 0..count {
        fill(&scene.local, round + 1);
        let sizes = [BYTES / 2, BYTES / 4, 64 << 10, 4096, 8];
        let mut at = 0;
        let transfers: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(index, size)| {
                let request = request(&scene.local, &scene.remote, at, *size);
                at += size;
                let word = (round * sizes.len() as u64 + index as u64).to_le_bytes();
                let options =
                    TransferOptions { notify: Some(&word), deadline: Deadline::After(BOUND), ..options() };
                scene.a.submit(scene.peer, Op::Write, &[request], &options).unwrap()
            })
            .collect();
        harm(scene, round);
        for transfer in &transfers {
            let result = finish(transfer);
            assert_eq!(result.state, State::Done, "round {round}: {result:?}");
        }
        // Contract 1: done means visible.
        assert_pattern(&scene.remote, round + 1, 0, at);
        let back = request(&scene.local, &scene.remote, 0, at);
        scene.local.write(0, &vec![0; at]);
        scene.a.read(scene.peer, &[back], &options()).unwrap();
        assert_pattern(&scene.local, round + 1, 0, at);
        drain_numbers(&queue, &mut numbers);
    }
    wait_until("the last notification comes", || {
        drain_numbers(&queue, &mut numbers);
        numbers.len() as u64 >= count * 5
    });
    assert_eq!(numbers, (0..count * 5).collect::<Vec<_>>());
    scene.a.stats().unwrap().counts.lanes_lost
}

#[test]
fn lanes_cut_in_mid_transfer_replay() {
    let _turn = alone();
    for poller in ["epoll", "io_uring"] {
        let scene = scene(&[("tcp_poller", poller)]);
        let lost = survive(&scene, 8, |scene, _| scene.proxy.cut(false));
        assert!(lost > 0, "nothing was cut");
    }
}

#[test]
fn all_connections_cut_in_mid_transfer_replay_on_a_new_session() {
    let _turn = alone();
    for settings in [&[][..], &[SAME_USER]] {
        let scene = scene(settings);
        survive(&scene, 6, |scene, _| scene.proxy.cut(true));
        assert_eq!(scene.a.peers().unwrap(), [scene.peer], "the peer keeps its handle");
        assert_eq!(scene.b.peers().unwrap().len(), 1);
    }
}

/// Cuts each lane after a random number of bytes, in either direction, greeting and headers included.
#[test]
fn lanes_cut_at_random_bytes_replay() {
    let _turn = alone();
    let dice = std::sync::Mutex::new(Dice::new("lanes_cut_at_random_bytes_replay"));
    let scene = scene(&[]);
    let mut cuts = std::collections::HashMap::new();
    scene.proxy.judge(move |passing: &mut Passing| {
        if !passing.is_lane {
            return Verdict::Pass;
        }
        let cut = *cuts.entry((passing.connection, passing.way == Way::Back)).or_insert_with(|| {
            let mut dice = dice.lock().unwrap();
            let range = [64, 1024, 64 << 10, 4 << 20, 64 << 20][dice.below(5) as usize];
            dice.below(range)
        });
        let length = passing.bytes.len() as u64;
        if passing.at + length <= cut {
            return Verdict::Pass;
        }
        passing.bytes.truncate(cut.saturating_sub(passing.at) as usize);
        Verdict::Cut
    });
    survive(&scene, 10, |scene, _| scene.proxy.cut(false));
}

/// Swallows acknowledgements, then cuts the lane: the data was applied, but the initiator does not know. The replay
/// must not overwrite what the application has written there since.
#[test]
fn a_repetition_behind_a_delivered_notification_is_not_applied_again() {
    let _turn = alone();
    for checksum in [false, true] {
        let scene = scene(&[]);
        let queue = scene.b.queue(WHAT_NOTIFICATIONS, 16).unwrap();
        let target = alloc(&scene.b, 4096);
        fill(&scene.local, 3);
        let muffled = Arc::new(AtomicBool::new(true));
        let mute = muffled.clone();
        scene.proxy.judge(move |passing: &mut Passing| match passing {
            Passing { is_lane: true, way: Way::Back, .. } if mute.load(Ordering::SeqCst) => Verdict::Swallow,
            _ => Verdict::Pass,
        });
        let word = 5u64.to_le_bytes();
        let options = TransferOptions { notify: Some(&word), checksum, ..options() };
        let request = request(&scene.local, &target, 0, 4096);
        let transfer = scene.a.submit(scene.peer, Op::Write, &[request], &options).unwrap();
        let mut numbers = Vec::new();
        wait_until("the notification comes", || {
            drain_numbers(&queue, &mut numbers);
            !numbers.is_empty()
        });
        assert_pattern(&target, 3, 0, 4096);
        // The application has its data, unregisters the region and unmaps the memory.
        target.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
        scene.proxy.cut(false);
        muffled.store(false, Ordering::SeqCst);
        let result = finish(&transfer);
        assert_eq!(result.state, State::Done, "{result:?}");
        drain_numbers(&queue, &mut numbers);
        assert_eq!(numbers, [5]);
    }
}

/// Data refused in part delivers no notification, and its replay gets the same result.
#[test]
fn a_repetition_of_refused_data_is_refused_again() {
    let _turn = alone();
    let scene = scene(&[]);
    let target = alloc(&scene.b, 4096);
    let request = request(&scene.local, &target, 0, 4096);
    // The announcement of the loss is held back, so that the planner does not know.
    let muffled = Arc::new(AtomicBool::new(true));
    let mute = muffled.clone();
    scene.proxy.judge(move |passing: &mut Passing| match passing {
        Passing { is_lane: true, way: Way::Back, .. } if mute.load(Ordering::SeqCst) => Verdict::Swallow,
        Passing { is_lane: false, way: Way::Back, .. } if mute.load(Ordering::SeqCst) => Verdict::Swallow,
        _ => Verdict::Pass,
    });
    target.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
    let word = 5u64.to_le_bytes();
    let options = TransferOptions { notify: Some(&word), ..options() };
    let transfer = scene.a.submit(scene.peer, Op::Write, &[request], &options).unwrap();
    wait_until("the target refuses", || scene.b.stats().unwrap().counts.requests_refused > 0);
    muffled.store(false, Ordering::SeqCst);
    scene.proxy.cut(true);
    let result = finish(&transfer);
    assert_eq!((result.state, result.status), (State::Failed, Status::Stale), "{result:?}");
}

/// Any byte of a lane may be altered. Headers and descriptors carry a MAC, payload a checksum if asked for: a transfer
/// is DONE with the right bytes, or CORRUPT, or ends at its deadline; no memory beyond its requests is touched.
#[test]
fn altered_lanes_never_harm_memory_nor_hang() {
    let _turn = alone();
    let dice = Dice::new("altered_lanes_never_harm_memory_nor_hang");
    let scene = scene(&[("lease_ms", "500")]);
    let dice = Arc::new(std::sync::Mutex::new(dice));
    let flips = Arc::new(AtomicU64::new(0));
    let (roll, counter) = (dice.clone(), flips.clone());
    scene.proxy.judge(move |passing: &mut Passing| {
        let mut dice = roll.lock().unwrap();
        if passing.is_lane && !passing.bytes.is_empty() && dice.below(12) == 0 {
            // Half of the alterations are near the front, where the headers are.
            let range = if dice.below(2) == 0 { 96 } else { u64::MAX };
            let at = dice.below((passing.bytes.len() as u64).min(range)) as usize;
            passing.bytes[at] ^= 1 << dice.below(8);
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Pass
    });
    let (mut done, mut corrupt, mut late) = (0, 0, 0);
    for round in 0..60 {
        fill(&scene.local, round + 1);
        let size = 8 << dice.lock().unwrap().below(21);
        let op = if round % 3 == 2 { Op::Read } else { Op::Write };
        if op == Op::Read {
            scene.remote.write(0, &pattern(round + 1, 0, size));
            scene.local.write(0, &vec![0; size]);
        }
        let options = TransferOptions {
            checksum: true,
            deadline: Deadline::After(Duration::from_millis(1500)),
            ..options()
        };
        let request = request(&scene.local, &scene.remote, 0, size);
        let transfer = match scene.a.submit(scene.peer, op, &[request], &options) {
            Ok(transfer) => transfer,
            Err(error) => panic!("{error}"),
        };
        let result = finish(&transfer);
        match result.status {
            Status::Ok => {
                done += 1;
                let memory = if op == Op::Read { &scene.local } else { &scene.remote };
                assert_pattern(memory, round + 1, 0, size);
            }
            Status::Corrupt => corrupt += 1,
            Status::Timeout => late += 1,
            other => panic!("round {round}: {other}"),
        }
        assert_zero(&scene.remote, BYTES, 16);
    }
    println!("{} flips: {done} done, {corrupt} corrupt, {late} late", flips.load(Ordering::Relaxed));
    assert!(done > 0 && flips.load(Ordering::Relaxed) > 0);
    // Once the proxy alters nothing, everything works.
    scene.proxy.judge(|_| Verdict::Pass);
    survive(&scene, 1, |_, _| {});
}

/// While nothing answers, redials are spaced out; when the peer is back, waiting transfers are done.
#[test]
fn reconnect_backs_off_and_then_finishes_the_work() {
    let _turn = alone();
    let scene = scene(&[("reconnect_backoff_ms", "50")]);
    fill(&scene.local, 6);
    scene.proxy.refuse(true);
    scene.proxy.cut(true);
    let request = request(&scene.local, &scene.remote, 0, MIB);
    let transfer = scene.a.submit(scene.peer, Op::Write, &[request], &options()).unwrap();
    wait_until("the session is lost", || scene.a.stats().unwrap().counts.sessions_lost > 0);
    // 50 + 100 + 200 + 400 ms of pauses: not final, after only a handful of attempts.
    let early = transfer.wait(Some(Duration::from_millis(750)));
    assert_eq!(early.unwrap_err().status, Status::Timeout);
    scene.proxy.refuse(false);
    assert_eq!(finish(&transfer).state, State::Done);
    assert_pattern(&scene.remote, 6, 0, MIB);
    assert!(scene.proxy.refused() <= 8, "{} attempts in 750 ms", scene.proxy.refused());
}

/// A lane number serves once: a recorded greeting with the bytes that followed it is useless.
#[test]
fn a_recorded_lane_is_not_taken_again() {
    use std::io::{Read, Write};
    let _turn = alone();
    let (a, b) = (engine(&[]), engine(&[]));
    let recorded: Arc<std::sync::Mutex<std::collections::BTreeMap<usize, Vec<u8>>>> = Arc::default();
    let record = recorded.clone();
    let proxy = Proxy::with_judge(b.address(), move |passing: &mut Passing| {
        if passing.is_lane && passing.way == Way::Forth {
            let mut all = record.lock().unwrap();
            all.entry(passing.connection).or_default().extend_from_slice(passing.bytes);
        }
        Verdict::Pass
    });
    let peer = connect(&a, &proxy.address);
    let (local, remote) = (alloc(&a, 4096), alloc(&b, 4096));
    fill(&local, 2);
    open_lanes(&a, &b, peer);
    a.write(peer, &[request(&local, &remote, 0, 4096)], &options()).unwrap();
    remote.write(0, &[0; 4096]);
    let play = |what: &str| {
        for bytes in recorded.lock().unwrap().values().cloned().collect::<Vec<_>>() {
            let mut socket = std::net::TcpStream::connect(b.address()).unwrap();
            socket.set_read_timeout(Some(BOUND)).unwrap();
            let _ = socket.write_all(&bytes);
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert!(answer.is_empty(), "{what}: the recording was welcomed");
        }
        assert_zero(&remote, 0, 4096);
    };
    play("while the lanes live");
    // The target's lanes end, and for a moment the target has not been told that their numbers are used up.
    proxy.refuse(true);
    proxy.judge(|passing: &mut Passing| match passing {
        Passing { is_lane: false, way: Way::Forth, .. } => Verdict::Swallow,
        _ => Verdict::Pass,
    });
    let before = b.stats().unwrap().counts.lanes_lost;
    proxy.cut(false);
    wait_until("the target loses its lanes", || b.stats().unwrap().counts.lanes_lost >= before + 3);
    play("after the lanes are lost");
}
