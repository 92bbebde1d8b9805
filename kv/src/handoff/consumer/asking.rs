//! The beginning of a take: finds out who has what, and asks.

use std::collections::BTreeMap;

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::handoff::flow::Flow;
use crate::handoff::id::HandoffId;
use crate::handoff::limits::DECLINED_OF_PEER_MAX;
use crate::handoff::lists;
use crate::handoff::machine::Machine;
use crate::handoff::progress::Progress;
use crate::handoff::remote::Handoff;
use crate::handoff::types::{Blocks, Mode, TakeSpec};
use crate::handoff::wire::{self, Key, Message};

use super::{Asked, Stage, TakePart, Taking};

impl Machine {
    /// A peer has told its layout: takes that wait for it go on.
    pub(in crate::handoff) fn advance_takes(&mut self, peer: PeerId) {
        let greeting = |take: &Taking| {
            take.parts.as_ref().is_none_or(|parts| {
                parts.values().any(|part| !part.is_over && matches!(part.stage, Stage::Greeting))
            })
        };
        for handoff in self.handoffs_with(peer) {
            if let Handoff::Take(id) = handoff {
                if self.takes.get(&id).is_some_and(greeting) {
                    self.advance(id);
                }
            }
        }
    }

    /// Takes the next step of a take's beginning: its parts, then the question to each.
    pub(super) fn advance(&mut self, id: HandoffId) {
        let Some(take) = self.takes.get(&id).filter(|take| take.struck.is_none()) else { return };
        if take.parts.is_none() {
            match self.make_parts(take) {
                Ok(None) => return,
                Ok(Some(parts)) => {
                    let peers: Vec<PeerId> = parts.values().map(|part| part.peer).collect();
                    if let Some(take) = self.takes.get_mut(&id) {
                        take.parts = Some(parts);
                    }
                    for peer in peers {
                        self.count_on(peer, Handoff::Take(id));
                        self.greet(peer);
                    }
                }
                Err(error) => return self.fail_take(id, &error),
            }
        }
        let greeting: Vec<u32> = self.takes.get(&id).map_or(Vec::new(), |take| {
            let parts = take.parts().filter(|(_, part)| matches!(part.stage, Stage::Greeting));
            parts.map(|(rank, _)| *rank).collect()
        });
        for rank in greeting {
            if let Err(error) = self.ask(id, rank) {
                return self.fail_take(id, &error);
            }
        }
        self.settle_take(id);
    }

    /// Returns the parts of a take; None before the producer's layout has come.
    pub(super) fn make_parts(&self, take: &Taking) -> Result<Option<BTreeMap<u32, TakePart>>> {
        let first = self.first_producer(&take.spec);
        let Some(hello) = self.remotes.get(&first).and_then(|remote| remote.hello.as_ref()) else {
            return Ok(None);
        };
        let plan = hello.to_us.clone()?;
        let (ranks, given) = (hello.layout.shard.ranks(), take.spec.producers.len());
        if ranks as usize != given {
            return Err(Error::invalid(format!(
                "producers: {given} peers, and the producer has {ranks} ranks"
            )));
        }
        let rank = self.layout.shard.rank();
        // One consumer tells those that send nothing to anybody that they are done.
        let idle = (0..ranks).filter(|source| rank == 0 && plan.targets_of(*source).is_empty());
        let all = plan.sources_of(rank).iter().copied().chain(idle);
        let part = |rank: u32| {
            let peer = take.spec.producers.get(rank as usize).copied().unwrap_or(PeerId::NONE);
            (rank, TakePart { peer, stage: Stage::Greeting, is_over: false, is_told: false, is_kept: false })
        };
        Ok(Some(all.map(part).collect()))
    }

