//! `ferry_transfer_options`: the options of a transfer besides its requests.

use crate::engine::ferry_engine;
use crate::handles::{check_reserved, ferry_queue, FERRY_FOREVER};
use crate::pointers::slice;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::types::{MemoryKind, QueueId, Transport};
use engine::{Deadline, Error, Start, TransferOptions};
use std::ffi::c_void;
use std::time::Duration;

/// Post each request as it is, in the caller's order; do not merge neighbours.
pub const FERRY_TRANSFER_NO_COALESCE: u32 = 1;
/// Apply no byte before the earlier ORDERED transfers to the peer are done. If one that is not final yet
/// fails, this transfer fails with FERRY_ERR_CANCELLED and moves nothing.
pub const FERRY_TRANSFER_ORDERED: u32 = 2;
/// Verify the payload end to end; a mismatch is FERRY_ERR_CORRUPT. Such transfers use TCP.
pub const FERRY_TRANSFER_CHECKSUM: u32 = 4;
/// A WRITE may be done when the peer's device has acknowledged the data, before the data is visible to the
/// peer's CPU. Only RDMA makes this difference; the flag changes nothing on other transports.
pub const FERRY_TRANSFER_ACKED_ONLY: u32 = 8;

/// The transfer is done when fdatasync has returned for the files that it has written (FERRY_MEMORY_FILE): at the
/// target for a WRITE, here for a READ. The flag changes nothing for other memory.
pub const FERRY_TRANSFER_DURABLE: u32 = 16;

const FLAGS: u32 = FERRY_TRANSFER_NO_COALESCE
    | FERRY_TRANSFER_ORDERED
    | FERRY_TRANSFER_CHECKSUM
    | FERRY_TRANSFER_ACKED_ONLY
    | FERRY_TRANSFER_DURABLE;

/// In transports_allowed: the bit of FERRY_TRANSPORT_TCP.
pub const FERRY_ALLOW_TCP: u64 = 2;
/// The bit of FERRY_TRANSPORT_LOCAL.
pub const FERRY_ALLOW_LOCAL: u64 = 4;
/// The bit of FERRY_TRANSPORT_RDMA.
pub const FERRY_ALLOW_RDMA: u64 = 8;
/// The bit of FERRY_TRANSPORT_CUDA.
pub const FERRY_ALLOW_CUDA: u64 = 16;
/// The bit of FERRY_TRANSPORT_ASCEND.
pub const FERRY_ALLOW_ASCEND: u64 = 32;

const TRANSPORTS: u64 =
    FERRY_ALLOW_TCP | FERRY_ALLOW_LOCAL | FERRY_ALLOW_RDMA | FERRY_ALLOW_CUDA | FERRY_ALLOW_ASCEND;
const _: () = assert!(FERRY_ALLOW_TCP == 1 << Transport::Tcp as u32);
const _: () = assert!(FERRY_ALLOW_ASCEND == 1 << Transport::Ascend as u32);

/// Start without waiting.
pub const FERRY_START_NOW: u32 = 0;
/// Start after a recorded CUDA event: options.event is the CUevent or cudaEvent_t. The event must exist until the
/// transfer is final. While it waits, the transfer keeps its place among ORDERED transfers and notifications.
/// If the work before the event fails, the transfer fails.
pub const FERRY_START_AFTER_CUDA_EVENT: u32 = 1;
/// Start after an event of AscendCL: options.event is the aclrtEvent, which must exist until the transfer is final.
pub const FERRY_START_AFTER_ACL_EVENT: u32 = 2;
/// Start after all work that a CUDA stream has been given so far: options.event is the CUstream or
/// cudaStream_t; 0 is the default stream. The stream must exist until the call returns, and its context until the
/// transfer is final.
pub const FERRY_START_AFTER_CUDA_STREAM: u32 = 3;
/// Start after all work that a stream of AscendCL has been given so far: options.event is the aclrtStream.
/// The stream must exist until the call returns, and its context until the transfer is final. The context must be
/// current in the calling thread; otherwise the call returns FERRY_ERR_UNSUPPORTED.
pub const FERRY_START_AFTER_ACL_STREAM: u32 = 4;

/// Options of a transfer. Zero the struct, set struct_size to sizeof, then set the fields that you need. NULL
/// means all defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_transfer_options {
    /// sizeof(ferry_transfer_options).
    pub struct_size: u32,
    /// FERRY_TRANSFER_* bits.
    pub flags: u32,
    /// Deadline in nanoseconds from now; 0 means the setting deadline_ms, FERRY_FOREVER no deadline. A
    /// transfer that is not done by then is stopped, and is final within the setting lease_ms after that.
    pub deadline_ns: u64,
    /// Returned in the result and the event.
    pub user_data: u64,
    /// The queue that gets a FERRY_EVENT_TRANSFER when the transfer is final; it must take
    /// FERRY_QUEUE_TRANSFERS. Submit reserves room in it. 0 means no queue: wait for the transfer.
    pub queue: ferry_queue,
    /// Bytes that the peer's application gets after the data is visible there, in order with other
    /// notifications to the peer. Submit copies them. NULL means no notification.
    pub notify: *const c_void,
    /// At most FERRY_NOTIFY_BYTES_MAX. 0 with a notify that isn't NULL is an empty notification.
    pub notify_length: usize,
    /// FERRY_ALLOW_* bits. If no allowed transport is usable, the transfer fails rather than falls back. 0
    /// allows every transport that the engine may use.
    pub transports_allowed: u64,
    /// Among transfers of about the same size, a higher priority goes first.
    pub priority: u32,
    /// FERRY_START_*.
    pub event_kind: u32,
    /// The event or stream to start after; must be 0 with FERRY_START_NOW.
    pub event: u64,
    /// The channel of the notification: 0 to FERRY_CHANNELS_MAX - 1. A queue that takes notifications names its channel
    /// (ferry_queue_create_channel). Channels keep the notifications of libraries that share an engine apart. Each has
    /// an order and credits of its own.
    pub channel: u32,
    /// 0.
    pub reserved: u32,
}

