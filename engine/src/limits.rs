//! All bounds in one place: the sizes to which the wire, the tables and the loops may grow.

/// Payload bytes of one data frame. Larger transfers are cut into frames; small transfers overtake between frames.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// The smallest frame payload that an engine may set as its limit.
pub const FRAME_BYTES_MIN: u32 = 64 << 10;
/// Descriptors of one data frame. With the two header vectors this stays below IOV_MAX (1,024).
pub const FRAME_DESCRIPTORS_MAX: usize = 512;
/// Bytes of one system call of a lane: smaller calls cost bandwidth, in switches between sender and receiver. A kernel
/// without preemption lets no other thread run during a call, so calls are smaller while small transfers to or from any
/// peer follow one another.
pub const CALL_BYTES_MAX: usize = 512 << 10;
pub const GENTLE_CALL_BYTES_MAX: usize = 256 << 10;
/// Payload of a bulk lane's frames (at least one slice) while small transfers to the same peer follow one another, and
/// the number of such frames that may be unacknowledged.
pub const GENTLE_FRAME_BYTES_MAX: u32 = 128 << 10;
pub const GENTLE_FRAMES_MAX: usize = 1;
/// Unacknowledged frames on one lane.
pub const LANE_FRAMES_MAX: usize = 256;
/// READ requests that a target accepts on one lane before it has answered them.
pub const LANE_READS_MAX: usize = 64;
/// Payload that one lane may have requested by READ and not yet received. READ requests are small: without a bound, the
/// first lane to run would request all of a transfer and the others would be idle.
pub const LANE_READ_BYTES_MAX: u64 = 8 << 20;
/// Bytes of one notification.
pub const NOTIFY_BYTES_MAX: usize = 16 << 10;
/// Tasks that wait for events of one queue.
pub const EVENT_TASKS_MAX: usize = 1024;
/// Notifications from one peer that the target holds for its application.
pub const NOTIFY_CREDITS: u32 = 1024;
/// Channels of notifications: their numbers are below this one. Each has its own order and its own credits.
pub const CHANNELS_MAX: u16 = 16;
/// Requests of one transfer.
pub const REQUESTS_MAX: usize = 1 << 24;
/// Regions in one control message.
pub const REGIONS_PER_MESSAGE: usize = 256;
/// Regions that a peer may announce: as many as an engine can have.
pub const PEER_REGIONS_MAX: usize = 1 << 20;
/// How long the control loop announces regions in one turn before it serves everything else.
pub const ANNOUNCE_TURN_NS: u64 = 1_000_000;
/// Pause between two announcements of regions, so that many changes go out together.
pub const ANNOUNCE_PAUSE_NS: u64 = 500_000;
/// Bytes that may wait on a peer's control connection while regions are announced on it.
pub const ANNOUNCE_BACKLOG_BYTES_MAX: usize = 1 << 20;
/// Changes of regions that may not be announced to a connected peer yet.
pub const ANNOUNCE_LOG_MAX: u64 = 4 << 20;
/// Bytes of messages of transports' services that wait for a peer that has not got all announcements or does not read.
pub const ANNOUNCE_WAITING_BYTES_MAX: usize = 16 << 20;
/// Bytes of a region's name.
pub const REGION_NAME_BYTES_MAX: usize = 63;
/// Bytes of an engine's address.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Bytes of one handshake frame.
pub const HANDSHAKE_BYTES_MAX: usize = 1024;
/// Payload of one piece that is copied from or to a device; the slot has extra room for aligning its blocks.
pub const STAGE_BYTES: u32 = 2 << 20;
const _: () = assert!(STAGE_BYTES >= FRAME_BYTES_MAX, "a slice fits a slot");
/// Payload of one piece that a device moves by itself: large compared with the cost of its start.
pub const DEVICE_PIECE_BYTES: u32 = 64 << 20;
pub const STAGE_SLOT_BYTES: u64 = STAGE_BYTES as u64 + FRAME_DESCRIPTORS_MAX as u64 * STAGE_SECTOR;
pub const STAGE_ALIGN: u64 = 16;
/// Blocks of whole sectors begin at multiples of this: a disk reads and writes them without a copy.
pub const STAGE_SECTOR: u64 = 512;
/// Operations of one peer on device memory that are in progress here: more than a correct engine has.
pub const STAGE_OPERATIONS_MAX: usize = 2048;
/// Bytes of one peer's messages about these operations that are not processed yet.
pub const STAGE_QUEUED_BYTES_MAX: usize = 32 << 20;
/// Pairs of devices, one here and one of the peer's, that reach each other across hosts.
pub const BRIDGES_MAX: usize = 64;
/// How long a connection stays open for the peer to take the Bye on it; an engine that closes waits for that.
pub const FAREWELL_NS: u64 = 500_000_000;

