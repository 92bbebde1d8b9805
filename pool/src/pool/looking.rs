//! Calls about a node as a whole: it is taken out, and it answers another node's questions about itself.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::Status;

use super::{Pool, Shared};
use crate::node::Drained;
use crate::wire::{Cursor, Listed, Question, Told};

impl Pool {
    /// Takes this node out of the pool: it takes no puts any more, and moves its values to other nodes, those used
    /// longest ago first. Gets are served all the while. Waits until that is done; a drain that is under way is joined. The node then
    /// waits for its close. Values that no other node took are `left`, and stay until then. INVALID for a client, and for
    /// the only node that takes puts. TIMEOUT: the drain goes on, and the next call tells its end.
    pub fn drain(&self, timeout: Option<Duration>) -> Result<Drained> {
        self.shared.may_wait()?;
        let mut inner = self.shared.lock();
        if inner.is_closing || inner.is_over {
            return Err(Error::new(Status::Closed, "the pool is closed"));
        }
        inner.machine.drain(true, None, self.shared.now())?;
        self.shared.act(&mut inner);
        drop(inner);
        self.shared.wake.raise();
        self.shared.drive_until(timeout, |_, inner| inner.machine.take_drained())
    }

    /// How the last drain of this node ended, whoever asked for it.
    pub fn drained(&self) -> Option<Drained> {
        self.shared.lock().machine.drained()
    }

    /// Has another node drained, by its name or address, and returns its counts when that is done, as `counts_of`. Not
    /// `copies`: the node does not move its values. A node of the program `ferry-pool` ends itself then, unless values are
    /// left that were to be moved.
    pub fn drain_node(&self, node: &str, copies: bool, timeout: Option<Duration>) -> Result<String> {
        match self.shared.question(node, Question::Drain { copies }, timeout)? {
            Told::Counts(counts) => Ok(counts),
            told => Err(other_answer(&told)),
        }
    }

    /// Returns the counts of another node, which has this name or address, as `metrics` does.
    pub fn counts_of(&self, node: &str, timeout: Option<Duration>) -> Result<String> {
        match self.shared.question(node, Question::Counts, timeout)? {
            Told::Counts(counts) => Ok(counts),
            told => Err(other_answer(&told)),
        }
    }

    /// Returns values that another node holds, those used last first, of its memory and then of its file, and where the
    /// list goes on. A value of both may come twice; one that is being read or written may not come.
    pub fn list_of(
        &self,
        node: &str,
        from: Cursor,
        most: u32,
        timeout: Option<Duration>,
    ) -> Result<(Vec<Listed>, Option<Cursor>)> {
        match self.shared.question(node, Question::List { from, most }, timeout)? {
            Told::Values { values, next } => Ok((values, next)),
            told => Err(other_answer(&told)),
        }
    }
}

fn other_answer(told: &Told) -> Error {
    Error::invalid(match told {
        Told::Refused(why) => why.clone(),
        told => format!("the node answered another question: {told:?}"),
    })
}

impl Shared {
    pub(super) fn may_wait(&self) -> Result<()> {
        if self.engine.in_callback() {
            return Err(Error::new(Status::Busy, "waiting inside a callback would stop all callbacks"));
        }
        Ok(())
    }

    fn question(&self, node: &str, question: Question, timeout: Option<Duration>) -> Result<Told> {
        self.may_wait()?;
        let others = self.node_infos().into_iter().skip(1);
        let id = others.filter(|info| info.name == node || info.address == node).find_map(|info| info.id);
        let mut inner = self.lock();
        let now = self.now();
        let request = id.and_then(|id| inner.machine.question(id, question, now)).ok_or_else(|| {
            Error::invalid(format!(
                "node: {node:?} is no other node that is connected: give its name or address"
            ))
        })?;
        self.act(&mut inner);
        drop(inner);
        let told = self.drive_until(timeout, |_, inner| inner.machine.take_told(request));
        told.inspect_err(|_| self.lock().machine.forget_question(request))
    }
}
