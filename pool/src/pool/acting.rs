//! Carries out the machine's actions: submits its messages and transfers, queues its sums, fences silent peers.

use std::sync::Arc;
use std::time::Duration;

use ferry::types::{Op, PeerId};
use ferry::{Deadline, Status, TransferOptions};
use ferry_kv::messages::MessagePart;

use super::values::Summing;
use super::{Ended, Flight, Inner, NodeInfo, Shared, CHANNEL};
use crate::index::NodeId;
use crate::node::{Action, KeyEnd};
use crate::outcome::Outcome;
use crate::wire::Hello;

/// A fence returns when the peer's lanes are closed. It takes longer than this only while a stopped process of this host
/// is in the midst of a copy; then it is asked for again.
const FENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Parts of messages that are submitted before others have a turn at the lock.
const PARTS_PER_TURN: usize = 1_024;
/// Numbers of dials (`user_data` of their connects) begin here, so that they are no transfer's.
pub(super) const DIALS_FROM: u64 = 1 << 63;

impl Shared {
    /// Carries out all actions of the machine, and hands over the ends of its calls.
    pub(super) fn act(self: &Shared, inner: &mut Inner) {
        loop {
            self.carry_out(inner);
            self.hand_over(inner);
            if !inner.machine.has_actions() {
                return;
            }
        }
    }

    fn carry_out(&self, inner: &mut Inner) {
        while inner.machine.has_actions() {
            for action in inner.machine.take_actions() {
                match action {
                    Action::Send { peer, message } => inner.outgoing.add(peer, message, None),
                    Action::Sum { of, values } => inner.sums.push_back(Summing::new(of, values)),
                    Action::Fence(peer) => self.fence(inner, peer),
                    Action::Refused { peer, why } => {
                        inner.refused.insert(peer, why.message);
                        self.count_missing(inner);
                    }
                    Action::Move { .. } => inner.waiting.push_back(action),
                    Action::Write { number, region, pages } => {
                        let requests = inner.file.as_ref().map(|file| file.requests(region, &pages));
                        let (peer, op, notify) = (None, Op::Write, None);
                        let requests = requests.unwrap_or_default();
                        let action = Action::Move { number, peer, op, requests, notify, durable: true };
                        inner.waiting.push_back(action);
                    }
                }
            }
            // Messages first: an answer that a transfer carries is behind them.
            self.send_waiting(inner);
            self.move_waiting(inner);
        }
        self.send_waiting(inner);
    }

    /// Submits the transfers for which there is room.
    pub(super) fn move_waiting(&self, inner: &mut Inner) {
        while let Some(action) = inner.waiting.pop_front() {
            let Action::Move { number, peer, op, requests, notify, durable } = action else { continue };
            inner.next_number += 1;
            let user_data = inner.next_number;
            let options = TransferOptions { user_data, notify: notify.as_deref(), durable, ..self.options() };
            match self.engine.submit(peer.unwrap_or(self.own), op, &requests, &options) {
                Ok(transfer) => {
                    let flight = Flight { number, requests: requests.len(), transfer };
                    inner.under_way.insert(user_data, flight);
                }
                Err(error) if error.status == Status::Limit => {
                    let action = Action::Move { number, peer, op, requests, notify, durable };
                    inner.waiting.push_front(action);
                    return;
                }
                Err(_) => {
                    // The engine starts all requests or none.
                    let failed: Vec<usize> = (0..requests.len()).collect();
                    inner.machine.moved(number, &failed, self.now());
                }
            }
        }
    }

