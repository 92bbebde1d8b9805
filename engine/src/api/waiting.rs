//! Waiting for transfers: what the calling thread does of the work meanwhile, and what it sleeps on.

use super::Engine;
use crate::complete::{Transfer as Core, TransferResult};
use crate::peer::outbox::Class;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::types::{Monotonic, Transport};
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Takes in what has completed, if the transfer is not final yet. Where nobody sleeps for small transfers
    /// their end is looked for when it is asked for.
    pub fn poll(&self, core: &Core) {
        if !core.is_final() {
            // Of a broken engine nothing more is taken in.
            let _ = self.call("polling", || {
                let peer = self.inner.context.peers.get(core.spec.peer)?;
                if let Some(path) = peer.path(core.transport()) {
                    path.poll();
                }
                Ok(())
            });
        }
    }

    /// The caller is about to sleep until the transfer is final. PANIC when it would do so in vain.
    pub(super) fn attend(&self, core: &Core) -> Result<()> {
        self.call("waiting for a transfer", || {
            if let Ok(peer) = self.inner.context.peers.get(core.spec.peer) {
                peer.attend(core);
            }
            Ok(())
        })
    }

    /// Waits until the transfer is final; TIMEOUT if it is not by then (it goes on), BUSY in a callback.
    pub fn wait(&self, core: &Core, timeout: Option<Duration>) -> Result<TransferResult> {
        self.inner.check_not_forked()?;
        if timeout == Some(Duration::ZERO) {
            self.poll(core);
        } else if !core.is_final() {
            self.check_may_block()?;
            let waited = self.call("waiting for a transfer", || {
                self.wait_final(core, timeout);
                Ok(())
            });
            // However a closed or broken engine came to it, a result is one.
            waited.or_else(|error| if core.is_final() { Ok(()) } else { Err(error) })?;
        }
        core.result().ok_or_else(|| self.why_not_final("the transfer is not final yet"))
    }

    fn why_not_final(&self, what: &str) -> Error {
        self.check_health().err().unwrap_or_else(|| Error::new(Status::Timeout, what))
    }

    pub(super) fn check_may_block(&self) -> Result<()> {
        if self.in_callback() {
            return Err(Error::new(Status::Busy, "waiting inside a callback would stop all callbacks"));
        }
        Ok(())
    }

    fn wait_final(&self, core: &Core, timeout: Option<Duration>) {
        let deadline_ns = timeout
            .map_or(Monotonic::NEVER, |timeout| clock::monotonic_ns().saturating_add_duration(timeout));
        // A small transfer is driven from here, without a hop through another thread; on this host and over
        // RDMA a large one, too.
        if let Ok(peer) = self.inner.context.peers.get(core.spec.peer) {
            if core.transport() != Transport::Tcp || peer.class_of(core) == Class::Express {
                if let Some(path) = peer.path(core.transport()) {
                    path.drive(core, deadline_ns);
                }
            }
            peer.attend(core);
        }
        let deadline = timeout.and_then(|_| {
            clock::now().checked_add(Duration::from_nanos(deadline_ns.saturating_sub(clock::monotonic_ns())))
        });
        let health = self.inner.context.health();
        core.waiter.wait_until(|| core.is_final() || health.is_broken(), deadline);
    }

    /// Waits until one of the transfers is final; its index. INVALID for an empty list.
    pub fn wait_any(&self, cores: &[Arc<Core>], timeout: Option<Duration>) -> Result<usize> {
        self.inner.check_not_forked()?;
        if cores.is_empty() {
            return Err(Error::invalid("transfers: the list is empty"));
        }
        let found = || cores.iter().position(|core| core.is_final());
        if timeout == Some(Duration::ZERO) {
            cores.iter().for_each(|core| self.poll(core));
        }
        if let Some(index) = found() {
            return Ok(index);
        }
        if timeout != Some(Duration::ZERO) {
            self.check_may_block()?;
            cores.iter().try_for_each(|core| self.attend(core))?;
        }
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let health = self.inner.context.health();
        let ready = || found().map(Some).or_else(|| health.is_broken().then_some(None));
        let ended = crate::notify::wait_any(cores.iter().map(|core| &core.waiter), ready, deadline);
        ended.flatten().ok_or_else(|| self.why_not_final("none of the transfers is final yet"))
    }
}
