//! Carries out the machine's actions: submits its messages, cancels and fences. `moving` submits its transfers, and
//! `thread` reports their ends.

use std::sync::Arc;
use std::time::Duration;

use ferry::status::Error;
use ferry::types::{Op, PeerId};
use ferry::{Deadline, Status, TransferOptions};

use super::state::{Inner, Sent, UnderWay};
use super::{Shared, CHANNEL};
use crate::handoff::{Action, Owner, PostId};
use crate::messages::MessagePart;

/// A fence returns when the peer's lanes are closed. It takes longer than this only while a stopped process of this host
/// is in the midst of a copy; then it is asked for again.
const FENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Parts of messages that are submitted before others have a turn at the lock.
const PARTS_PER_TURN: usize = 1_024;

impl Shared {
    /// Carries out all actions of the machine, its messages to each peer in order. A message for which there is no room
    /// waits, and so do the later ones to the same peer.
    pub(super) fn act(self: &Shared, inner: &mut Inner) {
        loop {
            for action in inner.machine.take_actions() {
                match action {
                    Action::Send { peer, of, .. } if inner.is_cut && of != Some(Owner::Goodbye) => {
                        inner.machine.sent(peer, of, Err(closed()), self.now());
                    }
                    Action::Send { peer, message, of } => inner.outgoing.add(peer, message, of),
                    Action::Post { post, peer, op, moves } => {
                        let regions = inner.machine.regions_of(peer);
                        inner.moving.add(post, peer, op, moves, regions);
                    }
                    Action::Cancel { post } => self.cancel(inner, post),
                    Action::Probe { peer } => match self.engine.probe_begin(peer) {
                        Ok(probe) => drop(inner.probes.insert(peer, probe)),
                        // The engine or the peer is gone; another event reports that.
                        Err(_) => inner.machine.engine_answered(peer, self.now()),
                    },
                    Action::Fence { peer } => self.fence(inner, peer),
                }
            }
            self.send_waiting(inner);
            // These actions may have led to further ones.
            if !inner.machine.has_actions() {
                break;
            }
        }
        if inner.machine.has_events() {
            self.news.raise();
        }
        if inner.machine.has_events() || inner.retracts > 0 {
            self.changed.notify_all();
        }
    }

    /// Submits the parts of messages that have room.
    fn send_waiting(&self, inner: &mut Inner) {
        for _ in 0..PARTS_PER_TURN {
            let Some(part) = inner.outgoing.next_part() else { return };
            let number = inner.next_number + 1;
            let mut options = self.options(number, Some(&part.bytes));
            let is_awaited = part.of != Some(Owner::Goodbye);
            if !is_awaited {
                // The cache's GOODBYE, which a closing cache waits for only so long.
                (options.queue, options.deadline) = (None, Deadline::Default);
            }
            match self.engine.submit(part.peer, Op::Write, &[], &options) {
                Ok(transfer) => {
                    inner.next_number = number;
                    inner.outgoing.submitted(&part, is_awaited);
                    let MessagePart { peer, of, is_last, .. } = part;
                    if is_awaited {
                        let sent = Sent { peer, of, is_last, transfer };
                        inner.under_way.insert(number, UnderWay::Part(sent));
                    } else {
                        inner.goodbyes.push(transfer);
                    }
                }
                Err(error) if error.status == Status::Limit => return inner.outgoing.refused(&part),
                Err(error) => {
                    inner.outgoing.failed(&part);
                    inner.machine.sent(part.peer, part.of, Err(error.clone()), self.now());
                    // A lost peer's transfers may still land here, until PEER_LOST or the engine's end says otherwise.
                    if self.engine.is_peer_over(part.peer) {
                        inner.over.insert(part.peer, error);
                        self.wake();
                    }
                }
            }
        }
    }

    /// Nothing of a peer lands here any more, and nothing reaches it.
    pub(super) fn peer_lost(&self, inner: &mut Inner, peer: PeerId, why: &str) {
        inner.machine.peer_lost(peer, why, self.now());
        inner.outgoing.forget(peer);
        inner.probes.remove(&peer);
    }

    /// Gives up the messages of a closing cache, so that peers that do not take them hold it up no longer.
    pub(super) fn cut_messages(&self, inner: &mut Inner) {
        for (peer, of) in inner.outgoing.forget_all() {
            inner.machine.sent(peer, of, Err(closed()), self.now());
        }
        for under_way in inner.under_way.values() {
            if let UnderWay::Part(sent) = under_way {
                // A transfer that is already final ignores this, and reports its end by itself.
                let _ = sent.transfer.cancel();
            }
        }
    }

    /// The options of the transfer with this number.
    pub(super) fn options<'a>(&self, number: u64, notify: Option<&'a [u8]>) -> TransferOptions<'a> {
        TransferOptions {
            // The deadline of a take strikes its transfers; others have none.
            deadline: Deadline::Never,
            user_data: number,
            queue: Some(Arc::clone(&self.queue)),
            notify,
            channel: CHANNEL,
            ..TransferOptions::default()
        }
    }

    /// Cancels the transfers of a post, and submits no further ones.
    fn cancel(&self, inner: &mut Inner, post: PostId) {
        inner.moving.stop(post, Error::new(Status::Cancelled, "cancelled before all of it was moved"));
        self.settle_post(inner, post);
    }

    /// Fences a silent peer on a thread of its own, because a fence waits.
    fn fence(&self, inner: &mut Inner, peer: PeerId) {
        let Some(shared) = inner.me.upgrade() else { return };
        let fence = move || {
            let fenced = shared.engine.fence(peer, Some(FENCE_TIMEOUT));
            let mut inner = shared.lock();
            match fenced {
                Ok(()) => shared.peer_lost(&mut inner, peer, "the peer was silent, and is fenced"),
                Err(_) => inner.machine.not_fenced(peer),
            }
            shared.act(&mut inner);
            drop(inner);
            shared.wake();
        };
        if ferry::thread::spawn("ferry-kv-fence", fence).is_err() {
            // Asked for again when the peer stays silent.
            inner.machine.not_fenced(peer);
        }
    }
}

fn closed() -> Error {
    Error::new(Status::Closed, "the cache was closed")
}
