//! The bounds of handoffs. Each is named in the LIMIT that it causes.

/// Offers of one cache that have not ended.
pub const OFFERS_MAX: usize = 65_536;
/// Takes of one cache that have not ended.
pub const TAKES_MAX: usize = 16_384;
/// Takes that wait for their offer at the producer: of one peer, and of all.
pub const WAITING_OF_PEER_MAX: usize = 1_024;
pub const WAITING_MAX: usize = 16_384;
/// Takes that ended before the offer came, and that are remembered for it: of one peer, and of all.
pub const WAITING_ENDED_OF_PEER_MAX: usize = 1_024;
pub const WAITING_ENDED_MAX: usize = 16_384;
/// Takes that ended before their producer's HELLO, and of which it is told then.
pub const DECLINED_OF_PEER_MAX: usize = 1_024;
/// Blocks of takes that wait for their offers: of one peer, and of all.
pub const WAITING_BLOCKS_OF_PEER_MAX: usize = BLOCKS_MAX;
pub const WAITING_BLOCKS_MAX: usize = 4 * WAITING_BLOCKS_OF_PEER_MAX;
/// Consumer groups of one offer.
pub const TAKERS_MAX: usize = 64;
/// Blocks of one handoff, all groups together.
pub const BLOCKS_MAX: usize = 1_000_000;
/// Transfers of handoffs that one peer has in flight, and of them those of one part of a handoff.
pub const IN_FLIGHT_OF_PEER_MAX: u32 = 64;
pub const IN_FLIGHT_OF_PART_MAX: u32 = 4;
/// Messages to one peer that are under way before further news of progress waits.
pub const UNSENT_MAX: u32 = 64;
/// Answers to one peer's messages that are under way before its PINGs are not answered: those are sign enough.
pub const ANSWERS_BEFORE_PONG_MAX: u32 = 1_024;
/// Answers that are under way to one peer, which is fenced when it asks for more: as many as a cache needs whose
/// takes are all refused and cancelled, and whose offers are all taken back.
pub const ANSWERS_MAX: u32 = (OFFERS_MAX + 2 * TAKES_MAX) as u32;
/// HELLOs that are under way to one peer, which is fenced when it asks for more. They are long.
pub const GREETINGS_MAX: u32 = 16;
/// How long a peer that answers may take to end transfers that it was asked to end, in times of silence. An engine ends
/// them within its `lease_ms`, whatever the network does, unless memory of its own does not come.
pub const SILENCES_TO_END: u64 = 10;
/// Ended ids that are remembered, and for how long.
pub const TOMBSTONES_MAX: usize = 65_536;
pub const TOMBSTONE_NS: u64 = 600_000_000_000;
/// Bytes of one message. The longest has a million blocks, each a run of its own.
pub const MESSAGE_BYTES_MAX: usize = 9 << 20;
/// Calls of `offer_ready` that wait for events of devices.
pub const DEVICE_EVENTS_MAX: usize = 4_096;
/// Entries of a recorded timeline.
pub const TIMELINE_ENTRIES_MAX: usize = 1 << 20;
/// Ranges of tokens that one layer has received apart from each other.
pub const RANGES_MAX: usize = 64;
