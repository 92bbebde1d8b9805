//! Tests of the session machine, on a clock that the tests advance.

use super::*;
use crate::types::{Boottime, LaneId, TransferId};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn id(lane: u32) -> LaneId {
    LaneId::from_raw(lane)
}

fn at(ns: u64) -> Monotonic {
    Monotonic::from_ns(ns)
}
const TIMING: Timing = Timing {
    drain_ns: 100 * MS,
    answer_ns: 1000 * MS,
    keepalive_ns: 0,
    reconnect_ns: 5000 * MS,
    backoff_min_ns: 20 * MS,
    backoff_max_ns: 1000 * MS,
};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    id: u32,
    lease_until_ns: u64,
    struck: bool,
}

impl Carried for Record {
    fn lease_until_ns(&self) -> Monotonic {
        at(self.lease_until_ns)
    }
    fn is_struck(&self) -> bool {
        self.struck
    }
}

fn record(id: u32, lease_until_ns: u64, struck: bool) -> Record {
    Record { id, lease_until_ns, struck }
}

/// Returns a machine that is up.
fn up(role: Role) -> Machine<Record> {
    let mut machine = Machine::new(role, TIMING, Monotonic::ZERO);
    let mut out = Vec::new();
    machine.connected(Monotonic::ZERO, role);
    assert!(!machine.is_up(), "the peer has said nothing");
    machine.message(Monotonic::ZERO, &Message::Ready { notify_limit: 0 }, &mut out);
    assert_eq!(out, [Action::Up]);
    machine
}

fn timer(machine: &mut Machine<Record>, now_ns: u64) -> Vec<Action<Record>> {
    let mut out = Vec::new();
    machine.timer(at(now_ns), &mut out);
    out
}

/// The peer opens and closes lanes, and answers no fence.
#[test]
fn fences_that_nobody_answers_are_bounded() {
    let (mut machine, mut out) = (up(Role::Acceptor), Vec::new());
    let mut lanes = (3..).map(LaneId::from_raw);
    while !out.contains(&Action::DropControl) {
        out.clear();
        let lane = lanes.next().unwrap();
        assert!(machine.fences.len() <= FENCES_WAITING_MAX);
        machine.lane_lost(Monotonic::ZERO, lane, Vec::new(), &mut out);
    }
    machine.control_lost(Monotonic::ZERO);
    assert!(machine.is_idle(), "what carried nothing is not waited for");
}

/// A peer with many regions announces them for a while before its Ready. A silent peer is given up.
#[test]
fn a_peer_that_goes_on_announcing_is_waited_for() {
    let mut machine: Machine<Record> = Machine::new(Role::Acceptor, TIMING, Monotonic::ZERO);
    let (mut out, answer) = (Vec::new(), TIMING.answer_ns);
    machine.connected(Monotonic::ZERO, Role::Acceptor);
    let mut now = 0;
    for _ in 0..10 {
        now += answer - 1;
        assert_eq!(timer(&mut machine, now), []);
        machine.message(at(now), &Message::RegionsAdd(Vec::new()), &mut out);
    }
    assert_eq!(machine.next_timer(), Some(Monotonic::from_ns(now + answer)));
    assert_eq!(timer(&mut machine, now + answer), [Action::DropControl]);
    machine.message(at(now), &Message::Ready { notify_limit: 0 }, &mut out);
    assert_eq!(out, [Action::Up]);
}

#[test]
fn a_lost_lane_is_fenced_and_released_once() {
    let mut machine = up(Role::Dialer);
    let mut out = Vec::new();
    machine.lane_lost(at(MS), id(1), vec![record(7, 3000 * MS, false)], &mut out);
    assert_eq!(out, [Action::Send(Message::Fence { lane: id(1) })]);
    out.clear();
    machine.message(at(2 * MS), &Message::FenceAck { lane: id(1) }, &mut out);
    assert_eq!(out, [Action::Release(vec![record(7, 3000 * MS, false)], Fence::Confirmed)]);
    out.clear();
    machine.message(at(3 * MS), &Message::FenceAck { lane: id(1) }, &mut out);
    assert_eq!(out, [], "a second acknowledgement releases nothing");
    assert!(machine.is_idle());
}

