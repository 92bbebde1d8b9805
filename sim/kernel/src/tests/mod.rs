//! Tests of the simulated kernel, by part.

mod bench;
mod devices;
mod explore;
mod faults;
mod net;
mod nics;
mod pollers;
mod processes;
mod programs;
mod sync;
mod tasks;

use crate::{run, Options, Outcome};
use std::cell::RefCell;
use std::rc::Rc;

/// Runs a body by a seed, with the default options.
fn seeded(seed: u64, body: impl FnOnce()) -> Outcome {
    run(seed, Options::default(), body)
}

/// A list that tasks of a run add to.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn add(&self, text: impl Into<String>) {
        self.0.borrow_mut().push(text.into());
    }

    fn taken(&self) -> Vec<String> {
        self.0.take()
    }
}
