//! A TCP connection that carries frames both ways. `tx` fills and sends batches, `rx` receives and places payload. Each
//! side has a lock that is held for non-blocking work only, so that any thread may drive either side: the lane's
//! worker, a submitter (send), or a waiter (receive).
//!
//! A page fault may last for ever, so a thread that serves several peers only tries these locks. Contract 3: when
//! `close` says that the lane is quiet, no thread of this process reads or writes memory for this lane any more.

use crate::command::Command;
use crate::context::Context;
use crate::limits::{
    CALL_BYTES_MAX, FRAME_DESCRIPTORS_MAX, GENTLE_CALL_BYTES_MAX, GENTLE_FRAMES_MAX, GENTLE_FRAME_BYTES_MAX,
    LANE_FRAMES_MAX, LANE_READ_BYTES_MAX, NOTIFY_BYTES_MAX,
};
use crate::loss::{Failure, Loss};
use crate::peer::outbox::{PullLimits, Pulled};
use crate::peer::{After, Peer, Posted};
use crate::session::machine::Carried;
use crate::sys::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::eventfd::EventFd;
use crate::sys::fd::OwnedFd;
use crate::sys::lock::Mutex;
use crate::sys::moment;
use crate::sys::once::OnceLock;
use crate::sys::poller::Interest;
use crate::sys::socket;
use crate::sys::turns;
use crate::transport::tcp::answer::Answers;
use crate::transport::tcp::flight::Flight;
use crate::transport::tcp::rx::{By, Rx, RxTurn};
use crate::transport::tcp::tx::{Tx, TxTurn};
use crate::transport::tcp::wire::Sealer;
use crate::transport::tcp::worker::Worker;
use crate::types::{Boottime, LaneId, Monotonic, Op, TransferId, Transport};
pub use ending::Closing;
use ending::STAYS;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// How many times in a row one thread sends work that other threads queue.
const RUNS_MAX: usize = 16;
impl Carried for Posted {
    fn lease_until_ns(&self) -> Monotonic {
        self.lease_until_ns
    }
    fn is_struck(&self) -> bool {
        self.transfer().is_some_and(|transfer| !transfer.is_pending())
    }
}

/// The parts of a new lane.
pub struct LaneSpec {
    pub id: LaneId,
    pub slot: u32,
    pub socket: OwnedFd,
    pub send_key: [u8; 32],
    pub receive_key: [u8; 32],
    pub peer_reads_max: u32,
    pub frame_bytes_max: u32,
}

pub struct Lane {
    pub id: LaneId,
    pub slot: u32,
    pub peer: Arc<Peer>,
    pub context: Arc<Context>,
    pub peer_reads_max: usize,
    pub frame_bytes_max: u32,
    pub token: u64,
    socket: OwnedFd,
    /// The addresses of both ends. Read when the lane is made, because a reset connection has none.
    ends: (Option<SocketAddr>, Option<SocketAddr>),
    worker: Arc<Worker>,
    /// Set on the express lane if bulk is wanted and no bulk lane is attached: the lane then carries bulk too. A hint.
    is_alone: AtomicBool,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    pub flight: Mutex<Flight>,
    pub answers: Mutex<Answers>,
    /// `tx` has new work. Set before `tx` is tried, cleared under its lock.
    tx_wanted: AtomicBool,
    /// The socket is full. Only the worker tries again, when the socket is writable.
    tx_blocked: AtomicBool,
    /// `tx` left work because a window was full; `rx` runs `tx` again after an acknowledgement.
    pub window_full: AtomicBool,
    /// Begins and ends of calls that send: odd while the kernel reads memory and holds the socket.
    sends: AtomicU64,
    /// A waiting thread receives; the worker does not read the socket.
    caller_drives: AtomicBool,
    /// That thread has left a frame behind that the worker finishes.
    is_left_behind: AtomicBool,
    /// What the poller watches on the socket, if the lane is not aside.
    watched: Mutex<Interest>,
    /// A thread is on the lane and may never come back, or nothing can be received any more. Changed under the lock of
    /// `watched`.
    is_aside: AtomicBool,
    /// A frame of the peer was once taken in whole.
    pub has_moved: AtomicBool,
    /// A `Parting` that the worker has not done yet, or STAYS.
    parting: AtomicU32,
    /// Pairs with the locks: a thread that releases a lock checks whether another thread could not get it (`left`).
    closed: AtomicBool,
    failed: AtomicBool,
    /// The thread that claimed the input sleeps, or is about to. Pairs with the state that it waits for.
    caller_sleeps: AtomicBool,
    caller_wake: OnceLock<EventFd>,
    /// When the last frame or acknowledgement was received, on the clock of leases.
    pub progress_ns: AtomicU64,
}

