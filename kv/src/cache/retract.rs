//! The calls that take back what was offered, and wait until nothing touches the blocks.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::Status;

use crate::handoff::{HandoffId, Machine};
use crate::os::Instant;

use super::Cache;

impl Cache {
    /// Takes back the tokens of an offer from `from_token` on, in all groups, and its seal: they are computed again, or
    /// not at all. Returns when nothing reads or writes them any more. Then the blocks that hold none of the other
    /// tokens are the caller's (`offer_extend` adds new ones), and the offer goes on; takers have dropped the tokens.
    ///
    /// BUSY after the timeout: nothing is freed. The retract is still asked for, and nothing else is done with the
    /// offer but to abort it before a further call has returned: `offer_extend`, `offer_ready` and `offer_seal` are
    /// BUSY. A further call may take back more. STALE: the offer has ended or ends; its blocks are the caller's with
    /// its terminal event.
    pub fn offer_retract(&self, id: HandoffId, from_token: u64, timeout: Option<Duration>) -> Result<()> {
        self.retract(id, timeout, |machine, now| machine.offer_retract(id, from_token, now))
    }

    /// Frees the blocks of a window group that have only tokens before `before_token`. Returns when nothing reads them
    /// any more. A take that needs them, because it ends earlier than the sequence, fails with STALE unless it has
    /// begun with them. BUSY after the timeout: such a take reads them still; nothing is freed, and the offer goes on.
    /// STALE as above.
    pub fn offer_retract_window(
        &self,
        id: HandoffId,
        group: u32,
        before_token: u64,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.retract(id, timeout, |machine, now| machine.offer_retract_window(id, group, before_token, now))
    }

    fn retract(
        &self,
        id: HandoffId,
        timeout: Option<Duration>,
        begin: impl FnOnce(&mut Machine, u64) -> Result<u64>,
    ) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let number = self.shared.call(begin)?;
        let mut inner = self.shared.lock();
        while !inner.machine.is_retracted(id, number)? {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::new(Status::Busy, "takers have not let go of the blocks in time"));
            }
            inner.retracts += 1;
            inner = self.shared.sleep(inner, left);
            inner.retracts -= 1;
        }
        Ok(())
    }
}
