//! A cache of an engine: carries out the orders of `handoff::Machine` with ferry's transfers and notifications.
//!
//! ```text
//! calls of the application ─▶ Machine ─▶ actions ─▶ submits (submit)     events ─▶ poll, wait, descriptor
//! queue of the engine, time, events of devices (device) ─▶ ferry-kv (thread) ─▶ Machine ─▶ the same
//! messages of peers ─▶ inbox ─▶ hearing ─▶ Machine       messages to peers ─▶ messages::Outgoing ─▶ submit
//! posts of the machine ─▶ moving ─▶ transfers of bounded numbers of pieces, made by ferry-kv under no lock
//! ```
//! The machine is under one lock, which is held for a call's bookkeeping and its messages, never while a thread waits.

mod device;
mod hearing;
mod inbox;
mod moving;
mod retract;
mod state;
mod submit;
mod thread;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ferry::notify::{WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::status::{Error, Result};
use ferry::thread::JoinHandle;
use ferry::types::RegionId;
use ferry::{Engine, Status};

use crate::handoff::{
    BlockList, Entry, Event, HandoffId, HandoffState, Machine, MemoryRange, OfferSpec, Stats, TakeSpec,
};
use crate::layout::Layout;
use crate::os::{monotonic_ns, AsFd, BorrowedFd, Condvar, EventFd, Instant, Mutex, MutexGuard, PoisonError};
use state::Inner;

/// The channel of notifications that caches use. An application that shares the engine uses others.
pub const CHANNEL: u16 = 1;
/// Transfers and messages of one cache that may be under way at once; further ones wait here.
const QUEUE_CAPACITY: usize = 1 << 16;

/// Registered memory that has layers of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheMemory {
    pub region: RegionId,
    pub address: u64,
    pub length: u64,
}

impl CacheMemory {
    /// All of the memory.
    pub fn of(memory: &ferry::Memory) -> CacheMemory {
        CacheMemory { region: memory.region(), address: memory.address(), length: memory.length() as u64 }
    }
}

/// How a cache deals with silent peers and with offers that nobody takes.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// A peer that is silent for half of this time while something is expected of it is asked for a sign of life. Without
    /// one its handoffs end after the other half, and it is fenced if its own transfers may touch their blocks.
    pub silence: Duration,
    /// Blocks of sealed offers that nobody has taken; 0: no bound. A seal that exceeds it ends the oldest of them.
    pub leased_blocks_max: usize,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions { silence: Duration::from_millis(1_000), leased_blocks_max: 0 }
    }
}

/// One rank's cache. All calls may come from any thread, and none but `wait`, `close` and the retracts of offers waits.
pub struct Cache {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("engine", &self.shared.engine).finish_non_exhaustive()
    }
}

struct Shared {
    engine: Engine,
    queue: Arc<ferry::notify::Queue>,
    inner: Mutex<Inner>,
    /// Signalled for each event, and whenever a close or a retract may have made progress.
    changed: Condvar,
    /// Readable when there are events.
    news: EventFd,
    /// Wakes the thread.
    wake: Arc<EventFd>,
    /// The machine's time begins here.
    began: Instant,
}