impl Lane {
    pub fn new(
        spec: LaneSpec,
        peer: Arc<Peer>,
        context: Arc<Context>,
        worker: Arc<Worker>,
        token: u64,
    ) -> Lane {
        Lane {
            id: spec.id,
            slot: spec.slot,
            peer_reads_max: spec.peer_reads_max as usize,
            frame_bytes_max: spec.frame_bytes_max,
            token,
            ends: socket::ends(&spec.socket),
            socket: spec.socket,
            is_alone: AtomicBool::new(false),
            tx: Mutex::new(Tx::new(Sealer::new(spec.send_key))),
            rx: Mutex::new(Rx::new(Sealer::new(spec.receive_key))),
            flight: Mutex::new(Flight::default()),
            answers: Mutex::new(Answers::default()),
            tx_wanted: AtomicBool::new(false),
            tx_blocked: AtomicBool::new(false),
            window_full: AtomicBool::new(false),
            sends: AtomicU64::new(0),
            caller_drives: AtomicBool::new(false),
            is_left_behind: AtomicBool::new(false),
            watched: Mutex::new(Interest { read: true, write: false }),
            is_aside: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            parting: AtomicU32::new(STAYS),
            closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            caller_sleeps: AtomicBool::new(false),
            caller_wake: OnceLock::new(),
            progress_ns: AtomicU64::new(clock::boottime_ns().ns()),
            peer,
            context,
            worker,
        }
    }

    pub fn is_express(&self) -> bool {
        self.slot == 0
    }

