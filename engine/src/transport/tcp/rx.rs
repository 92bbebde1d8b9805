//! The receiving side of a lane: reads heads through a small staging buffer, and payload directly into its destination.
//! Each receive ends with room for the next head, so that a stream of frames costs about one system call for each.
//! Bytes beyond a head are copied once, a few KiB at most.
//!
//! ```text
//! staging: [ header | descriptors, extra ] ──open, admit──▶ pieces ──recvmsg──▶ registered memory
//!                                                              └── refused ──▶ a sink
//! ```
//! No part of a frame is used before its MAC is checked. No byte is placed unless its region is entered; the lease is
//! checked before and after.

use crate::loss::{Cause, Failure};
use crate::peer::After;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::socket::{self, IoVec};
use crate::transport::tcp::incoming::{Frame, Order};
use crate::transport::tcp::landing::{Landing, LeaseOver};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::wire::{Header, Malformed, Sealer, HEADER_BYTES, META_BYTES_MAX};
use crate::types::Boottime;
use std::io;
use std::sync::Arc;

/// How far a receive may read beyond the current frame.
const READ_AHEAD_EXPRESS: usize = 16 << 10;
const READ_AHEAD_BULK: usize = 8 << 10;
const STAGING_BYTES: usize = META_BYTES_MAX + READ_AHEAD_EXPRESS;
/// Bytes that one turn may receive before other lanes of the worker have their turn.
const TURN_BYTES: usize = 4 << 20;

/// The result of one turn of receiving.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxTurn {
    pub bytes: usize,
    /// More may have arrived.
    pub again: bool,
    /// An acknowledgement or answer is due.
    pub owes_answer: bool,
    /// A posted frame was acknowledged or answered.
    pub settled: bool,
    pub failed: Option<Failure>,
    /// Another thread has the lane, which may take long.
    pub is_held: bool,
    /// The caller left a frame to the worker, because it would wait for a page.
    pub leaves: bool,
}

/// Who receives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Worker,
    /// A thread of the program, which waits for no page.
    Caller,
}

pub struct Rx {
    opener: Sealer,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    frame: Option<Frame>,
    order: Order,
    landing: Landing,
    vectors: Vec<IoVec>,
    /// The stream broke. `Lane::failed` is set later, when this lock is free: another thread must not go on behind a
    /// frame that was not finished, because an acknowledgement covers all frames before it.
    is_broken: bool,
}

/// Why a lane must end.
pub enum Broken {
    /// The stream violates the protocol.
    Malformed(Malformed),
    /// The frame's lease was over. The rest of the stream is not read.
    Expired,
    /// Another lane is still receiving the data that this frame repeats. The frame is sent again on another lane.
    Busy,
    /// The peer closed the connection.
    Closed,
    Refused(io::Error),
}

impl From<Malformed> for Broken {
    fn from(malformed: Malformed) -> Broken {
        Broken::Malformed(malformed)
    }
}

impl From<LeaseOver> for Broken {
    fn from(_: LeaseOver) -> Broken {
        Broken::Expired
    }
}

impl Broken {
    fn failure(&self) -> Failure {
        match self {
            Broken::Malformed(malformed) => malformed.failure(),
            Broken::Expired => {
                Failure::new(Cause::Lease, "the lease of a frame was over before it was placed")
            }
            Broken::Busy => Failure::new(Cause::Ours, "another lane is receiving the same frame"),
            Broken::Closed => Failure::new(Cause::Closed, "the peer closed the connection"),
            Broken::Refused(error) => Failure::system("receiving", error),
        }
    }
}

impl Rx {
    pub fn new(opener: Sealer) -> Rx {
        Rx {
            opener,
            staging: Box::default(),
            start: 0,
            end: 0,
            frame: None,
            order: Order::default(),
            landing: Landing::default(),
            vectors: Vec::new(),
            is_broken: false,
        }
    }

    /// Drops the current frame. Part of closing the lane.
    pub fn clear(&mut self) {
        self.frame = None;
        self.landing.reset(0, Boottime::ZERO);
        (self.start, self.end) = (0, 0);
        self.staging = Box::default();
    }

    /// Receives until the socket is empty or the turn is over.
    pub fn run(&mut self, lane: &Arc<Lane>, by: By, after: &mut After) -> RxTurn {
        let mut turn = RxTurn::default();
        if self.is_broken {
            return turn;
        }
        if self.staging.is_empty() {
            // Allocated with the first byte, so that idle lanes of a thousand peers need no buffers.
            let mut staging = Vec::new();
            if staging.try_reserve_exact(STAGING_BYTES).is_err() {
                let error = std::io::ErrorKind::OutOfMemory.into();
                turn.failed = Some(Failure::system("allocating a lane's buffer", &error));
                return turn;
            }
            staging.resize(STAGING_BYTES, 0);
            self.staging = staging.into_boxed_slice();
        }
        if let Err(broken) = self.run_turn(lane, by, &mut turn, after) {
            self.is_broken = true;
            turn.failed = Some(broken.failure());
        }
        turn
    }

