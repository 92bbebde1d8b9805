//! Draws a seed's caches: which engines are ranks, of which shapes, and how many sequences they hand over. All
//! of it comes from a stream of its own, so a seed without caches is what it was before there were any.

use super::caches::Shape;
use crate::draw::Draw;
use crate::plan::EnginePlan;
use ferry_kv::cache::CHANNEL;
use ferry_kv::layout::{Arrangement, GroupKind};

/// Seeds with caches, and their stream. With it no seed that showed a bug before has any.
const PERCENT: u32 = 12;
const STREAM: u64 = 1_127;
/// In place of the channel that caches use.
const OTHER_CHANNEL: u16 = CHANNEL + 1;
const WINDOW_TOKENS: u32 = 6;

pub struct KvPlan {
    pub source: Shape,
    pub target: Shape,
    /// The slots of the producer's ranks.
    pub producers: Vec<usize>,
    /// The slots of each consumer's ranks.
    pub takers: Vec<Vec<usize>>,
    pub sequences: usize,
    pub silence_ms: u64,
    /// Producers take tokens and windows back.
    pub retracts: bool,
}

/// Returns what the seed draws, and moves the notifications of its engines off the channel of caches.
pub fn draw(seed: u64, engines: &mut [EnginePlan]) -> Option<KvPlan> {
    let mut draw = Draw::new(seed, STREAM);
    if !draw.percent(PERCENT) {
        return None;
    }
    for channel in engines.iter_mut().flat_map(|engine| &mut engine.channels) {
        if *channel == CHANNEL {
            *channel = OTHER_CHANNEL;
        }
    }
    // Ranks of the producer, consumers, ranks of each.
    let (sources, takers, targets) = match engines.len() {
        2 => (1, 1, 1),
        3 => *draw.pick(&[(2, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]),
        4 => *draw.pick(&[(2, 1, 2), (2, 2, 1), (1, 1, 2), (2, 1, 1)]),
        _ => *draw.pick(&[(2, 1, 2), (2, 2, 1), (1, 2, 2), (2, 1, 1)]),
    };
    let mut slots: Vec<usize> = (0..engines.len()).collect();
    let mut take = |draw: &mut Draw, count: usize| -> Vec<usize> {
        (0..count).map(|_| slots.swap_remove(draw.below(slots.len()))).collect()
    };
    let producers = take(&mut draw, sources);
    let takers = (0..takers).map(|_| take(&mut draw, targets)).collect();
    let middle =
        *draw.pick(&[None, Some(GroupKind::Window { tokens: WINDOW_TOKENS }), Some(GroupKind::State)]);
    Some(KvPlan {
        source: shape(&mut draw, sources as u32, middle),
        target: shape(&mut draw, targets as u32, middle),
        producers,
        takers,
        sequences: draw.between(4, 10) as usize,
        silence_ms: draw.log_uniform(300, 2_000),
        retracts: draw.percent(50),
    })
}

fn shape(draw: &mut Draw, ranks: u32, middle: Option<GroupKind>) -> Shape {
    // Within a layer, a State can be divided only by heads, and only alike in both instances. So ranks divide layers.
    let ways = if middle == Some(GroupKind::State) { 1 } else { 3 };
    let (tp, pp, pcp) = match draw.below(ways) {
        0 => (1, ranks, 1),
        1 => (ranks, 1, 1),
        _ => (1, 1, ranks),
    };
    Shape {
        tp,
        pp,
        pcp,
        dcp: 1,
        turn: draw.between(1, 2) as u32,
        block: *draw.pick(&[2, 4, 8]),
        arrangement: *draw.pick(&[Arrangement::BlockHeadPairToken, Arrangement::PairBlockTokenHead]),
        middle,
    }
}

impl KvPlan {
    /// Returns the slots of all ranks: the producer's, then those of each consumer.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.producers.iter().chain(self.takers.iter().flatten()).copied()
    }

    pub fn is_rank(&self, slot: usize) -> bool {
        self.slots().any(|it| it == slot)
    }

    /// Returns the shape of a slot's instance, and the slot's rank in it.
    pub fn place(&self, slot: usize) -> Option<(Shape, u32)> {
        let find = |slots: &[usize]| slots.iter().position(|it| *it == slot).map(|rank| rank as u32);
        let source = find(&self.producers).map(|rank| (self.source, rank));
        source.or_else(|| self.takers.iter().find_map(|slots| Some((self.target, find(slots)?))))
    }

    /// Returns the slots to which a rank connects.
    pub fn partners(&self, slot: usize) -> Vec<usize> {
        if self.producers.contains(&slot) {
            self.takers.concat()
        } else {
            self.producers.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::bugs::BUGS;
    use crate::plan::Plan;

    #[test]
    fn some_seeds_have_caches_and_no_seed_that_showed_a_bug_before() {
        let plans: Vec<Plan> = (0..2_000).map(Plan::new).collect();
        let with: Vec<&Plan> = plans.iter().filter(|plan| plan.kv.is_some()).collect();
        assert!((180..300).contains(&with.len()), "{}", with.len());
        for (plan, kv) in with.iter().filter_map(|plan| Some((plan, plan.kv.as_ref()?))) {
            let mut slots: Vec<usize> = kv.slots().collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), kv.slots().count());
            assert!(slots.iter().all(|slot| *slot < plan.engines.len()));
            assert_eq!(kv.producers.len() as u32, kv.source.ranks());
            assert!(kv.takers.iter().all(|slots| slots.len() as u32 == kv.target.ranks()));
            assert!(plan.engines.iter().all(|engine| !engine.channels.contains(&super::CHANNEL)));
        }
        assert!(BUGS.iter().all(|bug| Plan::new(bug.seed).kv.is_none()));
    }
}
