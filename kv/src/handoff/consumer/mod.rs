//! The takes of a cache: the consumer's side of `machine`.
//!
//! A take has a `Part` for each rank of the producer that sends it something. A part is over when nothing of it can touch
//! the blocks any more:
//!
//! ```text
//! Greeting ── HELLO ──▶ Asked ── all has arrived ──▶ over
//!     │                  ├ pull, struck ──▶ READs are final ──▶ FINAL ──▶ over
//!     └ struck ──▶ over  └ push, struck ──▶ CANCEL ──▶ ENDED, or the peer is lost ──▶ over
//! ```
//! The take ends when all of its parts are over. This side counts what has arrived (`Progress`) and never takes it from
//! the other.

mod asking;
mod counting;
mod moving;
mod retract;
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::layout::Layout;
use crate::plan::Exchange;

use super::id::HandoffId;
use super::limits::TAKES_MAX;
use super::lists;
use super::machine::{end_of, Due, Machine};

use super::progress::Progress;
use super::record::What;
use super::remote::Handoff;
use super::silence::Stake;
use super::types::{Blocks, End, State, TakeSpec};
use super::wire::Key;

#[derive(Clone, Debug)]
pub struct Taking {
    spec: TakeSpec,
    /// Drawn for this take.
    number: u64,
    deadline_at: Option<u64>,
    /// By rank of the producer; None before the producer's shape is known.
    parts: Option<BTreeMap<u32, Part>>,
    /// All has arrived: by rank, the PING whose answer says that nothing of it was taken back meanwhile.
    asked_whole: Option<BTreeMap<u32, u64>>,
    /// Layers that were told as complete.
    told_layers: u32,
    /// The tokens from here on are not to be trusted, although they have arrived.
    trusted: Option<u64>,
    struck: Option<(End, Status, String)>,
    struck_ns: u64,
}

#[derive(Clone, Debug)]
struct Part {
    peer: PeerId,
    stage: Stage,
    is_over: bool,
    /// The producer's cache is closed, and took nothing of this part back before.
    is_kept: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Greeting,
    Asked(Box<Asked>),
}

#[derive(Clone, Debug)]
struct Asked {
    is_push: bool,
    source: Arc<Layout>,
    exchange: Exchange,
    progress: Progress,
    /// In a pull: the blocks that the producer granted in this epoch, and the tokens that it has computed by layer.
    blocks: Vec<Blocks>,
    ready: Vec<u64>,
    is_granted: bool,
    in_flight: u32,
    /// The producer's, as it has told; None before its first word of this take.
    epoch: Option<u64>,
    /// Tokens were taken back, and READs of them are not final: the producer waits for the answer.
    is_recalled: bool,
}

impl Part {
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
    pub fn state(&self) -> State {
        match self.struck {
            Some(_) => State::Ending,
            None => State::Taking { valid_tokens: self.valid_tokens() },
        }
    }

    pub fn lists(&self) -> &[Blocks] {
        &self.spec.blocks
    }

    fn key(&self) -> Key {
        Key { id: self.spec.id, take: self.number }
    }

    /// The tokens from `from` on are not valid, whatever has arrived. The caller strikes the take, unless it is struck.
    fn doubt(&mut self, from: u64) {
        self.trusted = Some(self.trusted.map_or(from, |before| before.min(from)));
    }

    fn parts(&self) -> impl Iterator<Item = (&u32, &Part)> {
        self.parts.iter().flatten()
    }

    fn asked(&mut self, rank: u32) -> Option<&mut Asked> {
        self.parts.as_mut()?.get_mut(&rank)?.asked_mut()
    }

    /// Returns the end of the tokens that are complete in all layers of all parts.
    fn valid_tokens(&self) -> u64 {
        let Some(parts) = &self.parts else { return self.spec.skip_tokens };
        let valid = |part: &Part| part.asked().map_or(self.spec.skip_tokens, |asked| asked.progress.valid());
        parts.values().map(valid).min().unwrap_or(self.spec.tokens)
    }

    /// Returns how many layers, from the first on, are complete.
    fn complete_layers(&self, layers: u32) -> u32 {
        let Some(parts) = &self.parts else { return 0 };
        let open = |part: &Part| match part.asked() {
            Some(asked) => asked.progress.first_open().unwrap_or(layers),
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
            return Err(Error::invalid("producers: the list is empty"));
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

    /// Ends a take; the blocks are the caller's with its terminal event.
    pub fn take_cancel(&mut self, id: HandoffId, now: u64) -> Result<()> {
        self.now = self.now.max(now);
        if !self.takes.contains_key(&id) {
            let has_ended = self.tombs.get(id).is_some();
            let status = if has_ended { Status::Stale } else { Status::Invalid };
            let what = if has_ended { "has ended" } else { "is no take" };
            return Err(Error::new(status, format!("id: {id} {what}")));
        }
        self.strike_take(id, End::Cancelled, Status::Cancelled, "the consumer cancelled the take");
        Ok(())
    }

    /// Ends a take that has a harmed block. None of its data is valid, even if it is ending already.
    pub(super) fn harm_take(&mut self, id: HandoffId, status: Status, why: &str) {
        if let Some(take) = self.takes.get_mut(&id) {
            take.doubt(0);
        }
        self.strike_take(id, End::Failed, status, why);
    }

    /// A peer is lost, or is not to be trusted any more: a take from it ends.
    pub(super) fn forsake_take(
        &mut self,
        id: HandoffId,
        peer: PeerId,
        status: Status,
        why: &str,
        is_gone: bool,
    ) {
        let Some(take) = self.takes.get_mut(&id) else { return };
        let mut is_touched = take.parts.is_none();
        for part in take.parts.iter_mut().flatten().map(|(_, part)| part).filter(|part| part.peer == peer) {
            is_touched |= !part.is_over || part.may_be_recalled();
            if !part.is_over {
                // Its own READs become final by themselves.
                part.is_over = is_gone && part.asked().is_none_or(|asked| asked.is_push);
            }
        }
        if is_touched {
            self.strike_take(id, end_of(status), status, why);
            self.settle_take(id);
        }
    }

    /// Returns the expectation of a peer in a take: none once its part is complete, until all are. A producer writes
    /// only what the part lacks, and says first that it takes tokens back.
    pub(super) fn stake_of_take(&self, id: HandoffId, peer: PeerId) -> Stake {
        let Some(take) = self.takes.get(&id) else { return Stake::Nothing };
        if take.parts.is_none() {
            // The first producer's shape tells which parts there are.
            return Stake::Engine;
        }
        let stake = |rank: &u32, part: &Part| match part.asked() {
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

    pub(super) fn deadline_has_passed(&mut self, id: HandoffId) {
        self.strike_take(id, End::Failed, Status::Timeout, "the deadline of the take has passed");
    }

    /// Returns how many blocks are in a take from this peer.
    pub(super) fn taken_from(&self, id: HandoffId, peer: PeerId) -> usize {
        let open = |take: &&Taking| take.parts().any(|(_, part)| part.peer == peer && !part.is_over);
        let blocks = |take: &Taking| take.spec.blocks.iter().map(|list| list.ids.len()).sum();
        self.takes.get(&id).filter(open).map_or(0, blocks)
    }
}
