//! Keeps the stage when its thread panics. Peers and devices may still write to the rings' memory, so that memory is
//! kept as long as the engine.

use super::service::Stage;
use crate::sys::health;
use crate::sys::lock::Mutex;
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
