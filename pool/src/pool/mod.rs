//! A node of the pool on an engine: carries out what `node::Machine` wants with ferry's transfers and notifications.
//!
//! ```text
//! calls ─▶ Machine ─▶ actions ─▶ messages, transfers, sums, fences (acting)     ends ─▶ the caller, or poll and wait
//! queue of the engine, time ─▶ whoever drives (driving): a caller that waits, or the thread ferry-pool ─▶ Machine
//! addresses of nodes, a directory (membership) ─▶ dials
//! ```
//! A caller that waits drives the node itself, and receives on its own thread: a get costs no hop between threads. While
//! no caller waits, the thread drives. The machine is under one lock, which is never held while a thread waits.

mod acting;
mod calls;
mod closing;
mod dials;
mod driving;
mod file;
mod looking;
mod membership;
mod options;
mod prefetch;
mod rates;
mod tenants;
mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ferry::notify::{Queue, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::status::{Error, Result};
use ferry::thread::JoinHandle;
use ferry::types::PeerId;
use ferry::{Access, Engine, Memory, RegionOptions, Status, Transfer};
use ferry_kv::messages::{Joiner, Outgoing};
use ferry_kv::os::{
    available_parallelism, random, AsFd, BorrowedFd, Condvar, EventFd, Instant, Mutex, MutexGuard,
    PoisonError,
};

use crate::index::NodeId;
use crate::key::Digest;
use crate::limits::CALLS_MAX;
use crate::node::{Counts, KeyEnd, Machine, OwnerCounts, Prefetches};
use crate::store::Store;
use crate::wire::{Hello, Load};
pub use calls::Call;
use calls::Work;
use dials::Dials;
use driving::Driver;
use file::TierFile;
use membership::Membership;
pub use options::{FileOptions, PoolOptions};
pub use rates::{Cost, CostOptions};
use rates::{Open, Rates};
pub use tenants::{Quota, TenantStats};
use values::Summing;
pub use values::Value;

/// The channel of notifications that pools use. An application that shares the engine uses others.
pub const CHANNEL: u16 = 2;
/// How long a node that could not register may take to end: longer than a dial.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// Transfers and connects of one node that may be under way at once; further ones wait here.
const QUEUE_CAPACITY: usize = 1 << 14;

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The number that the caller gave.
    pub user_data: u64,
    /// One for each key, in the order of the call.
    pub keys: Vec<KeyEnd>,
}

/// What a call is to do beyond its keys.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Nodes that shall hold the values; 0: as the pool's options say.
    pub replicas: usize,
    /// The name of the node that shall hold them if it has room.
    pub preferred: Option<String>,
}

/// A node of the cluster: this one, or one that it is to be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// What `KeyEnd::node` says of it; None before the node has greeted.
    pub id: Option<NodeId>,
    /// As configured, or as the engine knows it.
    pub address: String,
    /// Empty before the node has greeted.
    pub name: String,
    pub is_member: bool,
    pub capacity: u64,
    pub free: u64,
    /// It is drained: it takes no puts.
    pub is_draining: bool,
    /// Why the node is not connected, or cannot be one of this cluster; empty if it is.
    pub why: String,
}

/// Counts since the pool was opened, and what is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    pub calls: Counts,
    pub owner: OwnerCounts,
    pub objects: u64,
    pub capacity: u64,
    pub free: u64,
    /// The same of the file behind the memory.
    pub tier_objects: u64,
    pub tier_capacity: u64,
    pub tier_free: u64,
    /// Entries of this node's part of the index, and their bytes.
    pub index_entries: u64,
    pub index_bytes: u64,
    pub nodes: u64,
    /// The node is drained: it takes no puts.
    pub is_draining: bool,
}

/// A node of the pool. All calls may come from any thread. The waiting ones wait for other nodes; no call waits for a
/// silent node for much longer than one second.
pub struct Pool {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.shared.name;
        f.debug_struct("Pool")
            .field("name", name)
            .field("engine", &self.shared.engine)
            .finish_non_exhaustive()
    }
}

