//! The copies of one device: one stream in a context of ferry's own, on one thread.
//!
//! A batch ends with a copy of the number 1 from the device to a flag in pinned host memory. Polling a batch reads its
//! flag. The stream runs nothing after a failed task, so a set flag also means that all tasks before it succeeded.
//! From time to time the stream itself is queried, to find failures.
//!
//! ```text
//! stream:   … copies of batch 7 │ word 7 = 1 │ copies of batch 8 │ word 8 = 1 …
//! ```

use super::across::{Exposures, Fabric};
use super::contexts::Contexts;
use super::driver::location_of;
use super::gather::{self, Across, CopyStep, Scratch};
use super::share::Sharing;
use crate::device::{Batch, Borrowed, Direction, Exposed, Piece, Queue};
use crate::status::{Error, Result, Status};
use crate::sys::acl::{self, Context, DeviceMemory, PinnedMemory, Runtime, Stream};
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::map::HashSet;
use crate::types::Transport;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::Arc;

/// The distance between two flags: a cache line.
const FLAG_STRIDE: usize = 64;
/// The number of looks at a flag before the stream is queried.
const POLLS_PER_QUERY: u32 = 256;
/// The time in which a stopped stream must become idle.
const STOP_MS: i32 = 100;

pub struct AscendQueue {
    runtime: Arc<Runtime>,
    contexts: Arc<Contexts>,
    device: i32,
    depth: usize,
    scratch: Scratch,
    /// Leaked with its memory, if the stream cannot be stopped.
    held: ManuallyDrop<Held>,
    /// Other devices of this process that this device reaches.
    reached: HashSet<i32>,
    /// The number of the next batch, and of the first batch that is not known to have ended.
    next: u64,
    first: u64,
    /// For each slot, the error with which its batch under way will fail when it has ended.
    failures: Vec<Option<Error>>,
    polls: u32,
    /// The reason why no copies are accepted any more; nothing is under way then.
    lost: Option<Error>,
}

/// The fields are in the order in which they must be dropped.
struct Held {
    stream: Stream,
    _scratch: DeviceMemory,
    one: DeviceMemory,
    flags: PinnedMemory,
    sharing: Sharing,
    exposures: Exposures,
    context: Context,
}

impl AscendQueue {
    /// Opens a queue. The calling thread's current context is the queue's from now on.
    pub fn open(
        runtime: Arc<Runtime>,
        (contexts, fabric): (Arc<Contexts>, Option<Fabric>),
        device: i32,
        batch_bytes: usize,
        depth: usize,
    ) -> Result<AscendQueue> {
        if batch_bytes == 0 || depth == 0 {
            return Err(Error::invalid("batch_bytes and depth must be at least 1"));
        }
        let context = Context::create(&runtime, device)?;
        let flags = PinnedMemory::new(&runtime, depth * FLAG_STRIDE)?;
        let one = DeviceMemory::holding(&runtime, &1u64.to_ne_bytes())?;
        let scratch = DeviceMemory::new(&runtime, batch_bytes)?;
        let stream = Stream::create(&runtime)?;
        let sharing = Sharing::new(&runtime, device);
        let exposures = Exposures::new(&runtime, device, fabric);
        contexts.add(&context);
        Ok(AscendQueue {
            contexts,
            device,
            depth,
            scratch: Scratch { address: scratch.address(), length: batch_bytes as u64 },
            held: ManuallyDrop::new(Held {
                stream,
                _scratch: scratch,
                one,
                flags,
                sharing,
                exposures,
                context,
            }),
            reached: HashSet::from_iter([device]),
            next: 0,
            first: 0,
            failures: vec![None; depth],
            polls: 0,
            lost: None,
            runtime,
        })
    }

    fn place(&self, batch: u64) -> usize {
        (batch % self.depth as u64) as usize
    }

    fn flag(&self, place: usize) -> &AtomicU64 {
        let flag = self.held.flags.address().wrapping_byte_add(place * FLAG_STRIDE);
        // SAFETY: one of `depth` flags in pinned memory that lives as long as the queue. The device writes
        // eight aligned bytes at once, and other code only through the atomic.
        unsafe { AtomicU64::from_ptr(flag.cast()) }
    }

