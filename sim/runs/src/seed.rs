//! One seed from its plan to its verdict: starts the programs, makes the faults happen, lets everything calm down, and
//! looks at the books.

use crate::checks::access::observer;
use crate::checks::bounds::{check_books, check_bounds};
use crate::coverage::{self, Reached};
use crate::faults::Director;
use crate::ledger::{Beyond, Book, Slot};
use crate::outside;
use crate::plan::{Plan, Step, FAULTS};
use crate::program::{self, World};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::trace::Story;
use ferry_sim_kernel::{device, net, nic, process, run, task, Options, Outcome};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// How often the bounds are looked at.
const LOOK_NS: u64 = 100_000_000;
/// How long after the last fault all pairs must transfer again, and how long after that all notifications must arrive.
const CALM_NS: u64 = 180 * SECOND;
const ARRIVAL_NS: u64 = 60 * SECOND;
/// How long a fault waits for the state that it is to strike in, and how often it looks.
const AIM_NS: u64 = 20_000_000;
const AIM_STEP: Duration = Duration::from_micros(20);
/// Threads of pools spin: their steps take little time.
const STEPS_MAX: u64 = 600_000_000;
/// Threads of an engine that serve all peers.
const IMPATIENT: [&str; 2] = ["ferry-control", "ferry-local"];

/// The result of a seed's run.
pub struct Verdict {
    pub outcome: Outcome,
    pub transfers: usize,
    pub faults: usize,
    pub reached: Reached,
}

/// Runs a seed. `beyond`: with clocks that are more wrong than the contracts assume.
pub fn play(seed: u64, beyond: bool, story: Story) -> Verdict {
    let book = Book::default();
    let options = Options {
        story,
        steps_max: STEPS_MAX,
        time_max_ns: 1_200 * SECOND,
        observer: Some(observer(&book)),
        impatient: &IMPATIENT,
        // The same-host path reads its proof from the peer's heap. With strict copies, no engine would copy by calls.
        strict_copies: false,
        ..Options::default()
    };
    let told = Rc::new(Cell::new((0, [0; FAULTS.len()])));
    let (its_book, its_told) = (book.clone(), told.clone());
    let outcome = run(seed, options, move || body(seed, beyond, its_book, &its_told));
    let (faults, reached) = told.get();
    let transfers = book.with(|ledger| ledger.transfers.len());
    // Values of engines must not be dropped outside of their world.
    std::mem::forget(book);
    Verdict { outcome, transfers, faults, reached }
}

