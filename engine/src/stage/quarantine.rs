//! The thread's turns, and what is kept of the stage when its thread panics. Peers and devices may still write to the
//! rings' memory, so that memory is kept as long as the engine.

use super::event::Event;
use super::service::Stage;
use crate::sys::health;
use crate::sys::lock::Mutex;
use crate::sys::poller::Ready;
use crate::sys::turns::{Next, Turns};
use crate::types::Monotonic;
use std::sync::Arc;

/// Puts the stage back if the thread stops before its end.
pub(super) struct Running {
    pub stage: Option<Stage>,
    pub kept: Arc<Mutex<Option<Stage>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take() {
            health::exempt(|| *self.kept.lock() = Some(stage));
        }
    }
}

impl Turns for Running {
    fn turn(&mut self, now: Monotonic, _: &[Ready]) -> Next {
        let Some(stage) = &mut self.stage else { return Next::Over };
        for event in stage.inbox.take() {
            if matches!(event, Event::Stop) {
                stage.end();
                drop(self.stage.take());
                return Next::Over;
            }
            stage.event(event);
        }
        stage.turn(now);
        Next::at(stage.next_check_ns())
    }
}
