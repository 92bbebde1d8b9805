//! A peer's work: transfers are submitted, posted, lost, replayed, struck and swept in any order. Each ends exactly
//! once, and the target gets each notification at most once, in order, without a gap.

use crate::peer::{peer, Silent, Wish};
use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::complete::{is_pending, notification_number, Failure, Strike, TransferFlags};
use ferry::internals::peer::{Accepted, Arrival, Inbox, Path, PathStatus, Peer, PullLimits, Pulled};
use ferry::limits::{FRAME_DESCRIPTORS_MAX, NOTIFY_BYTES_MAX};
use ferry::types::{Monotonic, Op, SliceRange, Transport};
use ferry::{Fence, Notification, State, Status, TransferCore};
use std::collections::HashMap;
use std::sync::Arc;

const SLICE_BYTES: u32 = 1000;

#[derive(Arbitrary, Debug)]
struct Input {
    steps: Vec<Step>,
    loses: bool,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Submit {
        slices: u8,
        priority: u8,
        flags: u8,
        deadline: u8,
    },
    Pull {
        local: bool,
        express: bool,
        frame: u8,
        ways: u8,
    },
    /// The frame was acknowledged; the target refused these slices.
    Answer {
        at: u8,
        refused: u8,
    },
    /// Its lane was lost; the target may have applied it before.
    Lose {
        at: u8,
        reached: bool,
        fence: u8,
    },
    Strike(u8),
    Start(u8),
    Sweep,
    Pass(u8),
    Path {
        open: bool,
        pending: bool,
    },
    Grant(u16),
    /// The application at the target takes notifications; credits come back.
    Take(u8),
    Lost,
}

/// A frame that was pulled and is not answered.
enum Out {
    Run(Arc<TransferCore>, SliceRange, bool),
    Notify(Arc<TransferCore>),
    Skip(u64),
}

