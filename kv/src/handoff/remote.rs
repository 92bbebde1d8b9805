//! Another cache, as this one knows it: its layout, the plans between the two, and whether it gives signs of life.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ferry::status::Error;
use ferry::types::PeerId;

use crate::layout::Layout;
use crate::plan::Plan;

use super::id::HandoffId;
use super::progress::Work;
use super::wire::{Joiner, MemoryRange};

type Planned = Result<Arc<Plan>, Error>;

#[derive(Clone, Debug, Default)]
pub struct Remote {
    /// What the peer's cache said of itself.
    pub hello: Option<Hello>,
    /// This cache's HELLO went to the peer.
    pub is_greeted: bool,
    pub joiner: Joiner,
    /// Messages, and transfers, that are not final.
    pub unsent: u32,
    pub in_flight: u32,
    /// Of the messages: answers, and HELLOs. A peer that asks and takes no answers makes them pile up.
    pub answers: u32,
    pub greetings: u32,
    /// Handoffs that have not ended and of which something is expected of the peer.
    pub handoffs: BTreeSet<Handoff>,
    /// The peer shares this host's memory.
    pub is_here: bool,
    pub heard_ns: u64,
    /// When the peer was asked for a sign of life, if it has not given one since.
    pub asked_ns: Option<u64>,
    /// A fence was asked for.
    pub is_fencing: bool,
    /// A fence of the silent peer failed.
    pub is_unfenced: bool,
}

/// One of this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handoff {
    Offer(HandoffId),
    Take(HandoffId),
}

impl Handoff {
    pub fn id(self) -> HandoffId {
        match self {
            Handoff::Offer(id) | Handoff::Take(id) => id,
        }
    }
}

#[derive(Clone)]
pub struct Hello {
    pub incarnation: u64,
    pub layout: Arc<Layout>,
    pub regions: Vec<MemoryRange>,
    /// From the peer's instance to this one, and back.
    pub to_us: Planned,
    pub from_us: Planned,
}

impl Hello {
    pub fn new(incarnation: u64, theirs: Layout, regions: Vec<MemoryRange>, ours: &Layout) -> Hello {
        let to_us = Plan::between(&theirs, ours).map(Arc::new);
        let from_us = Plan::between(ours, &theirs).map(Arc::new);
        Hello { incarnation, layout: Arc::new(theirs), regions, to_us, from_us }
    }
}

/// Without the layout and the plans, which are long and never change.
impl fmt::Debug for Hello {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let (incarnation, rank) = (self.incarnation, self.layout.shard.rank());
        write!(out, "Hello {{ incarnation: {incarnation}, rank: {rank}, .. }}")
    }
}

/// What to do about a peer that something is expected of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    Ask,
    Fence,
}

impl Remote {
    pub fn is_expected(&self) -> bool {
        !self.handoffs.is_empty()
    }

    /// Notes a sign of life.
    pub fn heard(&mut self, now: u64) {
        self.heard_ns = self.heard_ns.max(now);
        self.asked_ns = None;
        self.is_unfenced = false;
    }

    /// A peer that is silent for half of `silence` ns is asked for a sign of life, and fenced after the other half.
    /// Returns also when to look again.
    pub fn patience(&mut self, now: u64, silence: u64) -> (Patience, u64) {
        let half = (silence / 2).max(1);
        let (due, next) =
            (self.asked_ns.unwrap_or(self.heard_ns).saturating_add(half), now.saturating_add(half));
        if self.is_fencing {
            // The fence tells its end by itself.
            return (Patience::Wait, next);
        }
        if now < due {
            return (Patience::Wait, due);
        }
        if self.asked_ns.replace(now).is_none() {
            return (Patience::Ask, next);
        }
        self.is_fencing = true;
        (Patience::Fence, next)
    }

    /// Returns the region of this range in the peer's engine; 0 if no region of its cache has it.
    pub fn region_of(&self, address: u64, bytes: u64) -> u64 {
        let ranges = self.hello.iter().flat_map(|hello| &hello.regions);
        let has = |range: &&MemoryRange| {
            let offset = address.checked_sub(range.address);
            offset.is_some_and(|offset| offset <= range.bytes && bytes <= range.bytes - offset)
        };
        ranges.into_iter().find(has).map_or(0, |range| range.region)
    }
}

/// A transfer that is not final: whose it is, and what it moves.
#[derive(Clone, Debug)]
pub struct Post {
    pub peer: PeerId,
    pub owner: Owner,
    /// Of a WRITE: the epoch of its part when it was posted.
    pub epoch: u64,
    pub work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Of an offer: a WRITE for this rank of this consumer group.
    Offer {
        id: HandoffId,
        group: u64,
        rank: u32,
    },
    /// Of a take: a READ from this rank of the producer.
    Take {
        id: HandoffId,
        rank: u32,
    },
    /// Of no handoff: a message that answers one of the peer's, and a HELLO.
    Answer,
    Greeting,
}
