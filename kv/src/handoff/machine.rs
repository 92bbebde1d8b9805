//! The state of all handoffs of one cache, without I/O: takes calls, messages, ends of transfers, lost peers and the time;
//! gives messages, transfers, cancels, fences and events. `cache` does what it says. `producer` has the offers, `consumer`
//! the takes.
//!
//! ```text
//! call, message, end of a transfer, lost peer, tick ──▶ Machine ──▶ actions (take_actions), events (take_event)
//! ```
//! Above 500 lines: all that peers, the engine and the time may tell a machine is in one place.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId};
use ferry::Status;

use crate::layout::Layout;
use crate::plan::Strided;

use super::cause::Cause;
use super::consumer::Taking;
use super::flow::Address;
use super::id::HandoffId;
use super::limits::{
    ANSWERS_BEFORE_PONG_MAX, ANSWERS_MAX, GREETINGS_MAX, IN_FLIGHT_OF_PEER_MAX, MESSAGE_BYTES_MAX, UNSENT_MAX,
};
use super::lists;
use super::metrics::Counts;
use super::producer::{Leases, Offer, Pending};
use super::record::{Record, What};
use super::regions::Regions;
use super::remote::{Handoff, Hello, Owner, Post, Remote};
use super::silence::Stake;
use super::tombs::{Tomb, Tombs};
use super::types::{BlockList, End, Event, HandoffState};
use super::waiting::Waiting;
use super::wire::{MemoryRange, Message};

/// Names a transfer of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PostId(pub u64);

/// The machine's orders, carried out in this order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a message, then call `sent`, with `of` and the result, when the peer has it or never will.
    Send { peer: PeerId, message: Vec<u8>, of: Option<Owner> },
    /// Move bytes, then call `moved` when the transfer is final.
    Post { post: PostId, peer: PeerId, op: Op, moves: Vec<Strided> },
    /// Cancel a transfer; `moved` still follows.
    Cancel { post: PostId },
    /// Probe the peer's engine, then call `engine_answered` if it answers.
    Probe { peer: PeerId },
    /// Fence a silent peer, then call `peer_lost`, or `not_fenced`.
    Fence { peer: PeerId },
}

/// The handoffs that a timer ends, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Lease(HandoffId),
    Deadline(HandoffId),
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) layout: Arc<Layout>,
    pub(super) incarnation: u64,
    regions: Vec<MemoryRange>,
    pub(super) silence_ns: u64,
    pub(super) now: u64,
    pub(super) remotes: BTreeMap<PeerId, Remote>,
    pub(super) offers: BTreeMap<HandoffId, Offer>,
    pub(super) takes: BTreeMap<HandoffId, Taking>,
    /// The blocks that takes may write, as (group, block): each is one take's.
    pub(super) written: HashSet<(u32, u32)>,
    pub(super) leases: Leases,
    pub(super) leased_blocks_max: usize,
    /// Takes of peers whose offer has not come.
    pub(super) waiting: Waiting,
    pub(super) posts: BTreeMap<PostId, Post>,
    pub(super) tombs: Tombs,
    /// Readies of offers that wait for events of devices.
    pub(super) pending: BTreeMap<HandoffId, Pending>,
    pub(super) counts: Counts,
    pub(super) record: Option<Box<Record>>,
    /// Leases and deadlines.
    pub(super) due: BTreeSet<(u64, Due)>,
    /// When to look for silent peers; None if nothing is expected of any.
    pub(super) look_at: Option<u64>,
    next: u64,
    pub(super) actions: Vec<Action>,
    events: VecDeque<Event>,
}

