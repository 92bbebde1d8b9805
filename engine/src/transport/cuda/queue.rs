//! Copies on one device. Batches take turns on two streams, so that a gather overlaps the copy before it, and both
//! directions of the bus are used.
//!
//! Each batch has a slot: a part of the scratch memory and of the kernel's table, and an event after its last call.
//! All are made when the device is opened; starting a batch allocates nothing.

use super::access::Reach;
use super::contexts::Contexts;
use super::export::Exports;
use super::import::Imports;
use super::kernel::{Entry, Kernel};
use super::shape::{self, Run};
use crate::device::{Batch, Borrowed, Direction, Piece, Queue};
use crate::status::{Error, Result, Status};
use crate::sys::cuda::{
    result, Context, CopyAttributes, CurrentContext, DeviceMemory, Event, Failure, Handle, PinnedMemory,
    Stream,
};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// The least average bytes of a batch for each table entry. Finer batches are copied piece by piece.
const ENTRY_COVERS_BYTES: usize = 256;
const ENTRIES_MAX: usize = 1 << 16;

pub struct CudaQueue {
    /// Restores the thread's context when dropped. The first field, because dropping the next may end the context.
    _entered: CurrentContext,
    /// Not dropped while the device may still use them.
    parts: ManuallyDrop<Parts>,
}

struct Parts {
    contexts: Arc<Contexts>,
    context: Arc<Context>,
    streams: [Stream; 2],
    slots: Vec<BatchSlot>,
    gather: Option<Gather>,
    /// Whether the driver has cuMemcpyBatchAsync.
    has_batches: bool,
    reach: Reach,
    imports: Imports,
    exports: Exports,
    batch_bytes: u64,
    /// The number of the next batch, and of the first batch that has not ended.
    next: u64,
    ended: u64,
    /// The context has failed, so every later call fails with this error.
    broken: Option<Error>,
    lists: Lists,
}

/// The parts that the kernel needs.
struct Gather {
    kernel: Kernel,
    scratch: DeviceMemory,
    table: PinnedMemory,
    scratch_bytes: u64,
    entries: usize,
}

struct BatchSlot {
    event: Event,
    /// The event could not be recorded or queried: the batch has ended when its stream is idle.
    by_stream: bool,
    /// A call failed after others had been started: the batch fails when those have ended.
    failed: Option<Error>,
}

/// Lists that all batches reuse.
#[derive(Default)]
struct Lists {
    joined: Vec<Piece>,
    runs: Vec<Run>,
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

/// The calls of one batch: the count of successful ones, and the failure that ended them.
struct Calls {
    started: usize,
    failed: Option<Failure>,
}

impl CudaQueue {
    pub fn open(
        contexts: &Arc<Contexts>,
        device: i32,
        batch_bytes: usize,
        depth: usize,
    ) -> Result<CudaQueue> {
        if batch_bytes == 0 || depth == 0 {
            return Err(Error::invalid("batch_bytes and depth must not be 0"));
        }
        let context = contexts.get(device)?;
        let entered = context.enter()?;
        let streams = [Stream::new(&context)?, Stream::new(&context)?];
        let slot = || {
            Ok(BatchSlot {
                event: Event::new(context.api, context.handle())?,
                by_stream: false,
                failed: None,
            })
        };
        let parts = Parts {
            slots: (0..depth).map(|_| slot()).collect::<Result<_>>()?,
            // Without memory for the kernel, or a driver that compiles it, batches are copied piece by piece.
            gather: Gather::new(&context, streams[0].raw, batch_bytes, depth).ok(),
            has_batches: true,
            reach: Reach::new(contexts),
            imports: Imports::new(&context),
            exports: Exports::default(),
            batch_bytes: batch_bytes as u64,
            next: 0,
            ended: 0,
            broken: None,
            lists: Lists::default(),
            contexts: contexts.clone(),
            context,
            streams,
        };
        Ok(CudaQueue { _entered: entered, parts: ManuallyDrop::new(parts) })
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        if self.parts.poll_all() {
            // SAFETY: not used after this.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
        // Otherwise streams, scratch and context stay: releasing them would wait, or take memory from under
        // the device.
    }
}

impl Queue for CudaQueue {
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        let parts = &mut *self.parts;
        if let Some(error) = &parts.broken {
            return Err(error.clone());
        }
        if parts.next - parts.ended >= parts.slots.len() as u64 {
            return Err(Error::new(Status::Limit, format!("{} batches are under way", parts.slots.len())));
        }
        let bytes_max = if direction == Direction::DeviceToDevice { u64::MAX } else { parts.batch_bytes };
        check(pieces, bytes_max)?;
        shape::join(pieces, &mut parts.lists.joined);
        let calls = parts.start(direction)?;
        parts.close(calls)
    }

