//! How a node ends: by `close`, which waits, or by being dropped.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::thread::JoinHandle;
use ferry::Status;
use ferry_kv::os::{Instant, PoisonError};

use super::Pool;

impl Pool {
    /// Ends the node: withdraws its name, refuses further calls, waits for those that are open and for what is copied to its
    /// file, tells the other nodes, gives its memory back: what only its memory held is lost. BUSY after the timeout: the
    /// pool is still closing, call again.
    pub fn close(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if !self.shared.lock().is_closing {
            self.shared.membership.iter().for_each(|membership| membership.withdraw(timeout));
        }
        let mut inner = self.shared.lock();
        inner.is_closing = true;
        self.shared.wake.raise();
        while !inner.is_over {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::new(Status::Busy, "calls or requests of other nodes have not ended"));
            }
            inner = self.shared.sleep(inner, left);
        }
        let (mut memory, file) = (std::mem::take(&mut inner.memory), inner.file.take());
        drop(inner);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = thread.map(JoinHandle::join);
        if let Err(error) = file.as_ref().map_or(Ok(()), |file| file.close(timeout)) {
            let mut inner = self.shared.lock();
            (inner.memory, inner.file) = (memory, file);
            return Err(error);
        }
        while let Some(last) = memory.pop() {
            if let Err((last, error)) = last.free(timeout) {
                memory.push(last);
                self.shared.lock().memory = memory;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Closes without waiting: what is under way ends in the background. In a forked child, the pool stays as it is.
impl Drop for Pool {
    fn drop(&mut self) {
        if self.shared.engine.is_forked() {
            return;
        }
        self.shared.lock().is_closing = true;
        self.shared.wake.raise();
    }
}