impl Machine {
    /// `incarnation` differs between all caches of an engine and of its successors. `regions` has the layers' memory.
    pub fn new(
        layout: Arc<Layout>,
        incarnation: u64,
        regions: Vec<MemoryRange>,
        silence: Duration,
    ) -> Machine {
        Machine {
            layout,
            incarnation,
            regions,
            silence_ns: silence.as_nanos().min(u64::MAX.into()) as u64,
            now: 0,
            remotes: BTreeMap::new(),
            offers: BTreeMap::new(),
            takes: BTreeMap::new(),
            written: HashSet::new(),
            leases: Leases::default(),
            leased_blocks_max: 0,
            waiting: Waiting::default(),
            posts: BTreeMap::new(),
            tombs: Tombs::default(),
            pending: BTreeMap::new(),
            counts: Counts::default(),
            record: None,
            due: BTreeSet::new(),
            look_at: None,
            next: 0,
            actions: Vec::new(),
            events: VecDeque::new(),
        }
    }

    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn state(&self, id: HandoffId) -> HandoffState {
        if let Some(offer) = self.offers.get(&id) {
            return offer.state();
        }
        if let Some(take) = self.takes.get(&id) {
            return take.state();
        }
        self.tombs.get(id).map_or(HandoffState::Unknown, |tomb| HandoffState::Ended(tomb.end))
    }