struct Shared {
    engine: Engine,
    queue: Arc<Queue>,
    name: String,
    replicas: usize,
    chunk_tokens: u32,
    quotas: Vec<Quota>,
    /// The engine as a peer of itself.
    own: PeerId,
    membership: Option<Membership>,
    inner: Mutex<Inner>,
    /// Held by the thread that drives.
    driver: Mutex<Driver>,
    /// Callers that wait until they may drive.
    wanted: AtomicUsize,
    /// Signalled when a call has ended, and when the one that drove stops.
    changed: Condvar,
    /// Readable when a call has ended that nobody waits for.
    news: EventFd,
    /// Wakes the thread.
    wake: EventFd,
    /// The machine's time begins here.
    began: Instant,
    may_spin: bool,
}

struct Inner {
    machine: Machine,
    outgoing: Outgoing<()>,
    joiners: BTreeMap<PeerId, Joiner>,
    /// Transfers that are not final, by their numbers (`user_data`): the machine's number, the requests' count.
    under_way: BTreeMap<u64, Flight>,
    next_number: u64,
    /// Transfers of the machine that have no room now.
    waiting: VecDeque<crate::node::Action>,
    sums: VecDeque<Summing>,
    dials: Dials,
    /// Why peers cannot be nodes of this cluster.
    refused: BTreeMap<PeerId, String>,
    /// Calls of the program, by the machine's numbers. A prefetch has a number of its own.
    open: BTreeMap<u64, Open>,
    prefetches: Prefetches,
    /// A thread allocates memory for the node's own prefetches.
    makes_scratch: bool,
    rates: Rates,
    /// Open calls for which a thread waits, and the ends of those.
    waited: BTreeSet<u64>,
    ended: BTreeMap<u64, Ended>,
    /// Ends of other calls.
    news: VecDeque<Ended>,
    /// The node's memory and that of its prefetches, until they are given back, and its second tier.
    memory: Vec<Memory>,
    file: Option<TierFile>,
    /// The node itself, for its threads.
    me: Weak<Shared>,
    is_closing: bool,
    has_left: bool,
    is_over: bool,
}

struct Flight {
    number: u64,
    requests: usize,
    transfer: Transfer,
}

