//! All bounds of the pool in one place: what callers and peers may hand over, and how far tables grow.

/// Bytes of a caller's own hash of a chunk.
pub const CHUNK_HASH_BYTES_MAX: usize = 1024;
/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 255;
/// Bytes of a tenant's secret, and tenants whose share of a node is bounded.
pub const TENANT_SECRET_BYTES_MIN: usize = 16;
pub const TENANT_SECRET_BYTES_MAX: usize = 1024;
pub const QUOTAS_MAX: usize = 4096;
/// Pairs of an identity beyond the named fields, and bytes of one name or value.
pub const IDENTITY_PAIRS_MAX: usize = 64;
pub const IDENTITY_BYTES_MAX: usize = 4096;
/// Tokens of one chunk.
pub const CHUNK_TOKENS_MAX: u32 = 65_536;
pub const CHUNK_TOKENS_DEFAULT: u32 = 256;
/// Tokens that one call hashes: a caller with more resumes from a parent.
pub const CHAIN_TOKENS_MAX: usize = 1 << 24;
/// Extra keys of one call, and bytes of one.
pub const EXTRAS_MAX: usize = 4096;
pub const EXTRA_BYTES_MAX: usize = 1024;

/// Index members of a cluster, and how many of them keep each key.
pub const INDEX_MEMBERS_MAX: usize = 8;
pub const HOMES: usize = 2;
/// Nodes of a cluster, and bytes of a node's name.
pub const NODES_MAX: usize = 4096;
pub const NODE_NAME_BYTES_MAX: usize = 255;
/// How long the weight of a new node grows.
pub const RAMP_NS: u64 = 60_000_000_000;
/// Fingerprints of one call of the table: a turn is bounded.
pub const BATCH_FINGERPRINTS_MAX: usize = 65_536;
/// Owners in the answer for one key.
pub const ANSWER_OWNERS_MAX: usize = 4;
/// Incarnations of owners whose entries the table holds, swept or not: an entry names one in 16 bits.
pub const OWNER_SLOTS_MAX: usize = 1 << 16;
/// Earlier inventories and incarnations of one node whose entries are not swept yet.
pub const DEAD_SLOTS_MAX: usize = 12;
const _: () =
    assert!(NODES_MAX * (2 + DEAD_SLOTS_MAX) <= OWNER_SLOTS_MAX, "one node's slots are not another's");
/// Entries of one index member: about 3.6 GB.
pub const ENTRIES_MAX: usize = 1 << 28;
/// Entries of a bucket of the table, on average: each bucket costs about 80 bytes beyond its entries.
pub const BUCKET_ENTRIES: usize = 32;
/// Keys that were removed while an owner was absent, and how long an index member remembers each.
pub const TOMBSTONES_MAX: usize = 1 << 18;
pub const TOMBSTONE_NS: u64 = 600_000_000_000;

/// Runs of memory that one object may be scattered over.
pub const EXTENTS_MAX: usize = 16;
/// The unit in which memory is given to objects, unless the options say otherwise.
pub const UNIT_BYTES_DEFAULT: u64 = 16 << 10;
/// The unit in which a file is given to objects, at least, and how many units a file has at most.
pub const TIER_UNIT_BYTES: u64 = 64 << 10;
pub const TIER_UNITS_MAX: u64 = 1 << 24;
/// The smallest file of a node.
pub const FILE_BYTES_MIN: u64 = 1 << 20;
/// Bytes and number of objects that are being copied to the file, and objects that wait for it; more are not copied.
pub const SAVING_BYTES_MAX: u64 = 32 << 20;
pub const SAVING_MAX: usize = 64;
/// Objects that are brought back from the file at once; further gets wait.
pub const LOADS_MAX: usize = 256;
/// The pause before a table that could not be written is tried again.
pub const TABLE_PAUSE_NS: u64 = 1_000_000_000;
pub const SAVES_MAX: usize = 1 << 16;
/// Pages of the file's table that are written at once.
pub const PAGES_OF_FLUSH: usize = 64;
/// Calls of one node that are open, keys of one call, pieces of memory of one value.
pub const CALLS_MAX: usize = 16_384;
pub const KEYS_OF_CALL_MAX: usize = 65_536;
pub const SEGMENTS_OF_VALUE_MAX: usize = 65_536;
/// Parts into which heads are divided, bytes of a part of a chunk, and pieces of all values of a call, before neighbours
/// are joined.
pub const HEAD_PARTS_MAX: u32 = 1 << 10;
pub const PART_BYTES_MAX: u64 = 1 << 40;
pub const PIECES_OF_VALUES_MAX: u64 = 1 << 22;
/// Bytes of one value that a prefetch brings, and bytes that it brings at once: a longer value comes alone.
pub const PREFETCHED_VALUE_BYTES_MAX: u64 = 128 << 20;
pub const PREFETCHED_AT_ONCE_BYTES: u64 = 32 << 20;
/// Values that a node is to bring again because its copy was bad, and those that it brings before others have a turn.
pub const REPAIRS_MAX: usize = 1_024;
pub const REPAIRED_AT_ONCE: usize = 16;
/// Values that no other node takes, with which a drain ends: no other one will be taken either.
pub const DRAIN_LEFT_MAX: usize = 1_024;
/// Values that a drain has moved and remembers, so that a removal reaches them.
pub const DRAIN_MOVED_MAX: usize = 1 << 16;
/// Bytes of a node's counts as text.
pub const COUNTS_BYTES_MAX: usize = 256 << 10;
/// Nodes that hold one value.
pub const REPLICAS_MAX: usize = 8;
/// A request to a node: its keys, the bytes and pieces of memory of its values. A single longer value is a request.
pub const KEYS_OF_REQUEST_MAX: usize = 2_000;
pub const BYTES_OF_REQUEST_MAX: u64 = 8 << 20;
pub const SEGMENTS_OF_REQUEST_MAX: usize = 2_048;
/// A message of another node: its keys, the pieces of memory of all of them, its bytes.
pub const KEYS_OF_MESSAGE_MAX: usize = 65_536;
pub const SEGMENTS_OF_MESSAGE_MAX: usize = 65_536;
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Requests of one node that are served at once; it is told FULL beyond.
pub const SERVED_OF_NODE_MAX: usize = 4_096;
/// An answer travels behind its bytes in one frame up to this size; a longer one is sent when they have arrived.
pub const ATTACHED_BYTES_MAX: u64 = 512 << 10;
pub const ATTACHED_REQUESTS_MAX: usize = 512;
/// Objects that are evicted before others have a turn.
pub const EVICTIONS_OF_TURN_MAX: usize = 256;
/// A node that owes an answer and is silent for this time is fenced: it is asked for a sign of life after half of it.
pub const SILENCE_NS: u64 = 1_000_000_000;
/// The pause before an inventory that was of no use begins again; each further pause is twice as long, up to the second.
pub const AGAIN_NS: u64 = 100_000_000;
pub const AGAIN_NS_MAX: u64 = 3_200_000_000;
/// Places of the store that one part of an inventory covers: it fits into one notification.
pub const INVENTORY_PLACES_MAX: usize = 2_000;
/// Buckets of the index's table that are tidied in one turn.
pub const SWEEP_BUCKETS: usize = 64;
/// Keys of which a node remembers who had them.
pub const HINTS_MAX: usize = 65_536;
/// The pause before the other nodes hear again how much of a node is free.
pub const LOAD_NS: u64 = 1_000_000_000;