    /// Adds the batch's copies to the stream. `begun` is set when some of them were added.
    fn begin(&mut self, direction: Direction, pieces: &[Piece], begun: &mut bool) -> Result<()> {
        let across = match direction {
            Direction::HostToDevice => Across::ToDevice,
            Direction::DeviceToHost => Across::ToHost,
            Direction::DeviceToDevice => {
                for piece in pieces {
                    self.reach(piece.to)?;
                    self.reach(piece.from)?;
                    self.add(acl::ACL_COPY_DEVICE_TO_DEVICE, piece, begun)?;
                }
                return Ok(());
            }
        };
        let kind = match across {
            Across::ToDevice => acl::ACL_COPY_HOST_TO_DEVICE,
            Across::ToHost => acl::ACL_COPY_DEVICE_TO_HOST,
        };
        let sharing = &self.held.sharing;
        let plan = gather::plan(across, pieces, self.scratch, |address| sharing.is_imported(address));
        if plan.direct.len() > 1 && self.runtime.calls.aclrtMemcpyBatchAsync.is_some() {
            let list: Vec<_> = plan.direct.iter().map(|piece| (piece.to, piece.from, piece.length)).collect();
            // The call may fail after it has added some copies.
            *begun = true;
            // SAFETY: memory of the engine or of a region that the transfer has entered, until the batch ends.
            unsafe { self.held.stream.copy_batch(kind, self.device, &list)? };
        } else {
            for piece in &plan.direct {
                self.add(kind, piece, begun)?;
            }
        }
        for step in &plan.steps {
            match step {
                CopyStep::Across(piece) => self.add(kind, piece, begun)?,
                CopyStep::OnDevice(piece) => self.add(acl::ACL_COPY_DEVICE_TO_DEVICE, piece, begun)?,
            }
        }
        Ok(())
    }

    fn add(&self, kind: i32, piece: &Piece, begun: &mut bool) -> Result<()> {
        if piece.length == 0 {
            return Ok(());
        }
        // SAFETY: memory of the engine or of a region that the transfer has entered, until the batch ends.
        unsafe { self.held.stream.copy(kind, piece.to, piece.from, piece.length)? };
        *begun = true;
        Ok(())
    }

    /// Enables access to the device that owns the memory. UNSUPPORTED if that is impossible.
    fn reach(&mut self, address: u64) -> Result<()> {
        if self.held.sharing.is_imported(address) {
            return Ok(());
        }
        // The copy itself will refuse memory that the library does not know.
        let Ok(location) = location_of(&self.runtime, address) else { return Ok(()) };
        let (other, calls) = (location.id as i32, &self.runtime.calls);
        if location.type_ != acl::ACL_AT_DEVICE || self.reached.contains(&other) {
            return Ok(());
        }
        let mut can = 0;
        // SAFETY: the number outlives the call.
        let code = unsafe { (calls.aclrtDeviceCanAccessPeer)(&mut can, self.device, other) };
        self.runtime.check("aclrtDeviceCanAccessPeer", code)?;
        if can == 0 {
            let text = format!("Ascend device {} can't reach device {other}", self.device);
            return Err(Error::new(Status::Unsupported, text).over(Transport::Ascend));
        }
        // SAFETY: no memory is involved.
        let code = unsafe { (calls.aclrtDeviceEnablePeerAccess)(other, 0) };
        self.runtime.check("aclrtDeviceEnablePeerAccess", code)?;
        self.reached.insert(other);
        Ok(())
    }

    /// Queries the stream. An error: the stream has failed, and nothing is under way.
    fn ask(&mut self, batch: u64) -> Result<bool> {
        let idle = self.held.stream.is_idle();
        match &idle {
            Ok(false) => return Ok(false),
            // The flag may have been written after the last look.
            Ok(true) if self.flag(self.place(batch)).load(Ordering::Acquire) == 1 => return Ok(true),
            // The flag's copy could not be added to the stream.
            Ok(true) if self.failures[self.place(batch)].is_some() => return Ok(true),
            _ => {}
        }
        if !self.stop_stream() {
            return Ok(false);
        }
        let error = idle.and_then(|_| self.held.stream.wait(1)).err();
        let error =
            error.unwrap_or_else(|| Error::new(Status::Unavailable, "the stream stopped, without a reason"));
        let message = format!("copies on Ascend device {} have failed: {}", self.device, error.message);
        let lost = Error { status: Status::Unavailable, message, ..error };
        self.lost = Some(lost.clone());
        Err(lost)
    }