#[test]
fn a_silent_target_releases_struck_records_at_their_own_lease_and_innocent_ones_with_the_last() {
    let mut machine = up(Role::Acceptor);
    let records = vec![record(1, 500 * MS, true), record(2, 600 * MS, false), record(3, 800 * MS, false)];
    machine.lane_lost(Monotonic::ZERO, id(1), records, &mut Vec::new());
    assert_eq!(machine.next_timer(), Some(Monotonic::from_ns(500 * MS)));
    assert_eq!(timer(&mut machine, 500 * MS - 1), []);
    assert_eq!(
        timer(&mut machine, 500 * MS),
        [
            Action::Send(Message::Ping { nonce: 1 }),
            Action::Release(vec![record(1, 500 * MS, true)], Fence::Lease)
        ]
    );
    assert_eq!(timer(&mut machine, 700 * MS), [], "an innocent record waits for the whole lane");
    assert_eq!(
        timer(&mut machine, 800 * MS),
        [Action::Release(vec![record(2, 600 * MS, false), record(3, 800 * MS, false)], Fence::Lease)]
    );
    assert_eq!(
        timer(&mut machine, 1000 * MS),
        [Action::DropControl],
        "a fence and a question without an answer show a dead connection"
    );
}

/// A thread of the peer is on the lane and may never come back; the peer answers everything else.
#[test]
fn a_fence_without_an_answer_costs_no_connection_that_answers() {
    let mut machine = up(Role::Dialer);
    let half = TIMING.answer_ns / 2;
    machine.lane_lost(Monotonic::ZERO, id(1), vec![record(1, 600 * MS, false)], &mut Vec::new());
    let mut now = 0;
    for nonce in 1..20 {
        now += half;
        assert_eq!(machine.next_timer(), Some(at(now)));
        let asked = Action::Send(Message::Ping { nonce });
        assert!(timer(&mut machine, now).contains(&asked), "{nonce}");
        now += MS;
        let pong = Message::Pong { nonce, clock_ns: Boottime::from_ns(1) };
        machine.message(at(now), &pong, &mut Vec::new());
        if nonce == 1 {
            let released = Action::Release(vec![record(1, 600 * MS, false)], Fence::Lease);
            assert_eq!(timer(&mut machine, 600 * MS), [released]);
        }
    }
    assert!(machine.expects(&Message::FenceAck { lane: id(1) }), "the peer may come back");
    now += half;
    timer(&mut machine, now);
    assert_eq!(timer(&mut machine, now + half - 1), []);
    assert_eq!(timer(&mut machine, now + half), [Action::DropControl], "now it answers nothing");
}

#[test]
fn a_lost_connection_is_redialed_with_backoff_and_given_up() {
    let mut machine = up(Role::Dialer);
    machine.control_lost(Monotonic::ZERO);
    machine.lane_lost(Monotonic::ZERO, id(1), vec![record(1, 9000 * MS, false)], &mut Vec::new());
    let (mut now, mut dials) = (0, Vec::new());
    loop {
        let mut out = timer(&mut machine, now);
        if out.contains(&Action::Dial) {
            dials.push(now / MS);
            machine.dial_failed(at(now), Status::Unreachable, false, &mut out);
        }
        if out.contains(&Action::GiveUp(Status::PeerLost)) {
            break;
        }
        now = machine.next_timer().unwrap().ns();
    }
    assert_eq!(dials[..6], [0, 20, 60, 140, 300, 620]);
    assert_eq!(now, 5000 * MS);
    assert!(!machine.is_idle(), "the record still waits for its lease");
    assert_eq!(
        timer(&mut machine, 9000 * MS),
        [Action::Release(vec![record(1, 9000 * MS, false)], Fence::Lease)]
    );
    assert!(machine.is_idle());
}

/// The acceptor waits for the peer to dial again, until its own application asks for the connection. Then both dial.
#[test]
fn an_acceptor_dials_when_it_is_asked_to_and_leaves_the_dialer_some_time() {
    let mut machine = up(Role::Acceptor);
    machine.control_lost(at(MS));
    assert_eq!(machine.next_timer(), Some(at(MS + TIMING.reconnect_ns)));
    machine.dial_too();
    assert_eq!(machine.next_timer(), Some(at(MS + DIALER_ALONE_NS)));
    let mut out = timer(&mut machine, MS + DIALER_ALONE_NS);
    assert_eq!(out, [Action::Dial]);
    machine.dial_too();
    assert_eq!(timer(&mut machine, 2 * DIALER_ALONE_NS), [], "one dial at a time");
    out.clear();
    machine.dial_failed(at(2 * DIALER_ALONE_NS), Status::Refused, true, &mut out);
    assert_eq!(out, [], "the peer itself may still come");
    machine.dial_too();
    let again = at(2 * DIALER_ALONE_NS + TIMING.backoff_min_ns);
    assert_eq!(machine.next_timer(), Some(again), "a further call does not shorten the pause");
    machine.connected(again, Role::Acceptor);
    machine.dial_too();
    assert_eq!(timer(&mut machine, again.ns()), [], "a connection stands");
}

