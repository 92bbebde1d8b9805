//! Probes of peers. They are under way while faults strike: a probe that was asked before an outage of the connection
//! is asked again after it, so it is answered in time where nothing disturbs it any more.

use crate::draw::Draw;
use crate::plan::MS;
use crate::program::Program;
use ferry::status::Status;
use ferry::types::PeerId;
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::task;
use std::time::Duration;

const STREAM: u64 = 300_000;
/// How long a probe may take; and for how long nothing has disturbed it if it must be answered.
const PATIENCE: Duration = Duration::from_secs(10);
const UNDISTURBED_NS: u64 = 5_000 * MS;

/// Probes one peer after the other until the process leaves.
pub fn run(program: Program) {
    let mut draw = Draw::new(program.world.seed, STREAM + program.life as u64);
    let book = program.world.book.clone();
    let passed =
        |ledger: &crate::ledger::Ledger| ledger.is_calm && ledger.slots.iter().all(|slot| slot.left == 0);
    while !program.is_leaving() {
        task::sleep(Duration::from_millis(draw.log_uniform(10, 500)));
        let known = book.with(|ledger| {
            let all: Vec<PeerId> = ledger.lives[program.life].peers.values().copied().collect();
            (!passed(ledger)).then_some(all)
        });
        let Some(all) = known.filter(|all| !all.is_empty()) else { continue };
        probe(&program, *draw.pick(&all));
    }
    book.with(|ledger| ledger.lives[program.life].threads_left -= 1);
}

fn probe(program: &Program, peer: PeerId) {
    let book = &program.world.book;
    book.with(|ledger| ledger.lives[program.life].probes = true);
    let result = program.engine.probe(peer, Some(PATIENCE));
    book.with(|ledger| {
        ledger.lives[program.life].probes = false;
        let Err(error) = result else { return };
        ledger.check_call("probing", &error);
        let life = &ledger.lives[program.life];
        let up_ns = life.up_ns.get(&peer.raw()).copied();
        let is_undisturbed = |since_ns: u64| since_ns + UNDISTURBED_NS < virtual_ns();
        let must = ledger.is_calm && is_undisturbed(ledger.calm_ns) && up_ns.is_some_and(is_undisturbed);
        if error.status == Status::Timeout && must && !life.lost.contains(&peer.raw()) && !ledger.has_failed {
            let name = ledger.named(program.life);
            ledger.fail(format!("a probe of {name} is not answered, although nothing disturbs it: {error}"));
        }
    });
}
