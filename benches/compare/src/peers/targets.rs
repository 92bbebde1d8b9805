//! ferry's targets beside the other engines: ratios of figures from the same rounds.

use serde::Serialize;

use super::results::{Outcome, Results, RowResult};
use super::roster::*;
use super::rows::{workloads, Row, LATENCY_BYTES};
use crate::figures::Quantity;
use crate::judge::{Goal, Judged};
use ferry_bench::layout::Layout;
use ferry_bench::workload::{Operation, Workload, KIB};

/// A ratio to reach.
struct Target {
    row: String,
    quantity: Quantity,
    subject: &'static str,
    beside: Beside,
    goal: Goal,
}

/// The verdict on a target.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub row: String,
    pub quantity: Quantity,
    pub subject: &'static str,
    pub beside: &'static str,
    #[serde(flatten)]
    pub judged: Judged,
    /// The reason, if a side was not measured.
    pub reason: Option<String>,
}

/// The best of these engines in each round, among those that were measured.
#[derive(Clone, Copy)]
struct Beside {
    name: &'static str,
    engines: &'static [&'static str],
}

const VM_1: Beside = Beside { name: RAW_VM_1, engines: &[RAW_VM_1] };
const VM_2: Beside = Beside { name: RAW_VM_2, engines: &[RAW_VM_2] };
const SHARED: Beside = Beside { name: RAW_SHARED, engines: &[RAW_SHARED] };
const NIXL: Beside =
    Beside { name: "NIXL's best", engines: &[NIXL_AUTO_BEST, NIXL_AUTO, NIXL_TCP_BEST, NIXL_TCP] };
const NIXL_OVER_TCP: Beside = Beside { name: "NIXL's best over TCP", engines: &[NIXL_TCP_BEST, NIXL_TCP] };
const FERRYS_OWN_TCP: Beside = Beside { name: FERRY_TCP, engines: &[FERRY_TCP] };
const MOONCAKE_EITHER: Beside = Beside { name: "Mooncake's best", engines: &[MOONCAKE_BEST, MOONCAKE] };
const FORCED: Beside = Beside { name: "better of local and tcp", engines: &[FERRY_LOCAL, FERRY_TCP] };
const FORCED_ALLOCATED: Beside =
    Beside { name: "better of local and tcp", engines: &[FERRY_LOCAL_ALLOCATED, FERRY_TCP] };

/// Judges all targets of the measured rows and engines.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let takes_part = |name: &&str| results.engines.iter().any(|engine| engine.engine == *name);
    let concerned = |target: &Target| {
        let beside = target.beside.engines.iter().any(takes_part);
        results.row(&target.row).is_some() && takes_part(&target.subject) && beside
    };
    let wanted = all().into_iter().filter(concerned);
    wanted.map(|target| judge_one(results.row(&target.row), target)).collect()
}

fn all() -> Vec<Target> {
    let mut targets = Vec::new();
    for workload in [Operation::Write, Operation::Read].into_iter().flat_map(workloads) {
        throughput(&workload, &mut targets);
    }
    for bytes in LATENCY_BYTES {
        latency(bytes, &mut targets);
    }
    targets
}

fn throughput(workload: &Workload, targets: &mut Vec<Target>) {
    let scattered = workload.layout == Layout::Scattered;
    let small = workload.block_bytes <= 4 * KIB;
    let mut add = |subject, beside, ratio| {
        let (row, quantity, goal) =
            (Row::Throughput(*workload).to_string(), Quantity::GbPerSecond, Goal::AtLeast(ratio));
        targets.push(Target { row, quantity, subject, beside, goal });
    };
    add(FERRY_LOCAL, VM_2, if small { 0.85 } else { 0.95 });
    add(FERRY_LOCAL_ALLOCATED, SHARED, 0.9);
    for subject in [FERRY_LOCAL, FERRY_LOCAL_ALLOCATED] {
        add(subject, NIXL, if scattered { 1.5 } else { 1.0 });
    }
    add(FERRY_AUTO, FORCED, 0.95);
    add(FERRY_AUTO_ALLOCATED, FORCED_ALLOCATED, 0.95);
    let (nixl, mooncake) = match (scattered, small) {
        (true, true) => (4.0, 10.0),
        (true, false) => (2.0, 5.0),
        (false, _) => (1.0, 1.0),
    };
    add(FERRY_TCP, NIXL_OVER_TCP, nixl);
    add(FERRY_TCP, MOONCAKE_EITHER, mooncake);
    // ferry's plugin beside NIXL's own backends, and beside ferry without NIXL.
    add(NIXL_FERRY_TCP, NIXL_OVER_TCP, 1.0);
    add(NIXL_FERRY_AUTO, NIXL, 1.0);
    add(NIXL_FERRY_TCP, FERRYS_OWN_TCP, 0.9);
}

