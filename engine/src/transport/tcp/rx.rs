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
    has_moved: bool,
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
            has_moved: false,
            is_broken: false,
        }
    }

    /// Returns whether a frame was ever taken in whole.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Drops the current frame. Part of closing the lane.
    pub fn clear(&mut self) {
        self.frame = None;
        self.landing.reset(0, Boottime::ZERO);
        (self.start, self.end) = (0, 0);
        self.staging = Box::default();
    }

    /// Receives until the socket is empty or the turn is over.
    pub fn run(&mut self, lane: &Arc<Lane>, after: &mut After) -> RxTurn {
        let mut turn = RxTurn::default();
        if self.is_broken {
            return turn;
        }
        if self.staging.is_empty() {
            // Allocated with the first byte, so that idle lanes of a thousand peers need no buffers.
            self.staging = vec![0; STAGING_BYTES].into_boxed_slice();
        }
        if let Err(broken) = self.run_turn(lane, &mut turn, after) {
            self.is_broken = true;
            turn.failed = Some(broken.failure());
        }
        turn
    }

    fn run_turn(&mut self, lane: &Arc<Lane>, turn: &mut RxTurn, after: &mut After) -> Result<(), Broken> {
        while let Some((count, asked)) = self.receive(lane)? {
            turn.bytes += count;
            self.consume(lane, turn, after)?;
            if count < asked {
                break;
            }
            if turn.bytes >= TURN_BYTES {
                turn.again = true;
                break;
            }
        }
        Ok(())
    }

    /// Does one receive, into the frame's pieces and then into staging. None: nothing has arrived. Otherwise the bytes
    /// received, and the bytes that had room.
    fn receive(&mut self, lane: &Lane) -> Result<Option<(usize, usize)>, Broken> {
        self.make_room(lane);
        let ahead = if lane.is_express() { READ_AHEAD_EXPRESS } else { READ_AHEAD_BULK };
        let tail = ahead.max(self.needed()).min(self.staging.len() - self.end);
        self.vectors.clear();
        self.landing.enter();
        let placed = self.landing.vectors(&mut self.vectors);
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
    fn consume(&mut self, lane: &Arc<Lane>, turn: &mut RxTurn, after: &mut After) -> Result<(), Broken> {
        loop {
            if let Some(frame) = self.frame.take() {
                self.start += self.landing.copy_from(&self.staging[self.start..self.end], lane)?;
                if !self.landing.is_complete() {
                    self.frame = Some(frame);
                    return Ok(());
                }
                frame.finish(lane, &mut self.order, &mut self.landing, turn)?;
                self.has_moved = true;
                // Before the answer is sent: then the peer's word that all has ended also means that unregister finds
                // no user. A receive enters whatever the landing lists.
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
