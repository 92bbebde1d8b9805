//! Prefetches of the program and the node's own work, on an engine: `node::Prefetches` says what is called next, and this
//! file gives it the scratch.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::{Access, RegionOptions, Status};

use super::{Call, Inner, Pool, Shared};
use crate::key::Digest;
use crate::limits::PREFETCHED_VALUE_BYTES_MAX;
use crate::node::KeyEnd;
use crate::wire::Segment;

impl Pool {
    /// Brings values into this node's memory, those of other nodes and those that its file alone has; makes room by
    /// evicting others. An end for each key: OK, it was brought; HERE, it was in memory; FULL, there is no room beside
    /// the keys before it and what is in use; TOO_LONG, the value has more bytes than the node lends, or than
    /// `PREFETCHED_VALUE_BYTES_MAX`; or the reason of a miss. `prefix`: the keys are the chunks of a prefix, in order;
    /// what follows the first miss is a miss. INVALID for a node that lends no memory.
    pub fn prefetch(&self, keys: &[Digest], prefix: bool, timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.run(&Call::Prefetch { keys, prefix }, 0, timeout)
    }

    /// As `prefetch`, without waiting.
    pub fn submit_prefetch(&self, keys: &[Digest], prefix: bool, user_data: u64) -> Result<()> {
        self.submit(&Call::Prefetch { keys, prefix }, user_data)
    }
}

impl Shared {
    /// Makes the scratch, if there is none. INVALID for a node that lends no memory.
    pub(super) fn prepare_prefetch(&self) -> Result<()> {
        let (lent, has_scratch) = {
            let inner = self.lock();
            (inner.machine.store().capacity(), inner.prefetches.scratch.is_some())
        };
        if lent == 0 {
            let text =
                "prefetch: this node lends no memory to bring values to: give it memory_bytes, or get them";
            return Err(Error::invalid(text));
        }
        if has_scratch {
            return Ok(());
        }
        // Owners write what is brought, and other nodes read what a drain moves.
        let region = RegionOptions { access: Access::BOTH, ..RegionOptions::default() };
        let bytes = lent.min(PREFETCHED_VALUE_BYTES_MAX);
        let memory = self.engine.alloc(bytes as usize, &region)?;
        let region = self.engine.region_at(memory.address(), bytes)?.region.raw();
        let mut inner = self.lock();
        if inner.is_closing {
            return Err(Error::new(Status::Closed, "the pool is closed"));
        }
        // Another thread may have made one meanwhile.
        if inner.prefetches.scratch.is_none() {
            inner.prefetches.scratch = Some(Segment { address: memory.address(), bytes, region });
            inner.memory.push(memory);
        }
        Ok(())
    }

    /// Makes the scratch for the node's own work, on a thread of its own, because it takes a while.
    fn prepare_own_work(&self, inner: &mut Inner) {
        let Some(shared) = inner.me.upgrade() else { return };
        inner.makes_scratch = true;
        let prepare = move || {
            let made = shared.prepare_prefetch();
            let mut inner = shared.lock();
            inner.makes_scratch = false;
            made.unwrap_or_else(|_| inner.machine.give_up_own_work());
            shared.act(&mut inner);
            drop(inner);
            shared.wake.raise();
        };
        if ferry::thread::spawn("ferry-pool-scratch", prepare).is_err() {
            inner.makes_scratch = false;
            inner.machine.give_up_own_work();
        }
    }

    /// Takes the end of a call that a prefetch has made. False: the call is the program's.
    pub(super) fn take_prefetched(&self, inner: &mut Inner, call: u64, ends: &[KeyEnd]) -> bool {
        let taken = inner.prefetches.take(&inner.machine, call, ends);
        if let Some((began_ns, true)) = taken {
            // This node's own values were in its file.
            inner.rates.note(began_ns, self.now(), ends, inner.machine.my_id(), true);
        }
        taken.is_some()
    }

    /// Begins the next call of the prefetch that is under way, and delivers those that are over.
    pub(super) fn go_on_prefetching(&self, inner: &mut Inner) {
        if !inner.makes_scratch && !inner.is_closing && inner.prefetches.lacks_scratch(&inner.machine) {
            self.prepare_own_work(inner);
        }
        let now = self.now();
        for end in inner.prefetches.go_on(&mut inner.machine, inner.is_closing, now) {
            self.deliver(inner, end.call, end.keys);
        }
    }
}
