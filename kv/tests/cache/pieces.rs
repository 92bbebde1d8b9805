//! Handoffs of millions of pieces of eight bytes: none is too large, and nobody waits behind one.

use std::time::{Duration, Instant};

use ferry::limits::REQUESTS_MAX;
use ferry::RegionOptions;
use ferry_kv::handoff::{BlockList, End, Event, HandoffId, HandoffState, Mode, TakeSpec};
use ferry_kv::layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};
use ferry_kv::{Cache, CacheMemory, CacheOptions};

use super::{engine, id, offer_spec, path, paths, take_spec, Rank, PATIENCE};

const HEADS: u32 = 4;
const BLOCK_TOKENS: u32 = 64;
/// The pieces of one block: a key and a value of each token and head.
const PIECES_OF_BLOCK: usize = (BLOCK_TOKENS * HEADS * 2) as usize;

/// A rank with one layer. A token's heads lie together in some arrangements, and a head's tokens in others: between the
/// two, each row of eight bytes is a piece.
fn rank(transports: &str, host: usize, arrangement: Arrangement, blocks: usize) -> Rank {
    let engine = engine(transports, host);
    let sizes = Sizes {
        blocks: blocks as u64,
        pairs: 2,
        heads: HEADS,
        tokens: BLOCK_TOKENS,
        elements: 1,
        element_bytes: 8,
    };
    let length = blocks * PIECES_OF_BLOCK * 8;
    let memory = engine.alloc(length, &RegionOptions::default()).unwrap();
    let key =
        ModelKey { model: "small".into(), revision: String::new(), cache: "f64".into(), rope: String::new() };
    let shard = Shard::default();
    let layer = Layer {
        name: "layers.0".into(),
        group: 0,
        stage: 0,
        heads: HEADS,
        pairs: 2,
        elements: 1,
        element_bytes: 8,
        memory: Some(LayerMemory {
            address: memory.address(),
            blocks: blocks as u64,
            strides: Strides::of(arrangement, sizes),
        }),
    };
    let groups = vec![Group { kind: GroupKind::Full, block_tokens: BLOCK_TOKENS }];
    let layout = Layout { key, shard, groups, layers: vec![layer] };
    let whole = CacheMemory { region: memory.region(), address: memory.address(), length: length as u64 };
    let cache = Cache::open(&engine, layout.clone(), &[whole], options(transports)).unwrap();
    Rank { cache, layout, memory, engine }
}

/// The virtual machine of RDMA takes 50 us for each READ, and a word of a cache waits behind thousands of them.
fn options(transports: &str) -> CacheOptions {
    let mut options = CacheOptions::default();
    if transports == "rdma" {
        options.silence *= 5;
    }
    options
}

/// A producer whose token's heads lie together.
fn producer(transports: &str, blocks: usize) -> Rank {
    rank(transports, 0, Arrangement::BlockPairTokenHead, blocks)
}

fn consumer(transports: &str, blocks: usize) -> Rank {
    rank(transports, 1, Arrangement::BlockPairHeadToken, blocks)
}

/// `count` blocks from one on, in an order that is no run.
fn list(first: usize, count: usize, step: usize) -> Vec<BlockList> {
    let ids = (0..count).map(|at| (first + at * step % count) as u32);
    vec![BlockList { first_token: 0, ids: ids.collect() }]
}

