//! Checks that a rank's takes end in time, and that all its sides have ended when its cache or its engine is closed.

use super::rank::Player;
use crate::checks::bounds::SLACK_NS;
use crate::plan::MS;
use ferry::status::Status;
use ferry_sim_kernel::clock::virtual_ns;
use std::time::Duration;

/// The time a cache's fence takes before it is tried again, and more: peers stop for seconds in the midst of a copy.
const FENCES_NS: u64 = 15_000 * MS;

impl Player {
    /// Fails the run if a take has not ended in time.
    pub fn check_due(&mut self) {
        let life = self.actor.program.life;
        let book = self.actor.program.world.book.clone();
        let bound_ns = self.bound_ns();
        for mine in &self.mine {
            let Some(due_ns) = mine.due_ns else { continue };
            book.with(|ledger| {
                let frozen_ns = ledger.lives[life].frozen_ns() - mine.frozen_ns;
                if virtual_ns() > due_ns + bound_ns + frozen_ns && !ledger.has_failed {
                    let name = ledger.named_side(mine.sequence, mine.side);
                    ledger.fail(format!("{name} should have ended by now"));
                }
            });
        }
    }

    /// Returns how long a take may go on after its deadline, and how long a close of the cache may take.
    fn bound_ns(&self) -> u64 {
        let plan = &self.actor.program.world.plan;
        let silence_ms = plan.kv.as_ref().map_or(0, |kv| kv.silence_ms);
        let lease_ns = plan.engines.iter().map(|engine| engine.lease_ns).max().unwrap_or(0);
        let pages_ns = self.actor.program.world.book.with(|ledger| ledger.late_pages_ns());
        2 * silence_ms * MS + lease_ns + FENCES_NS + SLACK_NS + pages_ns
    }

    /// Closes the cache, and sees the ends of all that it had.
    pub fn close(&mut self) {
        let Some(cache) = &self.cache else { return };
        let (book, life) = (self.actor.program.world.book.clone(), self.actor.program.life);
        let frozen = || book.with(|ledger| ledger.lives[life].frozen_ns());
        let (since, frozen_before) = (virtual_ns(), frozen());
        while let Err(error) = cache.close(Some(Duration::from_millis(500))) {
            let passed = virtual_ns() - since - (frozen() - frozen_before);
            if error.status != Status::Busy || passed > self.bound_ns() {
                return book.with(|ledger| {
                    let name = ledger.named(life);
                    ledger.fail(format!("{name} cannot close its cache: {error}"));
                });
            }
        }
        self.forget_cache();
    }

    /// Sees the ends of all that the cache had when its engine is closed.
    pub fn see_the_end(&mut self) {
        let begun_ns = virtual_ns();
        while let Some(cache) = &self.cache {
            match cache.wait(Some(Duration::from_millis(200))) {
                Ok(event) => self.learn(event),
                Err(error) if error.status == Status::Closed => return self.forget_cache(),
                Err(_) if virtual_ns() > begun_ns + 4 * self.bound_ns() => {
                    let (book, life) = (&self.actor.program.world.book, self.actor.program.life);
                    return book.with(|ledger| {
                        let name = ledger.named(life);
                        ledger.fail(format!("the cache of {name} outlives its engine"));
                    });
                }
                Err(_) => {}
            }
        }
    }

    fn forget_cache(&mut self) {
        self.hear();
        self.cache = None;
        let (book, life) = (self.actor.program.world.book.clone(), self.actor.program.life);
        book.with(|ledger| {
            if let Some(rank) = ledger.kv.ranks.get_mut(&life) {
                rank.has_cache = false;
            }
            if let Some(mine) = self.mine.first() {
                let name = ledger.named_side(mine.sequence, mine.side);
                ledger.fail(format!("the cache is closed, and {name} has had no terminal event"));
            }
        });
    }
}
