//! Requests of the other threads to the control loop: a list that its senders bound, and a wake-up. Senders never wait
//! for the loop; a sender that needs an answer waits on a `Reply`.

use crate::complete::Transfer;
use crate::loss::Loss;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::health::{self, Health};
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::sys::once::OnceLock;
use crate::types::{LaneId, Monotonic, PeerId, RegionId, SessionId, Transport};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub enum Command {
    /// Connect to `address`. `resolved`: the socket addresses that `address` stands for; None if its name must be
    /// looked up. The reply is the peer's handle once the peer is up.
    Dial {
        address: String,
        resolved: Option<Vec<SocketAddr>>,
        deadline: Monotonic,
        reply: Reply<PeerId>,
    },
    /// A thread has looked up the address for callers that asked to connect there.
    NameFound {
        address: String,
        found: io::Result<Vec<SocketAddr>>,
    },
    /// Regions were registered or unregistered; announce the change to every peer.
    RegionsAdded(Vec<RegionId>),
    RegionsRemoved(Vec<RegionId>),
    /// A struck transfer has posted slices: let them finish for a bounded time, then fence their lanes.
    Drain {
        peer: PeerId,
        transfer: Arc<Transfer>,
    },
    /// A lane of any transport failed. Lane numbers are the session's.
    LaneLost {
        peer: PeerId,
        lane: LaneId,
        loss: Loss,
    },
    /// The worker of a TCP lane has done what was asked of it before the lane's end (`peer::transport::Parting`).
    LaneParted {
        peer: PeerId,
        lane: LaneId,
    },
    /// A lane thread is at work: check from time to time whether it has returned from registered memory.
    WatchWorkers,
    /// A path to the peer needs its service: see `TransportService::wanted`.
    PathWants {
        peer: PeerId,
        transport: Transport,
    },
    /// The peer now has a path of this transport, or has none for the reason in `why`. `pending`: the path is being
    /// made again.
    PathSettled {
        peer: PeerId,
        transport: Transport,
        why: Option<String>,
        pending: bool,
    },
    /// The path to the peer failed, and the reason is not known.
    PathBroken {
        peer: PeerId,
        transport: Transport,
    },
    /// A message from a transport's service to the peer's service in this session: either `body` or, in `why`, the
    /// reason that no path will exist.
    ServiceMessage {
        peer: PeerId,
        session_id: SessionId,
        transport: Transport,
        body: Vec<u8>,
        why: String,
    },
    /// The peer sent a transport's service a message that no correct engine sends; the session ends.
    Misbehaved {
        peer: PeerId,
        session_id: SessionId,
    },
    /// A transport's service reports that nothing from a lost peer can land here over that transport any more.
    TransportQuiet {
        peer: PeerId,
    },
    /// The peer's process is known to have ended.
    ProcessEnded {
        peer: PeerId,
    },
    /// Grant the peer credits for notifications up to this number.
    Grant {
        peer: PeerId,
        limit: u64,
    },
    /// Ask the peer for a sign of life: see `Peer::ask`.
    Ask {
        peer: PeerId,
    },
    /// The last transfer of a lost peer, or the last activity that counted like a transfer, has ended.
    PeerIdle {
        peer: PeerId,
    },
    /// This peer has a transfer with a deadline, or lanes to check, before the loop's next check of the peer.
    Check {
        peer: PeerId,
        at_ns: Monotonic,
    },
    /// Many transfers of this peer must be struck or moved to another path: see `Peer::sweep`.
    Sweep {
        peer: PeerId,
    },
    /// Send a probe to the peer.
    Probe {
        peer: PeerId,
        reply: Reply<u64>,
    },
    /// Fence the peer: nothing that it sends may land here any more.
    FencePeer {
        peer: PeerId,
        reply: Reply<()>,
    },
    ClosePeer {
        peer: PeerId,
        reply: Reply<()>,
    },
    /// Close all sessions and end the loop.
    Stop,
}

/// The sender's end of an answer. If it is dropped without an answer, the answer is CLOSED, or PANIC in a broken
/// engine.
pub struct Reply<T> {
    answer: Option<Box<dyn FnOnce(Result<T>) + Send>>,
    /// The caller's end. None: an answer is always awaited.
    place: Option<Weak<Answer<T>>>,
}

