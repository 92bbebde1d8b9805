//! Random stories: several sequences are handed over at once, between instances that are sharded differently, while
//! takes and offers are cancelled, deadlines pass, and caches die, stop and go on.
//!
//! After each terminal event nothing that is under way may touch the blocks, and they are overwritten as by the next
//! sequence; whatever lands later is found at the end of the story. So is what a producer took back, as soon as its
//! retract is over (`retracts`).

use std::ops::Range;
use std::time::Duration;

use ferry::Status;
use ferry_kv::handoff::{BlockList, End, Event, HandoffId, Mode, OfferSpec, TakeSpec};
use ferry_kv::layout::{Arrangement, GroupKind, Layout};
use ferry_kv::plan::Plan;

use crate::caches::{cells, held, layouts, Cell, Shape, BLOCKS};
use crate::metrics::check_metrics;
use crate::retracts::{versioned, Back};
use crate::world::{peer, Life, World};

const LEASE: Duration = Duration::from_millis(2_000);
const DEADLINE: Duration = Duration::from_millis(6_000);

/// One sequence on one rank: of its producer, or of a consumer.
pub struct Side {
    pub node: usize,
    pub id: HandoffId,
    pub sequence: u64,
    pub lists: Vec<BlockList>,
    pub tokens: u64,
    pub skip: u64,
    pub is_producer: bool,
    pub group: u64,
    pub begun: bool,
    /// For a producer: tokens that are ready in each layer, where the present chunk ends, and whether it is sealed.
    pub ready: Vec<u64>,
    pub chunk_end: u64,
    pub sealed: bool,
    pub extended: bool,
    /// For a producer: what it has offered and taken back.
    pub back: Back,
    /// The byte that the memory must hold until the story ends, once the blocks are used again.
    pub scribbled: Option<u8>,
    pub before: Vec<(Cell, u8)>,
}

pub struct Story {
    pub world: World,
    pub sides: Vec<Side>,
    pub producers: usize,
    pub takers: u32,
    /// Nobody gives up, and there are neither deadlines nor leases: everything arrives.
    pub is_calm: bool,
    /// Producers take tokens back, and free blocks of windows.
    pub retracts: bool,
}