    /// This cache's layout, and for how long a peer may be silent.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    pub fn silence_ns(&self) -> u64 {
        self.silence_ns
    }

    /// Returns the regions that have a peer's cache: none before its HELLO.
    pub fn regions_of(&self, peer: PeerId) -> Regions {
        let hello = self.remotes.get(&peer).and_then(|remote| remote.hello.as_ref());
        hello.map(|hello| hello.regions.clone()).unwrap_or_default()
    }

    /// Tells whether a peer shares this host's memory.
    pub fn set_here(&mut self, peer: PeerId, is_here: bool) {
        self.remote(peer).is_here = is_here;
    }

    /// Tells a peer's address, for the sentences that name it.
    pub fn set_name(&mut self, peer: PeerId, name: String) {
        self.remote(peer).name = name;
    }

    /// A message has reached the peer's cache, or never will: then `result` says why.
    pub fn sent(&mut self, peer: PeerId, of: Option<Owner>, result: Result<()>, now: u64) {
        self.now = self.now.max(now);
        let Some(remote) = self.remotes.get_mut(&peer).filter(|_| of != Some(Owner::Goodbye)) else { return };
        let was_full = remote.unsent >= UNSENT_MAX;
        remote.unsent = remote.unsent.saturating_sub(1);
        match of {
            Some(Owner::Part(at)) => result.err().iter().for_each(|error| self.data_untold(at, error)),
            Some(Owner::Answer) => {
                remote.answers = remote.answers.saturating_sub(1);
                if let Some(number) = remote.owed_pong.take() {
                    self.answer(peer, &Message::Pong(number));
                }
            }
            Some(Owner::Greeting) => remote.greetings = remote.greetings.saturating_sub(1),
            Some(Owner::Goodbye) | None => {}
        }
        if was_full {
            self.pump_peer(peer);
        }
    }

    /// Takes a notification of a peer's cache, and the message that it ends.
    pub fn notification(&mut self, peer: PeerId, part: &[u8], now: u64) {
        match self.join(peer, part, now) {
            Ok(None) => {}
            Ok(Some(bytes)) => self.hear(peer, Message::decode(&bytes), now),
            Err(error) => self.hear(peer, Err(error), now),
        }
    }

    /// Notes a sign of life of a peer whose message is not handled yet.
    pub fn heard(&mut self, peer: PeerId, now: u64) {
        self.now = self.now.max(now);
        self.remote(peer).heard(now);
    }

    /// Takes a notification of a peer's cache. Returns the message that it ends, for `hear`.
    pub fn join(&mut self, peer: PeerId, part: &[u8], now: u64) -> Result<Option<Vec<u8>>> {
        self.heard(peer, now);
        self.remote(peer).joiner.add(part, MESSAGE_BYTES_MAX)
    }

    /// Whether `hear` can handle a HELLO with the plans that exist. Planning takes long: see `set_plans`.
    pub fn has_plans(&self, peer: PeerId, layout: &Layout) -> bool {
        self.remotes.get(&peer).is_some_and(|remote| remote.planned(layout).is_some())
    }

    /// Provides the plans that `hear` needs for a HELLO.
    pub fn set_plans(&mut self, peer: PeerId, hello: Hello) {
        self.remote(peer).past = Some(hello);
    }

    /// Handles a message. A peer that sends a malformed one loses its handoffs.
    pub fn hear(&mut self, peer: PeerId, heard: Result<Message>, now: u64) {
        self.now = self.now.max(now);
        let Err(error) = heard.and_then(|message| self.message(peer, message)) else { return };
        self.forsake(peer, error.status, &error.message);
        if error.status == Status::Version {
            // A cache of another version does no harm. It learns this one's version, now and when it is greeted again.
            if self.remote(peer).greetings < GREETINGS_MAX {
                self.greet(peer);
            }
            self.remote(peer).is_greeted = false;
        } else {
            // A peer that sends nonsense is kept out.
            self.fence(peer);
        }
    }

    fn message(&mut self, peer: PeerId, message: Message) -> Result<()> {
        self.note_update(peer, &message);
        self.check_answers(peer, &message)?;
        match message {
            Message::Hello { incarnation, regions, layout } => {
                let ours = self.layout.clone();
                let remote = self.remote(peer);
                let Some(hello) = remote.said(incarnation, regions, *layout, &ours) else {
                    self.greet(peer);
                    return Ok(());
                };
                // A cache that was opened anew knows nothing of this one.
                let is_another = |known: &Hello| known.incarnation != incarnation;
                remote.is_greeted &= !remote.hello.as_ref().is_some_and(is_another);
                remote.past = remote.hello.replace(hello).or(remote.past.take());
                self.greet(peer);
                self.tell_declined(peer);
                self.advance_takes(peer);
            }
            Message::Take(take) => self.taken(peer, take),
            Message::Update { key, epoch, ready, added } => self.granted(peer, key, epoch, ready, added),
            Message::Data { key, epoch, work } => self.data(peer, key, epoch, &work)?,
            Message::Final { key, epoch, status, why } => {
                self.count_final(peer, key, epoch, status);
                self.read_final(peer, key, epoch, (status, &why))?
            }
            Message::Cancel { key, status, why } => self.cancelled(peer, key, status, &why),
            Message::Ended { key, status, why } => self.ended(peer, key, status, &why),
            Message::Ping(number) if self.remote(peer).answers >= ANSWERS_BEFORE_PONG_MAX => {
                self.remote(peer).owed_pong = Some(number);
            }
            Message::Ping(number) => self.answer(peer, &Message::Pong(number)),
            Message::Pong(number) => self.ponged(peer, number),
            Message::Retract { key, epoch, from } => self.retract(peer, key, epoch, from)?,
            Message::Retracted { key, epoch } => self.retracted(peer, key, epoch)?,
            Message::Read { key, epoch } => self.read_all(peer, key, epoch),
            Message::Goodbye => self.parted(peer),
        }
        Ok(())
    }

    /// LIMIT if a message may want an answer while too many earlier answers are still unsent.
    fn check_answers(&mut self, peer: PeerId, message: &Message) -> Result<()> {
        let Remote { answers, greetings, .. } = self.remote(peer);
        let is_full = match message {
            Message::Hello { .. } => *greetings >= GREETINGS_MAX,
            Message::Take(_) | Message::Cancel { .. } | Message::Retract { .. } => *answers >= ANSWERS_MAX,
            _ => false,
        };
        if is_full {
            Err(Error::new(Status::Limit, "the peer's cache does not take its answers"))
        } else {
            Ok(())
        }
    }

    /// A transfer is final.
    pub fn moved(&mut self, post: PostId, mut result: Result<()>, now: u64) {
        self.now = self.now.max(now);
        let Some(Post { peer, owner, epoch, work }) = self.posts.remove(&post) else { return };
        self.counts.moved(post, result.is_ok());
        self.note_final(post, owner, result.as_ref().map_or_else(|error| error.status, |()| Status::Ok));
        let mut was_full = false;
        if let Some(remote) = self.remotes.get_mut(&peer) {
            was_full = remote.in_flight >= IN_FLIGHT_OF_PEER_MAX;
            remote.in_flight = remote.in_flight.saturating_sub(1);
            match &mut result {
                Ok(()) => remote.heard(now),
                // Transfers that end by the fence count as lost with the peer, whatever the engine calls them.
                Err(error) if remote.is_fencing => error.status = Status::PeerLost,
                Err(_) => {}
            }
        }
        match owner {
            Owner::Part(at) => self.flow_moved(at, epoch, work, result),
            // These own no transfers.
            Owner::Answer | Owner::Greeting | Owner::Goodbye => {}
        }
        if was_full {
            self.pump_peer(peer);
        }
    }

    /// The peer's engine answered a probe. That is no sign of life of its cache.
    pub fn engine_answered(&mut self, peer: PeerId, now: u64) {
        self.now = self.now.max(now);
        if self.stake_with(peer) == Stake::Engine {
            self.remote(peer).heard(now);
        }
    }

    /// A peer is lost, after its fence: nothing of it lands here any more.
    pub fn peer_lost(&mut self, peer: PeerId, why: &str, now: u64) {
        self.now = self.now.max(now);
        self.remote(peer).is_lost = true;
        self.forsake(peer, Status::PeerLost, why);
        self.remotes.remove(&peer);
    }

    /// Bytes of a transfer that had ended landed in this range (LATE_APPLY): what lies there is not to be trusted, so the
    /// offers and takes that have it fail. None of such a take's data is valid. Returns how many.
    pub fn late_apply(&mut self, range: &Range<u64>, now: u64) -> usize {
        self.now = self.now.max(now);
        let layout = self.layout.clone();
        let touched = |lists: &[BlockList]| lists::touches(&layout, lists, range);
        let offers = self.offers.iter().filter(|(_, offer)| offer.lists().any(touched));
        let offers: Vec<HandoffId> = offers.map(|(id, _)| *id).collect();
        let takes = self.takes.iter().filter(|(_, take)| touched(take.lists()));
        let takes: Vec<HandoffId> = takes.map(|(id, _)| *id).collect();
        let why = "bytes of an earlier transfer landed late in its blocks (LATE_APPLY)";
        for id in &offers {
            self.fail_offer(*id, Status::Corrupt, why);
        }
        for id in &takes {
            self.harm_take(*id, Status::Corrupt, why);
        }
        self.counts.late_apply(offers.len() + takes.len());
        offers.len() + takes.len()
    }

    /// A silent peer could not be fenced, and its blocks stay. It is fenced again when it stays silent.
    pub fn not_fenced(&mut self, peer: PeerId) {
        if let Some(remote) = self.remotes.get_mut(&peer) {
            (remote.is_fencing, remote.is_unfenced) = (false, true);
        }
    }

    /// Returns how many blocks belong to handoffs with peers that are silent and could not be fenced.
    pub fn unfenced_blocks(&self) -> usize {
        let unfenced = self.remotes.iter().filter(|(_, remote)| remote.is_unfenced);
        let blocks = |(peer, remote): (&PeerId, &Remote)| -> usize {
            let of = |handoff: &Handoff| match handoff {
                Handoff::Offer(id) => self.offered_to(*id, *peer),
                Handoff::Take(id) => self.taken_from(*id, *peer),
            };
            remote.handoffs.iter().map(of).sum()
        };
        unfenced.map(blocks).sum()
    }

    /// Ends all handoffs with a peer, of which nothing lands here any more, or which is not to be trusted.
    fn forsake(&mut self, peer: PeerId, status: Status, why: &str) {
        self.waiting.remove_peer(peer);
        for handoff in self.handoffs_with(peer) {
            self.forsake_one(handoff, peer, status, why);
        }
    }

    /// PEER_LOST: nothing of the peer lands here any more.
    pub(super) fn forsake_one(&mut self, handoff: Handoff, peer: PeerId, status: Status, why: &str) {
        let is_gone = status == Status::PeerLost;
        match handoff {
            Handoff::Offer(id) => self.forsake_offer(id, peer, status, why, is_gone),
            Handoff::Take(id) => self.forsake_take(id, peer, status, why, is_gone),
        }
    }

    /// Ends all offers and takes, and refuses those that wait. Returns whether nothing is under way any more: call again
    /// after what follows.
    pub fn close(&mut self, now: u64) -> bool {
        self.now = self.now.max(now);
        self.close_offers();
        let takes: Vec<HandoffId> = self.takes.keys().copied().collect();
        for id in takes {
            self.strike_take(
                id,
                End::Cancelled,
                Cause::own(Status::Closed, "the consumer's cache was closed"),
            );
        }
        let is_quiet = self.is_idle() && self.remotes.values().all(|remote| remote.unsent == 0);
        if is_quiet {
            self.say_goodbye();
        }
        is_quiet
    }

    /// Whether no handoff is left, and nothing that touches blocks is under way.
    pub fn is_idle(&self) -> bool {
        self.offers.is_empty() && self.takes.is_empty() && self.posts.is_empty()
    }

    /// The engine has ended: all transfers are final, and nothing reaches any peer.
    pub fn engine_closed(&mut self, now: u64) {
        self.now = self.now.max(now);
        // The end of one may begin another, until each handoff is struck.
        while let Some((&post, _)) = self.posts.first_key_value() {
            self.moved(post, Err(Error::new(Status::Closed, "the engine was closed")), now);
        }
        let peers: Vec<PeerId> = self.remotes.keys().copied().collect();
        for peer in peers {
            self.peer_lost(peer, "the engine was closed", now);
        }
        self.close(now);
        self.actions.clear();
    }

    /// Does what is due. Returns when to call again at the latest; None if nothing waits for the time.
    pub fn tick(&mut self, now: u64) -> Option<u64> {
        let now = self.now.max(now);
        self.now = now;
        self.tombs.age(now);
        while let Some(&(at, due)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, due));
            match due {
                Due::Lease(id) => self.lease_is_over(id),
                Due::Deadline(id) => self.deadline_has_passed(id),
            }
        }
        let due = [self.due.first().map(|(at, _)| *at), self.ask_the_silent()];
        due.into_iter().flatten().min()
    }

    /// The handoffs that have not ended and still expect something of a peer.
    pub(super) fn handoffs_with(&self, peer: PeerId) -> Vec<Handoff> {
        self.remotes.get(&peer).map(|remote| remote.handoffs.iter().copied().collect()).unwrap_or_default()
    }

    pub(super) fn remote(&mut self, peer: PeerId) -> &mut Remote {
        let now = self.now;
        self.remotes.entry(peer).or_insert_with(|| Remote { heard_ns: now, ..Remote::default() })
    }

    /// Makes this cache known to a peer, once.
    pub(super) fn greet(&mut self, peer: PeerId) {
        if std::mem::replace(&mut self.remote(peer).is_greeted, true) {
            return;
        }
        let (regions, layout) = (self.regions.clone(), Box::new((*self.layout).clone()));
        let hello = Message::Hello { incarnation: self.incarnation, regions, layout };
        self.send_of(peer, &hello, Some(Owner::Greeting));
    }

    pub(super) fn send(&mut self, peer: PeerId, message: &Message) {
        self.send_of(peer, message, None);
    }

    /// Answers a message of the peer. The caller has checked that the peer takes its answers, or answers once.
    pub(super) fn answer(&mut self, peer: PeerId, message: &Message) {
        self.send_of(peer, message, Some(Owner::Answer));
    }

    /// Sends each message, but none to a lost peer.
    pub(super) fn send_to_known(&mut self, messages: Vec<(PeerId, Message)>) {
        for (peer, message) in messages {
            if self.remotes.get(&peer).is_some_and(|remote| !remote.is_lost) {
                self.send(peer, &message);
            }
        }
    }

    /// Sends a message that an owner counts until the peer has it.
    pub(super) fn send_of(&mut self, peer: PeerId, message: &Message, of: Option<Owner>) {
        self.note_update(peer, message);
        // Only a layout can be too long, and `Cache::open` has exported its own.
        if let Ok(message) = message.encode() {
            let remote = self.remote(peer);
            remote.unsent += u32::from(of != Some(Owner::Goodbye));
            remote.answers += u32::from(of == Some(Owner::Answer));
            remote.greetings += u32::from(of == Some(Owner::Greeting));
            self.actions.push(Action::Send { peer, message, of });
        }
    }

    pub(super) fn post(&mut self, post: Post, op: Op, moves: Vec<Strided>) -> PostId {
        let id = PostId(self.draw());
        let bytes = self.counts.posted(id, &moves, op == Op::Read);
        self.note_posted(id, &post, bytes);
        self.remote(post.peer).in_flight += 1;
        self.actions.push(Action::Post { post: id, peer: post.peer, op, moves });
        self.posts.insert(id, post);
        id
    }

    pub(super) fn cancel_posts(&mut self, at: Address) {
        self.cancel_posts_from(at, 0);
    }

    /// Cancels the transfers of a part that move tokens from this one on.
    pub(super) fn cancel_posts_from(&mut self, at: Address, from: u64) {
        let owner = Owner::Part(at);
        let own = self.posts.iter().filter(|(_, post)| post.owner == owner && post.work.tokens.end > from);
        let cancels: Vec<Action> = own.map(|(post, _)| Action::Cancel { post: *post }).collect();
        self.actions.extend(cancels);
    }

    /// Draws a number that this machine has not used.
    pub(super) fn draw(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Reports an end, once, and remembers the id, with what peers are told. Nothing is expected of these peers for it any
    /// more.
    pub(super) fn tell_end(&mut self, handoff: Handoff, peers: Vec<PeerId>, end: Event, told: String) {
        for peer in peers {
            if let Some(remote) = self.remotes.get_mut(&peer) {
                remote.handoffs.remove(&handoff);
            }
        }
        let id = handoff.id();
        self.counts.ended(&end);
        self.pending.remove(&id);
        if let Event::Ended { end, status, .. } = &end {
            let tomb = Tomb { end: *end, status: *status, why: told };
            self.tombs.add(id, tomb, self.now);
            let (end, status) = (*end, *status);
            self.note(id, || What::Ended(end, status));
        }
        self.events.push_back(end);
    }

    /// Reports that layers are complete, in the event of the same take if nobody has taken it yet.
    pub(super) fn tell_layers(&mut self, id: HandoffId, layers: u32) {
        self.note(id, || What::Layers(layers));
        let same = |event: &&mut Event| matches!(event, Event::Layers { id: of, .. } if *of == id);
        match self.events.iter_mut().find(same) {
            Some(event) => *event = Event::Layers { id, layers },
            None => self.events.push_back(Event::Layers { id, layers }),
        }
    }

    /// Refuses an id that is in use or has ended.
    pub(super) fn check_new(&self, id: HandoffId) -> Result<()> {
        let what = match self.state(id) {
            HandoffState::Unknown => return Ok(()),
            HandoffState::Ended(end) => format!("has ended ({end:?}); an attempt needs an id of its own"),
            _ => "is in use".into(),
        };
        Err(Error::invalid(format!("id: {id:?} {what}")))
    }

    fn pump_peer(&mut self, peer: PeerId) {
        for handoff in self.handoffs_with(peer) {
            match handoff {
                Handoff::Offer(id) => self.pump_offer(id),
                Handoff::Take(id) => self.pump_take(id, peer),
            }
        }
    }
}

/// The status and the text of an error, to be sent to the other side.
pub(super) fn told(error: &Error) -> (Status, String) {
    (error.status, error.message.clone())
}

/// The end at this side that follows from the other side's status.
pub(super) fn end_of(status: Status) -> End {
    match status {
        Status::PeerLost => End::PeerLost,
        _ => End::Failed,
    }
}
