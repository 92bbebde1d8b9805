//! Every bound in one place: what the wire, the tables and the loops may grow to.

/// Payload bytes of one data frame. Larger transfers are cut; small ones overtake between frames.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// The least that an engine may take in one frame.
pub const FRAME_BYTES_MIN: u32 = 64 << 10;
/// Descriptors of one data frame. With the two header vectors this stays below IOV_MAX (1,024).
pub const FRAME_DESCRIPTORS_MAX: usize = 512;
/// Payload of a bulk lane's frames, but for one slice at least, while small transfers to the same peer
/// follow one another; and how many of them are unacknowledged.
pub const GENTLE_FRAME_BYTES_MAX: u32 = 128 << 10;
pub const GENTLE_FRAMES_MAX: usize = 1;
/// Unacknowledged frames on one lane.
pub const LANE_FRAMES_MAX: usize = 256;
/// READ requests that a target accepts on one lane before it has answered them.
pub const LANE_READS_MAX: usize = 64;
/// Payload that one lane may have asked for by READ and not yet received. Requests are small: without a
/// bound, the first lane to run would ask for all of a transfer and the others would stand idle.
pub const LANE_READ_BYTES_MAX: u64 = 8 << 20;
/// Bytes of one notification.
pub const NOTIFY_BYTES_MAX: usize = 16 << 10;
/// Notifications from one peer that the target holds for its application.
pub const NOTIFY_CREDITS: u32 = 1024;
/// Requests of one transfer.
pub const REQUESTS_MAX: usize = 1 << 24;
/// Regions in one control message.
pub const REGIONS_PER_MESSAGE: usize = 256;
/// Regions that a peer may have told: as many as an engine can have.
pub const PEER_REGIONS_MAX: usize = 1 << 20;
/// How long the control loop announces regions before it looks after everything else again.
pub const ANNOUNCE_TURN_NS: u64 = 1_000_000;
/// How soon after the last that came or went the next are told: together, if they are many.
pub const ANNOUNCE_REST_NS: u64 = 500_000;
/// Bytes that may wait on a peer's control connection while it is told of more regions.
pub const ANNOUNCE_BACKLOG_BYTES_MAX: usize = 1 << 20;
/// Changes of regions that a connected peer may not have been told yet.
pub const ANNOUNCE_LOG_MAX: u64 = 4 << 20;
/// What transports' services say to a peer that has yet to be told of regions, or that does not read.
pub const ANNOUNCE_WORDS_BYTES_MAX: usize = 16 << 20;
/// Bytes of a region's name.
pub const REGION_NAME_BYTES_MAX: usize = 63;
/// Bytes of one handshake frame.
pub const HANDSHAKE_BYTES_MAX: usize = 1024;
/// Payload of one piece of staging, on its way from or to a device; and room for aligning its blocks.
pub const STAGE_BYTES: u32 = 2 << 20;
const _: () = assert!(STAGE_BYTES >= FRAME_BYTES_MAX, "a slice fits a slot");
/// Of one piece that a device moves by itself: long beside what its start costs.
pub const DEVICE_PIECE_BYTES: u32 = 64 << 20;
pub const STAGE_SLOT_BYTES: u64 = STAGE_BYTES as u64 + FRAME_DESCRIPTORS_MAX as u64 * STAGE_ALIGN;
pub const STAGE_ALIGN: u64 = 16;
/// Operations of one peer on memory of devices that are under way here: more than an engine in good order has.
pub const STAGE_OPERATIONS_MAX: usize = 2048;
/// Bytes of one peer's words about them that nobody has looked at.
pub const STAGE_SAID_BYTES_MAX: usize = 32 << 20;
/// Pairs of devices, one here and one of the peer's, that reach each other across hosts.
pub const BRIDGES_MAX: usize = 64;
/// Handshakes in progress on the accepting side; others wait in the listener's backlog.
pub const HANDSHAKES_MAX: usize = 512;
/// Data lanes per peer, the express lane not counted.
pub const LANES_MAX: u32 = 16;
/// Lost lanes of one session whose fence nobody has answered: more than flapping links bring within an answer's time.
pub const FENCES_WAITING_MAX: usize = 4096;
/// Lane numbers of one session, taken or fenced, that are remembered one by one.
pub const LANE_NUMBERS_KEPT: usize = 256;
/// Lane threads of an engine.
pub const WORKERS_MAX: u32 = 64;
/// Pieces of memory that ferry allocated so that processes of this host can map them: each takes a
/// descriptor. Further ones are ordinary memory.
pub const SHARED_MEMORIES_MAX: usize = 256;
/// Those of one peer that are mapped here: while one goes, the next may have come.
pub const PEER_MAPS_MAX: usize = 2 * SHARED_MEMORIES_MAX;
/// Packets that are read of one path before others get their turn.
pub const LOCAL_PACKETS_PER_TURN: usize = 64;
/// Queue pairs for large transfers of one endpoint.
pub const QPS_MAX: u32 = 16;
/// RDMA devices that an engine uses.
pub const DEVICES_MAX: usize = 32;
/// A device registers larger regions in pieces no smaller than this. No slice is longer.
pub const SPLIT_BYTES_MIN: u64 = FRAME_BYTES_MAX as u64;
/// Keys of one region in one message; a region registered in more pieces takes several.
pub const RKEYS_PER_MESSAGE: usize = 8192;
/// Keys that are kept of one peer's regions.
pub const PEER_RKEYS_MAX: usize = 1 << 20;
/// Words of one peer's service for RDMA that nobody has looked at, and endpoints and regions that it may ask for
/// or take back before that is done.
pub const RDMA_WORDS_MAX: usize = 4096;
pub const RDMA_ENDPOINTS_MAX: usize = 2 * DEVICES_MAX;
pub const RDMA_REVOKES_MAX: usize = 16 << 10;
/// Notifications of one endpoint that were taken in and are not acknowledged.
pub const RDMA_OWED_MAX: usize = 16 * NOTIFY_CREDITS as usize;
/// Bytes of a notification that goes by RDMA; longer ones go by TCP.
pub const RDMA_WORD_BYTES_MAX: usize = 1015;
/// Streams of the program's that one device library holds at one time.
pub const HOLDS_MAX: usize = 1024;
/// Allocations of one device that are exported by a descriptor each.
pub const DEVICE_EXPORTS_MAX: usize = 1024;
/// The longest `device_timeout_ms`: what a peer may say that its devices are given.
pub const DEVICE_TIMEOUT_MS_MAX: u64 = 600_000;
/// For a device that was given up to come to rest, and for word of it to arrive.
pub const DEVICE_REST_MS: u64 = 250;
/// Bytes that the control loop reads of one connection before others get their turn.
pub const CONTROL_TURN_BYTES: usize = 8 << 10;
/// What is still read of a control connection that cannot be written to any more.
pub const LAST_WORDS_BYTES_MAX: usize = 1 << 20;
/// Answers to one peer's messages that may wait to be written; honest peers wait for one before they ask again.
pub const ANSWERS_UNWRITTEN_MAX: u32 = 1024;
