//! What a program asks of the pool, whether it waits for the end or takes it later.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::{Access, Status};

use super::{Pool, PutOptions, Shared, Value};
use crate::index::NodeId;
use crate::key::Digest;
use crate::limits::{KEYS_OF_CALL_MAX, REPLICAS_MAX};
use crate::node::{Ask, KeyEnd};

/// A call for many keys. `Pool::get` and its neighbours say what each does.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    Get(&'a [Value]),
    Put(&'a [Value], &'a PutOptions),
    Exists { keys: &'a [Digest], prefix: bool },
    Remove(&'a [Digest]),
    Prefetch { keys: &'a [Digest], prefix: bool },
}

/// Work of the machine, or of a prefetch.
#[derive(Debug)]
pub(super) enum Work {
    Machine(Ask),
    Prefetch { digests: Vec<Digest>, prefix: bool },
}

impl Pool {
    /// Runs a call, and waits for its end. TIMEOUT: the call goes on, and an `Ended` with `user_data` follows.
    pub fn run(&self, call: &Call<'_>, user_data: u64, timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.shared.run(self.shared.work_of(call)?, user_data, timeout)
    }

    /// Begins a call, without waiting: an `Ended` with `user_data` follows.
    pub fn submit(&self, call: &Call<'_>, user_data: u64) -> Result<()> {
        self.shared.submit(self.shared.work_of(call)?, user_data)
    }
}

impl Shared {
    fn work_of(&self, call: &Call<'_>) -> Result<Work> {
        Ok(Work::Machine(match *call {
            Call::Get(values) => {
                let (keys, checked) = self.wanted(values, Access::REMOTE_WRITE, false)?;
                Ask::Get { keys, checked }
            }
            Call::Put(values, options) => self.ask_put(values, options)?,
            Call::Exists { keys, prefix } => {
                check_count(keys.len())?;
                Ask::Exists { digests: keys.to_vec(), prefix }
            }
            Call::Remove(keys) => {
                check_count(keys.len())?;
                Ask::Remove { digests: keys.to_vec() }
            }
            Call::Prefetch { keys, prefix } => {
                check_count(keys.len())?;
                self.prepare_prefetch()?;
                return Ok(Work::Prefetch { digests: keys.to_vec(), prefix });
            }
        }))
    }

    fn ask_put(&self, values: &[Value], options: &PutOptions) -> Result<Ask> {
        if options.replicas > REPLICAS_MAX {
            return Err(Error::invalid(format!(
                "options.replicas: {}, and at most {REPLICAS_MAX} can be",
                options.replicas
            )));
        }
        let replicas = if options.replicas == 0 { self.replicas } else { options.replicas };
        let preferred = options.preferred.as_deref().map(NodeId::of);
        let (keys, _) = self.wanted(values, Access::REMOTE_READ, true)?;
        Ok(Ask::Put { keys, replicas, preferred })
    }
}

pub(super) fn check_count(keys: usize) -> Result<()> {
    if keys > KEYS_OF_CALL_MAX {
        return Err(Error::new(
            Status::Limit,
            format!("{keys} keys, and a call has at most {KEYS_OF_CALL_MAX}"),
        ));
    }
    Ok(())
}