    /// Stops the stream, and returns whether nothing is under way any more. A time-out or an error of stopping proves
    /// nothing.
    fn stop_stream(&self) -> bool {
        let stream = &self.held.stream;
        if matches!(stream.is_idle(), Ok(true)) {
            return true;
        }
        let _ = stream.abort();
        let _ = stream.wait(STOP_MS);
        matches!(stream.is_idle(), Ok(true))
    }
}

impl Queue for AscendQueue {
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if self.next - self.first >= self.depth as u64 {
            return Err(Error::new(Status::Busy, "more batches under way than the queue was opened for"));
        }
        let (batch, place) = (self.next, self.place(self.next));
        let mut begun = false;
        let mut result = self.begin(direction, pieces, &mut begun);
        if !begun && result.is_err() {
            return result.map(|()| Batch(batch));
        }
        self.flag(place).store(0, Ordering::Relaxed);
        let flag: *const AtomicU64 = self.flag(place);
        let mark = Piece { to: flag as u64, from: self.held.one.address(), length: size_of::<u64>() as u64 };
        let marked = self.add(acl::ACL_COPY_DEVICE_TO_HOST, &mark, &mut begun);
        if !begun {
            return marked.map(|()| Batch(batch));
        }
        // The copies that began end like other batches, and the batch fails then.
        if result.is_ok() {
            result = marked;
        }
        self.failures[place] = result.err();
        self.next += 1;
        Ok(Batch(batch))
    }

    fn poll_done(&mut self, batch: Batch) -> Result<bool> {
        let place = self.place(batch.0);
        if batch.0 < self.first {
            return Ok(true);
        }
        // Pairs with the device, whose copies before the flag are visible once the flag is.
        let mut done = self.flag(place).load(Ordering::Acquire) == 1;
        if !done {
            if let Some(lost) = &self.lost {
                return Err(lost.clone());
            }
            self.polls += 1;
            if self.polls % POLLS_PER_QUERY == 0 {
                done = self.ask(batch.0)?;
            }
        }
        if !done {
            return Ok(false);
        }
        self.first = batch.0 + 1;
        self.failures[place].take().map_or(Ok(true), Err)
    }

    fn abort(&mut self) -> bool {
        let is_stopped = self.stop_stream();
        if is_stopped {
            let text = format!("copies on Ascend device {} were stopped", self.device);
            let error = Error::new(Status::Unavailable, text).over(Transport::Ascend);
            self.lost.get_or_insert(error);
        }
        is_stopped
    }

    fn export(&mut self, address: u64, length: u64, pid: i32) -> Result<Vec<u8>> {
        self.held.sharing.export(address, length, pid)
    }

    fn withdraw(&mut self, exported: &[u8]) {
        self.held.sharing.withdraw(exported);
    }

    fn import(&mut self, borrowed: &Borrowed<'_>) -> Result<u64> {
        self.held.sharing.import(borrowed)
    }

    fn close(&mut self, imported: u64) -> Result<()> {
        self.held.sharing.close(imported)
    }

    fn expose(&mut self, length: u64, host: IpAddr) -> Result<Exposed> {
        self.held.exposures.expose(length, host)
    }

    fn conceal(&mut self, address: u64) {
        self.held.exposures.conceal(address);
    }

    fn tidy(&mut self) -> bool {
        self.held.exposures.tidy()
    }
}

impl Drop for AscendQueue {
    fn drop(&mut self) {
        if !self.stop_stream() {
            return;
        }
        self.contexts.remove(&self.held.context);
        // SAFETY: once, here; no copy under way uses its memory.
        unsafe { ManuallyDrop::drop(&mut self.held) };
    }
}
