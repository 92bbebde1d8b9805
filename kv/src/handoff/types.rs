//! The arguments and results of an application's calls about handoffs.

use std::time::Duration;

use ferry::types::PeerId;
use ferry::Status;

use super::id::HandoffId;

/// The blocks of one group that hold a sequence, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Position of the first block's first token among the tokens that the rank holds, a multiple of the group's
    /// `block_tokens`: 0, unless earlier tokens have left a window, or a take skips them. `offer_extend` reads it only for a
    /// group that has no blocks.
    pub first_token: u64,
    /// Empty: the group is not needed.
    pub ids: Vec<u32>,
}

/// A producer's offer. The memory of the blocks belongs to the offer until its terminal event.
#[derive(Clone, Debug)]
pub struct OfferSpec {
    pub id: HandoffId,
    /// By group of the layout. More may come by `offer_extend`.
    pub blocks: Vec<Blocks>,
    /// Consumer groups that take the offer, 1 to 64. The offer ends when that many have ended.
    pub takers: u32,
    /// The peers that may take the offer; empty for every authenticated peer.
    pub only: Vec<PeerId>,
    /// Counted from the seal: the offer ends when not all of its takers are there by then.
    pub lease: Duration,
}

/// How the bytes move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Pull on the same host, else push.
    #[default]
    Auto,
    /// The consumer READs.
    Pull,
    /// The producer WRITEs.
    Push,
}

/// A consumer's take. The memory of the blocks belongs to the take until its terminal event.
#[derive(Clone, Debug)]
pub struct TakeSpec {
    pub id: HandoffId,
    /// The producer's ranks, by number.
    pub producers: Vec<PeerId>,
    /// The same for all ranks of one consumer, and different between consumers of one offer.
    pub group: u64,
    /// By group of the layout.
    pub blocks: Vec<Blocks>,
    /// Tokens at the beginning that the consumer has already.
    pub skip_tokens: u64,
    /// Where the tokens end.
    pub tokens: u64,
    pub mode: Mode,
    /// From now on; None: no deadline.
    pub deadline: Option<Duration>,
    /// Whether to tell layers as they are complete.
    pub tell_layers: bool,
}

/// How an offer or a take ended. Nothing touches its blocks any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every rank of every taker that takes from this rank has received its take.
    Sent,
    /// All tokens of the take are in their blocks.
    Received,
    Failed,
    /// By this side.
    Cancelled,
    /// The lease of the offer was over before its takers came.
    Expired,
    /// A peer is gone.
    PeerLost,
}

/// A rank of the other side: of an offer's taker, or of a take's producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    pub peer: PeerId,
    pub rank: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Layers before `layers`, in the order of the layout, are complete. Told to takes that asked. If the take fails later,
    /// they stay as they are, and are right unless its status is CORRUPT or STALE.
    Layers { id: HandoffId, layers: u32 },
    /// The terminal event of an offer or a take: exactly one each.
    Ended {
        id: HandoffId,
        end: End,
        status: Status,
        /// Why, in a sentence; empty for Sent and Received.
        why: String,
        /// For a take, the tokens from the beginning that are complete in all layers and groups.
        valid_tokens: u64,
        /// For a take, each (group, block) that is not to be trusted.
        untrusted: Vec<(u32, u32)>,
        /// The rank that ended it, was lost, or failed; None if no other rank is the cause.
        by: Option<Other>,
    },
}

/// The state of an id, as `status` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffState {
    Unknown,
    /// An offer that has not ended.
    Offered {
        sealed: bool,
        takers: u32,
    },
    /// A take that has not ended.
    Taking {
        valid_tokens: u64,
    },
    /// Struck; the blocks are not the caller's yet.
    Ending,
    Ended(End),
}