/// How many channels of notifications there are.
pub const FERRY_CHANNELS_MAX: u32 = 16;
const _: () = assert!(FERRY_CHANNELS_MAX == engine::limits::CHANNELS_MAX as u32);

/// Converts the number of a channel. `what` names the argument.
pub(crate) fn channel(number: u32, what: &str) -> Result<u16> {
    u16::try_from(number)
        .map_err(|_| Error::invalid(format!("{what}: {number} is not 0 to {}", FERRY_CHANNELS_MAX - 1)))
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_transfer_options {
    const SIZE_MIN: usize = 72;
}

/// Converts a deadline: nanoseconds from now.
pub(crate) fn deadline(deadline_ns: u64) -> Deadline {
    match deadline_ns {
        0 => Deadline::Default,
        FERRY_FOREVER => Deadline::Never,
        ns => Deadline::After(Duration::from_nanos(ns)),
    }
}

/// Reads and checks the caller's options; NULL means the defaults.
///
/// # Safety
/// `pointer` is NULL, or it and all that the options point to are the caller's for `'a`.
pub(crate) unsafe fn read<'a>(
    engine: &ferry_engine,
    pointer: *const ferry_transfer_options,
) -> Result<TransferOptions<'a>> {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(pointer, "options") })? else {
        return Ok(TransferOptions::default());
    };
    check(&options)?;
    let notify = if options.notify.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { slice(options.notify.cast(), options.notify_length, "options.notify") }?)
    };
    let queue = match options.queue {
        0 => None,
        handle => Some(engine.engine.hub()?.get(QueueId::from_raw(handle))?),
    };
    Ok(TransferOptions {
        no_coalesce: options.flags & FERRY_TRANSFER_NO_COALESCE != 0,
        ordered: options.flags & FERRY_TRANSFER_ORDERED != 0,
        checksum: options.flags & FERRY_TRANSFER_CHECKSUM != 0,
        acked_only: options.flags & FERRY_TRANSFER_ACKED_ONLY != 0,
        durable: options.flags & FERRY_TRANSFER_DURABLE != 0,
        deadline: deadline(options.deadline_ns),
        user_data: options.user_data,
        queue,
        notify,
        channel: channel(options.channel, "options.channel")?,
        transports_allowed: options.transports_allowed,
        priority: options.priority,
        // SAFETY: the caller's promise.
        start: unsafe { start(options.event_kind, options.event, "options.") }?,
        awaited: false,
    })
}

fn check(options: &ferry_transfer_options) -> Result<()> {
    let unknown_flags = options.flags & !FLAGS;
    if unknown_flags != 0 {
        return Err(Error::invalid(format!("options.flags has unknown bits {unknown_flags:#x}")));
    }
    let unknown_transports = options.transports_allowed & !TRANSPORTS;
    if unknown_transports != 0 {
        let message = format!("options.transports_allowed has unknown bits {unknown_transports:#x}");
        return Err(Error::invalid(message));
    }
    check_reserved(u64::from(options.reserved), "options.reserved")?;
    if options.notify.is_null() {
        check_reserved(u64::from(options.channel), "options.channel (without notify)")?;
        check_reserved(options.notify_length as u64, "options.notify_length (without notify)")?;
    }
    Ok(())
}

/// Returns the event or stream to start after; None means now. `of` stands before the arguments' names in messages.
///
/// # Safety
/// `event` is what `kind` says: the caller's promise, as of `Start`.
pub(crate) unsafe fn start(kind: u32, event: u64, of: &str) -> Result<Option<(MemoryKind, Start)>> {
    let event_of = |kind| match event {
        0 => Err(Error::invalid(format!("{of}event is 0, which is no event"))),
        // SAFETY: the caller's promise.
        event => Ok(Some((kind, unsafe { Start::event(event) }))),
    };
    // SAFETY: as above.
    let stream_of = |kind| Ok(Some((kind, unsafe { Start::stream(event) })));
    match kind {
        FERRY_START_NOW => check_reserved(event, &format!("{of}event (with FERRY_START_NOW)")).map(|()| None),
        FERRY_START_AFTER_CUDA_EVENT => event_of(MemoryKind::Cuda),
        FERRY_START_AFTER_ACL_EVENT => event_of(MemoryKind::Ascend),
        FERRY_START_AFTER_CUDA_STREAM => stream_of(MemoryKind::Cuda),
        FERRY_START_AFTER_ACL_STREAM => stream_of(MemoryKind::Ascend),
        kind => Err(Error::invalid(format!("{of}event_kind is {kind}, not a FERRY_START_* value"))),
    }
}