#[test]
fn the_peers_ready_on_a_new_connection_is_the_fence_of_the_old_lanes() {
    let mut machine = up(Role::Dialer);
    machine.control_lost(Monotonic::ZERO);
    machine.lane_lost(Monotonic::ZERO, id(1), vec![record(1, 3000 * MS, false)], &mut Vec::new());
    let mut out = timer(&mut machine, 0);
    assert_eq!(out, [Action::Dial]);
    out.clear();
    machine.connected(at(MS), Role::Dialer);
    machine.message(at(2 * MS), &Message::Ready { notify_limit: 0 }, &mut out);
    assert_eq!(out, [Action::Release(vec![record(1, 3000 * MS, false)], Fence::Confirmed), Action::Up]);
}

/// The peer closed the lanes of earlier connections before its Ready. It does not know of a lane that was lost since.
#[test]
fn a_ready_says_nothing_of_the_lanes_of_its_own_connection() {
    let mut machine = up(Role::Dialer);
    machine.control_lost(Monotonic::ZERO);
    machine.lane_lost(Monotonic::ZERO, id(1), vec![record(1, 3000 * MS, false)], &mut Vec::new());
    let mut out = Vec::new();
    machine.connected(at(MS), Role::Dialer);
    machine.lane_lost(at(MS), id(3), vec![record(2, 3000 * MS, false)], &mut out);
    out.clear();
    machine.message(at(2 * MS), &Message::Ready { notify_limit: 0 }, &mut out);
    assert_eq!(out, [Action::Release(vec![record(1, 3000 * MS, false)], Fence::Confirmed), Action::Up]);
    out.clear();
    machine.message(at(2 * MS), &Message::FenceAck { lane: id(3) }, &mut out);
    assert_eq!(out, [Action::Release(vec![record(2, 3000 * MS, false)], Fence::Confirmed)]);
}

#[test]
fn a_dead_process_releases_everything_at_once() {
    let mut machine = up(Role::Acceptor);
    machine.lane_lost(Monotonic::ZERO, id(2), vec![record(5, 3000 * MS, true)], &mut Vec::new());
    let mut out = Vec::new();
    machine.give_up(Status::PeerLost, Some(Fence::Dead), &mut out);
    let released = Action::Release(vec![record(5, 3000 * MS, true)], Fence::Dead);
    assert_eq!(out, [released, Action::GiveUp(Status::PeerLost)]);
}

/// A peer that cannot be heard, and a path that cuts each connection at once.
#[test]
fn a_connection_that_is_lost_before_its_ready_does_not_end_the_outage() {
    for silent_ns in [0, TIMING.answer_ns] {
        let mut machine = up(Role::Dialer);
        machine.control_lost(Monotonic::ZERO);
        let (mut now, mut dials) = (0, 0);
        loop {
            let out = timer(&mut machine, now);
            if out.contains(&Action::GiveUp(Status::PeerLost)) {
                break;
            }
            if out.contains(&Action::Dial) {
                dials += 1;
                assert!(dials < 20, "dial after dial");
                machine.connected(at(now), Role::Dialer);
                now += silent_ns;
                machine.control_lost(at(now));
            }
            now = now.max(machine.next_timer().unwrap().ns());
        }
        assert!(now <= TIMING.reconnect_ns + silent_ns, "{now}");
    }
}