/// Returns the value of the row of this token, pair and head.
fn value(sequence: u64, row: u64) -> u64 {
    (sequence << 48 ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Calls with each row of a block of a list: where the row lies in the block, and what the row has.
fn rows(layout: &Layout, sequence: u64, nth: usize, mut each: impl FnMut(usize, u64)) {
    let strides = layout.layers[0].memory.unwrap().strides;
    for token in 0..u64::from(BLOCK_TOKENS) {
        for (pair, head) in (0..2).flat_map(|pair| (0..u64::from(HEADS)).map(move |head| (pair, head))) {
            let at = token * strides.token + pair * strides.pair + head * strides.head;
            let row = ((nth as u64 * u64::from(BLOCK_TOKENS) + token) * 2 + pair) * u64::from(HEADS) + head;
            each(at as usize, value(sequence, row));
        }
    }
}

impl Rank {
    fn block(&self, id: u32) -> usize {
        id as usize * PIECES_OF_BLOCK * 8
    }

    fn fill_blocks(&self, sequence: u64, lists: &[BlockList]) {
        let mut bytes = vec![0; PIECES_OF_BLOCK * 8];
        for (nth, id) in lists[0].ids.iter().enumerate() {
            rows(&self.layout, sequence, nth, |at, value| {
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            });
            self.memory.write(self.block(*id), &bytes);
        }
    }

    fn check_blocks(&self, sequence: u64, lists: &[BlockList]) {
        let mut bytes = vec![0; PIECES_OF_BLOCK * 8];
        for (nth, id) in lists[0].ids.iter().enumerate() {
            self.memory.read(self.block(*id), &mut bytes);
            rows(&self.layout, sequence, nth, |at, value| {
                assert_eq!(bytes[at..at + 8], value.to_le_bytes(), "byte {at} of block {nth} of {sequence}");
            });
        }
    }

    fn offer_blocks(&self, id: HandoffId, blocks: Vec<BlockList>) {
        self.cache.offer(offer_spec(id, blocks)).unwrap();
    }

    fn take_blocks(&self, id: HandoffId, of: &Rank, blocks: Vec<BlockList>, tokens: u64, mode: Mode) {
        let producers = vec![self.engine.connect(of.engine.address(), Some(PATIENCE)).unwrap()];
        let spec = take_spec(id, producers, blocks, mode);
        self.cache.take(TakeSpec { tokens, deadline: None, ..spec }).unwrap();
    }
}

fn tokens(lists: &[BlockList]) -> u64 {
    lists[0].ids.len() as u64 * u64::from(BLOCK_TOKENS)
}

/// Blocks of as many pieces. The virtual machine of RDMA is slow.
fn blocks(transports: &str, pieces: usize) -> usize {
    pieces / PIECES_OF_BLOCK / if transports == "rdma" { 64 } else { 1 }
}

/// Calls of a model between its layers, for an offer that nobody takes.
struct Steps<'a> {
    of: &'a Rank,
    tokens: u64,
    longest: Duration,
}

impl Steps<'_> {
    const ID: u8 = 99;

    /// Offers the first block of the rank's cache.
    fn new(of: &Rank) -> Steps<'_> {
        of.offer_blocks(id(Steps::ID), list(0, 1, 1));
        Steps { of, tokens: 0, longest: Duration::ZERO }
    }

    /// Makes calls until the other rank has an event.
    fn until_event_of(&mut self, other: &Rank) -> Event {
        loop {
            let began = Instant::now();
            if self.tokens < u64::from(BLOCK_TOKENS) {
                self.tokens += 1;
                self.of.cache.offer_ready(id(Steps::ID), 0..1, self.tokens).unwrap();
            }
            self.of.cache.state(id(Steps::ID));
            self.longest = self.longest.max(began.elapsed());
            if let Ok(event) = other.cache.wait(Some(Duration::from_millis(5))) {
                return event;
            }
        }
    }

    /// On a machine that is busy, a thread may wait for its turn. With all requests made under the lock it was seconds.
    fn check(&self) {
        eprintln!("the longest of the calls took {:?}", self.longest);
        assert!(self.longest < Duration::from_millis(500), "{:?}", self.longest);
    }
}

fn is_received(event: &Event, number: u8) -> bool {
    matches!(event, Event::Ended { id: of, end: End::Received, .. } if *of == id(number))
}