    /// Sends the TAKE of one part, if the peer's layout has come.
    pub(super) fn ask(&mut self, id: HandoffId, rank: u32) -> Result<()> {
        let first = self.takes.get(&id).map(|take| self.first_producer(&take.spec));
        let first = first.and_then(|peer| self.remotes.get(&peer)?.hello.as_ref());
        let planned = first.and_then(|hello| hello.to_us.clone().ok());
        let Some(take) = self.takes.get_mut(&id) else { return Ok(()) };
        let (key, spec) = (take.key(), &take.spec);
        let Some(part) = take.parts.as_mut().and_then(|parts| parts.get_mut(&rank)) else { return Ok(()) };
        let Some(remote) = self.remotes.get(&part.peer) else { return Ok(()) };
        let Some(hello) = &remote.hello else { return Ok(()) };
        let plan = hello.to_us.clone()?;
        let theirs = hello.layout.shard.rank();
        if theirs != rank {
            return Err(Error::invalid(format!("producers: the peer at place {rank} has rank {theirs}")));
        }
        let (source, own) = (hello.layout.clone(), self.layout.shard.rank());
        let exchange = plan.exchange(rank, own)?;
        // The parts were made by the first one's plan: together they cover the take.
        if planned.is_some_and(|planned| planned.exchange(rank, own).ok().as_ref() != Some(&exchange)) {
            return Err(Error::invalid(format!("producers: the peer at place {rank} has another shape")));
        }
        let range = spec.skip_tokens..spec.tokens;
        let progress = Progress::new(&exchange, &source, &self.layout, &spec.blocks, range);
        let is_push = match spec.mode {
            // Nobody pushes nothing: the grant of a pull says that there is an offer.
            _ if progress.is_complete() && !exchange.layers.is_empty() => false,
            Mode::Push => true,
            Mode::Pull => false,
            Mode::Auto => !remote.is_here,
        };
        let blocks = if is_push { spec.blocks.clone() } else { Vec::new() };
        let incarnation = hello.incarnation;
        let message = Message::Take(wire::Take { incarnation, is_push, blocks, ..asked_by(key, spec, own) });
        let blocks = vec![Blocks::default(); source.groups.len()];
        let ready = vec![0; source.layers.len()];
        part.stage = Stage::Asked(Box::new(Asked {
            is_push,
            flow: Flow { source, target: self.layout.clone(), exchange, progress, in_flight: 0 },
            blocks,
            ready,
            is_granted: false,
            epoch: None,
            is_recalled: false,
        }));
        let peer = part.peer;

        self.send(peer, &message);
        Ok(())
    }

    /// Tells the producers that were not asked yet that a take has ended. One whose HELLO has not come is told then.
    pub(super) fn decline(&mut self, id: HandoffId) {
        let Some(take) = self.takes.get(&id) else { return };
        let Some((_, cause)) = &take.struck else { return };
        let peers: Vec<PeerId> = match &take.parts {
            None => take.spec.producers.clone(),
            Some(parts) => {
                let unasked = parts.values().filter(|part| part.asked().is_none());
                unasked.map(|part| part.peer).collect()
            }
        };
        let (status, why) = (cause.status, cause.told());
        let asked = asked_by(take.key(), &take.spec, self.layout.shard.rank());
        for peer in peers {
            let remote = self.remote(peer);
            if remote.is_lost {
                continue;
            }
            if remote.declined.len() < DECLINED_OF_PEER_MAX {
                remote.declined.push((asked.clone(), status, why.clone()));
            }
            // A cache that closes greets nobody.
            if status != Status::Closed {
                self.greet(peer);
            }
            self.tell_declined(peer);
        }
    }

    /// A take and its end at once: the offer counts its taker as one that failed.
    pub(in crate::handoff) fn tell_declined(&mut self, peer: PeerId) {
        let remote = self.remote(peer);
        let Some(incarnation) = remote.hello.as_ref().map(|hello| hello.incarnation) else { return };
        for (take, status, why) in std::mem::take(&mut remote.declined) {
            let key = take.key;
            self.send(peer, &Message::Take(wire::Take { incarnation, ..take }));
            self.send(peer, &Message::Final { key, epoch: 0, status, why });
        }
    }
}

/// A TAKE of a pull.
fn asked_by(key: Key, spec: &TakeSpec, rank: u32) -> wire::Take {
    wire::Take {
        key,
        incarnation: 0,
        group: spec.group,
        rank,
        is_push: false,
        skip: spec.skip_tokens,
        tokens: spec.tokens,
        wanted: lists::wanted(&spec.blocks),
        blocks: Vec::new(),
    }
}