struct World {
    peer: Peer,
    all: Vec<Arc<TransferCore>>,
    out: Vec<Out>,
    now_ns: Monotonic,
    /// The target's side: what it delivered, by number, and whose number that is.
    inbox: Inbox,
    owners: HashMap<u64, usize>,
    delivered: Vec<u64>,
    /// A transfer of many slices was submitted: once is enough.
    has_flooded: bool,
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let peer = peer();
    peer.set_tcp_path(Some(Arc::new(Silent)));
    let mut world = World {
        peer,
        all: Vec::new(),
        out: Vec::new(),
        now_ns: Monotonic::ZERO,
        inbox: Inbox::new(),
        owners: HashMap::new(),
        delivered: Vec::new(),
        has_flooded: false,
    };
    input.steps.into_iter().take(250).for_each(|step| world.step(step));
    world.end(input.loses);
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Submit { slices, priority, flags, deadline } => {
                self.submit(slices, priority, flags, deadline)
            }
            Step::Pull { local, express, frame, ways } => {
                let limits = PullLimits {
                    frame_bytes_max: SLICE_BYTES * (u32::from(frame % 8) + 1),
                    descriptors_max: FRAME_DESCRIPTORS_MAX.min(usize::from(frame) + 1),
                    notification_bytes_max: (ways & 4 == 0).then_some(NOTIFY_BYTES_MAX),
                    read: ways & 1 == 0,
                    write: ways & 2 == 0,
                };
                let transport = if local { Transport::Local } else { Transport::Tcp };
                self.pull(transport, express, limits);
            }
            Step::Answer { at, refused } if !self.out.is_empty() => {
                let out = self.out.swap_remove(usize::from(at) % self.out.len());
                self.answer(out, refused);
            }
            Step::Lose { at, reached, fence } if !self.out.is_empty() => {
                let out = self.out.swap_remove(usize::from(at) % self.out.len());
                let fence = [Fence::Confirmed, Fence::Dead, Fence::Lease][usize::from(fence) % 3];
                self.lose(out, reached, fence);
            }
            Step::Strike(at) => {
                if let Some(transfer) = self.all.get(usize::from(at) % self.all.len().max(1)).cloned() {
                    let was_pending = is_pending(&transfer);
                    let struck =
                        self.peer.strike(&transfer, Strike { status: Status::Cancelled, os_error: 0 });
                    assert_eq!(struck, was_pending);
                }
            }
            Step::Start(at) => {
                if let Some(transfer) = self.all.get(usize::from(at) % self.all.len().max(1)).cloned() {
                    self.peer.start(&transfer);
                }
            }
            Step::Sweep => drop(self.peer.sweep(self.now_ns)),
            Step::Pass(ns) => self.now_ns += u64::from(ns),
            Step::Path { open, pending } => {
                let path: Arc<dyn Path> = Arc::new(Silent);
                let status = match (open, pending) {
                    (true, _) => PathStatus::Open(path, String::new()),
                    (_, true) => PathStatus::Pending(String::new()),
                    _ => PathStatus::Shut(String::new()),
                };
                self.peer.set_path(Transport::Local, status);
            }
            Step::Grant(limit) => assert!(self.peer.grant(limit.into())),
            Step::Take(count) => (0..count).for_each(|_| self.take()),
            Step::Lost => self.peer.set_lost(Status::PeerLost),
            Step::Answer { .. } | Step::Lose { .. } => {}
        }
    }

    fn submit(&mut self, slices: u8, priority: u8, flags: u8, deadline: u8) {
        let floods = slices == 255 && !std::mem::replace(&mut self.has_flooded, true);
        let count = if floods { 1500 } else { u32::from(slices % 16) };
        let has = |bit: u8| flags & (1 << bit) != 0;
        let op = if has(0) && count > 0 { Op::Read } else { Op::Write };
        let wish = Wish {
            priority: (priority % 3).into(),
            flags: TransferFlags::ORDERED.when(has(1)) | TransferFlags::HELD.when(has(2) && has(3)),
            notify: has(4) && op == Op::Write,
            transport: if has(5) { Transport::Local } else { Transport::Tcp },
            allowed: if has(5) && has(6) { Transport::Local.bit() } else { u64::MAX },
            deadline_ns: if deadline < 64 { Monotonic::from_ns(deadline.into()) } else { Monotonic::NEVER },
            ..Wish::new(op, (0..count).map(|nth| (u64::from(nth) * 1000, SLICE_BYTES)).collect())
        };
        let transfer = wish.transfer(self.all.len() as u64 + 1);
        if self.peer.submit(transfer.clone()).is_ok() {
            if transfer.result().is_none() && (wish.notify || count == 0) {
                let other = self.owners.insert(notification_number(&transfer), self.all.len());
                assert_eq!(other, None, "two notifications have one number");
            }
            self.all.push(transfer);
        }
    }

    fn pull(&mut self, transport: Transport, express: bool, limits: PullLimits) -> bool {
        let Some(pulled) = self.peer.pull(transport, express, limits) else { return false };
        self.out.push(match pulled {
            Pulled::Slices { transfer, range, bytes, with_notification, .. } => {
                assert!(!range.is_empty() && bytes == range.count() * SLICE_BYTES);
                assert!(!with_notification || transport == Transport::Tcp);
                assert!(self.clashes(&transfer, range).is_none(), "a slice is posted twice at once");
                Out::Run(transfer, range, with_notification)
            }
            Pulled::Notify(transfer) => {
                let has_data = self
                    .out
                    .iter()
                    .any(|out| matches!(out, Out::Run(other, ..) if Arc::ptr_eq(other, &transfer)));
                assert!(!has_data, "a notification before its data");
                Out::Notify(transfer)
            }
            Pulled::Skip(number) => Out::Skip(number),
        });
        true
    }

    fn clashes(&self, transfer: &Arc<TransferCore>, range: SliceRange) -> Option<()> {
        let meets = |other: &SliceRange| other.first < range.end && range.first < other.end;
        let clash =
            |out: &&Out| matches!(out, Out::Run(other, run, _) if Arc::ptr_eq(other, transfer) && meets(run));
        self.out.iter().find(clash).map(drop)
    }

    /// Returns whether the target has this number.
    fn has(&mut self, number: u64) -> bool {
        let arrival = self.inbox.arrives(number);
        assert_ne!(arrival, Arrival::Busy);
        self.inbox.departs(number);
        arrival == Arrival::Duplicate
    }

    /// The target takes a number: the notification's, or a skip.
    fn reaches(&mut self, number: u64, is_skip: bool) {
        match self.inbox.accept(number, (!is_skip).then(|| number.to_le_bytes().into())) {
            Accepted::Deliver(bodies) => {
                for body in bodies {
                    self.delivered.push(u64::from_le_bytes(body[..].try_into().unwrap()));
                }
            }
            Accepted::Duplicate => {}
            // Only the target's grants are told in this target's end; other grants are beyond the credits.
            Accepted::Overrun => {}
        }
    }

    fn take(&mut self) {
        if self.inbox_taken() < self.delivered.len() {
            if let Some(limit) = self.inbox.take() {
                self.peer.grant(limit);
            }
        }
    }

    fn inbox_taken(&self) -> usize {
        (self.inbox.granted() as usize).saturating_sub(1024)
    }

    fn answer(&mut self, out: Out, refused: u8) {
        match out {
            Out::Run(transfer, range, notified) => {
                let count = range.count();
                // A target refuses nothing of a frame whose number it has: it drops the frame.
                let number = notification_number(&transfer);
                let is_repeated = notified && self.has(number);
                let refused = if is_repeated || refused < 128 { 0 } else { refused };
                let failures: Vec<Failure> = (0..count)
                    .filter(|nth| refused & (1 << (nth % 8)) != 0)
                    .map(|nth| Failure {
                        slice: range.first + nth,
                        status: Status::Stale,
                        os_error: 0,
                        vendor_error: 0,
                    })
                    .collect();
                if notified && failures.is_empty() {
                    self.reaches(number, false);
                }
                let bytes = u64::from(count) * u64::from(SLICE_BYTES);
                let mut after = self.peer.after();
                self.peer.confirm(&transfer, range, bytes, &failures, notified, &mut after);
            }
            Out::Notify(transfer) => {
                self.reaches(notification_number(&transfer), false);
                self.peer.confirm_notification(&transfer, &mut self.peer.after());
            }
            Out::Skip(number) => self.reaches(number, true),
        }
    }

    fn lose(&mut self, out: Out, reached: bool, fence: Fence) {
        match out {
            Out::Run(transfer, range, notified) => {
                if notified && reached {
                    self.reaches(notification_number(&transfer), false);
                }
                self.peer.release_run(&transfer, range, notified, fence, &mut self.peer.after());
            }
            Out::Notify(transfer) => {
                if reached {
                    self.reaches(notification_number(&transfer), false);
                }
                self.peer.release_notification(&transfer, &mut self.peer.after());
            }
            Out::Skip(number) => {
                if reached {
                    self.reaches(number, true);
                }
                self.peer.release_skip(number);
            }
        }
    }

    fn sweep(&mut self) {
        self.peer.engine().commands.take();
        while self.peer.sweep(self.now_ns) {}
    }

    fn run_dry(&mut self) {
        let limits = PullLimits {
            notification_bytes_max: Some(NOTIFY_BYTES_MAX),
            ..PullLimits::data(8 * SLICE_BYTES)
        };
        loop {
            self.sweep();
            let mut pulled = false;
            for transport in [Transport::Tcp, Transport::Local] {
                for express in [true, false] {
                    pulled |= self.pull(transport, express, limits);
                }
            }
            while let Some(out) = self.out.pop() {
                self.answer(out, 0);
            }
            if !pulled {
                return self.sweep();
            }
        }
    }

    fn end(&mut self, loses: bool) {
        if loses {
            self.peer.set_lost(Status::PeerLost);
            while let Some(out) = self.out.pop() {
                self.lose(out, false, Fence::Lease);
            }
            self.sweep();
        } else {
            self.peer.set_path(Transport::Local, PathStatus::Open(Arc::new(Silent), String::new()));
            self.peer.grant(1 << 20);
            let all = self.all.clone();
            for _ in 0..2 {
                while let Some(out) = self.out.pop() {
                    self.answer(out, 0);
                }
                all.iter().for_each(|transfer| self.peer.start(transfer));
                self.run_dry();
            }
        }
        for transfer in &self.all {
            assert!(transfer.is_final(), "{:?} is {:?}", transfer.handle, transfer.state());
            let result = transfer.result().expect("final");
            let whole = result.bytes_confirmed == transfer.progress().bytes_total;
            assert!(
                result.state != State::Done || (whole && result.requests_failed == 0),
                "DONE without its bytes"
            );
            assert!(
                result.requests_failed > 0 || whole || transfer.results().is_empty(),
                "lost bytes without a failure"
            );
        }
        assert_eq!(self.peer.active(), 0);
        assert!(self.peer.is_swept());
        assert!(self.delivered.windows(2).all(|pair| pair[0] < pair[1]), "not once, or not in order");
        if self.peer.lost().is_none() {
            self.check_numbers();
        }
    }

    /// Each number is decided at the target: no notification waits behind one that will never come. What the initiator
    /// says of a notification is true.
    fn check_numbers(&mut self) {
        let last = self.owners.keys().max().copied();
        for number in 0..last.map_or(0, |last| (last + 1).min(1024)) {
            assert_eq!(self.inbox.arrives(number), Arrival::Duplicate, "the number {number} never comes");
        }
        for (number, at) in &self.owners {
            let has = self.delivered.binary_search(number).is_ok();
            match self.all[*at].result().map(|result| result.notification) {
                Some(Notification::Delivered) => {
                    assert!(has || *number >= 1024, "{number} is said to be delivered")
                }
                Some(Notification::NotSent) => assert!(!has, "{number} is said not to be sent"),
                _ => {}
            }
        }
    }
}