fn latency(bytes: usize, targets: &mut Vec<Target>) {
    let mut add = |subject, quantity, beside, ratio| {
        let (row, goal) = (Row::Latency(bytes).to_string(), Goal::AtMost(ratio));
        targets.push(Target { row, quantity, subject, beside, goal });
    };
    if bytes == 4 * KIB {
        for subject in [FERRY_LOCAL, FERRY_LOCAL_ALLOCATED] {
            add(subject, Quantity::P50Us, VM_1, 2.0);
        }
    }
    for quantity in [Quantity::P50Us, Quantity::P99Us] {
        add(FERRY_TCP, quantity, NIXL_OVER_TCP, 1.0);
        add(FERRY_TCP, quantity, MOONCAKE_EITHER, 1.0);
        add(NIXL_FERRY_TCP, quantity, NIXL_OVER_TCP, 1.0);
    }
}

fn judge_one(row: Option<&RowResult>, target: Target) -> Verdict {
    let Target { row: name, quantity, subject, beside, goal } = target;
    let ratios = row.map(|row| ratios(row, quantity, subject, beside.engines, goal));
    let ratios = ratios.unwrap_or_else(|| Err("the row was not measured".to_owned()));
    let judged = Judged::of(Some(goal), ratios.as_deref().unwrap_or_default());
    Verdict { row: name, quantity, subject, beside: beside.name, judged, reason: ratios.err() }
}

/// Returns the subject over the best of the references, round by round.
fn ratios(
    row: &RowResult,
    quantity: Quantity,
    subject: &str,
    references: &[&str],
    goal: Goal,
) -> Result<Vec<f64>, String> {
    let values = |engine: &str| match row.outcome(engine) {
        None => Err(format!("{engine}: not measured")),
        Some(outcome) => outcome.rounds(quantity).ok_or_else(|| format!("{engine}: {}", reason(outcome))),
    };
    let own = values(subject)?;
    let found: Vec<_> = references.iter().map(|engine| values(engine)).collect();
    let others: Vec<&[f64]> = found.iter().flatten().copied().collect();
    if others.is_empty() {
        let reasons = found.into_iter().filter_map(Result::err);
        return Err(reasons.collect::<Vec<_>>().join("; "));
    }
    let better = |a: f64, b: f64| match goal {
        Goal::AtLeast(_) => a.max(b),
        Goal::AtMost(_) => a.min(b),
    };
    let best = |round: usize| others.iter().filter_map(|values| values.get(round)).copied().reduce(better);
    Ok(own.iter().enumerate().filter_map(|(round, value)| best(round).map(|best| value / best)).collect())
}

fn reason(outcome: &Outcome) -> &str {
    outcome.reason().unwrap_or("no such figure")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use crate::judge::Verdict;
    use crate::peers::results::Cell;

    fn row(values: &[(&'static str, &[f64])]) -> RowResult {
        let cell = |(engine, values): &(&'static str, &[f64])| {
            let runs: Vec<_> =
                values.iter().map(|&value| Figures::from([(Quantity::GbPerSecond, value)])).collect();
            Cell::new(engine, Outcome::measured(&runs))
        };
        RowResult { row: "row".to_owned(), cells: values.iter().map(cell).collect() }
    }

    fn target(beside: Beside, ratio: f64) -> Target {
        let (quantity, goal) = (Quantity::GbPerSecond, Goal::AtLeast(ratio));
        Target { row: "row".to_owned(), quantity, subject: FERRY_TCP, beside, goal }
    }

    #[test]
    fn the_best_reference_of_each_round_counts() {
        let values: [(&str, &[f64]); 3] =
            [(FERRY_TCP, &[4.0, 4.0]), (NIXL_TCP, &[1.0, 4.0]), (NIXL_TCP_BEST, &[2.0, 2.0])];
        let found = ratios(
            &row(&values),
            Quantity::GbPerSecond,
            FERRY_TCP,
            NIXL_OVER_TCP.engines,
            Goal::AtLeast(1.0),
        );
        assert_eq!(found, Ok(vec![2.0, 1.0]));
    }

    #[test]
    fn a_wide_interval_that_lies_beyond_the_goal_decides() {
        let values: [(&str, &[f64]); 2] =
            [(FERRY_TCP, &[11.0, 12.0, 13.0, 14.0, 15.0, 16.0]), (MOONCAKE, &[1.0; 6])];
        let verdict = |ratio| judge_one(Some(&row(&values)), target(MOONCAKE_EITHER, ratio)).judged.verdict;
        assert_eq!(verdict(10.0), Some(Verdict::Met));
        assert_eq!(verdict(12.0), Some(Verdict::Undecided));
        assert_eq!(verdict(16.5), Some(Verdict::Missed));
    }

    #[test]
    fn what_was_not_measured_is_not_judged_and_says_why() {
        let mut found = row(&[(FERRY_TCP, &[1.0; 6])]);
        found.cells.push(Cell::new(MOONCAKE, Outcome::Unavailable { reason: "no wheel".to_owned() }));
        let judged = judge_one(Some(&found), target(MOONCAKE_EITHER, 1.0));
        assert_eq!((judged.judged.verdict, judged.judged.ratio.is_none()), (None, true));
        let reason = judged.reason.expect("a reason");
        assert!(reason.contains("no wheel") && reason.contains("not measured"), "{reason}");
    }

    #[test]
    fn every_target_names_a_row_that_exists() {
        let rows: Vec<_> = crate::peers::rows::all().iter().map(Row::to_string).collect();
        assert!(all().iter().all(|target| rows.contains(&target.row)));
    }
}
