//! The arguments and results of an application's calls about handoffs.

use std::fmt;
use std::time::Duration;

use ferry::types::PeerId;
use ferry::Status;

use super::id::HandoffId;

/// The blocks of one group that hold a sequence, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockList {
    /// Position of the first block's first token among the tokens that the rank holds, a multiple of the group's
    /// `block_tokens`: 0, unless earlier tokens have left a window, or a take skips them. `offer_extend` reads it only for a
    /// group that has no blocks.
    pub first_token: u64,
    /// Empty: the group is not needed.
    pub ids: Vec<u32>,
}

impl BlockList {
    /// A list that begins with the sequence.
    pub fn of(ids: impl Into<Vec<u32>>) -> BlockList {
        BlockList { first_token: 0, ids: ids.into() }
    }
}

impl FromIterator<u32> for BlockList {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> BlockList {
        BlockList { first_token: 0, ids: ids.into_iter().collect() }
    }
}

/// A producer's offer. The memory of the blocks belongs to the offer until its terminal event.
#[derive(Clone, Debug)]
pub struct OfferSpec {
    pub id: HandoffId,
    /// By group of the layout. More may come by `offer_extend`.
    pub blocks: Vec<BlockList>,
    /// Consumer groups that take the offer, 1 to 64. The offer ends when that many have ended.
    pub takers: u32,
    /// The peers that may take the offer; empty for every authenticated peer.
    pub only: Vec<PeerId>,
    /// Counted from the seal: the offer ends when not all of its takers are there by then.
    pub lease: Duration,
}

impl OfferSpec {
    /// An offer of these blocks to one consumer, whoever it is, with a lease of 30 seconds.
    pub fn new(id: HandoffId, blocks: Vec<BlockList>) -> OfferSpec {
        OfferSpec { id, blocks, takers: 1, only: Vec::new(), lease: Duration::from_secs(30) }
    }
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
    pub taker: u64,
    /// By group of the layout.
    pub blocks: Vec<BlockList>,
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

impl TakeSpec {
    /// A take of the first `tokens` tokens into these blocks, by one consumer, without a deadline.
    pub fn new(id: HandoffId, producers: Vec<PeerId>, blocks: Vec<BlockList>, tokens: u64) -> TakeSpec {
        TakeSpec {
            id,
            producers,
            taker: 0,
            blocks,
            skip_tokens: 0,
            tokens,
            mode: Mode::Auto,
            deadline: None,
            tell_layers: false,
        }
    }
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

impl End {
    /// The name of the event in the C interface.
    pub fn name(self) -> &'static str {
        match self {
            End::Sent => "SENT",
            End::Received => "RECEIVED",
            End::Failed => "FAILED",
            End::Cancelled => "CANCELLED",
            End::Expired => "EXPIRED",
            End::PeerLost => "PEER_LOST",
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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

/// One line for people. It shows a part of the id only.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Layers { id, layers } => write!(f, "{id:?}: {layers} layers are complete"),
            Event::Ended { id, end, status, why, valid_tokens, by, .. } => {
                write!(f, "{id:?}: {end}, {status}, {valid_tokens} tokens are valid")?;
                by.map_or(Ok(()), |by| write!(f, ", by rank {}", by.rank))?;
                if why.is_empty() {
                    Ok(())
                } else {
                    write!(f, ": {why}")
                }
            }
        }
    }
}

/// The state of an id, as `state` returns it.
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
