//! Many transfers end because of one event: their peer is lost, is closed, or lets their deadline pass. The cost of
//! each is small, whatever their number, and other peers don't wait.
//!
//! The tests bound CPU time of the control thread, which the machine's load does not change.

use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::*;
use ferry::types::{Op, PeerId};
use ferry::{Deadline, Engine, Memory, State, Status, Transfer, TransferOptions, TransferResult};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FLOOD: usize = 60_000;
/// At most so many transfers are posted before the peer's silence stops posting.
const POSTED: usize = 1000;
/// For each transfer, of the control thread's CPU time; without optimisation everything takes longer.
const EACH: Duration = Duration::from_nanos(if cfg!(debug_assertions) { 5_000 } else { 1_600 });
/// For a submit, of its thread's CPU time, including a frame's system call.
const SUBMIT: Duration = Duration::from_micros(40);
/// Of the control thread's CPU time while another peer waits for its answer, on a machine with its CPUs to itself.
const WAIT: Duration = Duration::from_millis(20);

fn control_threads() -> HashSet<String> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .filter(|task| {
            std::fs::read_to_string(format!("{task}/comm")).is_ok_and(|it| it == "ferry-control\n")
        })
        .collect()
}

/// The control thread of an engine.
struct Control(String);

impl Control {
    /// Returns the thread's CPU time so far.
    fn spent(&self) -> Duration {
        let text = std::fs::read_to_string(format!("{}/schedstat", self.0)).unwrap();
        Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An engine with a peer that reads nothing, and a peer that answers.
struct Scene {
    a: Engine,
    control: Control,
    deaf: Engine,
    peer: PeerId,
    healthy: u64,
    local: Memory,
    remote: Memory,
    _answers: Engine,
    _proxy: Proxy,
}

fn scene() -> Scene {
    let settings = [("progress_timeout_ms", "60000"), ("reconnect_timeout_ms", "60000")];
    let others = control_threads();
    let a = engine(&settings);
    // A thread sets its name when it first runs.
    wait_until("the control thread runs", || control_threads().len() > others.len());
    let own = control_threads().into_iter().find(|task| !others.contains(task)).unwrap();
    let (deaf, answers) = (engine(&settings), engine(&settings));
    let proxy = Proxy::new(deaf.address());
    let (peer, healthy) = (connect(&a, &proxy.address), connect(&a, answers.address()));
    proxy.judge(
        |passing: &mut Passing| {
            if passing.is_lane && passing.way == Way::Forth {
                Verdict::Swallow
            } else {
                Verdict::Pass
            }
        },
    );
    let (local, remote) = (alloc(&a, 4096), alloc(&deaf, 4096));
    Scene {
        a,
        control: Control(own),
        deaf,
        peer,
        healthy: healthy.raw(),
        local,
        remote,
        _answers: answers,
        _proxy: proxy,
    }
}

impl Scene {
    /// Queues all transfers; some are posted and get no answer.
    fn flood(&self, deadline: impl Fn() -> Deadline, ordered: bool) -> Vec<Transfer> {
        let one = [request(&self.local, &self.remote, 0, 8)];
        let options = || TransferOptions { deadline: deadline(), ordered, ..options() };
        (0..FLOOD).map(|_| self.a.submit(self.peer, Op::Write, &one, &options()).unwrap()).collect()
    }

    /// Runs `event` and waits until all transfers are final, while the healthy peer is probed. Fails if a probe waited
    /// for too much of the work.
    fn end(&self, what: &str, transfers: &[Transfer], event: impl FnOnce()) -> Result<(), String> {
        let over = AtomicBool::new(false);
        let before = self.control.spent();
        let started = Instant::now();
        let (probes, longest, waited) = std::thread::scope(|threads| {
            // Ends the probes even if the rest panics.
            let end = Over(&over);
            let probing = threads.spawn(|| {
                let (mut probes, mut longest, mut waited) = (0, Duration::ZERO, Duration::ZERO);
                while !over.load(Ordering::SeqCst) {
                    let (before, asked) = (self.control.spent(), Instant::now());
                    self.a.probe(PeerId::from_raw(self.healthy), Some(BOUND)).unwrap();
                    longest = longest.max(self.control.spent() - before);
                    waited = waited.max(asked.elapsed());
                    probes += 1;
                }
                (probes, longest, waited)
            });
            event();
            // The posted transfers wait for fences and leases.
            for transfer in &transfers[POSTED..] {
                finish(transfer);
            }
            drop(end);
            probing.join().unwrap()
        });
        let spent = self.control.spent() - before;
        println!(
            "{what} {}: {:?}, {spent:?} of the control thread; {probes} probes, the longest {waited:?}, \
             {longest:?} of the control thread",
            transfers.len(),
            started.elapsed(),
        );
        // The time includes the probes.
        assert!(spent < EACH * transfers.len() as u32, "{spent:?} for {what} {}", transfers.len());
        for transfer in transfers {
            finish(transfer);
        }
        // A probe that waits for one unbounded turn waits for nearly all of the work.
        let is_short = longest < WAIT.max(spent / 4);
        is_short.then_some(()).ok_or(format!("a healthy peer waited for {longest:?} of {spent:?} of work"))
    }
}

/// Measures three times at most: a probe also waits while other programs keep the peer that answers from running. One
/// unbounded turn is long each time.
fn nobody_waits(measure: impl Fn() -> Result<(), String>) {
    let waits: Vec<String> = (0..3).map_while(|_| measure().err()).collect();
    assert!(waits.len() < 3, "{waits:?}");
}

/// Asserts that each transfer ended as `expected` says, and tells of the first that did not.
fn assert_all(transfers: &[Transfer], expected: impl Fn(&TransferResult) -> bool) {
    for (number, transfer) in transfers.iter().enumerate() {
        let result = transfer.result().unwrap();
        assert!(expected(&result), "transfer {number}: {result:?}");
    }
}

/// Ends a flood of transfers by `event`; each must end as `expected` says.
fn ends_a_flood(
    what: &str,
    ordered: bool,
    event: impl Fn(&Scene, &[Transfer]),
    expected: impl Fn(&TransferResult) -> bool,
) {
    let _alone = alone();
    nobody_waits(|| {
        let scene = scene();
        let transfers = scene.flood(|| Deadline::Never, ordered);
        let waited = scene.end(what, &transfers, || event(&scene, &transfers));
        assert_all(&transfers, &expected);
        waited
    });
}

#[test]
fn a_lost_peer_with_many_transfers_costs_little_and_nobody_waits() {
    // The peer sends a Bye.
    let lose = |scene: &Scene, _: &[Transfer]| scene.deaf.close(None).unwrap();
    ends_a_flood("losing", false, lose, |result| result.status == Status::PeerLost);
}

#[test]
fn a_closed_peer_with_many_transfers_costs_little_and_nobody_waits() {
    // Posted transfers wait for their lease.
    let close = |scene: &Scene, _: &[Transfer]| scene.a.close_peer(scene.peer, Some(BOUND)).unwrap();
    ends_a_flood("closing", false, close, |result| result.status == Status::Closed);
}

#[test]
fn many_deadlines_at_once_cost_little_and_nobody_waits() {
    let _alone = alone();
    nobody_waits(|| {
        let scene = scene();
        let end = Instant::now() + Duration::from_secs(6);
        let shortly_before = Deadline::After(Duration::from_secs(6) - Duration::from_millis(100));
        let one = [request(&scene.local, &scene.remote, 0, 8)];
        let options = TransferOptions { deadline: shortly_before, ..options() };
        let first = scene.a.submit(scene.peer, Op::Write, &one, &options).unwrap();
        let transfers = scene.flood(|| Deadline::After(end.saturating_duration_since(Instant::now())), false);
        assert!(!first.state().is_final(), "the machine is too slow to queue {FLOOD} transfers in time");
        finish(&first);
        let waited = scene.end("expiring", &transfers, || ());
        assert_all(&transfers, |result| result.state == State::TimedOut);
        waited
    });
}

#[test]
fn many_ordered_transfers_fail_with_the_first_and_nobody_waits() {
    let cancel = |_: &Scene, transfers: &[Transfer]| transfers[0].cancel().unwrap();
    let is_cancelled =
        |result: &TransferResult| (result.state, result.bytes_confirmed) == (State::Cancelled, 0);
    ends_a_flood("failing the first of", true, cancel, is_cancelled);
}

/// A transfer without a handle is forgotten when it is final, and costs no later submit anything.
#[test]
fn transfers_that_nobody_holds_cost_those_that_follow_nothing() {
    let _alone = alone();
    let scene = scene();
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = Control(format!("/proc/{}", own.display()));
    let one = [request(&scene.local, &scene.remote, 0, 8)];
    let options = TransferOptions { deadline: Deadline::Never, ..options() };
    let before = own.spent();
    for _ in 0..FLOOD {
        drop(scene.a.submit(scene.peer, Op::Write, &one, &options).unwrap());
    }
    let spent = own.spent() - before;
    println!("submitting {FLOOD} that nobody holds: {spent:?} of CPU time");
    assert!(spent < SUBMIT * FLOOD as u32, "{spent:?}");
    assert_eq!(scene.a.stats().unwrap().transfers, FLOOD as u64);
    scene.a.close_peer(scene.peer, Some(BOUND)).unwrap();
    assert_eq!(scene.a.stats().unwrap().transfers, 0, "all are forgotten");
}

/// A closing engine strikes the transfers itself, on the thread that closes it.
#[test]
fn closing_the_engine_ends_many_transfers_in_one_go() {
    let _alone = alone();
    let scene = scene();
    let transfers = scene.flood(|| Deadline::Never, false);
    let closing = Arc::new(scene.a.clone());
    let started = Instant::now();
    let closer = {
        let engine = closing.clone();
        std::thread::spawn(move || engine.close(Some(BOUND)))
    };
    transfers.iter().for_each(|transfer| {
        finish(transfer);
    });
    closer.join().unwrap().unwrap();
    println!("closing the engine with {FLOOD}: {:?}", started.elapsed());
}
