//! The conformance suite: the duties of every transport for every shape of transfer. A transport is a `Setup`, two
//! engines and how they reach each other; the suite knows nothing else about the transport.
//!
//! Every case fills both memories with patterns, moves, and compares the whole destination: bytes
//! that are missing, misplaced or outside the named ranges all show.

use super::data::{check, contents, prepare, Random, Span, Work};
use super::{eventually, request, run, wait_for_region, Pair, Settings, PATIENCE};
use ferry::types::{Op, Transport};
use ferry::{Fence, Memory, Notification, Progress, RegionOptions, State, Status, TransferOptions};

pub const BOTH: [Op; 2] = [Op::Write, Op::Read];
const FRAME: usize = 1 << 20;

/// Two engines, and the transport between them.
pub struct Setup {
    pub pair: Pair,
    pub transport: Transport,
    pub random: Random,
}

impl Setup {
    /// Over a transport that two engines of one process have without more settings.
    pub fn over(transport: Transport, what: &str, settings: Settings) -> Setup {
        let settings = [settings, &[("transports", transport.name())]].concat();
        Setup { pair: Pair::new(&settings), transport, random: Random::new(what) }
    }

    pub fn tcp(what: &str, settings: Settings) -> Setup {
        Setup::over(Transport::Tcp, what, settings)
    }

    pub fn local(what: &str, settings: Settings) -> Setup {
        Setup::over(Transport::Local, what, settings)
    }

    /// Both ends are one engine, which moves between its own regions.
    pub fn own(what: &str, settings: Settings) -> Setup {
        let pair = Pair::own(super::engine(settings));
        Setup { pair, transport: Transport::Local, random: Random::new(what) }
    }

    /// Sets up Soft-RoCE's devices, in the virtual machine that has them.
    pub fn rdma(what: &str, settings: Settings) -> Setup {
        let over = |devices| [settings, &[("transports", "rdma"), ("rdma_devices", devices)]].concat();
        let pair = Pair::of(super::engine(&over("rva0,rvb0")), super::engine(&over("rva1,rvb1")));
        Setup { pair, transport: Transport::Rdma, random: Random::new(what) }
    }

    pub fn memories(&self, length: usize) -> (Memory, Memory) {
        let options = RegionOptions::default();
        let (a, b) =
            (self.pair.a.alloc(length, &options).unwrap(), self.pair.b.alloc(length, &options).unwrap());
        // On this host only the session announces the region.
        wait_for_region(&self.pair.a, self.pair.b_at_a, b.region());
        (a, b)
    }

    /// Moves `spans`, and checks the result, the statistics and every byte of the destination.
    fn case(
        &self,
        what: &str,
        op: Op,
        local: &Memory,
        remote: &Memory,
        spans: &[Span],
        options: &TransferOptions,
    ) {
        let what = format!("{what} {op:?} {} requests", spans.len());
        let Work { requests, expected } = prepare(op, local, remote, spans);
        let bytes: u64 = requests.iter().map(|request| request.length).sum();
        let result = run(&self.pair.a, self.pair.b_at_a, op, &requests, options);
        assert_eq!((result.state, result.status), (State::Done, Status::Ok), "{what}");
        assert_eq!((result.bytes_confirmed, result.requests_failed), (bytes, 0), "{what}");
        assert_eq!((result.requests_in, result.transport), (spans.len() as u64, self.transport), "{what}");
        assert_eq!((result.fence, result.notification), (Fence::Confirmed, Notification::None), "{what}");
        assert!(
            result.submitted_ns <= result.started_ns && result.started_ns <= result.finished_ns,
            "{what}"
        );
        if options.no_coalesce && spans.iter().all(|(_, _, length)| *length <= 64 << 10) {
            assert_eq!(result.slices_out, spans.len() as u64, "{what}");
        }
        let destination = if op == Op::Write { remote } else { local };
        check(&what, &contents(destination), &expected);
    }

    /// Moves every size class and its neighbours, with both sides at odd addresses.
    pub fn sizes(&self, sizes: &[usize]) {
        let most = sizes.iter().max().copied().unwrap_or(0);
        for &length in sizes {
            // The memory is little more than the transfer, so that the check of small transfers stays cheap.
            let (local, remote) = self.memories((length + 256).min(most + 256));
            for op in BOTH {
                for (at, to) in [(0, 0), (3, 77), (129, 8)] {
                    self.case(&format!("{length} bytes"), op, &local, &remote, &[(at, to, length)], &plain());
                }
            }
        }
    }

    /// Moves blocks that are contiguous on both sides: any number of requests, few slices.
    pub fn contiguous(&self, counts: &[usize], length: usize, options: &TransferOptions) {
        let most = counts.iter().max().copied().unwrap_or(0);
        let (local, remote) = self.memories(most * length + 64);
        for (op, &count) in BOTH.into_iter().flat_map(|op| counts.iter().map(move |count| (op, count))) {
            let spans: Vec<Span> = (0..count).map(|n| (n * length + 8, n * length + 24, length)).collect();
            self.case("contiguous", op, &local, &remote, &spans, options);
        }
    }