    /// Returns whether nothing can be received any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn run_turn(
        &mut self,
        lane: &Arc<Lane>,
        by: By,
        turn: &mut RxTurn,
        after: &mut After,
    ) -> Result<(), Broken> {
        if self.frame.is_some() && self.start < self.end {
            // A caller left this frame to the worker, with bytes in staging.
            self.consume(lane, by, turn, after)?;
        }
        while !self.leaves(lane, by, turn) {
            let Some((count, asked)) = self.receive(lane)? else { break };
            turn.bytes += count;
            self.consume(lane, by, turn, after)?;
            // The call may have taken long, and the lane may have been closed meanwhile.
            if count < asked || lane.is_closed() {
                break;
            }
            if turn.bytes >= TURN_BYTES {
                turn.again = true;
                break;
            }
        }
        Ok(())
    }

    /// Returns whether this thread must leave the rest to the worker, and notes that in `turn`.
    fn leaves(&self, lane: &Lane, by: By, turn: &mut RxTurn) -> bool {
        turn.leaves |= by == By::Caller && self.landing.lacks_page(&lane.peer.engine().pages);
        turn.leaves
    }

    /// Does one receive, into the frame's pieces and then into staging. None: nothing has arrived. Otherwise the bytes
    /// received, and the bytes that had room (none after a fault).
    fn receive(&mut self, lane: &Lane) -> Result<Option<(usize, usize)>, Broken> {
        self.make_room(lane);
        let ahead = if lane.is_express() { READ_AHEAD_EXPRESS } else { READ_AHEAD_BULK };
        let tail = ahead.max(self.needed()).min(self.staging.len() - self.end);
        self.vectors.clear();
        self.landing.enter();
        let placed = self.landing.vectors(&mut self.vectors, lane.call_bytes_max());
        // The same call may receive the next head, if the vectors cover the rest of this frame.
        let room = placed == self.landing.left();
        if room {
            self.vectors.push(IoVec::new(self.staging[self.end..].as_mut_ptr() as u64, tail));
        }
        let asked = placed + if room { tail } else { 0 };
        let lease = self.landing.check_lease();
        let result = match lease {
            // SAFETY: the vectors are (1) memory of regions that are entered for the call, or of our own
            // READ, whose frame stays in the flight until it is confirmed; (2) the sink; (3) the unused
            // part of `staging`, which only this function writes, under the lane's receive lock.
            Ok(()) => unsafe { socket::receive_vectors(lane.fd(), &self.vectors) },
            Err(_) => Ok(0),
        };
        self.landing.leave();
        lease?;
        lane.context.stats.receive_calls.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(0) => Err(Broken::Closed),
            Ok(count) => {
                let into_pieces = count.min(placed);
                self.landing.check_late(lane, into_pieces);
                self.landing.advance(into_pieces);
                self.end += count - into_pieces;
                Ok(Some((count, asked)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            // Memory of the frame faults. Nothing was received.
            Err(error) if socket::is_fault(&error) && self.landing.faulted() => {
                // A part of a piece may have been written.
                self.landing.check_late(lane, placed);
                Ok(Some((0, 0)))
            }
            Err(error) => Err(Broken::Refused(error)),
        }
    }

    /// Moves the staged bytes to the front if the rest of a head would not fit behind them.
    fn make_room(&mut self, lane: &Lane) {
        let ahead = if lane.is_express() { READ_AHEAD_EXPRESS } else { READ_AHEAD_BULK };
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.staging.len() - self.end < ahead.max(self.needed()) {
            self.staging.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Returns the bytes still missing of the first staged head; 0 if its length is not known yet.
    fn needed(&self) -> usize {
        let have = self.end - self.start;
        if self.frame.is_some() || have < HEADER_BYTES {
            return 0;
        }
        match self.peek_header() {
            Ok(header) => (HEADER_BYTES + header.meta_bytes()).saturating_sub(have),
            Err(_) => 0,
        }
    }

    fn peek_header(&self) -> Result<Header, Malformed> {
        let mut head = [0u8; HEADER_BYTES];
        head.copy_from_slice(&self.staging[self.start..self.start + HEADER_BYTES]);
        Header::decode(&head)
    }

    /// Processes received bytes: finishes frames whose payload is complete, and begins the next ones.
    fn consume(
        &mut self,
        lane: &Arc<Lane>,
        by: By,
        turn: &mut RxTurn,
        after: &mut After,
    ) -> Result<(), Broken> {
        loop {
            if self.frame.is_some() && self.leaves(lane, by, turn) {
                return Ok(());
            }
            if let Some(frame) = self.frame.take() {
                self.start += self.landing.copy_from(&self.staging[self.start..self.end], lane)?;
                if !self.landing.is_complete() {
                    self.frame = Some(frame);
                    return Ok(());
                }
                frame.finish(lane, &mut self.order, &mut self.landing, turn)?;
                if !lane.has_moved.load(Ordering::Relaxed) {
                    lane.has_moved.store(true, Ordering::Relaxed);
                }
                // Reset before the answer is sent, because a receive enters every region that the landing lists. When
                // the peer has every answer, unregister then finds no user.
                self.landing.reset(0, Boottime::ZERO);
            }
            if self.end - self.start < HEADER_BYTES {
                return Ok(());
            }
            let header = self.peek_header()?;
            let whole = HEADER_BYTES + header.meta_bytes();
            if self.end - self.start < whole {
                return Ok(());
            }
            let head = &self.staging[self.start..self.start + whole];
            self.opener.open(head)?;
            let now_ns = clock::boottime_ns();
            lane.peer.clock.sample(header.clock_ns, now_ns);
            lane.progress_ns.store(now_ns.ns(), Ordering::Relaxed);
            let (order, landing) = (&mut self.order, &mut self.landing);
            let meta = &head[HEADER_BYTES..];
            self.frame = Some(Frame::begin(lane, &header, meta, order, landing, turn, after)?);
            self.start += whole;
        }
    }
}
