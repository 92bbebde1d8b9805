//! Where the stage's thread leaves what it has if the engine breaks: memory of the rings, which peers and devices may
//! still write to, is kept as long as the engine.

use super::service::Stage;
use crate::sys::health;
use crate::sys::lock::Mutex;
use std::sync::Arc;

/// Gives the stage back if it stops before its end.
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