    pub fn set_alone(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::Relaxed);
    }

    fn takes_bulk(&self) -> bool {
        self.is_express() && self.is_alone.load(Ordering::Relaxed)
    }

    /// Pulls the next frame for this lane.
    pub fn pull(&self, limits: PullLimits) -> Option<Pulled> {
        let pull = |express| self.peer.pull(Transport::Tcp, express, limits);
        pull(self.is_express()).or_else(|| if self.takes_bulk() { pull(false) } else { None })
    }

    pub fn has_work(&self) -> bool {
        let has = |express| self.peer.has_work(Transport::Tcp, express);
        has(self.is_express()) || (self.takes_bulk() && has(false))
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Wakes the worker to send queued work.
    pub fn kick(self: &Arc<Self>) {
        if !self.tx_blocked.load(Ordering::Acquire) && !self.tx_wanted.swap(true, Ordering::AcqRel) {
            self.worker.kick(self.clone());
        }
    }

    /// Sends queued work from this thread, unless another thread holds `tx` (which then sends this work too).
    pub fn send(self: &Arc<Self>, after: &mut After) {
        if turns::keeps_away() {
            return self.kick();
        }
        self.tx_wanted.store(true, Ordering::SeqCst);
        if !self.tx_blocked.load(Ordering::Acquire) {
            self.drive_tx(after);
        }
    }

    /// Sends after the socket became writable. Called by the worker.
    pub fn writable(self: &Arc<Self>) {
        self.tx_wanted.store(true, Ordering::SeqCst);
        self.tx_blocked.store(false, Ordering::SeqCst);
        self.drive_tx(&mut self.peer.after());
        self.update_interest();
    }

    /// Runs `tx` while it has work, at most RUNS_MAX times: this thread would otherwise send for all others for as long
    /// as they submit. The worker also calls this after a kick.
    pub fn drive_tx(self: &Arc<Self>, after: &mut After) {
        let mut runs = 0;
        while self.tx_wanted.load(Ordering::SeqCst) {
            if runs == RUNS_MAX {
                return self.worker.kick(self.clone());
            }
            runs += 1;
            if self.is_aside.load(Ordering::SeqCst) {
                return;
            }
            let Some(mut tx) = self.tx.try_lock() else { return };
            if self.is_closed() {
                drop(tx);
                return self.left();
            }
            self.tx_wanted.store(false, Ordering::SeqCst);
            let turn = tx.run(self, after);
            if matches!(turn, TxTurn::Blocked) {
                self.tx_blocked.store(true, Ordering::SeqCst);
            }
            drop(tx);
            self.left();
            match turn {
                TxTurn::Idle => {}
                TxTurn::Blocked => {
                    self.update_interest();
                    if self.tx_blocked.load(Ordering::SeqCst) {
                        return;
                    }
                    // The socket became writable in between: `writable` found the lock taken and left the sending to
                    // this thread.
                }
                TxTurn::Yield => {
                    // Not `kick`: a thread that set `tx_wanted` meanwhile found the lock taken and left its work to us.
                    self.tx_wanted.store(true, Ordering::SeqCst);
                    return self.worker.kick(self.clone());
                }
                TxTurn::Failed(failure) => return self.fail(failure),
            }
        }
    }

    /// Receives what has arrived. Called by the worker, or by the thread that claimed the lane's input.
    pub fn drive_rx(self: &Arc<Self>, by: By) -> RxTurn {
        let mut after = self.peer.after();
        let held = RxTurn { is_held: true, ..RxTurn::default() };
        // A call on the socket would wait for the thread that sends, which may wait for a page.
        if by == By::Caller && self.sends() % 2 != 0 {
            return held;
        }
        let Some(mut rx) = self.rx.try_lock() else { return held };
        if self.is_closed()
            || self.is_aside.load(Ordering::SeqCst)
            || self.failed.load(Ordering::Acquire)
            || (by == By::Worker && self.caller_drives.load(Ordering::SeqCst))
        {
            drop(rx);
            self.left();
            return held;
        }
        if by == By::Worker && rx.is_broken() {
            // The stream ended while the session parts. The poller would report that until all lanes have parted.
            drop(rx);
            self.rest();
            self.left();
            return held;
        }
        let turn = rx.run(self, by, &mut after);
        moment::reached_if("a caller drives a lane", || by == By::Caller && turn.settled);
        drop(rx);
        self.left();
        if let Some(failure) = turn.failed {
            self.fail(failure);
        } else if turn.owes_answer || (turn.settled && self.window_full.swap(false, Ordering::SeqCst)) {
            // Sending reads memory of other transfers than the caller's.
            match by {
                By::Worker => self.send(&mut after),
                By::Caller if self.has_work() || self.answers_may_wait() => self.kick(),
                By::Caller => self.answer(&mut after),
            }
        }
        turn
    }

    /// Runs a call that sends on the socket. The caller holds `tx`.
    pub fn sending<T>(&self, call: impl FnOnce() -> T) -> T {
        let count = || self.sends.store(self.sends() + 1, Ordering::Relaxed);
        count();
        let result = call();
        count();
        result
    }

    /// Returns a number that is odd, and stays the same, while one call sends. A hint.
    pub fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Tells the poller which events the lane needs. The flags are read under the lock, so that of two threads that
    /// change them the later one sets the final interest.
    fn update_interest(self: &Arc<Self>) {
        let mut watched = self.watched.lock();
        let wanted = Interest {
            read: !self.caller_drives.load(Ordering::SeqCst),
            write: self.tx_blocked.load(Ordering::SeqCst),
        };
        let is_new = std::mem::replace(&mut *watched, wanted) != wanted;
        if is_new && !self.is_aside.load(Ordering::SeqCst) && !self.is_closed() {
            // A lane whose interest cannot be set would hang, so it is closed.
            if let Err(error) = self.worker.set(self.fd(), self.token, wanted) {
                drop(watched);
                self.fail(Failure::system("watching the socket", &error));
            }
        }
    }

    /// Claims the lane's input for the calling thread. False when another has it.
    pub fn claim_input(self: &Arc<Self>) -> bool {
        if self.caller_drives.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.update_interest();
        true
    }

    /// Returns whether a thread that waits has the lane's input.
    pub fn is_claimed(&self) -> bool {
        self.caller_drives.load(Ordering::SeqCst)
    }

    /// Returns the input to the worker. `leaves`: a frame waits there that was received in part.
    pub fn return_input(self: &Arc<Self>, leaves: bool) {
        self.caller_drives.store(false, Ordering::SeqCst);
        self.update_interest();
        if leaves {
            self.is_left_behind.store(true, Ordering::SeqCst);
            self.worker.kick(self.clone());
        }
    }

    /// Goes on with what a caller has left behind. Called by the worker.
    fn take_up(self: &Arc<Self>) {
        if self.is_left_behind.swap(false, Ordering::SeqCst) {
            self.drive_rx(By::Worker);
        }
    }

    /// Wakes the thread that claimed the input, if it sleeps.
    pub fn wake_caller(&self) {
        if self.caller_sleeps.swap(false, Ordering::SeqCst) {
            if let Some(wake) = self.caller_wake.get() {
                wake.raise();
            }
        }
    }

    /// Sleeps until input arrives, `wake_caller` is called, or the timeout passes. Only the thread that claimed the
    /// input calls. `ready` is asked once more before the sleep; `wake_caller` ends the sleep from then on.
    pub fn sleep_for_input(&self, timeout_ns: u64, ready: impl Fn() -> bool) {
        let wake = match self.caller_wake.get() {
            Some(wake) => wake,
            None => match EventFd::new() {
                Ok(fresh) => self.caller_wake.get_or_init(|| fresh),
                // Out of descriptors: fall back to short sleeps on the socket alone.
                Err(_) => {
                    socket::poll_readable(&[self.fd()], timeout_ns.min(1_000_000));
                    return;
                }
            },
        };
        self.caller_sleeps.store(true, Ordering::SeqCst);
        // Either this thread sees the changed state in `ready`, or the thread that changed it wakes this one.
        fence(Ordering::SeqCst);
        let mut raised = false;
        if !ready() && !self.is_closed() {
            let fds = [self.fd(), wake.as_raw_fd()];
            raised = socket::poll_readable(&fds, timeout_ns) == Some(wake.as_raw_fd());
        }
        // A thread that found this one asleep may raise late, when this one sleeps again.
        if !self.caller_sleeps.swap(false, Ordering::SeqCst) || raised {
            wake.clear();
        }
    }

    /// Fails the lane, and tells the control loop, which closes it. Any thread may call, holding no lock of the lane.
    pub fn fail(self: &Arc<Self>, failure: Failure) {
        if self.failed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Remove it from the poller at once: a socket at its end would be reported without end.
        self.worker.remove(self.fd(), self.token);
        let loss = self.loss(failure);
        // Before the socket is shut: otherwise the peer notices, and its fence may come first and be the cause.
        self.peer.engine().commands.push(Command::LaneLost { peer: self.peer.handle, lane: self.id, loss });
        self.shut_if_free();
        self.left();
    }

    /// Returns a loss of this lane, with its addresses.
    pub fn loss(&self, failure: Failure) -> Loss {
        let end = |address: Option<SocketAddr>| address.map_or("?".into(), |address| address.to_string());
        let (here, there) = self.ends;
        Loss::new(failure, &format!("TCP lane {}, {} to {}", self.id, end(here), end(there)))
    }

    /// Returns the limits of the next pull: the windows of frames and of the target's READ credits.
    pub fn windows(&self) -> PullLimits {
        // The kernel processes all that is queued in a socket in one go, on any thread. So only a little is queued
        // while a conversation of small transfers goes on beside it.
        let gentle = !self.is_express() && self.peer.stats.conversation.goes_on();
        let (frame_bytes, frames, read_bytes) = if gentle {
            (GENTLE_FRAME_BYTES_MAX, GENTLE_FRAMES_MAX, u64::from(GENTLE_FRAME_BYTES_MAX))
        } else {
            (self.frame_bytes_max, LANE_FRAMES_MAX, LANE_READ_BYTES_MAX)
        };
        let flight = self.flight.lock();
        PullLimits {
            descriptors_max: FRAME_DESCRIPTORS_MAX,
            notification_bytes_max: Some(NOTIFY_BYTES_MAX),
            frame_bytes_max: self.frame_bytes_max.min(frame_bytes),
            write: flight.count(Op::Write) < frames,
            read: flight.count(Op::Read) < self.peer_reads_max && flight.read_bytes() < read_bytes,
        }
    }

    /// Returns the most bytes that one system call may move.
    pub fn call_bytes_max(&self) -> usize {
        if self.context.conversation.goes_on() {
            GENTLE_CALL_BYTES_MAX
        } else {
            CALL_BYTES_MAX
        }
    }

    /// Returns whether an unacknowledged frame of this transfer is on the lane.
    pub fn carries(&self, transfer: TransferId) -> bool {
        self.flight.lock().carries(transfer)
    }

    /// Returns whether frames are in flight and nothing was received since `since_ns`.
    pub fn is_stuck(&self, since_ns: Boottime) -> bool {
        self.is_busy() && self.progress_ns.load(Ordering::Relaxed) < since_ns.ns()
    }

    /// Returns whether frames are in flight.
    pub fn is_busy(&self) -> bool {
        !self.flight.lock().is_empty()
    }
}

mod answering;
mod ending;

#[cfg(test)]
mod tests;
