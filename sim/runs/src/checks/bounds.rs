//! How long things may take, and what may be left.

use crate::ledger::{Book, Ledger, Phase, TransferId};
use crate::plan::Plan;
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::moment;

const SECOND: u64 = 1_000_000_000;
/// A late write without an event: only clocks beyond the bound allow it.
pub const UNTOLD: &str = "a late write that nobody is told of";
/// Nanoseconds that threads put aside, and pauses of the application, may add to a bound.
pub const SLACK_NS: u64 = 3 * SECOND;

impl Ledger {
    /// Returns until when a transfer is final. None if only the peer's return or loss ends it.
    fn due_ns(&self, id: TransferId, lease_ns: u64, devices_ns: u64) -> Option<u64> {
        let transfer = &self.transfers[id];
        let deadline = transfer.wish.deadline_ns.map(|ns| transfer.invoked_ns.saturating_add(ns + ns / 500));
        let struck = deadline.into_iter().chain(transfer.struck_ns).min()?;
        let frozen_ns = self.lives[transfer.wish.from].frozen_ns() - transfer.frozen_before_ns;
        let stretched_ns = self.stretch_ns(struck - transfer.invoked_ns + lease_ns + devices_ns);
        let pages_ns = self.held_by_pages_ns(id);
        Some(struck + lease_ns + lease_ns / 500 + devices_ns + stretched_ns + SLACK_NS + frozen_ns + pages_ns)
    }
}

/// Finds transfers that are not final in time.
pub fn check_bounds(book: &Book, plan: &Plan) {
    let now = virtual_ns();
    let late = book.with(|ledger| {
        let mut late = ledger.live(|it| ledger.lives[it.wish.from].is_alive);
        late.retain(|(id, _)| {
            let slot = ledger.lives[ledger.transfers[*id].wish.from].slot;
            let devices_ns = ledger.devices_ns(*id, |slot| plan.engines[slot].device_timeout_ns);
            let due = ledger.due_ns(*id, plan.engines[slot].lease_ns, devices_ns);
            due.is_some_and(|due| due < now)
        });
        late
    });
    for (id, core) in late {
        if !core.is_final() {
            book.with(|ledger| {
                if ledger.transfers[id].phase == Phase::Live {
                    ledger.fail(format!(
                        "{} should have ended by now: {:?}",
                        ledger.told(id),
                        core.progress()
                    ));
                }
            });
        }
    }
}

/// Looks at the books when all engines are closed.
pub fn check_books(book: &Book) {
    book.with(|ledger| {
        let open = (0..ledger.transfers.len()).find(|id| {
            let it = &ledger.transfers[*id];
            matches!(it.phase, Phase::Live | Phase::Submitting) && ledger.lives[it.wish.from].is_alive
        });
        if let Some(id) = open {
            ledger.fail(format!("{} has not ended", ledger.told(id)));
        }
        let silent = (0..ledger.transfers.len()).find(|id| {
            let it = &ledger.transfers[*id];
            it.phase == Phase::Seen && it.wish.queued && it.events != 1 && ledger.lives[it.wish.from].is_alive
        });
        if let Some(id) = silent {
            ledger.fail(format!("{} has had {} events", ledger.told(id), ledger.transfers[id].events));
        }
        let untold = ledger.lates.iter().position(|late| !late.is_told && ledger.lives[late.to].is_alive);
        if untold.is_some() && ledger.beyond.is_some() {
            moment::reached(UNTOLD);
        } else if let Some(at) = untold {
            let id = ledger.lates[at].transfer;
            ledger.fail(format!(
                "{} was written after its end, and no LATE_APPLY was delivered",
                ledger.told(id)
            ));
        }
        ledger.check_caches();
        ledger.check_pools();
        for life in 0..ledger.lives.len() {
            if ledger.lives[life].is_alive {
                ledger.check_free_memory(life);
            }
        }
    });
}
