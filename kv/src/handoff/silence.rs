//! The meaning of a peer's silence, and its goodbye. Beside `machine`, which holds the peers.
//!
//! A cache is silent, not its engine, which other libraries use too. So the engine is fenced only where the peer's own
//! transfers may touch blocks of this side (`Stake::Theirs`); elsewhere this side ends its own transfers, and no byte of
//! the peer can land:
//!
//! | part | may touch this side's blocks | a silent peer is |
//! |---|---|---|
//! | of a take, before the peer's HELLO | nobody: the peer knows of no blocks | awaited, as long as its engine answers probes |
//! | of a take, pull | this side's READs | given up: READs are cancelled |
//! | of a take, push | the peer's WRITEs | fenced |
//! | of an offer, push | this side's WRITEs | given up: WRITEs are cancelled |
//! | of an offer, pull | the peer's READs | fenced |
//! | of a take, over | nobody | awaited with the other parts, and given up if it does not answer at the end |
//! | of an offer, complete | nobody | given up, and told so: no retract waits for it |
//!
//! A peer may answer, and not end the transfers that it was asked to end: a page of its own never comes. It is fenced too.

use std::collections::BTreeSet;

use ferry::types::PeerId;
use ferry::Status;

use super::limits::SILENCES_TO_END;
use super::machine::{Action, Machine};
use super::remote::{Handoff, Owner, Patience};
use super::wire::Message;

const SILENT: &str = "the peer's cache is silent";

/// The expectation of a peer in a handoff, and whose transfers may touch this side's blocks meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stake {
    /// Nothing is expected.
    Nothing,
    /// A HELLO, of a cache that may not be open yet: that its engine answers.
    Engine,
    /// Words. This side's own transfers alone may touch its blocks.
    Own,
    /// Words, and the peer's transfers may touch the blocks.
    Theirs,
}

impl Machine {
    fn stake(&self, handoff: Handoff, peer: PeerId) -> Stake {
        match handoff {
            Handoff::Offer(id) => self.stake_of_offer(id, peer),
            Handoff::Take(id) => self.stake_of_take(id, peer),
        }
    }

    pub(super) fn stake_with(&self, peer: PeerId) -> Stake {
        let handoffs = self.remotes.get(&peer).into_iter().flat_map(|remote| &remote.handoffs);
        handoffs.map(|handoff| self.stake(*handoff, peer)).max().unwrap_or(Stake::Nothing)
    }

    /// Whether a peer has not ended transfers that may touch this side's blocks, though it was asked to.
    fn is_overdue(&self, peer: PeerId, handoffs: &BTreeSet<Handoff>) -> bool {
        let since = |handoff: &Handoff| match *handoff {
            Handoff::Offer(id) => self.reads_end_since(id, peer),
            Handoff::Take(id) => self.writes_end_since(id, peer),
        };
        let end = self.silence_ns.saturating_mul(SILENCES_TO_END);
        handoffs.iter().filter_map(since).any(|since| since.saturating_add(end) <= self.now)
    }

    /// Asks silent peers of which something is expected, and gives up or fences those that stay silent. Returns when to
    /// look again.
    pub(super) fn ask_the_silent(&mut self) -> Option<u64> {
        let (now, silence) = (self.now, self.silence_ns);
        if self.look_at.is_some_and(|at| at > now) {
            return self.look_at;
        }
        let mut wanted = Vec::new();
        self.look_at = None;
        for (peer, remote) in self.remotes.iter().filter(|(_, remote)| !remote.handoffs.is_empty()) {
            let (mut patience, due) = remote.patience(now, silence);
            if !remote.is_fencing && self.is_overdue(*peer, &remote.handoffs) {
                patience = Patience::Fence;
            }
            if patience != Patience::Wait {
                wanted.push((*peer, patience, self.stake_with(*peer)));
            }
            self.look_at = Some(self.look_at.map_or(due, |at| at.min(due)));
        }
        for (peer, patience, stake) in wanted {
            match (patience, stake) {
                // Silence does not count before something is expected.
                (_, Stake::Nothing) => self.remote(peer).heard(now),
                (Patience::Fence, Stake::Theirs) => self.fence(peer),
                (Patience::Fence, Stake::Own) => self.give_up(peer, Stake::Engine, SILENT),
                (Patience::Fence, Stake::Engine) => {
                    self.give_up(peer, Stake::Engine, "the peer's engine is silent")
                }
                (_, stake) => {
                    self.remote(peer).asked_ns = Some(now);
                    if stake == Stake::Engine {
                        // Without a cache nobody would take a PING.
                        self.actions.push(Action::Probe { peer });
                    } else {
                        self.ping(peer);
                    }
                }
            }
        }
        self.look_at
    }

    /// Asks a peer's cache for a sign of life. Returns the number that its answer will have.
    pub(super) fn ping(&mut self, peer: PeerId) -> u64 {
        let remote = self.remote(peer);
        remote.pings += 1;
        let number = remote.pings;
        self.send(peer, &Message::Ping(number));
        number
    }

    /// Wants the peer to be fenced, once.
    pub(super) fn fence(&mut self, peer: PeerId) {
        if !std::mem::replace(&mut self.remote(peer).is_fencing, true) {
            self.actions.push(Action::Fence { peer });
        }
    }

    /// Notes that something may be expected of a peer until the handoff ends.
    pub(super) fn count_on(&mut self, peer: PeerId, handoff: Handoff) {
        let (now, silence) = (self.now, self.silence_ns);
        let remote = self.remote(peer);
        if remote.handoffs.is_empty() {
            // Silence before this does not count.
            remote.heard(now);
        }
        remote.handoffs.insert(handoff);
        let due = now.saturating_add((silence / 2).max(1));
        self.look_at = Some(self.look_at.map_or(due, |at| at.min(due)));
    }

    /// Ends the handoffs in which `least` or more is expected of a peer that can touch no blocks. It keeps what it had.
    fn give_up(&mut self, peer: PeerId, least: Stake, why: &str) {
        for handoff in self.handoffs_with(peer) {
            if self.stake(handoff, peer) >= least {
                self.forsake_one(handoff, peer, Status::PeerLost, why);
            }
        }
    }

    /// The peer's cache has ended all its handoffs, nothing of them is under way, and it is closed. Its successor may
    /// take up the takes that it was not asked for.
    pub(super) fn parted(&mut self, peer: PeerId) {
        self.waiting.remove_peer(peer);
        self.keep_from(peer);
        self.give_up(peer, Stake::Own, "the peer's cache was closed");
        let remote = self.remote(peer);
        remote.past = remote.hello.take().or(remote.past.take());
        (remote.is_greeted, remote.asked_ns) = (false, None);
        let is_take = |handoff: &Handoff| matches!(handoff, Handoff::Take(_));
        if remote.handoffs.iter().any(is_take) || !remote.declined.is_empty() {
            self.greet(peer);
        }
    }

    /// Parts from a peer that has said HELLO, which this cache never hears: the peer greets the cache that follows.
    pub fn part_from(&mut self, peer: PeerId) {
        self.send_of(peer, &Message::Goodbye, Some(Owner::Goodbye));
    }

    /// Tells the peers that know this cache that it is closed. Nothing of it is under way.
    pub(super) fn say_goodbye(&mut self) {
        let known = self.remotes.iter_mut().filter(|(_, remote)| remote.is_greeted && !remote.is_fencing);
        let known: Vec<PeerId> = known
            .map(|(peer, remote)| {
                remote.is_greeted = false;
                *peer
            })
            .collect();
        for peer in known {
            self.send_of(peer, &Message::Goodbye, Some(Owner::Goodbye));
        }
    }
}