fn id(number: u64) -> HandoffId {
    let mut bytes = [7; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    HandoffId::from_bytes(bytes)
}

impl Story {
    fn new(seed: u64, is_calm: bool) -> Story {
        let mut world = World::new(Vec::new(), seed);
        let random = &mut world.random;
        let arrangements = [Arrangement::BlockHeadPairToken, Arrangement::PairBlockTokenHead];
        let middle = [None, Some(GroupKind::Window { tokens: 6 }), Some(GroupKind::State)][random.below(3)];
        let mut shape = || Shape {
            tp: 1 + random.below(2) as u32,
            pp: 1 + random.below(2) as u32,
            pcp: 1,
            dcp: 1,
            turn: 1 + random.below(2) as u32,
            block: [2, 4, 8][random.below(3)],
            arrangement: arrangements[random.below(2)],
            middle,
        };
        let (mut source, mut target) = (shape(), shape());
        if middle == Some(GroupKind::State) {
            // Ranks divide a State by its heads alone, and all alike.
            target.tp = source.tp;
        } else {
            for side in [&mut source, &mut target] {
                match random.below(6) {
                    0 | 1 => side.pcp = 2,
                    // Two ranks of each head.
                    2 => (side.tp, side.pp, side.dcp) = (4, 1, 2),
                    _ => {}
                }
            }
        }
        let takers = 1 + world.random.below(2) as u32;
        let mut all = layouts(source, 0);
        for _ in 0..takers {
            all.extend(layouts(target, all.len()));
        }
        let producers = source.ranks() as usize;
        let (world, sides) = (World::new(all, seed ^ 1), Vec::new());
        let mut story = Story { world, sides, producers, takers, is_calm, retracts: false };
        story.retracts = story.world.random.one_in(2);
        let mut used = vec![[0u64; 2]; story.world.nodes.len()];
        for sequence in 0..1 + story.world.random.below(3) as u64 {
            story.add_sequence(sequence, target.ranks() as usize, &mut used);
        }
        story
    }

    fn add_sequence(&mut self, sequence: u64, target_ranks: usize, used: &mut [[u64; 2]]) {
        let tokens = 1 + self.world.random.below(30) as u64;
        let skip =
            if self.world.random.one_in(3) { self.world.random.below(tokens as usize) as u64 } else { 0 };
        // The producer has the end of the window alone.
        let begins_late = self.world.random.one_in(3);
        let whole = tokens;
        let parts: Vec<u64> = (0..self.takers).map(|_| self.part_of(tokens)).collect();
        for (node, used) in used.iter_mut().enumerate() {
            let is_producer = node < self.producers;
            let group = ((node - self.producers.min(node)) / target_ranks) as u64;
            let tokens = if is_producer { whole } else { parts[group as usize] };
            let skip = skip.min(tokens);
            let layout = self.world.nodes[node].layout.clone();
            let lists = (0..layout.groups.len()).map(|group| {
                let block = u64::from(layout.groups[group].block_tokens);
                let own = |token| held(&layout.shard, token);
                let first_token = match layout.groups[group].kind {
                    GroupKind::Window { tokens: kept } if !is_producer || begins_late => {
                        let oldest = own(tokens.saturating_sub(kept.into()));
                        oldest - oldest % block
                    }
                    _ => 0,
                };
                let count = match layout.groups[group].kind {
                    GroupKind::State => 1 + sequence,
                    _ => (own(tokens) - first_token).div_ceil(block),
                };
                let first = used[group];
                used[group] += count;
                // Every second block, from the end: neither in order nor adjacent.
                let ids =
                    (first..first + count).map(|at| ((BLOCKS - 1).wrapping_sub(at * 7 % BLOCKS)) as u32);
                BlockList { first_token, ids: ids.collect() }
            });
            let mut lists: Vec<BlockList> = lists.collect();
            if !is_producer && self.world.random.one_in(6) {
                // The window or the state is not needed.
                lists.iter_mut().skip(1).for_each(|list| list.ids.clear());
            }
            let before = cells(&layout, &lists, 0..tokens, sequence);
            let before = before.into_iter().map(|cell| (cell, *self.world.byte(node, &cell))).collect();
            self.sides.push(Side {
                node,
                id: id(sequence),
                sequence,
                lists,
                tokens,
                skip: if is_producer { 0 } else { skip },
                is_producer,
                group,
                begun: false,
                ready: vec![0; layout.layers.len()],
                chunk_end: if begins_late { tokens } else { 0 },
                sealed: false,
                extended: true,
                back: Back::new(layout.groups.len(), whole),
                scribbled: None,
                before,
            });
        }
    }

    fn is_over(&self, at: usize) -> bool {
        self.world.end_of(self.sides[at].node, self.sides[at].id).is_some()
    }

    /// The application of one side does the next thing.
    fn act(&mut self) {
        let at = self.world.random.below(self.sides.len());
        if self.world.nodes[self.sides[at].node].life != Life::Runs || self.is_over(at) {
            return;
        }
        let gives_up = !self.is_calm && self.world.random.one_in(60);
        let (now, side) = (self.world.now, &mut self.sides[at]);
        let machine = &mut self.world.nodes[side.node].machine;
        if side.begun && gives_up {
            let _ = if side.is_producer {
                machine.offer_cancel(side.id, now)
            } else {
                machine.take_cancel(side.id, now)
            };
        } else if side.is_producer {
            self.produce(at);
        } else if !side.begun {
            side.begun = true;
            let mode = [Mode::Auto, Mode::Pull, Mode::Push][self.world.random.below(3)];
            let deadline = (!self.is_calm && !self.world.random.one_in(3)).then_some(DEADLINE);
            for producer in 0..self.producers {
                machine.set_here(peer(producer), side.sequence % 2 == 0);
            }
            let spec = TakeSpec {
                id: side.id,
                producers: (0..self.producers).map(peer).collect(),
                taker: side.group,
                blocks: side.lists.clone(),
                skip_tokens: side.skip,
                tokens: side.tokens,
                mode,
                deadline,
                // A take that told of layers would fail when tokens of them are taken back.
                tell_layers: !(self.is_calm && self.retracts),
            };
            machine.take(spec, now).unwrap();
        }
    }

    fn produce(&mut self, at: usize) {
        let (now, side) = (self.world.now, &mut self.sides[at]);
        let node = side.node;
        if !side.begun {
            side.begun = true;
            side.extended = self.world.random.one_in(2);
            let mut blocks = side.lists.clone();
            if !side.extended {
                blocks.iter_mut().for_each(|list| list.ids.truncate(list.ids.len() / 2));
            }
            side.back.offered = blocks.iter().map(|list| list.ids.len()).collect();
            let lease = if self.is_calm { Duration::MAX } else { LEASE };
            let spec = OfferSpec { id: side.id, blocks, takers: self.takers, only: Vec::new(), lease };
            return self.world.nodes[node].machine.offer(spec, now).unwrap();
        }
        if side.back.is_busy() {
            return self.take_more_back(at);
        }
        if self.takes_back(at) {
            return;
        }
        let side = &mut self.sides[at];
        if !side.extended {
            side.extended = true;
            let offered = side.lists.iter().zip(&mut side.back.offered);
            let rest = offered.map(|(list, offered)| {
                let ids = list.ids[std::mem::replace(offered, list.ids.len())..].to_vec();
                BlockList { first_token: list.first_token, ids }
            });
            let rest: Vec<BlockList> = rest.collect();
            let _ = self.world.nodes[node].machine.offer_extend(side.id, &rest, now);
            return;
        }
        let layers = side.ready.len();
        let next = side.ready.iter().position(|ready| *ready < side.chunk_end);
        if let Some(first) = next {
            // The layers of a chunk, one or several at a time, in order.
            let count = 1 + self.world.random.below(layers - first);
            let to = side.chunk_end;
            let layout = self.world.nodes[node].layout.clone();
            for layer in first..first + count {
                let from = side.ready[layer];
                for cell in versioned(&layout, &side.lists, from..to, side.sequence, side.back.version) {
                    if layer == cell.layer as usize {
                        *self.world.byte(node, &cell) = cell.value;
                    }
                }
            }
            let side = &mut self.sides[at];
            side.ready[first..first + count].fill(to);
            let range = first as u32..(first + count) as u32;
            let _ = self.world.nodes[node].machine.offer_ready(side.id, range, to, now);
        } else if side.chunk_end < side.tokens {
            let more = 1 + self.world.random.below((side.tokens - side.chunk_end) as usize) as u64;
            side.chunk_end += more;
        } else if !side.sealed {
            side.sealed = true;
            let _ = self.world.nodes[node].machine.offer_seal(side.id, side.tokens, now);
        }
    }

    fn fault(&mut self) {
        let node = self.world.random.below(self.world.nodes.len());
        match (self.world.random.below(4), self.world.nodes[node].life) {
            (0, Life::Runs) => self.world.kill(node),
            (1, Life::Runs) => self.world.nodes[node].life = Life::Stopped,
            (_, Life::Stopped) => self.world.nodes[node].life = Life::Runs,
            _ => {}
        }
    }

    /// Looks at the terminal events, and uses the blocks again.
    fn look(&mut self) {
        self.look_at_events();
        self.look_at_retracts();
    }

    fn look_at_events(&mut self) {
        for (node, event) in self.world.settle() {
            let Event::Ended { id, end, .. } = event else { continue };
            let at = self.sides.iter().position(|side| side.node == node && side.id == id).unwrap();
            let layout = self.world.nodes[node].layout.clone();
            let side = &self.sides[at];
            let all = cells(&layout, &side.lists, 0..side.tokens, side.sequence);
            let spans: Vec<Range<u64>> = all.iter().map(|cell| cell.address..cell.address + 1).collect();
            assert!(
                !self.world.touches(node, &spans),
                "{end:?} of {id} on {node}, and a transfer still touches it"
            );
            assert!(end != End::Sent || side.sealed, "an offer that is not whole is sent");
            assert!(
                end != End::Sent || self.is_received(at),
                "{id} is sent of {node}, and a take has not everything"
            );
            assert!(!self.is_calm || [End::Sent, End::Received].contains(&end), "{end:?} of {id}");
            if !side.is_producer {
                self.check_take(at, &layout, &all);
            }
            let scribble = self.world.random.below(256) as u8;
            all.iter().for_each(|cell| *self.world.byte(node, cell) = scribble);
            self.sides[at].scribbled = Some(scribble);
        }
    }

    /// Whether every rank of every taker that takes from this one has received its take.
    fn is_received(&self, at: usize) -> bool {
        let offer = &self.sides[at];
        let source = &self.world.nodes[offer.node].layout;
        let takes = self.sides.iter().filter(|side| !side.is_producer && side.id == offer.id);
        let mut of_this = takes.filter(|side| {
            let target = &self.world.nodes[side.node].layout;
            let plan = Plan::between(source, target).unwrap();
            plan.targets_of(source.shard.rank()).contains(&target.shard.rank())
        });
        of_this
            .all(|side| self.world.end_of(side.node, side.id).is_some_and(|(end, ..)| end == End::Received))
    }

    fn check_take(&mut self, at: usize, layout: &Layout, all: &[Cell]) {
        let side = &self.sides[at];
        let (end, status, valid, untrusted) = self.world.end_of(side.node, side.id).unwrap();
        if end == End::Received {
            assert_eq!((valid, status, untrusted.len()), (side.tokens, Status::Ok, 0));
        }
        let (skip, tokens, node) = (side.skip, side.tokens, side.node);
        let before: Vec<(Cell, u8)> = side.before.clone();
        let versions = self.versions(at, layout);
        // The layers that were told stay as they are, whatever ends the take later, unless taken back or harmed.
        let told = self.world.nodes[node].layers_told.get(&self.sides[at].id).copied().unwrap_or(0);
        let told = if [Status::Stale, Status::Corrupt].contains(&status) { 0 } else { told };
        for (nth, (cell, (_, was))) in all.iter().zip(before).enumerate() {
            let group = layout.groups[cell.group as usize];
            let first = match group.kind {
                GroupKind::Window { tokens: kept } => skip.max(tokens.saturating_sub(kept.into())),
                _ => skip,
            };
            let now = *self.world.byte(node, cell);
            if cell.token < skip {
                assert_eq!(now, was, "a token that was skipped is written: {cell:?}");
            } else if cell.token >= first && (cell.token < valid || cell.layer < told) {
                let may_be =
                    versions.iter().enumerate().map(|(version, cells)| (version as u64, cells[nth].value));
                let least = self.least_version(at, cell.token);
                let is_right = may_be.clone().any(|(version, value)| version >= least && value == now);
                let may_be: Vec<_> = may_be.collect();
                assert!(
                    is_right,
                    "{end:?}, {valid} tokens valid: {cell:?} is {now}, of {may_be:?} from {least} on"
                );
            }
        }
        if valid < tokens && !untrusted.is_empty() {
            let full = &self.sides[at].lists[0];
            let block = u64::from(layout.groups[0].block_tokens);
            let ids = full.ids.iter().skip((held(&layout.shard, valid) / block) as usize).map(|id| (0, *id));
            assert!(ids.into_iter().all(|id| untrusted.contains(&id)), "{untrusted:?}, valid {valid}");
        }
    }

    fn run(&mut self, with_faults: bool) {
        for round in 0..3_000 {
            if round % 64 == 0
                && self.has_ended()
                && self.world.nodes.iter().all(|it| it.life != Life::Stopped)
            {
                return self.check_the_end();
            }
            match self.world.random.below(4) {
                0 => self.act(),
                1 if with_faults && self.world.random.one_in(300) => self.fault(),
                _ => self.world.step(),
            }
            self.look();
        }
        for node in &mut self.world.nodes {
            if node.life == Life::Stopped {
                node.life = Life::Runs;
            }
        }
        // The faults are over: everything ends, at the latest when the deadlines and leases have.
        for round in 0..60_000 {
            if round % 2 == 0 {
                self.act();
            }
            self.world.step();
            self.look();
            if self.has_ended() {
                return self.check_the_end();
            }
        }
        let open: Vec<String> = (0..self.sides.len())
            .filter(|at| !self.is_done(*at))
            .map(|at| {
                let side = &self.sides[at];
                format!(
                    "{} on {} ({:?})",
                    side.id,
                    side.node,
                    self.world.nodes[side.node].machine.state(side.id)
                )
            })
            .collect();
        panic!("these did not end: {open:?}");
    }

    fn is_done(&self, at: usize) -> bool {
        let side = &self.sides[at];
        self.world.nodes[side.node].life == Life::Dead || self.is_over(at)
    }

    /// Whether everything has ended, and nothing is under way.
    fn has_ended(&self) -> bool {
        (0..self.sides.len()).all(|at| self.is_done(at)) && self.world.is_quiet()
    }

    /// Nothing has landed since the blocks were used again.
    fn check_the_end(&mut self) {
        // A consumer does not tell the producer what it has read again.
        for node in 0..self.world.nodes.len() {
            check_metrics(&self.world, node, self.is_calm && !self.retracts);
        }
        for at in 0..self.sides.len() {
            let side = &self.sides[at];
            let (node, scribbled) = (side.node, side.scribbled);
            let layout = self.world.nodes[node].layout.clone();
            let all = cells(&layout, &side.lists, 0..side.tokens, side.sequence);
            for cell in scribbled.iter().flat_map(|_| &all) {
                assert_eq!(Some(*self.world.byte(node, cell)), scribbled, "late on {node}: {cell:?}");
            }
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    sent: usize,
    received: usize,
    others: usize,
    fenced: usize,
    /// Retracts that are over.
    retracts: usize,
    /// Takes received by a rank that shares its heads' tokens with others, or from one, and takes received with states.
    divided: usize,
    states: usize,
}

fn stories(seeds: Range<u64>, with_faults: bool, is_calm: bool) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds {
        let told = std::panic::catch_unwind(|| {
            let mut story = Story::new(seed, is_calm);
            story.run(with_faults);
            story
        });
        let story = told.unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
        counts.fenced += story.world.fenced;
        counts.retracts += story.sides.iter().map(|side| side.back.count).sum::<usize>();
        let is_received = |side: &&Side| {
            let end = story.world.end_of(side.node, side.id);
            !side.is_producer && end.is_some_and(|(end, ..)| end == End::Received)
        };
        for side in story.sides.iter().filter(is_received) {
            let nodes = [&story.world.nodes[0].layout, &story.world.nodes[side.node].layout];
            counts.divided += usize::from(nodes.iter().any(|it| it.shard.context_ranks() > 1));
            let has_state = nodes[1].groups.last().is_some_and(|group| group.kind == GroupKind::State);
            counts.states += usize::from(has_state && !side.lists[1].ids.is_empty());
        }
        for end in story.world.nodes.iter().flat_map(|node| &node.ends) {
            match end {
                Event::Ended { end: End::Sent, .. } => counts.sent += 1,
                Event::Ended { end: End::Received, .. } => counts.received += 1,
                _ => counts.others += 1,
            }
        }
    }
    counts
}

/// The seeds from `first` on: as many as normally, or as the environment says.
fn seeds(first: u64, normally: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = first + number("FERRY_TEST_KV_FROM").unwrap_or(0);
    first..first + number("FERRY_TEST_KV_STORIES").unwrap_or(normally)
}

#[test]
fn what_nobody_disturbs_arrives() {
    let counts = stories(seeds(0, 800), false, true);
    println!("{counts:?}");
    assert!(counts.sent > 3_700 && counts.received > 6_400 && counts.others == 0, "{counts:?}");
    assert!(counts.divided > 2_600 && counts.states > 1_000 && counts.retracts > 2_600, "{counts:?}");
}

#[test]
fn cancels_aborts_leases_and_deadlines_race() {
    let counts = stories(seeds(500_000, 1_200), false, false);
    println!("{counts:?}");
    assert!(counts.sent > 2_000 && counts.received > 3_600 && counts.others > 7_200, "{counts:?}");
    assert_eq!(counts.fenced, 0, "nobody was silent");
    assert!(counts.retracts > 2_000, "{counts:?}");
}

#[test]
fn with_faults_each_end_comes_once_and_nothing_lands_after_it() {
    let counts = stories(seeds(1_000_000, 3_000), true, false);
    println!("{counts:?}");
    assert!(counts.sent > 4_000 && counts.received > 10_000 && counts.others > 16_000, "{counts:?}");
    assert!(counts.fenced > 5_000 && counts.retracts > 5_000, "{counts:?}");
}

/// In both, blocks of a window were read again after they were free: a retract reached behind them, and the window was
/// offered again from a later block on.
#[test]
fn stories_that_have_failed_before() {
    for seed in [1_000_851, 1_006_664] {
        stories(seed..seed + 1, true, false);
    }
}