fn body(seed: u64, beyond: bool, book: Book, told: &Cell<(usize, Reached)>) {
    let plan = Rc::new(if beyond { Plan::beyond(seed) } else { Plan::new(seed) });
    let hosts = Rc::new((0..plan.hosts).map(|at| process::host(&format!("h{at}"))).collect::<Vec<_>>());
    net::set_faults(plan.network.clone());
    book.with(|ledger| {
        let slots = plan.engines.iter().map(|engine| Slot { left: engine.transfers, ..Slot::default() });
        ledger.slots = slots.collect();
        let lease_ns = plan.engines.iter().map(|engine| engine.lease_ns).collect();
        ledger.slew_ppm_max = plan.slews_ppm.iter().map(|ppm| ppm.unsigned_abs()).max().unwrap_or(0);
        ledger.beyond = beyond.then_some(Beyond { gain_ppm_max: plan.gain_ppm_max, lease_ns });
    });
    for (host, gain_ppm) in hosts.iter().zip(&plan.gains_ppm).filter(|_| beyond) {
        host.set_drift_ppm(*gain_ppm);
    }
    for (host, slew_ppm) in hosts.iter().zip(&plan.slews_ppm).filter(|(_, slew_ppm)| **slew_ppm != 0) {
        host.set_slew_ppm(*slew_ppm);
    }
    let has_nics = |at: usize| plan.nics[at].iter().map(move |abilities| (at, abilities.clone()));
    let nics = (0..plan.hosts).flat_map(has_nics).map(|(at, abilities)| nic::add(hosts[at], abilities));
    let nics = Rc::new(nics.collect::<Vec<_>>());
    for (host, count) in hosts.iter().zip(&plan.devices) {
        (0..*count).for_each(|_| _ = device::add(*host));
    }
    let world = World { seed, book: book.clone(), plan: plan.clone(), hosts, nics };
    (0..plan.engines.len()).for_each(|slot| program::start(&world, slot, None));
    let mut director = Director::new(world);
    let watch = Watch { book, plan: plan.clone() };
    let mut reached = [0; FAULTS.len()];
    let mut struck = 0;
    for Step { pause_ms, fault, waits_for } in &plan.faults {
        watch.wait_until(virtual_ns() + pause_ms * 1_000_000, &mut director, |_| false);
        wait_for(*waits_for, &watch.book, &plan);
        let states = coverage::states(&watch.book, &plan);
        // A fault that finds nothing to harm is tried again for a while.
        for _ in 0..50 {
            if director.strike(*fault) {
                reached[fault.number()] |= states;
                struck += 1;
                break;
            }
            watch.wait_until(virtual_ns() + 20_000_000, &mut director, |_| false);
        }
        if watch.has_failed() {
            break;
        }
    }
    told.set((struck, reached));
    let slots = plan.engines.len();
    // Faults end by themselves while the rest of the transfers is made.
    let is_made = |book: &Book| book.with(|ledger| ledger.slots.iter().all(|slot| slot.left == 0));
    watch.wait_until(virtual_ns() + 5 * SECOND, &mut director, is_made);
    let is_there = |book: &Book| book.with(|ledger| !ledger.has_late_pages());
    watch.wait_until(virtual_ns() + outside::LATE_MS_MAX * 1_000_000, &mut director, is_there);
    director.calm();
    watch.book.with(|ledger| (ledger.is_calm, ledger.calm_ns) = (true, virtual_ns()));
    let is_good = |book: &Book| {
        book.with(|ledger| {
            (0..slots).all(|slot| {
                let life = ledger.life_of(slot).filter(|life| !ledger.lives[*life].leaves);
                let has = |peer: &usize| life.is_some_and(|life| ledger.passed.contains(&(life, *peer)));
                ledger.slots[slot].left == 0 && plan.engines[slot].peers.iter().all(has)
            }) && (plan.kv.is_none() || ledger.kv.passed)
                && (plan.pool.is_none() || ledger.pool_failure().is_none())
                && !ledger.lives.iter().any(|life| life.is_alive && life.probes)
        })
    };
    watch.wait_until(virtual_ns() + CALM_NS, &mut director, is_good);
    if !watch.has_failed() && (!is_good(&watch.book) || director.is_incomplete()) {
        watch.book.with(|ledger| {
            let mut missing = Vec::new();
            if plan.kv.is_some() && !ledger.kv.passed {
                missing.push("no sequence was handed over".to_owned());
            }
            missing.extend(plan.pool.as_ref().and_then(|_| ledger.pool_failure()));
            for (slot, engine) in plan.engines.iter().enumerate() {
                let life = ledger.life_of(slot);
                let peers = engine.peers.iter();
                let failed =
                    peers.filter(|peer| !life.is_some_and(|life| ledger.passed.contains(&(life, **peer))));
                let failed: Vec<usize> = failed.copied().collect();
                if ledger.slots[slot].left > 0 || !failed.is_empty() {
                    let life = life.map(|life| ledger.named(life));
                    missing.push(format!(
                        "{life:?} has {} transfers left, and {failed:?}",
                        ledger.slots[slot].left
                    ));
                }
            }
            ledger.fail(format!(
                "the faults are over, and not all pairs transfer again: {}",
                missing.join("; ")
            ));
        });
    }
    let has_arrived = |book: &Book| book.with(|ledger| ledger.undelivered().is_none());
    watch.wait_until(virtual_ns() + ARRIVAL_NS, &mut director, has_arrived);
    watch.book.with(|ledger| {
        if let Some(lost) = ledger.undelivered().filter(|_| !ledger.has_failed) {
            ledger.fail(lost);
        }
        ledger.lives.iter_mut().for_each(|life| life.leaves = true);
    });
    let is_empty = |book: &Book| book.with(|ledger| ledger.slots.iter().all(|slot| slot.life.is_none()));
    watch.wait_until(virtual_ns() + CALM_NS, &mut director, is_empty);
    if !watch.has_failed() {
        if !is_empty(&watch.book) {
            watch.book.with(|ledger| ledger.fail("not all engines are closed"));
        }
        check_books(&watch.book);
    }
}

/// Waits for this state, for a short while: otherwise most faults of NICs would find them idle.
fn wait_for(state: Option<&'static str>, book: &Book, plan: &Plan) {
    let Some(state) = state else { return };
    let until_ns = virtual_ns() + AIM_NS;
    let is_there = || match state {
        _ if coverage::RDMA_STATES.contains(&state) => coverage::rdma_states().contains(&state),
        _ if coverage::DEVICE_STATES.contains(&state) => coverage::device_states().contains(&state),
        _ => coverage::is_there(coverage::states(book, plan), state),
    };
    while virtual_ns() < until_ns && !is_there() {
        task::sleep(AIM_STEP);
    }
}

struct Watch {
    book: Book,
    plan: Rc<Plan>,
}

impl Watch {
    fn has_failed(&self) -> bool {
        self.book.with(|ledger| ledger.has_failed)
    }

    /// Waits, undoes faults and looks at the bounds, until then, until `ends`, or until the run has failed.
    fn wait_until(&self, until_ns: u64, director: &mut Director, ends: impl Fn(&Book) -> bool) {
        let mut look_ns = virtual_ns() + LOOK_NS;
        while !self.has_failed() && virtual_ns() < until_ns && !ends(&self.book) {
            let next = until_ns.min(director.next_ns()).min(virtual_ns() + LOOK_NS / 5);
            task::sleep(Duration::from_nanos(next.saturating_sub(virtual_ns()).max(1)));
            director.undo_due();
            if virtual_ns() >= look_ns {
                check_bounds(&self.book, &self.plan);
                look_ns = virtual_ns() + LOOK_NS;
            }
        }
    }
}
