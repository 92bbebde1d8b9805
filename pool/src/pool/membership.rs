//! The nodes that a directory lists: this node's own name, and the entries of the others, which `dials` follows.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::Engine;
use ferry_directory::{Directory, Entry};
use ferry_kv::os::Instant;

use super::dials::Dials;
use super::PoolOptions;
use crate::limits::NODES_MAX;

/// How long a node that closes waits until its name is withdrawn.
const WITHDRAW: Duration = Duration::from_secs(1);

pub struct Membership {
    directory: Directory,
    /// The names of the cluster's members begin so.
    prefix: String,
    /// This node's name there.
    name: String,
    own: String,
    register_by: Option<Instant>,
}

/// The option that an error of the directory is about.
fn named(error: Error) -> Error {
    Error { message: format!("options.directory: {}", error.message), ..error }
}

impl Membership {
    /// Opens the directory that the options name, if they do, and has its members dialed.
    pub fn open(
        engine: &Engine,
        options: &PoolOptions,
        name: &str,
        dials: &mut Dials,
    ) -> Result<Option<Membership>> {
        let Some(url) = &options.directory else { return Ok(None) };
        let timeout = options.directory_options.open_timeout;
        let register_by = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let directory = Directory::open(engine, url, options.directory_options.clone()).map_err(named)?;
        let prefix = format!("pool/{}/", options.cluster);
        // An address of IPv6 is a node's name too.
        let name = format!("{prefix}{}", name.replace(['[', ']'], ""));
        let membership =
            Membership { directory, prefix, name, own: engine.address().to_owned(), register_by };
        dials.follow(membership.list().map_err(named)?);
        Ok(Some(membership))
    }

    /// Makes this node known. Waits while another one has the name, for no longer than the directory may take to open.
    pub fn register(&self) -> Result<()> {
        let left = self.register_by.map(|until| until.saturating_duration_since(Instant::now()));
        self.directory.register(&self.name, left).map_err(named)
    }

    /// Withdraws this node's name, if it has one: nobody who comes now dials it any more.
    pub fn withdraw(&self, timeout: Option<Duration>) {
        // The lease ends what cannot be withdrawn now.
        let patience = timeout.map_or(WITHDRAW, |timeout| WITHDRAW.min(timeout / 2));
        let _ = self.directory.unregister(&self.name, Some(patience));
    }

    pub fn close(&self) {
        self.directory.close();
    }

    /// The members, if that has changed since the last call. While etcd is away nothing changes.
    pub fn news(&self) -> Option<Vec<Entry>> {
        let changes = std::iter::from_fn(|| self.directory.poll().ok().flatten()).count();
        (changes > 0).then(|| self.list().ok()).flatten()
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = self.directory.list(&self.prefix)?;
        entries.retain(|entry| entry.address != self.own);
        entries.truncate(NODES_MAX);
        Ok(entries)
    }
}