impl Rank {
    /// Hands the first tokens of a list over, all at once.
    fn hand_over(&self, number: u8, source: &[BlockList], to: &Rank, target: &[BlockList], mode: Mode) {
        self.offer_blocks(id(number), source.to_vec());
        self.cache.offer_ready(id(number), 0..1, tokens(source)).unwrap();
        self.cache.offer_seal(id(number), tokens(source)).unwrap();
        to.take_blocks(id(number), self, target.to_vec(), tokens(source), mode);
    }
}

/// More than `ferry::limits::REQUESTS_MAX`, with the silence that a cache has by default.
#[test]
fn a_handoff_of_more_pieces_than_a_transfer_may_have_arrives() {
    let transports = paths().pop().unwrap();
    let count = blocks(&transports, REQUESTS_MAX) + 3;
    let (from, to) = (producer(&transports, count + 1), consumer(&transports, count + 1));
    let (source, target) = (list(1, count, 1), list(1, count, 7));
    from.fill_blocks(5, &source);
    from.hand_over(1, &source, &to, &target, Mode::Auto);
    let mut steps = Steps::new(&to);
    let event = steps.until_event_of(&to);
    assert!(is_received(&event, 1), "{event:?}");
    steps.check();
    to.check_blocks(5, &target);
}

/// The cache that moves a million pieces hands over a block meanwhile: to or from another peer, and the same one.
#[test]
fn nobody_waits_behind_a_million_pieces() {
    for (transports, mode, is_same) in paths().iter().flat_map(|path| {
        let modes = [Mode::Pull, Mode::Push].into_iter();
        modes.flat_map(move |mode| [(path, mode, false), (path, mode, true)])
    }) {
        let count = blocks(transports, 1 << 20);
        let (from, to) = (producer(transports, count + 2), consumer(transports, count + 2));
        let other = match mode {
            Mode::Push => consumer(transports, 2),
            _ => producer(transports, 2),
        };
        let (mover, small) = match mode {
            Mode::Push => (&from, (&from, if is_same { &to } else { &other })),
            _ => (&to, (if is_same { &from } else { &other }, &to)),
        };
        from.hand_over(1, &list(2, count, 1), &to, &list(2, count, 7), mode);
        while mover.cache.stats().transfers == 0 {
            std::thread::yield_now();
        }
        let block = list(1, 1, 1);
        small.0.fill_blocks(6, &block);
        small.0.hand_over(2, &block, small.1, &block, mode);
        let mut steps = Steps::new(mover);
        let first = steps.until_event_of(small.1);
        assert!(is_received(&first, 2), "{transports}, {mode:?}, {is_same}: {first:?}");
        small.1.check_blocks(6, &block);
        assert!(
            matches!(to.cache.state(id(1)), HandoffState::Taking { .. }),
            "{transports}, {mode:?}, {is_same}"
        );
        let last = steps.until_event_of(&to);
        assert!(is_received(&last, 1), "{transports}, {mode:?}, {is_same}: {last:?}");
        steps.check();
    }
}

/// Transfers that were not submitted yet are never.
#[test]
fn a_take_of_many_pieces_can_be_cancelled_in_its_midst() {
    let transports = path();
    let count = blocks(&transports, 1 << 21);
    for mode in [Mode::Pull, Mode::Push] {
        let (from, to) = (producer(&transports, count), consumer(&transports, count));
        from.hand_over(1, &list(0, count, 1), &to, &list(0, count, 7), mode);
        let mover = if mode == Mode::Push { &from } else { &to };
        while mover.cache.stats().transfers == 0 {
            std::thread::yield_now();
        }
        to.cache.take_cancel(id(1)).unwrap();
        let event = to.cache.wait(Some(PATIENCE)).unwrap();
        assert!(matches!(event, Event::Ended { end: End::Cancelled, .. }), "{event:?}");
        let event = from.cache.wait(Some(PATIENCE)).unwrap();
        assert!(matches!(event, Event::Ended { end: End::Failed, .. }), "{event:?}");
        assert_eq!(from.cache.stats().transfers + to.cache.stats().transfers, 0);
    }
}