impl Cache {
    /// Opens the cache of a layout, whose layers lie in registered memory. An engine has one cache: BUSY if another one
    /// is open. INVALID if a layer is not in `memory`; errors of the layout as from `Layout::check`.
    pub fn open(
        engine: &Engine,
        layout: Layout,
        memory: &[CacheMemory],
        options: CacheOptions,
    ) -> Result<Cache> {
        layout.check()?;
        // A HELLO carries the layout, so it must fit.
        layout.export()?;
        check_memory(engine, &layout, memory)?;
        if options.silence.is_zero() {
            return Err(Error::invalid("options.silence is 0"));
        }
        let eventfd = || EventFd::new().map_err(|error| Error::system("creating an eventfd", &error));
        let (news, wake) = (eventfd()?, eventfd()?);
        let what = WHAT_TRANSFERS | WHAT_NOTIFICATIONS | WHAT_PEERS;
        let queue =
            engine.channel_queue(what, QUEUE_CAPACITY, CHANNEL).map_err(|error| match error.status {
                Status::Busy => {
                    Error::new(Status::Busy, format!("the engine has a cache already: {}", error.message))
                }
                _ => error,
            })?;
        let regions = memory.iter().map(|memory| MemoryRange {
            address: memory.address,
            bytes: memory.length,
            region: memory.region.raw(),
        });
        // The handle of the queue is drawn once by the engine, so it tells caches of one engine apart.
        let incarnation = queue.handle().raw();
        let mut machine = Machine::new(Arc::new(layout), incarnation, regions.collect(), options.silence);
        machine.set_leased_blocks_max(options.leased_blocks_max);
        // Messages leave the application most of the room for its own transfers.
        let parts_max = QUEUE_CAPACITY.min(engine.config().transfers_max as usize) / 4;
        let shared = Arc::new(Shared {
            engine: engine.clone(),
            queue,
            inner: Mutex::new(Inner::new(machine, parts_max)),
            changed: Condvar::new(),
            news,
            wake: Arc::new(wake),
            began: Instant::now(),
        });
        let thread = thread::start(&shared).inspect_err(|_| {
            let _ = shared.destroy_queue();
        })?;
        Ok(Cache { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Offers blocks; the memory belongs to the offer until its terminal event. INVALID for wrong blocks, and for an id
    /// that is in use or has ended; LIMIT.
    pub fn offer(&self, spec: OfferSpec) -> Result<()> {
        self.shared.call(|machine, now| machine.offer(spec, now))
    }

    /// Adds blocks to the groups of an offer, as they are allocated.
    pub fn offer_extend(&self, id: HandoffId, blocks: &[BlockList]) -> Result<()> {
        self.shared.call(|machine, now| machine.offer_extend(id, blocks, now))
    }

    /// Says that the first `tokens` tokens of these layers are in their blocks. Layers become ready in their order:
    /// INVALID for a layer that is ready up to there already, or that comes before the layers below it.
    pub fn offer_ready(&self, id: HandoffId, layers: Range<u32>, tokens: u64) -> Result<()> {
        self.shared.call_aside(|machine, now| machine.offer_ready(id, layers, tokens, now))
    }

    /// Says that the offer is whole: it has `tokens` tokens. Its lease begins.
    pub fn offer_seal(&self, id: HandoffId, tokens: u64) -> Result<()> {
        self.shared.call(|machine, now| machine.offer_seal(id, tokens, now))
    }

    /// Asks an offer to end. Its blocks are the caller's with its terminal event.
    pub fn offer_cancel(&self, id: HandoffId) -> Result<()> {
        self.shared.call(|machine, now| machine.offer_cancel(id, now))
    }

    /// Ends the oldest offers that nobody has taken, until `blocks` blocks are free. Returns how many are.
    pub fn reclaim(&self, blocks: usize) -> Result<usize> {
        self.shared.call(|machine, now| Ok(machine.reclaim(blocks, now)))
    }

    /// Takes a handoff; the memory of the blocks belongs to the take until its terminal event. INVALID for wrong blocks,
    /// and for an id that is in use or has ended; LIMIT.
    pub fn take(&self, spec: TakeSpec) -> Result<()> {
        drop(self.shared.lock_open()?);
        let known: Result<Vec<_>> = spec
            .producers
            .iter()
            .enumerate()
            .map(|(at, peer)| {
                let info = self.shared.engine.peer_info(*peer);
                Ok((*peer, info.map_err(|error| named(error, &format!("producers[{at}]")))?))
            })
            .collect();
        let known = known?;
        self.shared.call(|machine, now| {
            for (peer, info) in known {
                machine.set_here(peer, info.same_host);
                machine.set_name(peer, info.address);
            }
            machine.take(spec, now)
        })
    }

    /// Asks a take to end. Its blocks are the caller's with its terminal event.
    pub fn take_cancel(&self, id: HandoffId) -> Result<()> {
        self.shared.call(|machine, now| machine.take_cancel(id, now))
    }

    /// Returns the state of an id. A closed cache still answers.
    pub fn state(&self, id: HandoffId) -> HandoffState {
        self.shared.lock().machine.state(id)
    }

    /// Returns how many blocks belong to handoffs with peers that are silent and could not be fenced: processes of this
    /// host that were stopped in the midst of a copy. Their handoffs end when the process goes on, or ends. It may be
    /// called on a closed cache.
    pub fn unfenced_blocks(&self) -> usize {
        self.shared.lock().machine.unfenced_blocks()
    }

    /// Returns the counts since the cache was opened, and what exists now. A closed cache still answers.
    pub fn stats(&self) -> Stats {
        self.shared.lock().machine.stats(self.shared.now())
    }

    /// Returns the stats in Prometheus' text format. A closed cache still answers.
    pub fn metrics(&self) -> String {
        self.stats().prometheus()
    }

    /// Records a timeline of the cache's handoffs from now on, and forgets an earlier one: at most `entries_max` entries,
    /// of which new ones overwrite the oldest. INVALID unless `entries_max` is 1 to `limits::TIMELINE_ENTRIES_MAX`. CLOSED
    /// if the cache or its engine is closed.
    pub fn record(&self, entries_max: usize) -> Result<()> {
        let mut inner = self.shared.lock_open()?;
        inner.machine.record(entries_max, monotonic_ns().saturating_sub(self.shared.now()))
    }

    /// Ends the recording, and forgets it. CLOSED if the cache or its engine is closed.
    pub fn stop_recording(&self) -> Result<()> {
        self.shared.lock_open()?.machine.stop_recording();
        Ok(())
    }

    /// Returns up to `most` recorded entries from this number on, the oldest first. A closed cache still answers.
    pub fn timeline(&self, first: u64, most: usize) -> Vec<Entry> {
        self.shared.lock().machine.recorded(first, most)
    }

    /// Adds the application's own work on a layer to the timeline, with its times on CLOCK_MONOTONIC. Does nothing while
    /// no recording is on. INVALID if it ends before it begins. CLOSED if the cache or its engine is closed.
    pub fn mark(&self, id: HandoffId, kind: u32, layer: u32, ns: Range<u64>) -> Result<()> {
        self.shared.lock_open()?.machine.mark(id, kind, layer, ns)
    }

    /// Takes the next event, if there is one.
    pub fn poll(&self) -> Option<Event> {
        self.shared.take_event(&mut self.shared.lock())
    }

    /// Waits for the next event, and takes it; None waits for ever. TIMEOUT if none comes in time; CLOSED when the cache is closed and has
    /// no more events.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Event> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut inner = self.shared.lock();
        loop {
            if let Some(event) = self.shared.take_event(&mut inner) {
                return Ok(event);
            }
            if inner.is_over {
                return Err(Error::new(Status::Closed, "the cache is closed"));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::new(Status::Timeout, "no event came in time"));
            }
            inner = self.shared.sleep(inner, left);
        }
    }

    /// Ends all offers and takes, and waits until nothing touches their blocks and the peers have been told, for which a
    /// peer has the time of `CacheOptions::silence`. BUSY after the timeout: the cache is still closing, call again.
    /// Events can be taken afterwards.
    pub fn close(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut inner = self.shared.lock();
        inner.is_closing = true;
        self.shared.wake();
        while !inner.is_over {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::new(
                    Status::Busy,
                    "offers or takes have not ended, or peers have not been told",
                ));
            }
            inner = self.shared.sleep(inner, left);
        }
        drop(inner);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread's work is done; a panic at its very end is of no interest.
        let _ = thread.map(JoinHandle::join);
        Ok(())
    }
}

