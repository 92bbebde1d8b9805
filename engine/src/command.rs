//! What the rest of the engine asks of the control loop: a bounded-by-its-senders list and a wake-up.
//! Senders never wait for the loop; whoever needs an answer waits on a `Reply`.

use crate::complete::Transfer;
use crate::loss::Loss;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::health::{self, Health};
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use crate::types::{Monotonic, PeerId, Transport};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub enum Command {
    /// Reach `address`, known to be at `resolved`; the reply is the peer's handle once it is up.
    Dial {
        address: String,
        resolved: Vec<SocketAddr>,
        deadline: Instant,
        reply: Reply<PeerId>,
    },
    /// Regions came and went; tell every peer.
    RegionsAdded(Vec<u64>),
    RegionsRemoved(Vec<u64>),
    /// A struck transfer has slices posted: let them finish for a while, then fence.
    Drain {
        peer: PeerId,
        transfer: Arc<Transfer>,
    },
    /// A lane failed, of whichever transport: its number is the session's.
    LaneLost {
        peer: PeerId,
        lane: u32,
        loss: Loss,
    },
    /// Something waits for TCP lanes of these kinds (bits, as in `tcp::opening`), and there are none.
    WantLanes {
        peer: PeerId,
        kinds: u32,
    },
    /// Dial a TCP lane of this session.
    OpenLane {
        peer: PeerId,
        session_id: [u8; 16],
        slot: u32,
        lane: u32,
    },
    /// Ask the dialer of this session to open TCP lanes of these kinds.
    AskForLanes {
        peer: PeerId,
        session_id: [u8; 16],
        kinds: u32,
    },
    /// There is a path of this transport to the peer now, or there is none, and why; `pending`: it is
    /// being made again.
    PathSettled {
        peer: PeerId,
        transport: Transport,
        why: Option<String>,
        pending: bool,
    },
    /// The path to the peer can't be used any more, and nobody knows why.
    PathBroken {
        peer: PeerId,
        transport: Transport,
    },
    /// A companion's word to the one at the other side of this session: either `body`, or why there will
    /// be no path.
    Tell {
        peer: PeerId,
        session_id: [u8; 16],
        transport: Transport,
        body: Vec<u8>,
        why: String,
    },
    /// In this session the peer says to a companion what no engine in good order does: it ends.
    Misbehaved {
        peer: PeerId,
        session_id: [u8; 16],
    },
    /// Nothing of a peer that was lost can land here any more, as far as one companion knows.
    TransportQuiet {
        peer: PeerId,
    },
    /// The peer's process is known to have ended.
    ProcessEnded {
        peer: PeerId,
    },
    /// Grant notifications up to this sequence.
    Grant {
        peer: PeerId,
        limit: u64,
    },
    /// The sample of the peer's clock is too old to post on.
    RefreshClock {
        peer: PeerId,
    },
    /// The last transfer of a lost peer is final, or what counted as one has ended.
    PeerIdle {
        peer: PeerId,
    },
    /// This peer has a transfer with a deadline, or lanes to look after, before the loop's next look at it.
    Look {
        peer: PeerId,
        at_ns: Monotonic,
    },
    /// Many transfers of this peer have to be struck, or to go another way: see `Peer::sweep`.
    Sweep {
        peer: PeerId,
    },
    /// Ask the peer for a sign of life.
    Probe {
        peer: PeerId,
        reply: Reply<u64>,
    },
    /// Let nothing of this peer land here any more.
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

/// An answer to be waited for. Dropped unanswered, it answers CLOSED, or PANIC if that is why.
pub struct Reply<T>(Option<Box<dyn FnOnce(Result<T>) + Send>>);

impl<T: Send + 'static> Reply<T> {
    pub fn new(answer: impl FnOnce(Result<T>) + Send + 'static) -> Reply<T> {
        Reply(Some(Box::new(answer)))
    }

    /// A reply, and the place where its answer appears.
    pub fn pair() -> (Reply<T>, Arc<Answer<T>>) {
        let answer = Arc::new(Answer { slot: Mutex::new(None), filled: Condvar::new() });
        let place = answer.clone();
        (Reply::new(move |result| place.fill(result)), answer)
    }
}

impl<T> Reply<T> {
    pub fn send(mut self, result: Result<T>) {
        if let Some(answer) = self.0.take() {
            answer(result);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
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

    /// Waits for the answer; TIMEOUT with `what` in the message when it does not come in time.
    pub fn wait(&self, timeout: Option<Duration>, what: &str) -> Result<T> {
        let filled = &self.filled;
        health::woken_by(&|| filled.notify_all(), || self.wait_here(timeout, what))
    }

    fn wait_here(&self, timeout: Option<Duration>, what: &str) -> Result<T> {
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let mut slot = self.slot.lock();
        loop {
            if let Some(result) = slot.take() {
                return result;
            }
            let left =
                deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(clock::now()));
            if left.is_zero() {
                return Err(Error::new(Status::Timeout, format!("{what}: no answer in time")));
            }
            slot = self.filled.wait_timeout(slot, left).0;
        }
    }
}

pub struct Commands {
    list: Mutex<List>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Of the engine whose loop it is.
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
    /// Nobody will take any more.
    closed: bool,
}

impl Commands {
    /// How to wake the loop; set once, before the loop starts.
    pub fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// Hands a command to the loop. After `close` it is dropped, and a reply in it answers CLOSED.
    pub fn push(&self, command: Command) {
        {
            let mut list = self.list();
            if list.closed {
                // A reply runs what its owner wants: not under the lock.
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

    /// The loop has ended: drops what it left and whatever comes.
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
