//! The events of a run: a hash of all of them, and a story for people if it is asked for. An event has a verb and
//! numbers. Addresses of real memory, and whatever contains them, must not be among the numbers: they differ from one
//! process of the operating system to the next.

use crate::process::ProcessId;
use crate::world::{with, World};
use std::fmt::Write;

/// Whether sentences are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Story {
    #[default]
    None,
    /// In `Outcome::story`.
    Keep,
    /// To standard error, as it happens.
    Print,
}

/// A kept story ends at this length.
const STORY_BYTES_MAX: usize = 64 << 20;

pub(crate) struct Trace {
    hash: u64,
    events: u64,
    how: Story,
    story: String,
}

impl Trace {
    pub fn new(how: Story) -> Trace {
        Trace { hash: 0, events: 0, how, story: String::new() }
    }

    fn mix(&mut self, number: u64) {
        let mixed = u128::from(self.hash ^ number ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93_u128;
        self.hash = (mixed as u64) ^ ((mixed >> 64) as u64).rotate_left(23);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn take_story(&mut self) -> String {
        std::mem::take(&mut self.story)
    }
}

impl World {
    /// Records an event of the running task.
    pub(crate) fn note(&mut self, verb: &'static str, numbers: &[u64], text: impl FnOnce(&World) -> String) {
        let (process, task) =
            self.tasks.get(self.current).map_or((0, 0), |task| (task.process.0, task.number));
        self.trace.events += 1;
        self.trace.mix(self.now);
        self.trace.mix(u64::from(process) << 32 ^ task);
        for bytes in verb.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.trace.mix(u64::from_le_bytes(word));
        }
        for number in numbers {
            self.trace.mix(*number);
        }
        if self.trace.how != Story::None {
            let line = self.line(ProcessId(process), &text(self));
            if self.trace.how == Story::Print {
                eprint!("{line}");
            } else if self.trace.story.len() < STORY_BYTES_MAX {
                self.trace.story.push_str(&line);
            }
        }
    }

    fn line(&self, process: ProcessId, text: &str) -> String {
        let (ms, ns) = (self.now / 1_000_000, self.now % 1_000_000);
        let mut line = format!("{ms:>9}.{ns:06} ms  ");
        let process = self.processes.get(process.0 as usize).map_or("", |process| &process.name);
        let task = self.tasks.get(self.current).map_or("", |task| &task.name);
        let who = if self.no_switch > 0 || process.is_empty() {
            "kernel".into()
        } else {
            format!("{process}/{task}")
        };
        let _ = writeln!(line, "{who:<28} {text}");
        line
    }
}

/// Records an event of the program or of its checkers. `text` is called if a story is written, and must not call this
/// crate.
pub fn event(verb: &'static str, numbers: &[u64], text: impl FnOnce() -> String) {
    with(|world| world.note(verb, numbers, |_| text()));
}
