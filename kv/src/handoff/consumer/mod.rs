//! The takes of a cache: the consumer's side of `machine`.
//!
//! A take has a `TakePart` for each rank of the producer that sends it something. A part is over when nothing of it can
//! touch the blocks any more:
//!
//! ```text
//! Greeting ── HELLO ──▶ Asked ── all has arrived ──▶ over
//!     │                  ├ pull, struck ──▶ READs are final ──▶ FINAL ──▶ over
//!     └ struck ──▶ over  └ push, struck ──▶ CANCEL ──▶ ENDED, or the peer is lost ──▶ over
//! ```
//! The take ends when all of its parts are over. Each producer has one last word of it: FINAL or CANCEL. FINAL(OK) comes
//! when the whole take has ended. This side counts what has arrived (`Progress`) and never takes it from
//! the other.

mod asking;
mod counting;
mod ending;
mod hearing;
mod retract;
mod whole;

use std::collections::BTreeMap;

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use super::cause::Cause;
use super::flow::{Address, Flow, Mover};
use super::id::HandoffId;
use super::limits::TAKES_MAX;
use super::lists;
use super::machine::{Due, Machine};
use super::record::What;
use super::remote::Handoff;
use super::silence::Stake;
use super::types::{BlockList, End, HandoffState, TakeSpec};
use super::wire::Key;

#[derive(Clone, Debug)]
pub struct Taking {
    spec: TakeSpec,
    /// Drawn for this take.
    number: u64,
    deadline_at: Option<u64>,
    /// By rank of the producer; None before the producer's shape is known.
    parts: Option<BTreeMap<u32, TakePart>>,
    /// All has arrived: by rank, the PING whose answer says that nothing of it was taken back meanwhile.
    asked_whole: Option<BTreeMap<u32, u64>>,
    /// Layers that were told as complete.
    told_layers: u32,
    /// The tokens from here on are not to be trusted, although they have arrived.
    trusted: Option<u64>,
    struck: Option<(End, Cause)>,
    struck_ns: u64,
}

#[derive(Clone, Debug)]
struct TakePart {
    peer: PeerId,
    stage: Stage,
    is_over: bool,
    /// The producer has the take's last word, or waits for none.
    is_told: bool,
    /// The producer's cache is closed, and took nothing of this part back before.
    is_kept: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Greeting,
    Asked(Box<Asked>),
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    is_push: bool,
    /// Moves in a pull only.
    pub flow: Flow,
    /// In a pull: the blocks that the producer granted in this epoch, and the tokens that it has computed by layer.
    blocks: Vec<BlockList>,
    ready: Vec<u64>,
    is_granted: bool,
    /// The producer's, as it has told; None before its first word of this take.
    epoch: Option<u64>,
    /// Tokens were taken back, and READs of them are not final: the producer waits for the answer.
    pub is_recalled: bool,
}

impl TakePart {
    fn asked(&self) -> Option<&Asked> {
        match &self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Greeting => None,
        }
    }

    fn asked_mut(&mut self) -> Option<&mut Asked> {
        match &mut self.stage {
            Stage::Asked(asked) => Some(asked),
            Stage::Greeting => None,
        }
    }
}

impl Taking {
    pub fn state(&self) -> HandoffState {
        match self.struck {
            Some(_) => HandoffState::Ending,
            None => HandoffState::Taking { valid_tokens: self.valid_tokens() },
        }
    }

    pub fn lists(&self) -> &[BlockList] {
        &self.spec.blocks
    }

    fn key(&self) -> Key {
        Key { id: self.spec.id, take: self.number }
    }

    /// The tokens from `from` on are not valid, whatever has arrived. The caller strikes the take, unless it is struck.
    fn doubt(&mut self, from: u64) {
        self.trusted = Some(self.trusted.map_or(from, |before| before.min(from)));
    }

    pub(super) fn peer_of(&self, rank: u32) -> Option<PeerId> {
        Some(self.parts.as_ref()?.get(&rank)?.peer)
    }

    fn parts(&self) -> impl Iterator<Item = (&u32, &TakePart)> {
        self.parts.iter().flatten()
    }

    /// The part, if this side may READ for it now.
    pub(super) fn mover(&mut self, at: Address) -> Option<Mover<'_>> {
        let part = self.parts.as_mut().filter(|_| self.struck.is_none())?.get_mut(&at.rank)?;
        let peer = part.peer;
        let asked = part.asked_mut().filter(|asked| !asked.is_push && !asked.is_recalled)?;
        let (source, target) = (&asked.blocks, &self.spec.blocks);
        Some(Mover { flow: &mut asked.flow, peer, epoch: 0, ready: &asked.ready, source, target })
    }

    pub(super) fn asked(&mut self, rank: u32) -> Option<&mut Asked> {
        self.parts.as_mut()?.get_mut(&rank)?.asked_mut()
    }

    /// Returns the end of the tokens that are complete in all layers of all parts.
    fn valid_tokens(&self) -> u64 {
        let Some(parts) = &self.parts else { return self.spec.skip_tokens };
        let valid =
            |part: &TakePart| part.asked().map_or(self.spec.skip_tokens, |asked| asked.flow.progress.valid());
        parts.values().map(valid).min().unwrap_or(self.spec.tokens)
    }

    /// Returns how many layers, from the first on, are complete.
    fn complete_layers(&self, layers: u32) -> u32 {
        let Some(parts) = &self.parts else { return 0 };
        let open = |part: &TakePart| match part.asked() {
            Some(asked) => asked.flow.progress.first_open().unwrap_or(layers),
            None => 0,
        };
        parts.values().map(open).min().unwrap_or(layers)
    }
}

