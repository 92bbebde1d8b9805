//! Moments: rare situations of a program that its checkers want to have been reached. A program names them where they
//! occur; the outcome of a run has how often each was. A moment is neither a step nor an event, so counting one changes
//! nothing in a run.

use crate::world::{try_with, World};

/// A `try_lock` found its lock taken.
pub const BUSY_LOCK: &str = "a busy try_lock";
/// A process got no memory.
pub const NO_MEMORY: &str = "memory is refused";
/// A copy came to the memory of a process that runs another program by now.
pub const FOREIGN_PROGRAM: &str = "a copy meets another program";
/// A call touched a page that is not there.
pub const MISSING_PAGE: &str = "a page is not there";
/// A call waited for a page.
pub const LATE_PAGE: &str = "a page is waited for";

impl World {
    pub(crate) fn moment(&mut self, name: &'static str) {
        match self.moments.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => self.moments.push((name, 1)),
        }
    }
}

/// Counts a moment.
pub fn reached(name: &'static str) {
    try_with(|world| world.moment(name));
}

/// Counts a moment if `is_there` says so. That may look at atomics and locks as an observer does: nothing switches, no
/// step is counted and no time passes.
pub fn reached_if(name: &'static str, is_there: impl FnOnce() -> bool) {
    let before = try_with(|world| {
        world.no_switch += 1;
        (world.rng.clone(), world.steps, world.now)
    });
    let Some((rng, steps, now)) = before else { return };
    let is_there = is_there();
    try_with(|world| {
        world.no_switch -= 1;
        (world.rng, world.steps, world.now) = (rng, steps, now);
        if is_there {
            world.moment(name);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU32, Ordering};
    use crate::sync::Mutex;
    use crate::{run, trace, Options, Outcome};

    fn count(looks: bool) -> Outcome {
        run(7, Options::default(), move || {
            let value = AtomicU32::new(0);
            for at in 0..100 {
                if looks {
                    reached_if("an odd value", || value.load(Ordering::SeqCst) % 2 == 1);
                }
                trace::event("adds", &[at], String::new);
                value.fetch_add(1, Ordering::SeqCst);
            }
        })
        .check()
    }

    #[test]
    fn to_look_for_a_moment_changes_nothing_else() {
        let (with, without) = (count(true), count(false));
        assert_eq!(with.moments, [("an odd value", 50)]);
        assert_eq!(without.moments, []);
        assert_eq!((with.hash, with.steps, with.end_ns), (without.hash, without.steps, without.end_ns));
    }

    #[test]
    fn a_lock_that_is_tried_while_it_is_held_is_a_moment() {
        let outcome = run(1, Options::default(), || {
            let lock = Mutex::new(());
            let held = lock.try_lock();
            assert!(held.is_some() && lock.try_lock().is_none() && lock.try_lock().is_none());
        });
        assert_eq!(outcome.check().moments, [(BUSY_LOCK, 2)]);
    }
}
