//! Plans with clocks that are more wrong than the contracts assume. Late writes land then, and nobody is told of them;
//! everything else holds (`Ledger::may_land_untold`).

use crate::draw::Draw;
use crate::plan::{Fault, Plan, Step, GAIN_PPM_MAX, MS};

/// How wrong the clocks are at most, and the shortest lease. With a short lease, such clocks differ by a lease long
/// before an initiator asks for a sample (`LeaseClock::not_after`). Until then a target that is ahead refuses each
/// frame, and the initiator opens lane after lane without a pause, which takes all steps of a run.
const GAIN_PPM_BEYOND: u64 = 30 * GAIN_PPM_MAX;
const LEASE_MS_BEYOND: u64 = 400;
/// Faults that are replaced by stops, and stops that are added.
const REPLACED_PERCENT: u32 = 70;
const STOPS_ADDED: u64 = 8;

impl Plan {
    /// Returns the seed's plan with such clocks and without caches or a pool. The clocks of every second host gain, the
    /// others lose. Most faults now stop a target whose clock loses, for about a lease of an initiator whose clock
    /// gains.
    pub fn beyond(seed: u64) -> Plan {
        let mut plan = Plan::new(seed);
        (plan.kv, plan.pool) = (None, None);
        let mut draw = Draw::new(seed, 5);
        plan.gain_ppm_max = draw.between(GAIN_PPM_BEYOND / 2, GAIN_PPM_BEYOND);
        let most = plan.gain_ppm_max;
        let first = draw.below(2);
        let mut gain = |host: usize| {
            let gain = draw.between(3 * most / 4, most) as i64;
            if host % 2 == first {
                gain
            } else {
                -gain
            }
        };
        plan.gains_ppm = (0..plan.hosts).map(&mut gain).collect();
        for step in &mut plan.faults {
            if let Fault::Drift { host, ppm } = &mut step.fault {
                *ppm = gain(*host);
            }
        }
        for engine in &mut plan.engines {
            engine.lease_ns = engine.lease_ns.max(LEASE_MS_BEYOND * MS);
            engine.settings.push(("lease_ms", (engine.lease_ns / MS).to_string()));
        }
        plan.stop_targets(&mut draw);
        plan
    }

    /// Lets stops end at about the moment at which an initiator gives up what it posted to the target that is stopped.
    fn stop_targets(&mut self, draw: &mut Draw) {
        let gains = |engine: usize| self.gains_ppm[self.engines[engine].host] > 0;
        let from = (0..self.engines.len()).filter(|engine| gains(*engine));
        let pairs = from.flat_map(|from| self.engines[from].peers.iter().map(move |to| (from, *to)));
        let pairs: Vec<(usize, usize)> = pairs.filter(|(_, to)| !gains(*to)).collect();
        if pairs.is_empty() {
            return;
        }
        let stop = |draw: &mut Draw| {
            let (from, engine) = *draw.pick(&pairs);
            let most = self.gain_ppm_max;
            let share_ppm = draw.between(1_000_000 - most / 2, 1_000_000 + 6 * most);
            Fault::Stop { engine, ms: self.engines[from].lease_ns / MS * share_ppm / 1_000_000 }
        };
        let waits_for = Some("WRITE in progress");
        let is_kept = |fault| matches!(fault, Fault::Kill { .. } | Fault::Drift { .. });
        for step in self.faults.iter_mut().filter(|step| !is_kept(step.fault)) {
            if draw.percent(REPLACED_PERCENT) {
                (step.fault, step.waits_for) = (stop(draw), waits_for);
            }
        }
        for _ in 0..STOPS_ADDED {
            let at = draw.below(self.faults.len() + 1);
            let step = Step { pause_ms: draw.log_uniform(1, 400), fault: stop(draw), waits_for };
            self.faults.insert(at, step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clock_is_wrong_beyond_the_bound_and_restarts_stay() {
        let mut stops = 0;
        for seed in 0..200 {
            let (plan, beyond) = (Plan::new(seed), Plan::beyond(seed));
            assert!(plan.gains_ppm.iter().all(|gain| *gain == 0) && plan.gain_ppm_max < 1_000);
            let is_beyond = |gain: i64| (1_001..=beyond.gain_ppm_max).contains(&gain.unsigned_abs());
            assert!(beyond.gains_ppm.iter().all(|gain| is_beyond(*gain)));
            let drifts = |plan: &Plan| {
                let gain = |step: &Step| match step.fault {
                    Fault::Drift { ppm, .. } => Some(ppm),
                    _ => None,
                };
                plan.faults.iter().filter_map(gain).collect::<Vec<i64>>()
            };
            assert!(drifts(&plan).into_iter().all(|gain| gain.unsigned_abs() < 1_000));
            assert!(drifts(&beyond).into_iter().all(is_beyond));
            let kills = |plan: &Plan| {
                let is_kill = |step: &&Step| matches!(step.fault, Fault::Kill { .. });
                plan.faults.iter().filter(is_kill).count()
            };
            assert_eq!(kills(&plan), kills(&beyond));
            stops += beyond.faults.iter().filter(|step| step.waits_for == Some("WRITE in progress")).count();
        }
        assert!(stops > 200, "{stops}");
    }
}