impl<T: Send + 'static> Reply<T> {
    pub fn new(answer: impl FnOnce(Result<T>) + Send + 'static) -> Reply<T> {
        Reply { answer: Some(Box::new(answer)), place: None }
    }

    /// Returns a reply and the place where its answer appears.
    pub fn pair() -> (Reply<T>, Arc<Answer<T>>) {
        let answer = Arc::new(Answer { slot: Mutex::new(None), filled: Condvar::new() });
        let place = Arc::downgrade(&answer);
        let fill = move |result| {
            place.upgrade().inspect(|place| place.fill(result));
        };
        (Reply { answer: Some(Box::new(fill)), place: Some(Arc::downgrade(&answer)) }, answer)
    }

    /// Returns a reply that calls `answer`, and that is awaited as long as this reply is.
    pub fn with(&self, answer: impl FnOnce(Result<T>) + Send + 'static) -> Reply<T> {
        Reply { answer: Some(Box::new(answer)), place: self.place.clone() }
    }
}

impl<T> Reply<T> {
    pub fn send(mut self, result: Result<T>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }

    /// Returns false when the caller has stopped waiting. If a list drops such replies before it takes another one, it
    /// never has more replies than threads wait, however often the application calls with a short timeout.
    pub fn is_awaited(&self) -> bool {
        self.place.as_ref().is_none_or(|place| place.strong_count() > 0)
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            let closed = || Error::new(Status::Closed, "the engine is closed");
            answer(Err(health::why_stopped().unwrap_or_else(closed)));
        }
    }
}

pub struct Answer<T> {
    slot: Mutex<Option<Result<T>>>,
    filled: Condvar,
}

impl<T> Answer<T> {
    fn fill(&self, result: Result<T>) {
        *self.slot.lock() = Some(result);
        self.filled.notify_all();
    }

    /// Takes the answer if it has come.
    pub fn take(&self) -> Option<Result<T>> {
        self.slot.lock().take()
    }

    /// Waits for the answer. TIMEOUT, with the message `late`, if the answer does not come in time.
    pub fn wait(&self, timeout: Option<Duration>, late: &str) -> Result<T> {
        let filled = &self.filled;
        health::woken_by(&|| filled.notify_all(), || self.wait_here(timeout, late))
    }

    fn wait_here(&self, timeout: Option<Duration>, late: &str) -> Result<T> {
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let mut slot = self.slot.lock();
        loop {
            if let Some(result) = slot.take() {
                return result;
            }
            let left =
                deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(clock::now()));
            if left.is_zero() {
                return Err(Error::new(Status::Timeout, late));
            }
            slot = self.filled.wait_timeout(slot, left).0;
        }
    }
}

pub struct Commands {
    list: Mutex<List>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The health of the loop's engine.
    pub health: Arc<Health>,
}

impl Default for Commands {
    fn default() -> Commands {
        Commands { list: Mutex::default(), wake: OnceLock::new(), health: Health::new() }
    }
}

#[derive(Default)]
struct List {
    commands: VecDeque<Command>,
    /// The loop takes no more commands.
    closed: bool,
}

impl Commands {
    /// Sets how to wake the loop; called once, before the loop starts.
    pub fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// Queues a command for the loop. After `close` the command is dropped, and a reply in it answers CLOSED.
    pub fn push(&self, command: Command) {
        {
            let mut list = self.list();
            if list.closed {
                // Dropped outside the lock, because a reply in the command runs its owner's code.
                drop(list);
                return drop(command);
            }
            list.commands.push_back(command);
        }
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    pub fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut self.list().commands)
    }

    /// Drops the queued commands and all later commands, because the loop has ended.
    pub fn close(&self) {
        let left = {
            let mut list = self.list();
            list.closed = true;
            std::mem::take(&mut list.commands)
        };
        drop(left);
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_awaited_until_its_caller_gives_up() {
        let (reply, answer) = Reply::pair();
        let also = reply.with(|_: Result<()>| ());
        assert!(reply.is_awaited() && also.is_awaited());
        assert_eq!(answer.wait(Some(Duration::ZERO), "it").unwrap_err().status, Status::Timeout);
        drop(answer);
        assert!(!reply.is_awaited() && !also.is_awaited());
        reply.send(Ok(()));
        assert!(Reply::<()>::new(|_| ()).is_awaited(), "an event is always awaited");
    }

    #[test]
    fn nothing_waits_for_a_loop_that_has_ended() {
        let commands = Commands::default();
        let (early, early_answer) = Reply::pair();
        commands.push(Command::FencePeer { peer: PeerId::from_raw(1), reply: early });
        commands.close();
        let (late, late_answer) = Reply::pair();
        commands.push(Command::FencePeer { peer: PeerId::from_raw(1), reply: late });
        for answer in [early_answer, late_answer] {
            assert_eq!(answer.wait(None, "fence").unwrap_err().status, Status::Closed);
        }
        assert!(commands.take().is_empty());
    }
}