/// The eventfd of the events, for pollers: readable when `poll` has one, and when the cache is closed. The cache owns it.
impl AsFd for Cache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.news.as_fd()
    }
}

/// Closes without waiting: what is under way ends in the background, on the cache's thread. In a forked child, where
/// the lock may be taken for ever and the thread is missing, the cache stays as it is.
impl Drop for Cache {
    fn drop(&mut self) {
        if self.shared.engine.is_forked() {
            return;
        }
        self.shared.lock().is_closing = true;
        self.shared.wake();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// CLOSED if the cache is closed or closing, or its engine is closed.
    fn lock_open(&self) -> Result<MutexGuard<'_, Inner>> {
        // Checked first: in a forked child the lock may be held for ever.
        self.engine.check_not_closed()?;
        let inner = self.lock();
        if inner.is_closing {
            Err(Error::new(Status::Closed, "the cache is closed"))
        } else {
            Ok(inner)
        }
    }

    /// Returns after `changed`, or after the time.
    fn sleep<'a>(&self, inner: MutexGuard<'a, Inner>, left: Option<Duration>) -> MutexGuard<'a, Inner> {
        let left = left.unwrap_or(Duration::from_secs(3_600));
        match self.changed.wait_timeout(inner, left) {
            Ok((inner, _)) => inner,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Runs a call of the application and carries out the resulting actions.
    fn call<T>(&self, call: impl FnOnce(&mut Machine, u64) -> Result<T>) -> Result<T> {
        let mut inner = self.lock_open()?;
        let result = call(&mut inner.machine, self.now());
        self.act(&mut inner);
        // The call may have set a time that is before the next one that the thread knows.
        self.wake();
        result
    }

    /// As `call`, for calls that a model makes between its layers: the cache's thread carries out the actions.
    fn call_aside(&self, call: impl FnOnce(&mut Machine, u64) -> Result<()>) -> Result<()> {
        let mut inner = self.lock_open()?;
        let result = call(&mut inner.machine, self.now());
        let has_work = inner.machine.has_actions() || inner.machine.has_events();
        drop(inner);
        if has_work {
            self.wake();
        }
        result
    }

    fn wake(&self) {
        // The counter cannot overflow: the thread empties it.
        self.wake.raise();
    }

    fn take_event(&self, inner: &mut Inner) -> Option<Event> {
        let event = inner.machine.take_event();
        if !inner.machine.has_events() && !inner.is_over {
            self.news.clear();
        }
        event
    }

    fn destroy_queue(&self) -> Result<()> {
        self.engine.hub_of_closed()?.destroy(self.queue.handle())
    }
}

/// Names the argument in an error of the engine, which knows it by another name.
fn named(error: Error, what: &str) -> Error {
    Error { message: format!("{what}: {}", error.message), ..error }
}

/// INVALID unless each layer of the layout's own stage lies in one of the ranges.
fn check_memory(engine: &Engine, layout: &Layout, memory: &[CacheMemory]) -> Result<()> {
    for (at, memory) in memory.iter().enumerate() {
        engine.check_region(memory.region).map_err(|error| named(error, &format!("memory[{at}].region")))?;
    }
    for layer in &layout.layers {
        let Some(extent) = layer.extent(layout) else { continue };
        let has = |memory: &&CacheMemory| {
            let end = memory.address.saturating_add(memory.length);
            memory.address <= extent.start && extent.end <= end
        };
        if !memory.iter().any(|memory| has(&memory)) {
            let (start, end) = (extent.start, extent.end);
            let text = format!("memory: none has layer {} at {start:#x} to {end:#x}", layer.name);
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}