impl Pool {
    /// Opens a node of the pool on an engine, which has one at a time: BUSY if another one is open. The node dials the
    /// others in the background. INVALID names the option that cannot be; NO_MEMORY if the memory is not there. BUSY, too,
    /// if another node has the name in the directory; UNREACHABLE and REFUSED as `Directory::open`.
    pub fn open(engine: &Engine, options: PoolOptions) -> Result<Pool> {
        options.check()?;
        let system = |error: std::io::Error| Error::system("opening the pool", &error);
        let name = if options.name.is_empty() { engine.address().to_owned() } else { options.name.clone() };
        let mut incarnation = [0; 8];
        random(&mut incarnation).map_err(system)?;
        let is_member = options.memory_bytes > 0;
        // Peers have no rights to it: this node moves its bytes itself.
        let region = RegionOptions { access: Access(0), ..RegionOptions::default() };
        let memory = is_member.then(|| engine.alloc(options.memory_bytes as usize, &region)).transpose()?;
        let mut store = Store::new(options.memory_bytes, options.unit_bytes);
        store.set_quotas(&options.quotas.iter().map(|quota| (quota.tag, quota.bytes)).collect::<Vec<_>>());
        let mut dials = Dials::new(&options.nodes, engine.address(), options.redial);
        let membership = Membership::open(engine, &options, &name, &mut dials)?;
        let me = Hello {
            scheme: options.chain.scheme().0,
            incarnation: u64::from_le_bytes(incarnation),
            is_member,
            load: Load { capacity: store.capacity(), free: store.capacity(), is_draining: false },
            cluster: options.cluster.clone(),
            name: name.clone(),
        };
        let mut machine = Machine::new(me, store, memory.as_ref().map_or(0, Memory::address))?;
        let file = options.file.as_ref().map(|file| file::open(engine, file, options.chain.scheme()));
        let (file, tier) = file.transpose()?.unzip();
        tier.into_iter().for_each(|tier| machine.set_tier(tier));
        let own = engine.own_peer()?;
        let (news, wake) = (EventFd::new().map_err(system)?, EventFd::new().map_err(system)?);
        let queue = queue_of(engine)?;
        let parts_max = QUEUE_CAPACITY.min(engine.config().transfers_max as usize) / 4;
        let shared = Arc::new(Shared {
            engine: engine.clone(),
            queue,
            name,
            replicas: options.replicas,
            chunk_tokens: options.chain.chunk_tokens(),
            quotas: options.quotas,
            own,
            membership,
            inner: Mutex::new(Inner {
                machine,
                outgoing: Outgoing::new(parts_max),
                joiners: BTreeMap::new(),
                under_way: BTreeMap::new(),
                next_number: 0,
                waiting: VecDeque::new(),
                sums: VecDeque::new(),
                dials,
                refused: BTreeMap::new(),
                open: BTreeMap::new(),
                prefetches: Prefetches::default(),
                makes_scratch: false,
                rates: Rates::default(),
                waited: BTreeSet::new(),
                ended: BTreeMap::new(),
                news: VecDeque::new(),
                memory: memory.into_iter().collect(),
                file,
                me: Weak::new(),
                is_closing: false,
                has_left: false,
                is_over: false,
            }),
            driver: Mutex::new(Driver::default()),
            wanted: AtomicUsize::new(0),
            changed: Condvar::new(),
            news,
            wake,
            began: Instant::now(),
            may_spin: available_parallelism().is_ok_and(|cores| cores.get() > 1),
        });
        shared.greet_all(&mut shared.lock());
        let thread = driving::start(&shared).inspect_err(|_| drop(shared.destroy_queue()))?;
        let pool = Pool { shared, thread: Mutex::new(Some(thread)) };
        // Whoever finds the name finds a node that greets.
        let named = pool.shared.membership.iter().filter(|_| is_member).try_for_each(Membership::register);
        named.inspect_err(|_| drop(pool.close(Some(CLOSE_PATIENCE))))?;
        Ok(pool)
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Gets values into the caller's registered memory, which belongs to the call until it has ended. An error for
    /// memory that is not registered (NOT_REGISTERED), or that grants peers no WRITE (ACCESS). TIMEOUT: the call goes on,
    /// and is cancelled by no one; its end comes by `poll`, with 0 for its number; `run` gives it another one.
    pub fn get(&self, values: &[Value], timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.run(&Call::Get(values), 0, timeout)
    }

    /// Stores values from the caller's registered memory, which belongs to the call until it has ended. A value is
    /// immutable: what is stored under a key already stays.
    pub fn put(
        &self,
        values: &[Value],
        options: &PutOptions,
        timeout: Option<Duration>,
    ) -> Result<Vec<KeyEnd>> {
        self.run(&Call::Put(values, options), 0, timeout)
    }

    /// Says which keys exist: as the index knows it, so that a get may still find one gone. Holds nothing. `prefix`: the
    /// keys are the chunks of a prefix, in order; what follows the first miss is a miss.
    pub fn exists(&self, keys: &[Digest], prefix: bool, timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.run(&Call::Exists { keys, prefix }, 0, timeout)
    }

    /// Removes keys from all nodes. A node that is absent removes them when it comes again within ten minutes.
    pub fn remove(&self, keys: &[Digest], timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.run(&Call::Remove(keys), 0, timeout)
    }

    /// As `get`, without waiting: an `Ended` with `user_data` follows.
    pub fn submit_get(&self, values: &[Value], user_data: u64) -> Result<()> {
        self.submit(&Call::Get(values), user_data)
    }

    /// As `put`, without waiting.
    pub fn submit_put(&self, values: &[Value], options: &PutOptions, user_data: u64) -> Result<()> {
        self.submit(&Call::Put(values, options), user_data)
    }

    /// As `exists`, without waiting.
    pub fn submit_exists(&self, keys: &[Digest], prefix: bool, user_data: u64) -> Result<()> {
        self.submit(&Call::Exists { keys, prefix }, user_data)
    }

    /// As `remove`, without waiting.
    pub fn submit_remove(&self, keys: &[Digest], user_data: u64) -> Result<()> {
        self.submit(&Call::Remove(keys), user_data)
    }

    /// Takes the end of a call that was submitted, if there is one.
    pub fn poll(&self) -> Option<Ended> {
        self.shared.take_news(&mut self.shared.lock())
    }

    /// Waits for the end of a call that was submitted. TIMEOUT if none comes in time; CLOSED when the pool is closed and
    /// has no more.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Ended> {
        self.shared.drive_until(timeout, |shared, inner| shared.take_news(inner))
    }

