//! Another cache, as this one knows it: its layout, the plans between the two, and whether it gives signs of life.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ferry::status::Error;
use ferry::types::PeerId;
use ferry::Status;

use crate::layout::Layout;
use crate::messages::Joiner;
use crate::plan::Plan;

use super::flow::Address;
use super::id::HandoffId;
use super::progress::Work;
use super::regions::Regions;
use super::wire::{self, MemoryRange};

type Planned = Result<Arc<Plan>, Error>;

#[derive(Clone, Debug, Default)]
pub struct Remote {
    /// The HELLO of the peer's cache, and that of its predecessor, which is closed.
    pub hello: Option<Hello>,
    pub past: Option<Hello>,
    /// This cache's HELLO went to the peer.
    pub is_greeted: bool,
    pub joiner: Joiner,
    /// Messages, and transfers, that are not final.
    pub unsent: u32,
    pub in_flight: u32,
    /// Queued answers and HELLOs. They pile up when a peer asks and takes no answers.
    pub answers: u32,
    pub greetings: u32,
    /// Handoffs with the peer that have not ended.
    pub handoffs: BTreeSet<Handoff>,
    /// The peer shares this host's memory.
    pub is_here: bool,
    pub heard_ns: u64,
    /// When the peer was asked for a sign of life, if it has not given one since.
    pub asked_ns: Option<u64>,
    /// The numbers of the last PING to the peer, and of the last one that it has answered.
    pub pings: u64,
    pub pongs: u64,
    /// The last PING of the peer, if there was no room to answer it. One answer is for all before it.
    pub owed_pong: Option<u64>,
    /// Its address, for people; "" if it has none.
    pub name: String,
    /// Takes that ended before the peer's HELLO: it is told then, so that its offers do not wait for them.
    pub declined: Vec<(wire::Take, Status, String)>,
    /// Its session has ended, and this entry is about to.
    pub is_lost: bool,
    /// A fence was asked for.
    pub is_fencing: bool,
    /// A fence of the silent peer failed.
    pub is_unfenced: bool,
}

/// One of this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    pub regions: Regions,
    /// From the peer's instance to this one, and back.
    pub to_us: Planned,
    pub from_us: Planned,
}

impl Hello {
    pub fn new(incarnation: u64, theirs: Layout, regions: Vec<MemoryRange>, ours: &Layout) -> Hello {
        let to_us = Plan::between(&theirs, ours).map(Arc::new);
        let from_us = Plan::between(ours, &theirs).map(Arc::new);
        Hello { incarnation, layout: Arc::new(theirs), regions: Regions::new(regions), to_us, from_us }
    }

    /// As `new`, with the plans of this one, whose layout it must be.
    fn again(&self, incarnation: u64, regions: Vec<MemoryRange>) -> Hello {
        Hello { incarnation, regions: Regions::new(regions), ..self.clone() }
    }
}

/// Without the layout and the plans, which are long and never change.
impl fmt::Debug for Hello {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let (incarnation, rank) = (self.incarnation, self.layout.shard.rank());
        write!(out, "Hello {{ incarnation: {incarnation}, rank: {rank}, .. }}")
    }
}

/// The next step towards a peer of which something is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    Ask,
    Fence,
}

impl Remote {
    /// Returns the HELLO of this layout, which has its plans.
    pub fn planned(&self, layout: &Layout) -> Option<&Hello> {
        [&self.hello, &self.past].into_iter().flatten().find(|hello| *hello.layout == *layout)
    }

    /// Returns the HELLO that a cache of the peer says; None if it has said the same before.
    pub fn said(
        &self,
        incarnation: u64,
        regions: Vec<MemoryRange>,
        layout: Layout,
        ours: &Layout,
    ) -> Option<Hello> {
        let hello = match self.planned(&layout) {
            Some(known) => known.again(incarnation, regions),
            None => Hello::new(incarnation, layout, regions, ours),
        };
        let is_same = |known: &Hello| {
            known.incarnation == incarnation && known.regions == hello.regions && known.layout == hello.layout
        };
        (!self.hello.as_ref().is_some_and(is_same)).then_some(hello)
    }

    /// Notes a sign of life.
    pub fn heard(&mut self, now: u64) {
        self.heard_ns = self.heard_ns.max(now);
        self.asked_ns = None;
        self.is_unfenced = false;
    }

    /// A peer that is silent for half of `silence` ns is asked for a sign of life, and given up or fenced after the other
    /// half. Returns also when to look again.
    pub fn patience(&self, now: u64, silence: u64) -> (Patience, u64) {
        let half = (silence / 2).max(1);
        let due = self.asked_ns.unwrap_or(self.heard_ns).saturating_add(half);
        let next = now.saturating_add(half);
        match self.asked_ns {
            // The fence tells its end by itself.
            _ if self.is_fencing => (Patience::Wait, next),
            _ if now < due => (Patience::Wait, due),
            None => (Patience::Ask, next),
            Some(_) => (Patience::Fence, next),
        }
    }
}

/// A transfer that is not final: whose it is, and what it moves.
#[derive(Clone, Debug)]
pub struct Post {
    pub peer: PeerId,
    pub owner: Owner,
    /// The epoch of the part when a WRITE was posted.
    pub epoch: u64,
    pub work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A part: its transfers, and an offer's messages of what was written.
    Part(Address),
    /// Messages that belong to no handoff: an answer, a HELLO, and the last word of a cache.
    Answer,
    Greeting,
    Goodbye,
}
