//! Does what the machine wants: submits its messages and transfers, and hands the ends back (`thread`).

use std::sync::Arc;
use std::time::Duration;

use ferry::limits::{NOTIFY_BYTES_MAX, REQUESTS_MAX};
use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Status, Transfer, TransferOptions};

use super::state::{Inner, UnderWay};
use super::{Shared, CHANNEL};
use crate::handoff::{parts, Action, Machine, Owner, PostId};
use crate::plan::Strided;

/// A fence returns when the peer's lanes are closed. It takes longer than this only while a stopped process of this host
/// is in the midst of a copy; then it is asked for again.
const FENCE_TIMEOUT: Duration = Duration::from_secs(2);

impl Shared {
    /// Does everything that the machine wants, in order. What the engine has no room for waits, with all that needs
    /// room and follows. Cancels and fences need none: they do not wait, and may be what makes room.
    pub(super) fn act(self: &Shared, inner: &mut Inner) {
        loop {
            let wanted = inner.machine.take_actions().into_iter();
            let (free, others): (Vec<Action>, Vec<Action>) = wanted.partition(needs_no_room);
            inner.backlog.extend(others);
            while let Some(action) = inner.backlog.pop_front() {
                if let Some(again) = self.do_one(inner, action) {
                    inner.backlog.push_front(again);
                    break;
                }
            }
            // A cancel finds its transfer among those that are submitted, or in the backlog.
            for action in free {
                self.do_one(inner, action);
            }
            // What was done may have made the machine want more.
            if !inner.machine.has_actions() {
                break;
            }
        }
        if inner.machine.has_events() {
            let _ = rustix::io::write(&self.news, &1u64.to_ne_bytes());
        }
        if inner.machine.has_events() || inner.retracts > 0 {
            self.changed.notify_all();
        }
    }

    /// Does one thing. Returns it if the engine has no room for it now.
    fn do_one(&self, inner: &mut Inner, action: Action) -> Option<Action> {
        match action {
            Action::Send { peer, message, of } => match self.send(inner, peer, &message, of) {
                Err(error) if error.status == Status::Limit => {
                    return Some(Action::Send { peer, message, of })
                }
                Err(error) => {
                    inner.machine.sent(peer, of, Err(error.clone()), self.now());
                    // What a lost peer had begun may still land here. PEER_LOST says when not, or the engine's end.
                    if self.engine.is_peer_over(peer) {
                        inner.machine.peer_lost(peer, &error.message, self.now());
                    }
                }
                Ok(()) => {}
            },
            Action::Post { post, peer, op, moves } => {
                let submitted = requests(&inner.machine, peer, op, &moves)
                    .and_then(|requests| self.submit(inner, peer, op, &requests, None, UnderWay::Post(post)));
                match submitted {
                    Ok(transfer) => {
                        inner.posts.insert(post, transfer);
                    }
                    Err(error) if error.status == Status::Limit => {
                        return Some(Action::Post { post, peer, op, moves });
                    }
                    Err(error) => inner.machine.moved(post, Err(error), self.now()),
                }
            }
            Action::Cancel { post } => self.cancel(inner, post),
            Action::Fence { peer } => self.fence(inner, peer),
        }
        None
    }

    /// Submits the parts of a message. LIMIT: those that are left follow when the message is tried again, next of all.
    fn send(&self, inner: &mut Inner, peer: PeerId, message: &[u8], of: Option<Owner>) -> Result<()> {
        let parts = parts(message, NOTIFY_BYTES_MAX);
        if self.queue.pending() + inner.under_way.len() + parts.len() > super::QUEUE_CAPACITY {
            return Err(Error::new(Status::Limit, "the cache's queue is full"));
        }
        let last = parts.len().saturating_sub(1);
        for (index, part) in parts.iter().enumerate().skip(std::mem::take(&mut inner.parts_sent)) {
            let what = if index == last { UnderWay::Message(peer, of) } else { UnderWay::Part };
            let submitted = self.submit(inner, peer, Op::Write, &[], Some(part), what);
            if submitted.as_ref().is_err_and(|error| error.status == Status::Limit) {
                inner.parts_sent = index;
            }
            submitted?;
        }
        Ok(())
    }

