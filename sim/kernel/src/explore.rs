//! Every schedule of a short program. `run` draws the switches of one run from a seed; `explore` runs the program again
//! and again with the next choices, until it has taken all of them. So a program of a few hundred points runs in every
//! interleaving that the bound of preemptions allows.
//!
//! ```text
//! choices of the last run    0 0 2 0 1 1        each below the number of ways that were open there
//! of the next                0 0 2 0 2          the last one that can rise does, and what followed is tried anew
//! ```
//! A task is preempted at most `preemptions_max` times in a run, all tasks together: the errors that need more are
//! rare, and the number of schedules grows by the number of points with each. Who runs when a task waits, ends or
//! yields, and who of several waiters is woken, is free. Accesses are in one sequence: weak memory orders are for loom.

use crate::run::{run_with, Options, Outcome};
use crate::trace::Story;

/// One choice: the way that was taken, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    taken: u32,
    of: u32,
}

/// The choices of a run: those to repeat, then the first way of each.
#[derive(Default)]
pub(crate) struct Script {
    choices: Vec<Choice>,
    at: usize,
    preemptions_left: u32,
}

impl Script {
    /// Chooses one of `of` ways.
    pub fn choose(&mut self, of: usize) -> usize {
        if of < 2 {
            return 0;
        }
        let of = of as u32;
        match self.choices.get(self.at) {
            Some(choice) => assert_eq!(choice.of, of, "the program has not repeated its choice {}", self.at),
            None => self.choices.push(Choice { taken: 0, of }),
        }
        self.at += 1;
        self.choices[self.at - 1].taken as usize
    }

    /// Chooses at a point: None to go on, or one of the `others` that can run.
    pub fn preempt(&mut self, others: usize) -> Option<usize> {
        if self.preemptions_left == 0 {
            return None;
        }
        let other = self.choose(others + 1).checked_sub(1)?;
        self.preemptions_left -= 1;
        Some(other)
    }

    /// Goes to the next schedule. Returns false after the last one.
    fn advance(&mut self) -> bool {
        // Choices that the last run did not reach belong to no schedule.
        self.choices.truncate(self.at);
        while let Some(last) = self.choices.last_mut() {
            last.taken += 1;
            if last.taken < last.of {
                return true;
            }
            self.choices.pop();
        }
        false
    }

    fn rewound(mut self, preemptions_max: u32) -> Script {
        (self.at, self.preemptions_left) = (0, preemptions_max);
        self
    }
}

/// How far `explore` goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub preemptions_max: u32,
    /// More schedules than this are a failure: the program is too long to be explored.
    pub schedules_max: u64,
}

/// The result of `explore`.
#[derive(Debug)]
pub struct Explored {
    pub schedules: u64,
    /// Steps of the longest schedule.
    pub steps_max: u64,
}

/// Runs every schedule of `body` within the bounds. Panics with the story of the first one that fails.
pub fn explore(bounds: Bounds, body: impl Fn()) -> Explored {
    let options = |story| Options {
        naps_ppm: Some(0),
        spurious_ppm: 0,
        stack_bytes: 256 << 10,
        steps_max: 200_000,
        story,
        ..Options::default()
    };
    let once = |script: Script, story| -> (Outcome, Script) {
        run_with(0, options(story), Some(script.rewound(bounds.preemptions_max)), &body)
    };
    let mut explored = Explored { schedules: 0, steps_max: 0 };
    let mut script = Script::default();
    loop {
        let (outcome, after) = once(script, Story::None);
        script = after;
        explored.schedules += 1;
        explored.steps_max = explored.steps_max.max(outcome.steps);
        if !outcome.failures.is_empty() {
            let taken: Vec<u32> = script.choices.iter().map(|choice| choice.taken).collect();
            let (told, _) = once(script, Story::Keep);
            panic!(
                "schedule {} failed, by the choices {taken:?}:\n  {}\n{}",
                explored.schedules,
                outcome.failures.join("\n  "),
                told.story
            );
        }
        if !script.advance() {
            return explored;
        }
        assert!(explored.schedules < bounds.schedules_max, "more than {} schedules", bounds.schedules_max);
    }
}