    /// Moves blocks permuted on both sides, with gaps: no two can be merged.
    pub fn scattered(&mut self, counts: &[usize], length: usize, options: &TransferOptions) {
        let most = counts.iter().max().copied().unwrap_or(0);
        let stride = length + 16;
        let (local, remote) = self.memories(most * stride);
        for (op, &count) in BOTH.into_iter().flat_map(|op| counts.iter().map(move |count| (op, count))) {
            let (at, to) = (self.random.permutation(count), self.random.permutation(count));
            let spans: Vec<Span> =
                at.iter().zip(&to).map(|(a, b)| (a * stride, b * stride + 5, length)).collect();
            self.case("scattered", op, &local, &remote, &spans, options);
        }
    }

    /// Moves lengths of all kinds in one transfer, from one byte to several frames.
    pub fn mixed(&mut self, rounds: usize, options: &TransferOptions) {
        let (local, remote) = self.memories(24 << 20);
        for round in 0..rounds {
            let mut spans = Vec::new();
            let (mut at, mut to) = (self.random.below(64), self.random.below(64));
            loop {
                let scale = [8, 200, 5000, 70_000, 3 << 20][self.random.below(5)];
                let length = 1 + self.random.below(scale);
                if at.max(to) + length > local.length() {
                    break;
                }
                spans.push((at, to, length));
                at += length + self.random.below(3) * 11;
                to += length + self.random.below(3) * 13;
            }
            let order = self.random.permutation(spans.len());
            let spans: Vec<Span> = order.into_iter().map(|n| spans[n]).collect();
            for op in BOTH {
                self.case(&format!("mixed, round {round}"), op, &local, &remote, &spans, options);
            }
        }
    }

    /// Checks the progress in the middle of a transfer that can't be final by then, and at its end.
    pub fn progress(&self) {
        const LENGTH: usize = 4 << 20;
        const ROUNDS: usize = 1 << 14;
        let (local, remote) = self.memories(LENGTH);
        let round = request(&local, 0, &remote, 0, LENGTH);
        let (a, peer) = (&self.pair.a, self.pair.b_at_a);
        for op in BOTH {
            let total = (ROUNDS * LENGTH) as u64;
            let transfer = a.submit(peer, op, &vec![round; ROUNDS], &no_coalesce()).unwrap();
            let (mut last, mut steps) = (0, 0);
            eventually("the transfer gets on", || {
                let Progress { bytes_confirmed, bytes_total } = transfer.progress();
                assert!(last <= bytes_confirmed && bytes_confirmed < bytes_total && bytes_total == total);
                steps += (bytes_confirmed > last) as usize;
                last = bytes_confirmed;
                steps == 3
            });
            transfer.cancel().unwrap();
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            assert_eq!(result.state, State::Cancelled, "{op:?}");
            assert!(last <= result.bytes_confirmed, "{op:?}");
            let end = Progress { bytes_confirmed: result.bytes_confirmed, bytes_total: total };
            assert_eq!(transfer.progress(), end, "{op:?}");

            let whole = a.submit(peer, op, &[round], &plain()).unwrap();
            assert_eq!(whole.wait(Some(PATIENCE)).unwrap().state, State::Done, "{op:?}");
            let all = LENGTH as u64;
            assert_eq!(whole.progress(), Progress { bytes_confirmed: all, bytes_total: all }, "{op:?}");
        }
    }

    /// Runs the suite at a size that every CI leg can afford.
    pub fn all(&mut self) {
        self.sizes(&[
            1,
            2,
            7,
            8,
            9,
            63,
            4095,
            4096,
            65_535,
            65_536,
            65_537,
            FRAME - 1,
            FRAME,
            FRAME + 1,
            5 << 20,
        ]);
        self.contiguous(&[1, 2, 100, 1024], 16 << 10, &plain());
        self.contiguous(&[511, 512, 513], 1, &no_coalesce());
        self.scattered(&[1, 2, 511, 512, 513, 1024, 4096], 1000, &plain());
        self.scattered(&[3, 70], 70_001, &plain());
        self.mixed(1, &plain());
        if self.transport == Transport::Tcp {
            // A transport that sends nothing computes no checksum.
            self.mixed(1, &TransferOptions { checksum: true, ..plain() });
        }
        self.mixed(1, &no_coalesce());
        self.progress();
    }
}

pub fn plain() -> TransferOptions<'static> {
    TransferOptions::default()
}

pub fn no_coalesce() -> TransferOptions<'static> {
    TransferOptions { no_coalesce: true, ..plain() }
}