    fn submit(
        &self,
        inner: &mut Inner,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        notify: Option<&[u8]>,
        what: UnderWay,
    ) -> Result<Transfer> {
        inner.next_number += 1;
        let number = inner.next_number;
        let options = TransferOptions {
            // The deadline of a take strikes its transfers; others have none.
            deadline: Deadline::Never,
            user_data: number,
            queue: Some(Arc::clone(&self.queue)),
            notify,
            channel: CHANNEL,
            ..TransferOptions::default()
        };
        let transfer = self.engine.submit(peer, op, requests, &options)?;
        inner.under_way.insert(number, what);
        Ok(transfer)
    }

    /// Cancels a transfer, or takes back one that was not submitted.
    fn cancel(&self, inner: &mut Inner, post: PostId) {
        if let Some(transfer) = inner.posts.get(&post) {
            // A transfer that is final cannot be cancelled, and says so by itself.
            let _ = transfer.cancel();
            return;
        }
        let is_it =
            |action: &Action| matches!(action, Action::Post { post: waiting, .. } if *waiting == post);
        let before = inner.backlog.len();
        inner.backlog.retain(|action| !is_it(action));
        if inner.backlog.len() < before {
            let error = Error::new(Status::Cancelled, "cancelled before it began");
            inner.machine.moved(post, Err(error), self.now());
        }
    }

    /// Fences a silent peer on a thread of its own, because a fence waits.
    fn fence(&self, inner: &mut Inner, peer: PeerId) {
        let Some(shared) = inner.me.upgrade() else { return };
        let fence = move || {
            let fenced = shared.engine.fence(peer, Some(FENCE_TIMEOUT));
            let mut inner = shared.lock();
            match fenced {
                Ok(()) => inner.machine.peer_lost(peer, "the peer was silent, and is fenced", shared.now()),
                Err(_) => inner.machine.not_fenced(peer),
            }
            shared.act(&mut inner);
            drop(inner);
            shared.wake();
        };
        if std::thread::Builder::new().name("ferry-kv-fence".into()).spawn(fence).is_err() {
            // Asked for again when the peer stays silent.
            inner.machine.not_fenced(peer);
        }
    }
}

fn needs_no_room(action: &Action) -> bool {
    matches!(action, Action::Cancel { .. } | Action::Fence { .. })
}

/// The requests of a transfer. Each names the region of the peer's cache that has the bytes.
fn requests(machine: &Machine, peer: PeerId, op: Op, moves: &[Strided]) -> Result<Vec<Request>> {
    let count = moves.iter().map(Strided::pieces).fold(0u64, u64::saturating_add);
    if count > REQUESTS_MAX as u64 {
        return Err(Error::invalid(format!(
            "a transfer of {count} pieces is above the {REQUESTS_MAX} of a transfer"
        )));
    }
    let mut requests = Vec::new();
    let room = requests.try_reserve_exact(count as usize);
    room.map_err(|_| Error::new(Status::NoMemory, "no memory for the requests of a transfer"))?;
    for piece in moves.iter().flat_map(Strided::requests) {
        let (local, remote) = match op {
            Op::Write => (piece.source, piece.target),
            Op::Read => (piece.target, piece.source),
        };
        let region = machine.remote_region(peer, remote, piece.bytes);
        if region == 0 {
            return Err(Error::new(
                Status::NotRegistered,
                "the peer's layout names memory that its cache does not have",
            ));
        }
        let remote_region = RegionId::from_raw(region);
        requests.push(Request { local, remote, length: piece.bytes, remote_region });
    }
    Ok(requests)
}