/// A peer that was silent for longer than this is asked whether it is there when a transfer finds no path, or when the
/// application connects to the peer again.
pub const SILENCE_NS: u64 = 1_000_000_000;
/// Names that an engine looks up at one time, each on a thread of its own; further names wait for these.
pub const LOOK_UPS_MAX: usize = 16;
/// Handshakes in progress on the accepting side; others wait in the listener's backlog.
pub const HANDSHAKES_MAX: usize = 512;
/// The share of the process's descriptors (`ulimit -n`) for handshakes in progress: at most one in this many.
pub const STRANGERS_SHARE: usize = 8;
/// Data lanes per peer, the express lane not counted.
pub const LANES_MAX: u32 = 16;
/// Lost lanes of one session whose fence the peer has not acknowledged: more than an unstable network produces before
/// an answer arrives.
pub const FENCES_WAITING_MAX: usize = 4096;
/// Lane numbers of one session, taken or fenced, that are remembered one by one.
pub const LANE_NUMBERS_KEPT: usize = 256;
/// Closed lanes of one peer that threads of this process cannot leave yet, because a page that they need does not come.
/// A peer with this many gets no further lane.
pub const LATE_LANES_MAX: usize = 16;
/// Lane threads of an engine that wait for pages and are replaced by others.
pub const STUCK_THREADS_MAX: usize = 64;
/// Lane threads of an engine.
pub const WORKERS_MAX: u32 = 64;
/// Allocations of ferry that processes of this host can map. Each takes a descriptor; further allocations are ordinary
/// memory.
pub const SHARED_MEMORIES_MAX: usize = 256;
/// Allocations of one peer that are mapped here: twice as many, because new ones may arrive before old ones are
/// unmapped.
pub const PEER_MAPS_MAX: usize = 2 * SHARED_MEMORIES_MAX;
/// Packets that are read from one same-host path in one turn.
pub const LOCAL_PACKETS_PER_TURN: usize = 64;
/// Queue pairs for large transfers of one endpoint.
pub const QPS_MAX: u32 = 16;
/// RDMA devices that an engine uses.
pub const DEVICES_MAX: usize = 32;
/// A device registers larger regions in pieces no smaller than this. No slice is longer.
pub const SPLIT_BYTES_MIN: u64 = FRAME_BYTES_MAX as u64;
/// Keys of one region in one message. A region that is registered in more pieces takes several messages.
pub const RKEYS_PER_MESSAGE: usize = 8192;
/// Keys of one peer's regions that are kept.
pub const PEER_RKEYS_MAX: usize = 1 << 20;
/// Messages of one peer's RDMA service that are not processed yet, and the endpoints and regions that the peer may
/// request or take back meanwhile.
pub const RDMA_MESSAGES_MAX: usize = 4096;
pub const RDMA_ENDPOINTS_MAX: usize = 2 * DEVICES_MAX;
pub const RDMA_REVOKES_MAX: usize = 16 << 10;
/// Notifications of one endpoint that were taken in and are not acknowledged yet.
pub const RDMA_OWED_MAX: usize = 16 * NOTIFY_CREDITS as usize;
/// Bytes of a notification that goes over RDMA; longer notifications go over TCP.
pub const RDMA_NOTIFY_BYTES_MAX: usize = 1015;
/// Holds of the program's streams in one device library at a time. The queue of a CUDA stream takes about 1,000 holds
/// (a wait and an event each, measured on an H200): CUDA does not return from the next call until the stream continues.
pub const HOLDS_MAX: usize = 512;
/// The most slots of staging in one direction.
pub const STAGING_SLOTS_MAX: u64 = 64;
/// Parts of staged transfers at one time: each staging slot has two runs, and a run has one part.
pub const PARTS_MAX: u32 = 2 * STAGING_SLOTS_MAX as u32;
/// Allocations of one device that are exported, each by a descriptor.
pub const DEVICE_EXPORTS_MAX: usize = 1024;
/// The longest `device_timeout_ms`; a peer may not state a longer timeout for its devices.
pub const DEVICE_TIMEOUT_MS_MAX: u64 = 600_000;
/// Time that a device gets to become idle after it was given up, and to report that.
pub const DEVICE_IDLE_MS: u64 = 250;
/// Bytes that the control loop reads from one connection in one turn.
pub const CONTROL_TURN_BYTES: usize = 8 << 10;
/// Bytes that are still read from a control connection that can no longer be written to.
pub const BROKEN_BYTES_MAX: usize = 1 << 20;
/// Incarnations of peers that the application may have fenced, until it connects to them again.
pub const FENCED_MAX: usize = 1 << 20;
/// Answers to one peer's messages that may wait to be written. A correct peer waits for an answer before it asks again.
pub const ANSWERS_UNWRITTEN_MAX: u32 = 1024;

/// Warnings about an engine's environment that name a variable; one more says how many were left out.
pub const WARNINGS_MAX: usize = 16;