    fn options(&self) -> TransferOptions<'static> {
        TransferOptions {
            deadline: Deadline::Never,
            queue: Some(Arc::clone(&self.queue)),
            channel: CHANNEL,
            ..TransferOptions::default()
        }
    }

    /// Submits the parts of messages that have room.
    pub(super) fn send_waiting(&self, inner: &mut Inner) {
        for _ in 0..PARTS_PER_TURN {
            let Some(part) = inner.outgoing.next_part() else { return };
            // Nobody waits for the end of a message: a lost peer has an event of its own.
            let options = TransferOptions { queue: None, notify: Some(&part.bytes), ..self.options() };
            match self.engine.submit(part.peer, Op::Write, &[], &options) {
                Ok(_) => inner.outgoing.submitted(&part, false),
                Err(error) if error.status == Status::Limit => return inner.outgoing.refused(&part),
                Err(_) => {
                    let MessagePart { peer, .. } = part;
                    inner.outgoing.failed(&part);
                    inner.outgoing.forget(peer);
                }
            }
        }
    }

    /// Hands over the ends of calls, and goes on with the prefetch that is under way.
    fn hand_over(&self, inner: &mut Inner) {
        let open = inner.open.len();
        loop {
            self.go_on_prefetching(inner);
            let Some(end) = inner.machine.take_end() else { break };
            if !self.take_prefetched(inner, end.call, &end.keys) {
                self.deliver(inner, end.call, end.keys);
            }
        }
        if inner.open.len() < open {
            self.changed.notify_all();
        }
    }

    /// The end of a call of the program: for the thread that waits for it, or as news.
    pub(super) fn deliver(&self, inner: &mut Inner, call: u64, keys: Vec<KeyEnd>) {
        let Some(open) = inner.open.remove(&call) else { return };
        open.note(&mut inner.rates, &keys, inner.machine.my_id(), self.now());
        let ended = Ended { user_data: open.user_data, keys };
        if inner.waited.remove(&call) {
            inner.ended.insert(call, ended);
        } else {
            inner.news.push_back(ended);
            self.news.raise();
        }
    }

    /// The engine is over: nothing moves any more, and no call gets an answer.
    pub(super) fn give_up(&self, inner: &mut Inner) {
        inner.under_way.clear();
        inner.waiting.clear();
        let prefetches = inner.prefetches.give_up();
        for (call, keys) in inner.machine.give_up().into_iter().chain(prefetches) {
            self.deliver(inner, call, vec![KeyEnd::of(Outcome::Closed); keys]);
        }
    }

    /// A peer is gone: nothing of it lands here any more.
    pub(super) fn lost(&self, inner: &mut Inner, peer: PeerId, why: &str) {
        let now = self.now();
        inner.outgoing.forget(peer);
        inner.joiners.remove(&peer);
        inner.refused.remove(&peer);
        inner.dials.lost(peer, why, now);
        inner.machine.lost(peer, now);
        self.count_missing(inner);
    }

    /// A node begins. Whoever is connected may have known this engine's last one, which is over.
    pub(super) fn greet_all(&self, inner: &mut Inner) {
        let peers = self.engine.peers().unwrap_or_default();
        peers.into_iter().for_each(|peer| inner.machine.greet(peer));
        self.count_missing(inner);
        self.act(inner);
    }

    pub(super) fn count_missing(&self, inner: &mut Inner) {
        // A node is refused while another one has its name, and may be known after that.
        inner.refused.retain(|peer, _| !inner.machine.knows(*peer));
        let missing =
            inner.dials.iter().filter(|dial| dial.peer.is_none_or(|peer| !inner.machine.knows(peer))).count();
        inner.machine.set_missing(missing);
    }

    /// Fences a silent peer on a thread of its own, because a fence waits.
    fn fence(&self, inner: &mut Inner, peer: PeerId) {
        let Some(shared) = inner.me.upgrade() else { return };
        // The engine of a peer that dialed this one does not come back after a fence unless it is dialed.
        let address = self.engine.peer_info(peer).map(|info| info.address).unwrap_or_default();
        let fence = move || {
            let fenced = shared.engine.fence(peer, Some(FENCE_TIMEOUT));
            let mut inner = shared.lock();
            match fenced {
                Ok(()) => {
                    inner.dials.call_back(&address, peer);
                    shared.lost(&mut inner, peer, "the node was silent, and is fenced");
                }
                // The engine does not know the peer any more: PEER_LOST is on its way, or was.
                Err(_) if shared.engine.is_peer_over(peer) => {
                    shared.lost(&mut inner, peer, "the node is lost")
                }
                Err(_) => inner.machine.not_fenced(peer, shared.now()),
            }
            shared.act(&mut inner);
            drop(inner);
            shared.wake.raise();
        };
        if ferry::thread::spawn("ferry-pool-fence", fence).is_err() {
            inner.machine.not_fenced(peer, self.now());
        }
    }

    pub(super) fn node_infos(&self) -> Vec<NodeInfo> {
        let inner = self.lock();
        let refusal = |peer: &PeerId| inner.refused.get(peer).cloned();
        let mut infos = vec![info(Some(inner.machine.me()), self.engine.address().to_owned(), String::new())];
        let address = |peer: PeerId| self.engine.peer_info(peer).map(|info| info.address).unwrap_or_default();
        let others = inner.machine.peers().chain(inner.refused.keys().copied());
        let mut others: Vec<(PeerId, String)> = others.map(|peer| (peer, address(peer))).collect();
        for dial in inner.dials.iter() {
            // The other node may have dialed this one before.
            let mut peers =
                others.iter().filter(|(_, address)| *address == dial.address).map(|(peer, _)| *peer);
            let peer = dial.peer.or_else(|| peers.next());
            let why = match peer {
                None => dial.why.clone(),
                Some(peer) => refusal(&peer).unwrap_or_default(),
            };
            others.retain(|(other, _)| Some(*other) != peer);
            let hello = peer.and_then(|peer| inner.machine.hello_of(peer));
            infos.push(info(hello, dial.address.clone(), why));
        }
        for (peer, address) in others {
            infos.push(info(inner.machine.hello_of(peer), address, refusal(&peer).unwrap_or_default()));
        }
        infos
    }
}

fn info(hello: Option<&Hello>, address: String, why: String) -> NodeInfo {
    let why = match (hello, why) {
        (None, why) if why.is_empty() => "has not greeted: no pool is open there".into(),
        (_, why) => why,
    };
    NodeInfo {
        id: hello.map(|hello| NodeId::of(&hello.name)),
        address,
        name: hello.map(|hello| hello.name.clone()).unwrap_or_default(),
        is_member: hello.is_some_and(|hello| hello.is_member),
        capacity: hello.map_or(0, |hello| hello.load.capacity),
        free: hello.map_or(0, |hello| hello.load.free),
        is_draining: hello.is_some_and(|hello| hello.load.is_draining),
        why,
    }
}

/// The requests of a failed transfer that failed; all of them if the transfer does not say.
pub(super) fn failed(flight: &Flight, status: Status) -> Vec<usize> {
    if status == Status::Ok {
        return Vec::new();
    }
    let results = flight.transfer.results();
    let failed: Vec<usize> = results
        .iter()
        .enumerate()
        .filter(|(_, result)| result.status != Status::Ok)
        .map(|(at, _)| at)
        .collect();
    if failed.is_empty() {
        (0..flight.requests).collect()
    } else {
        failed
    }
}