#[test]
fn drains_and_pings_end_on_time() {
    let mut machine = up(Role::Dialer);
    machine.drain(Monotonic::ZERO, TransferId::from_raw(42));
    assert_eq!(timer(&mut machine, 100 * MS - 1), []);
    assert_eq!(timer(&mut machine, 100 * MS), [Action::DrainOver(TransferId::from_raw(42))]);
    let mut out = Vec::new();
    let (nonce, asked_ns) = machine.ping(at(200 * MS), &mut out);
    assert_eq!(asked_ns, at(200 * MS));
    assert_eq!(machine.ping(at(201 * MS), &mut out), (nonce, asked_ns), "one question at a time");
    assert_eq!(out, [Action::Send(Message::Ping { nonce })]);
    out.clear();
    machine.message(at(300 * MS), &Message::Pong { nonce, clock_ns: Boottime::from_ns(1) }, &mut out);
    assert_eq!(timer(&mut machine, 5000 * MS), []);
    machine.ping(at(6000 * MS), &mut out);
    assert_eq!(timer(&mut machine, 7000 * MS), [Action::DropControl]);
}

#[test]
fn an_empty_fence_waits_for_its_answer_and_not_for_a_lease() {
    let mut machine = up(Role::Acceptor);
    machine.lane_lost(Monotonic::ZERO, id(1), vec![], &mut Vec::new());
    assert_eq!(machine.next_timer(), Some(Monotonic::from_ns(500 * MS)));
    machine.control_lost(at(5 * MS));
    assert!(machine.is_idle(), "nobody is left to answer, and nothing to release");
}

proptest! {
    /// In every sequence of events each record leaves exactly once. Without another fence, no record leaves before
    /// its lease is over. All records have left when every lease is over.
    #[test]
    fn records_leave_exactly_once(steps in proptest::collection::vec((0u8..7, 1u64..400, any::<bool>()), 1..60)) {
        let mut machine = up(Role::Dialer);
        let (mut now, mut next_id, mut next_lane, mut lanes) = (0u64, 0u32, 2u32, vec![1u32, 2]);
        let (mut waiting, mut out) = (std::collections::BTreeMap::new(), Vec::new());
        for (what, amount, flag) in steps {
            now += amount * MS;
            match what {
                0 | 1 => if let Some(lane) = lanes.pop() {
                    next_id += 1;
                    let lease = now + amount * MS;
                    waiting.insert(next_id, (lease, lane));
                    machine.lane_lost(at(now), id(lane), vec![record(next_id, lease, flag)], &mut out);
                },
                2 => { let lane = LaneId::from_raw((amount % 8) as u32); machine.message(at(now), &Message::FenceAck { lane }, &mut out) }
                3 => machine.control_lost(at(now)),
                4 => { if !machine.is_given_up() { machine.connected(at(now), Role::Dialer); next_lane += 2; lanes = vec![next_lane - 1, next_lane] } }
                5 => machine.message(at(now), &Message::Ready { notify_limit: 0 }, &mut out),
                _ => machine.timer(at(now), &mut out),
            }
            for action in out.drain(..) {
                let Action::Release(records, fence) = action else { continue };
                for record in records {
                    let (lease, _) = waiting.remove(&record.id).expect("released twice");
                    prop_assert!(fence != Fence::Lease || lease <= now);
                }
            }
        }
        machine.timer(at(u64::MAX / 2), &mut out);
        for action in out.drain(..) {
            if let Action::Release(records, _) = action {
                records.iter().for_each(|record| { waiting.remove(&record.id).expect("released twice"); });
            }
        }
        prop_assert!(waiting.is_empty(), "left behind: {waiting:?}");
    }
}

/// Checks that a timer call leaves no alarm in the past: such an alarm would make the control loop spin.
fn assert_timer_settles(machine: &mut Machine<Record>, now_ns: u64) {
    timer(machine, now_ns);
    timer(machine, now_ns);
    let next = machine.next_timer();
    assert!(next.is_none_or(|next| next > at(now_ns)), "the alarm stays at {next:?}");
}

#[test]
fn a_lane_lost_empty_waits_for_its_answer_without_spinning() {
    let mut machine = up(Role::Dialer);
    machine.lane_lost(at(MS), id(1), Vec::new(), &mut Vec::new());
    assert_timer_settles(&mut machine, 2 * MS);
    assert_eq!(machine.next_timer(), Some(Monotonic::from_ns(MS + TIMING.answer_ns / 2)));
    machine.message(at(3 * MS), &Message::FenceAck { lane: id(1) }, &mut Vec::new());
    assert!(machine.is_idle());
}

#[test]
fn a_lane_whose_lease_is_over_waits_for_its_answer_without_spinning() {
    let mut machine = up(Role::Dialer);
    machine.lane_lost(at(MS), id(1), vec![record(1, 500 * MS, false)], &mut Vec::new());
    assert_timer_settles(&mut machine, 501 * MS);
    assert_eq!(machine.next_timer(), Some(Monotonic::from_ns(MS + TIMING.answer_ns)));
}

