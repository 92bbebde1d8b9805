//! The state that the parts of an engine share: settings, tables, and the queues between threads.

use crate::command::Commands;
use crate::complete::{Table, Transfer};
use crate::config::Config;
use crate::handle::Tag;
use crate::limits::PARTS_MAX;
use crate::notify::Hub;
use crate::peer::{Conversation, EngineParts, Peer};
use crate::region::Registry;
use crate::session::handshake::Local;
use crate::stats::Stats;
use crate::status::Result;
use crate::sys::crowd::Crowd;
use crate::sys::health::Health;
use crate::sys::once::OnceLock;
use crate::sys::pages::Pages;
use crate::types::{PeerId, TransferId};
use std::sync::Arc;

/// The state that the control loop, the transports and the calls of an engine share.
pub struct Context {
    pub config: Config,
    pub tag: Tag,
    /// This engine's data for handshakes.
    pub local: Local,
    pub registry: Arc<Registry>,
    pub stats: Arc<Stats>,
    /// Notes small transfers to and from all peers. While they follow one another, bulk lanes make smaller system
    /// calls.
    pub conversation: Arc<Conversation>,
    pub commands: Arc<Commands>,
    pub hub: Arc<Hub>,
    pub peers: Table<PeerId, Peer>,
    /// The engine as its own peer, once the program has asked for it. Not in `peers`: it has no session.
    pub own: OnceLock<Arc<Peer>>,
    pub transfers: Arc<Table<TransferId, Transfer>>,
    pub spin_ns: u64,
    pub crowd: Crowd,
    /// The pages of this process.
    pub pages: Arc<Pages>,
}

impl Context {
    pub fn new(config: Config, tag: Tag, local: Local, registry: Arc<Registry>, hub: Arc<Hub>) -> Context {
        let commands: Arc<Commands> = Arc::default();
        hub.set_health(commands.health.clone());
        Context {
            tag,
            local,
            registry,
            stats: Arc::default(),
            conversation: Arc::default(),
            commands,
            hub,
            peers: Table::new(tag, config.peers_max),
            own: OnceLock::new(),
            transfers: Arc::new(Table::with_reserve(tag, config.transfers_max, PARTS_MAX)),
            spin_ns: config.spin_us * 1000,
            crowd: Crowd::default(),
            pages: Arc::new(Pages::of(None)),
            config,
        }
    }

    /// Returns the peer with this handle, which may be the engine itself.
    pub fn peer(&self, handle: PeerId) -> Result<Arc<Peer>> {
        match self.own_peer(handle) {
            Some(own) => Ok(own.clone()),
            None => self.peers.get(handle),
        }
    }

    /// Returns the engine as its own peer if this is its handle.
    pub fn own_peer(&self, handle: PeerId) -> Option<&Arc<Peer>> {
        self.own.get().filter(|own| own.handle == handle)
    }

    pub fn health(&self) -> &Arc<Health> {
        &self.commands.health
    }

    pub fn engine_parts(&self) -> EngineParts {
        EngineParts {
            commands: self.commands.clone(),
            hub: self.hub.clone(),
            stats: self.stats.clone(),
            conversation: self.conversation.clone(),
            transfers: self.transfers.clone(),
            lease_ns: self.config.lease_ms * 1_000_000,
            express_bytes_max: self.config.express_bytes_max,
            pages: self.pages.clone(),
        }
    }

    /// Returns how long after a post its progress is checked.
    pub fn progress_ns(&self) -> u64 {
        self.config.progress_timeout_ms * 1_000_000
    }
}