    fn poll_done(&mut self, batch: Batch) -> Result<bool> {
        while self.parts.ended <= batch.0 {
            let number = self.parts.ended;
            match self.parts.poll_ended(number) {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(error) => {
                    self.parts.ended += 1;
                    return Err(error);
                }
            }
            self.parts.ended += 1;
            let at = self.parts.slot_of(number);
            if let Some(error) = self.parts.slots[at].failed.take() {
                return Err(error);
            }
        }
        Ok(true)
    }

    /// CUDA cannot stop what is under way, so this only finds out whether all has ended. A failed context runs
    /// nothing.
    fn abort(&mut self) -> bool {
        self.parts.poll_all()
    }

    fn export(&mut self, address: u64, length: u64, _pid: i32) -> Result<Vec<u8>> {
        let parts = &mut *self.parts;
        parts.exports.export(&parts.contexts, address, length)
    }

    fn withdraw(&mut self, exported: &[u8]) {
        self.parts.exports.withdraw(exported);
    }

    fn import(&mut self, borrowed: &Borrowed<'_>) -> Result<u64> {
        self.parts.imports.import(borrowed)
    }

    fn close(&mut self, imported: u64) -> Result<()> {
        self.parts.imports.close(imported)
    }
}

fn check(pieces: &[Piece], bytes_max: u64) -> Result<()> {
    let mut bytes = 0u64;
    for (at, piece) in pieces.iter().enumerate() {
        let ends = piece.from.checked_add(piece.length).and(piece.to.checked_add(piece.length));
        bytes = bytes.saturating_add(piece.length);
        if ends.is_none() || bytes > bytes_max {
            let text =
                format!("pieces[{at}]: the batch is longer than {bytes_max} bytes, or beyond all addresses");
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

impl Parts {
    fn slot_of(&self, batch: u64) -> usize {
        (batch % self.slots.len() as u64) as usize
    }

    fn stream_of(&self, batch: u64) -> &Stream {
        &self.streams[(batch % 2) as usize]
    }

    /// Starts the joined pieces by the best method that works. An error means that nothing was started.
    fn start(&mut self, direction: Direction) -> Result<Calls> {
        let stream = self.stream_of(self.next).raw;
        let at = self.slot_of(self.next);
        let lists = &mut self.lists;
        let mut by_kernel = self.gather.is_some() && shape::are_scattered(&lists.joined);
        self.reach.begin();
        if by_kernel || direction == Direction::DeviceToDevice {
            for piece in &lists.joined {
                let device = shape::device_side(direction, piece);
                by_kernel &= self.reach.includes(&self.context, device, piece.length)?;
                if direction == Direction::DeviceToDevice {
                    by_kernel &= self.reach.includes(&self.context, piece.from, piece.length)?;
                }
            }
        }
        let mut before = 0;
        if let Some(gather) = self.gather.as_ref().filter(|_| by_kernel) {
            if gather.takes(direction, lists) {
                let calls = gather.start(&self.context, direction, lists, at, stream);
                // A kernel that failed to start has done nothing, so copies may replace it. From the host, the calls
                // before it wrote only scratch memory.
                let nothing_written = calls.started == 0 || direction == Direction::HostToDevice;
                match calls.failed {
                    Some(failure) if nothing_written && !failure.is_sticky() => before = calls.started,
                    _ => return Ok(calls),
                }
            }
        }
        let mut calls = self.start_copies(direction, stream);
        calls.started += before;
        Ok(calls)
    }

    /// Starts the joined pieces without the kernel.
    fn start_copies(&mut self, direction: Direction, stream: Handle) -> Calls {
        if self.has_batches && self.lists.joined.len() > 1 {
            let calls = self.lists.copy_batch(&self.context, stream);
            match calls.failed {
                Some(failure) if failure.code == result::NOT_SUPPORTED => self.has_batches = false,
                _ => return calls,
            }
        }
        self.lists.copy_each(&self.context, direction, stream)
    }

    /// Records the batch's end after its calls.
    fn close(&mut self, calls: Calls) -> Result<Batch> {
        let (number, at) = (self.next, self.slot_of(self.next));
        if let Some(failure) = calls.failed {
            let error = self.note(failure);
            if calls.started == 0 || failure.is_sticky() {
                return Err(error);
            }
            self.slots[at].failed = Some(error);
        }
        // SAFETY: the stream lives and belongs to the same context.
        let recorded = unsafe { self.slots[at].event.record(self.stream_of(number).raw) };
        if let Err(failure) = recorded {
            let error = self.note(failure);
            if failure.is_sticky() {
                return Err(error);
            }
        }
        self.slots[at].by_stream = recorded.is_err();
        self.next += 1;
        Ok(Batch(number))
    }

    /// Makes an error of a failure, and remembers a context's failure. Another failure concerns its batch only, so its
    /// status must not be UNAVAILABLE, which would end the use of the device.
    fn note(&mut self, failure: Failure) -> Error {
        let mut error = Error::from(failure);
        if failure.is_sticky() {
            self.broken.get_or_insert_with(|| error.clone());
        } else if error.status == Status::Unavailable {
            error.status = Status::System;
        }
        error
    }

    /// Returns whether a batch has ended. An error: the context has failed, so the batch has ended. If the state
    /// cannot be queried, the batch counts as not ended.
    fn poll_ended(&mut self, batch: u64) -> Result<bool> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let at = self.slot_of(batch);
        let answer = if self.slots[at].by_stream {
            self.stream_of(batch).is_idle()
        } else {
            self.slots[at].event.is_reached()
        };
        match answer {
            Ok(ended) => Ok(ended),
            Err(failure) if failure.is_sticky() => Err(self.note(failure)),
            Err(_) => {
                self.slots[at].by_stream = true;
                Ok(false)
            }
        }
    }

    fn poll_all(&mut self) -> bool {
        (self.ended..self.next).all(|batch| !matches!(self.poll_ended(batch), Ok(false)))
    }
}

impl Gather {
    fn new(context: &Arc<Context>, stream: Handle, batch_bytes: usize, depth: usize) -> Result<Gather> {
        let entries = (batch_bytes / ENTRY_COVERS_BYTES).clamp(shape::KERNEL_PIECES_MIN, ENTRIES_MAX);
        // Includes room to align the runs, and each batch's part begins at a multiple of 256.
        let scratch_bytes = (batch_bytes + batch_bytes / 8 + 512) & !255;
        Ok(Gather {
            kernel: Kernel::load(context, stream)?,
            scratch: DeviceMemory::new(context, scratch_bytes * depth)?,
            table: PinnedMemory::new(context, entries * size_of::<Entry>() * depth)?,
            scratch_bytes: scratch_bytes as u64,
            entries,
        })
    }

    /// Returns whether the kernel can move the joined pieces, and lays their runs out.
    fn takes(&self, direction: Direction, lists: &mut Lists) -> bool {
        lists.joined.len() <= self.entries
            && (direction == Direction::DeviceToDevice
                || shape::runs(direction, &lists.joined, self.scratch_bytes, &mut lists.runs))
    }

    /// Starts the kernel and a copy for each run: copies after it to the host, before it from the host.
    fn start(
        &self,
        context: &Context,
        direction: Direction,
        lists: &Lists,
        slot: usize,
        stream: Handle,
    ) -> Calls {
        let scratch = self.scratch.address + slot as u64 * self.scratch_bytes;
        let table = self.table.address + (slot * self.entries * size_of::<Entry>()) as u64;
        let mut calls = Calls { started: 0, failed: None };
        if direction == Direction::DeviceToDevice {
            let entry = |piece: &Piece| Entry { source: piece.from, target: piece.to, length: piece.length };
            self.write(slot, lists.joined.iter().map(entry));
        } else {
            let mut runs = lists.runs.iter().peekable();
            self.write(
                slot,
                lists.joined.iter().enumerate().map(|(at, piece)| {
                    while runs.peek().is_some_and(|run| at >= run.first + run.count) {
                        runs.next();
                    }
                    let offset = runs
                        .peek()
                        .map_or(0, |run| run.scratch + shape::host_side(direction, piece) - run.host);
                    let (inside, outside) = (scratch + offset, shape::device_side(direction, piece));
                    let (source, target) = match direction {
                        Direction::DeviceToHost => (outside, inside),
                        _ => (inside, outside),
                    };
                    Entry { source, target, length: piece.length }
                }),
            );
        }
        let bytes = lists.joined.iter().map(|piece| piece.length).sum();
        let copy = |run: &Run| {
            let (to, from) = match direction {
                Direction::DeviceToHost => (run.host, scratch + run.scratch),
                _ => (scratch + run.scratch, run.host),
            };
            copy_one(context, direction, &Piece { to, from, length: run.length }, stream)
        };
        // SAFETY: the table and the scratch memory are this slot's, whose last batch has ended; the rest was
        // found to be memory that the device reaches, which the caller of `copy` keeps until it has ended.
        let launch = || unsafe { self.kernel.launch(table, lists.joined.len(), bytes, stream) };
        match direction {
            Direction::DeviceToDevice => calls.take(launch()),
            Direction::DeviceToHost => {
                calls.take(launch()) && lists.runs.iter().all(|run| calls.take(copy(run)))
            }
            Direction::HostToDevice => {
                lists.runs.iter().all(|run| calls.take(copy(run))) && calls.take(launch())
            }
        };
        calls
    }

    fn write(&self, slot: usize, entries: impl Iterator<Item = Entry>) {
        let table = self.table.pointer::<Entry>();
        for (at, entry) in entries.take(self.entries).enumerate() {
            // SAFETY: inside this slot's part of the table, which no kernel reads now.
            unsafe { table.add(slot * self.entries + at).write(entry) };
        }
    }
}

impl Calls {
    /// Counts a call. Returns whether to continue.
    fn take(&mut self, call: Result<(), Failure>) -> bool {
        match call {
            Ok(()) => self.started += 1,
            Err(failure) => self.failed = Some(failure),
        }
        self.failed.is_none()
    }
}

impl Lists {
    fn copy_each(&self, context: &Context, direction: Direction, stream: Handle) -> Calls {
        let mut calls = Calls { started: 0, failed: None };
        for piece in &self.joined {
            if !calls.take(copy_one(context, direction, piece, stream)) {
                break;
            }
        }
        calls
    }

    /// Copies all pieces in one call. If the call fails, the number of copies it started is unknown.
    fn copy_batch(&mut self, context: &Context, stream: Handle) -> Calls {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
        self.to.extend(self.joined.iter().map(|piece| piece.to));
        self.from.extend(self.joined.iter().map(|piece| piece.from));
        self.bytes.extend(self.joined.iter().map(|piece| piece.length as usize));
        let mut attributes = CopyAttributes::in_stream_order();
        let (mut first, mut failed_at) = (0, 0);
        // SAFETY: three lists of one length and one attribute, for all from the first on, which live for the
        // call; the caller of `copy` keeps the memory until it has ended.
        let copied = unsafe {
            context.api.memcpy_batch(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.bytes.as_mut_ptr(),
                self.joined.len(),
                &mut attributes,
                &mut first,
                1,
                &mut failed_at,
                stream,
            )
        };
        Calls { started: 1, failed: copied.err() }
    }
}

fn copy_one(context: &Context, direction: Direction, piece: &Piece, stream: Handle) -> Result<(), Failure> {
    let (api, bytes) = (context.api, piece.length as usize);
    // SAFETY: the caller of `copy` keeps the memory until it has ended; the driver checks its own memory.
    // Between devices without peer access it goes over the host.
    unsafe {
        match direction {
            Direction::HostToDevice => {
                api.memcpy_host_to_device(piece.to, piece.from as usize as *const c_void, bytes, stream)
            }
            Direction::DeviceToHost => {
                api.memcpy_device_to_host(piece.to as usize as *mut c_void, piece.from, bytes, stream)
            }
            Direction::DeviceToDevice => api.memcpy_device_to_device(piece.to, piece.from, bytes, stream),
        }
    }
}