    /// Waits until this many nodes, this one among them, are connected and have greeted. TIMEOUT says which are missing,
    /// and why.
    pub fn wait_for_nodes(&self, count: usize, timeout: Option<Duration>) -> Result<()> {
        let waited = self.shared.drive_until(timeout, |_, inner| {
            (!inner.is_over && inner.machine.nodes_known() + 1 >= count).then_some(())
        });
        waited.map_err(|error| {
            if error.status != Status::Timeout {
                return error;
            }
            let missing = self.nodes().into_iter().filter(|node| !node.why.is_empty());
            let missing: Vec<String> =
                missing.map(|node| format!("{}: {}", node.address, node.why)).collect();
            let text = format!("{count} nodes are not there yet. {}", missing.join("; "));
            Error { message: text, ..error }
        })
    }

    /// This node, then those that it is, or is to be, connected to.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.shared.node_infos()
    }

    /// Shows the simulation what the node has.
    #[cfg(feature = "sim")]
    pub fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.shared.lock().machine)
    }

    /// Returns the counts since the pool was opened, and what is there now.
    pub fn stats(&self) -> PoolStats {
        let inner = self.shared.lock();
        inner.machine.stats()
    }
}

/// The node's queue of an engine, which has one.
fn queue_of(engine: &Engine) -> Result<Arc<Queue>> {
    let what = WHAT_TRANSFERS | WHAT_NOTIFICATIONS | WHAT_PEERS;
    engine.channel_queue(what, QUEUE_CAPACITY, CHANNEL).map_err(|error| match error.status {
        Status::Busy => Error::new(Status::Busy, format!("the engine has a pool already: {}", error.message)),
        _ => error,
    })
}

/// The eventfd of the ends of submitted calls, for pollers: readable when `poll` has one. The pool owns it.
impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.news.as_fd()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn sleep<'a>(&self, inner: MutexGuard<'a, Inner>, timeout: Option<Duration>) -> MutexGuard<'a, Inner> {
        match timeout {
            None => self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                self.changed.wait_timeout(inner, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn destroy_queue(&self) -> Result<()> {
        self.engine.hub_of_closed()?.destroy(self.queue.handle())
    }

    fn begin(&self, inner: &mut Inner, work: Work, user_data: u64) -> Result<u64> {
        if inner.is_closing || inner.is_over || self.engine.is_over() {
            return Err(Error::new(Status::Closed, "the pool is closed"));
        }
        if inner.open.len() >= CALLS_MAX {
            return Err(Error::new(Status::Limit, format!("{CALLS_MAX} calls of the pool are open")));
        }
        let now = self.now();
        let open = Open::new(&work, user_data, &inner.machine, now);
        let call = match work {
            Work::Prefetch { digests, prefix } => inner.prefetches.add(digests, prefix),
            Work::Machine(ask) => inner.machine.call(ask, now),
        };
        inner.open.insert(call, open);
        Ok(call)
    }

    fn submit(&self, work: Work, user_data: u64) -> Result<()> {
        let mut inner = self.lock();
        self.begin(&mut inner, work, user_data)?;
        self.act(&mut inner);
        drop(inner);
        self.wake.raise();
        Ok(())
    }

    /// Runs a call, and drives the node until the call has ended.
    fn run(&self, work: Work, user_data: u64, timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.may_wait()?;
        let mut inner = self.lock();
        let call = self.begin(&mut inner, work, user_data)?;
        inner.waited.insert(call);
        self.act(&mut inner);
        if let Some(ended) = inner.ended.remove(&call) {
            return Ok(ended.keys);
        }
        drop(inner);
        let ended = self.drive_until(timeout, |_, inner| inner.ended.remove(&call));
        if ended.is_err() {
            // Its end comes as that of a submitted call, so that the memory can be told free.
            let mut inner = self.lock();
            inner.waited.remove(&call);
            // The thread goes on with what this one leaves.
            self.wake.raise();
            if let Some(ended) = inner.ended.remove(&call) {
                return Ok(ended.keys);
            }
        }
        ended.map(|ended| ended.keys)
    }

    fn take_news(&self, inner: &mut Inner) -> Option<Ended> {
        let ended = inner.news.pop_front();
        if inner.news.is_empty() && !inner.is_over {
            self.news.clear();
        }
        ended
    }
}