#[test]
fn lanes_lost_empty_with_their_connection_leave_nothing_to_wait_for() {
    let mut machine = up(Role::Acceptor);
    machine.lane_lost(at(MS), id(1), Vec::new(), &mut Vec::new());
    machine.control_lost(at(2 * MS));
    machine.lane_lost(at(2 * MS), id(2), Vec::new(), &mut Vec::new());
    assert!(machine.is_idle());
    assert_timer_settles(&mut machine, 3 * MS);
}

const KEEPALIVE: Timing = Timing { keepalive_ns: 900 * MS, ..TIMING };

/// Returns a machine that is up since 0 and keeps its peer alive.
fn kept() -> Machine<Record> {
    let mut machine = up(Role::Acceptor);
    machine.timing = KEEPALIVE;
    machine
}

#[test]
fn a_silent_peer_is_asked_after_two_thirds_of_the_time_and_down_after_all_of_it() {
    let mut machine = kept();
    assert_eq!(machine.next_timer(), Some(at(600 * MS)));
    assert_eq!(timer(&mut machine, 600 * MS - 1), []);
    assert_eq!(timer(&mut machine, 600 * MS), [Action::Send(Message::Ping { nonce: 1 })]);
    assert_timer_settles(&mut machine, 600 * MS);
    assert_eq!(machine.next_timer(), Some(at(900 * MS)));
    assert_eq!(timer(&mut machine, 900 * MS - 1), []);
    assert_eq!(timer(&mut machine, 900 * MS), [Action::DropControl]);
}

#[test]
fn a_peer_that_gives_signs_of_life_is_not_asked_and_one_that_answers_stays_up() {
    let mut machine = kept();
    for nth in 1..10 {
        machine.heard(at(nth * 500 * MS));
        assert_eq!(timer(&mut machine, nth * 500 * MS + 499 * MS), [], "it has just been heard");
    }
    machine.heard(at(MS));
    let (asked, answered) = (9 * 500 * MS + 600 * MS, 9 * 500 * MS + 700 * MS);
    assert_eq!(machine.next_timer(), Some(at(asked)), "an older sign takes nothing from a newer one");
    assert_eq!(timer(&mut machine, asked), [Action::Send(Message::Ping { nonce: 1 })]);
    machine.heard(at(answered));
    machine.message(at(answered), &Message::Pong { nonce: 1, clock_ns: Boottime::ZERO }, &mut Vec::new());
    assert_eq!(timer(&mut machine, asked + 300 * MS), []);
    assert_eq!(machine.next_timer(), Some(at(answered + 600 * MS)));
}

/// Lanes may hear of a peer whose control thread is busy. The answer is still due, in `answer_ns`.
#[test]
fn signs_of_life_prolong_the_wait_for_an_answer_but_not_for_ever() {
    let mut machine = kept();
    assert_eq!(timer(&mut machine, 600 * MS), [Action::Send(Message::Ping { nonce: 1 })]);
    for now in [899, 1198, 1497] {
        machine.heard(at(now * MS));
        assert_eq!(timer(&mut machine, now * MS + 2 * MS), []);
    }
    assert_eq!(machine.next_timer(), Some(at(600 * MS + KEEPALIVE.answer_ns)));
    assert_eq!(timer(&mut machine, 600 * MS + KEEPALIVE.answer_ns), [Action::DropControl]);
}

#[test]
fn an_idle_peer_is_not_asked_without_keepalive_and_one_that_is_down_never() {
    assert_eq!(up(Role::Dialer).next_timer(), None);
    let mut machine = kept();
    machine.control_lost(at(MS));
    assert_eq!(machine.next_timer(), Some(at(MS + TIMING.reconnect_ns)));
}

/// The peer's Start had come, and with it bytes that broke the connection before the session went on.
#[test]
fn a_redial_that_is_lost_before_it_begins_is_made_again() {
    let mut machine = up(Role::Dialer);
    machine.control_lost(Monotonic::ZERO);
    assert_eq!(timer(&mut machine, 0), [Action::Dial]);
    machine.control_lost(at(MS));
    assert_eq!(machine.next_timer(), Some(at(MS + TIMING.backoff_min_ns)));
    assert_eq!(timer(&mut machine, MS + TIMING.backoff_min_ns), [Action::Dial]);
}