impl Machine {
    /// Takes a handoff. INVALID for wrong blocks and tokens, and an id that is in use or has ended; LIMIT.
    pub fn take(&mut self, spec: TakeSpec, now: u64) -> Result<()> {
        let now = self.now.max(now);
        self.now = now;
        self.check_new(spec.id)?;
        lists::check(&self.layout, &spec.blocks)?;
        if spec.skip_tokens > spec.tokens {
            let (skip, tokens) = (spec.skip_tokens, spec.tokens);
            return Err(Error::invalid(format!(
                "skip_tokens: {skip} are more than the {tokens} of the take"
            )));
        }
        for (group, list) in spec.blocks.iter().enumerate().filter(|(_, list)| !list.ids.is_empty()) {
            lists::covers(&self.layout, group, list, &(spec.skip_tokens..spec.tokens), "tokens")?;
        }
        if spec.producers.is_empty() {
            let mend = "pass the peers of all ranks of the producer, in the order of their ranks";
            return Err(Error::invalid(format!("producers: the list is empty; {mend}")));
        }
        if self.takes.len() >= TAKES_MAX {
            return Err(Error::new(Status::Limit, format!("{TAKES_MAX} takes have not ended")));
        }
        let written = lists::beyond(&self.layout, &spec.blocks, spec.skip_tokens);
        if let Some((group, block)) = written.iter().find(|block| self.written.contains(*block)) {
            let text =
                format!("blocks[{group}]: block {block} is written by another take that has not ended");
            return Err(Error::invalid(text));
        }
        self.written.extend(written);
        let number = self.draw();
        let deadline_at =
            spec.deadline.map(|after| now.saturating_add(after.as_nanos().min(u64::MAX.into()) as u64));
        let id = spec.id;
        let first = self.first_producer(&spec);
        let take = Taking {
            spec,
            number,
            deadline_at,
            parts: None,
            asked_whole: None,
            told_layers: 0,
            trusted: None,
            struck: None,
            struck_ns: 0,
        };
        self.takes.insert(id, take);
        self.note(id, || What::Taken);
        if let Some(at) = deadline_at {
            self.due.insert((at, Due::Deadline(id)));
        }
        self.count_on(first, Handoff::Take(id));
        self.greet(first);
        self.advance(id);
        Ok(())
    }

    /// The producer's rank that is asked for the producer's shape: another one for each rank of the consumer.
    fn first_producer(&self, spec: &TakeSpec) -> PeerId {
        let at = self.layout.shard.rank() as usize % spec.producers.len().max(1);
        spec.producers.get(at).copied().unwrap_or(PeerId::NONE)
    }

    /// Returns the expectation of a peer in a take: none once its part is complete, until all are. A producer writes
    /// only what the part lacks, and says first that it takes tokens back.
    pub(super) fn stake_of_take(&self, id: HandoffId, peer: PeerId) -> Stake {
        let Some(take) = self.takes.get(&id) else { return Stake::Nothing };
        if take.parts.is_none() {
            // The first producer's shape tells which parts there are.
            return Stake::Engine;
        }
        let stake = |rank: &u32, part: &TakePart| match part.asked() {
            Some(asked) if !part.is_over && asked.is_push => Stake::Theirs,
            Some(_) if !part.is_over || self.awaits_pong(take, *rank, part) => Stake::Own,
            None if !part.is_over => Stake::Engine,
            _ => Stake::Nothing,
        };
        let stakes = take.parts().filter(|(_, part)| part.peer == peer).map(|(rank, part)| stake(rank, part));
        stakes.max().unwrap_or(Stake::Nothing)
    }

    /// When the peer was asked to end WRITEs of a take, which it has not said to have ended.
    pub(super) fn writes_end_since(&self, id: HandoffId, peer: PeerId) -> Option<u64> {
        let take = self.takes.get(&id).filter(|take| take.struck.is_some())?;
        let is_awaited = self.stake_of_take(id, peer) == Stake::Theirs;
        is_awaited.then_some(take.struck_ns)
    }

    /// Returns how many blocks are in a take from this peer.
    pub(super) fn taken_from(&self, id: HandoffId, peer: PeerId) -> usize {
        let open = |take: &&Taking| take.parts().any(|(_, part)| part.peer == peer && !part.is_over);
        let blocks = |take: &Taking| take.spec.blocks.iter().map(|list| list.ids.len()).sum();
        self.takes.get(&id).filter(open).map_or(0, blocks)
    }
}
