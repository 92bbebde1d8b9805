//! Draws a seed's pool: what its engines lend, how many keys there are and how long their values. All of it comes
//! from a stream of its own, so a seed without a pool is what it was before there were any.

use super::keys::length;
use crate::bugs::BUGS;
use crate::draw::Draw;
use crate::plan::EnginePlan;
use ferry_pool::CHANNEL;

/// Seeds with a pool, among those with enough engines and no caches that showed no bug before; and their stream.
const PERCENT: u32 = 20;
const STREAM: u64 = 1_451;
const ENGINES_MIN: usize = 3;

pub struct PoolPlan {
    /// By slot: the bytes that the node lends; 0 for a client.
    pub lends: Vec<u64>,
    pub unit_bytes: u64,
    /// By number; the first ones are removed at times.
    pub keys: u64,
    pub removed: u64,
    /// The longest value.
    pub bytes_max: u64,
    pub redial_ms: u64,
}

/// Returns what the seed draws, and gives its engines room for the transfers of a node: an application that holds all
/// of few for as long as a call may take stops the node.
pub fn draw(seed: u64, engines: &mut [EnginePlan]) -> Option<PoolPlan> {
    let mut draw = Draw::new(seed, STREAM);
    let showed_a_bug = BUGS.iter().any(|bug| bug.seed == seed);
    if engines.len() < ENGINES_MIN || showed_a_bug || !draw.percent(PERCENT) {
        return None;
    }
    assert!(engines.iter().all(|engine| !engine.channels.contains(&CHANNEL)), "the pool has its channel");
    engines.iter_mut().for_each(|engine| engine.settings.push(("transfers_max", "1024".into())));
    let keys = draw.between(8, 40);
    let bytes_max = *draw.pick(&[1 << 10, 6 << 10, 6 << 10, 40 << 10, 700 << 10]);
    let unit_bytes = *draw.pick(&[512, 1 << 10, 4 << 10]);
    let total: u64 = (0..keys).map(|key| length(key, bytes_max).next_multiple_of(unit_bytes)).sum();
    let lends = |draw: &mut Draw, at: usize| match draw.below(8) {
        // Two members at least.
        0 | 1 if at > 1 => 0,
        0..=4 => total / draw.between(3, 12),
        _ => 2 * total,
    };
    let lends = (0..engines.len()).map(|at| lends(&mut draw, at));
    let lends = lends.map(|bytes| if bytes > 0 { bytes.max(4 * unit_bytes) } else { 0 }).collect();
    Some(PoolPlan {
        lends,
        unit_bytes,
        keys,
        removed: keys / 3,
        bytes_max,
        redial_ms: draw.log_uniform(20, 500),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn some_seeds_have_pools_and_no_seed_that_showed_a_bug_before() {
        let plans: Vec<Plan> = (0..2_000).map(Plan::new).collect();
        let with: Vec<&Plan> = plans.iter().filter(|plan| plan.pool.is_some()).collect();
        assert!((150..280).contains(&with.len()), "{}", with.len());
        for (plan, pool) in with.iter().filter_map(|plan| Some((plan, plan.pool.as_ref()?))) {
            assert!((3..=8).contains(&plan.engines.len()) && plan.kv.is_none());
            assert_eq!(pool.lends.len(), plan.engines.len());
            assert!(pool.lends.iter().filter(|bytes| **bytes > 0).count() >= 2 && pool.removed < pool.keys);
        }
        let lends = |it: fn(&u64) -> bool| {
            with.iter().any(|plan| plan.pool.iter().any(|pool| pool.lends.iter().any(it)))
        };
        assert!(lends(|bytes| *bytes == 0) && lends(|bytes| *bytes > 0));
        assert!(BUGS.iter().all(|bug| Plan::new(bug.seed).pool.is_none()));
    }
}
