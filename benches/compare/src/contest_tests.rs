//! Rounds, ratios and verdicts over figures that are known.

use super::*;

const OVER_TCP: Beside = Beside { name: "the best", best_of: &["a", "b"] };

fn run(value: f64) -> Run {
    Run::of([(Quantity::GbPerSecond, value)])
}

fn row(values: &[(&'static str, &[f64])]) -> RowResult {
    let cell = |&(name, values): &(&'static str, &[f64])| {
        Cell::of(Side { runs: values.iter().copied().map(run).collect(), ..Side::new(name) })
    };
    RowResult { row: "row".to_owned(), cells: values.iter().map(cell).collect() }
}

fn target(beside: Beside, ratio: f64) -> Target {
    Target { quantity: Quantity::GbPerSecond, subject: "ferry", beside, goal: Some(Goal::AtLeast(ratio)) }
}

fn rounds(count: usize) -> Vec<Vec<usize>> {
    (0..2 * count).map(|round| order(round, count).collect()).collect()
}

#[test]
fn every_side_begins_equally_often_and_follows_several() {
    assert_eq!(rounds(4)[..4], [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]);
    assert_eq!(rounds(2), [[0, 1], [1, 0], [0, 1], [1, 0]], "two alternate");
    for count in 2..=9 {
        let rounds = rounds(count);
        for round in &rounds {
            let mut all = round.clone();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count), "{round:?}");
        }
        for side in 0..count {
            let begun = rounds.iter().filter(|round| round[0] == side).count();
            assert_eq!(begun, 2, "{side} of {count}");
            let before = |round: &Vec<usize>| {
                let place = round.iter().position(|&other| other == side).expect("every side");
                place.checked_sub(1).map(|place| round[place])
            };
            let mut followed: Vec<_> = rounds.iter().map(before).collect();
            followed.sort_unstable();
            followed.dedup();
            assert!(followed.len() > 1, "{side} of {count}: {followed:?}");
        }
    }
}

#[test]
fn the_sides_alternate_and_one_that_fails_is_out_and_named_once() {
    let mut order = String::new();
    let found = measure("row".to_owned(), ["r", "s"].map(Side::new).into(), 4, |side| {
        order.push(['r', 's'][side]);
        anyhow::ensure!(side == 0 || order.len() < 6, "broken");
        Ok(run([1.0, 2.0][side]))
    });
    assert_eq!(order, "rssrrsr");
    assert_eq!(found.cells[0].outcome.rounds(Quantity::GbPerSecond), Some(&[1.0; 4][..]));
    let failed = Outcome::Failed { reason: "round 3: broken".to_owned() };
    assert_eq!(found.cells[1].outcome, failed);
    let ratio = Target { subject: "r", ..target(Beside::side("s"), 1.0) };
    assert_eq!(judge(&found, &[ratio])[0].judged.ratio, None);
    let refusal = Refusal { reason: "no path".to_owned(), unavailable: true };
    let reason = "no path".to_owned();
    assert_eq!(Outcome::of_error(&refusal.into()), Outcome::Unavailable { reason });
}

#[test]
fn the_best_of_several_counts_in_each_round() {
    let found = row(&[("ferry", &[4.0, 4.0]), ("a", &[1.0, 4.0]), ("b", &[2.0, 2.0])]);
    assert_eq!(judge(&found, &[target(OVER_TCP, 1.0)])[0].ratios, [2.0, 1.0]);
}

#[test]
fn ratios_are_paired_before_the_median_is_taken() {
    // The machine halves its speed in mid-run: the medians are useless, the ratios are right.
    let pairs: Vec<_> = [[8.0; 8], [4.0; 8]].concat();
    let slower: Vec<_> = pairs.iter().map(|value| value * 0.96).collect();
    let found = row(&[("a", &pairs), ("ferry", &slower)]);
    for (goal, verdict) in [(0.95, Verdict::Met), (0.97, Verdict::Missed)] {
        let ratio = judge(&found, &[target(Beside::side("a"), goal)]).remove(0);
        let interval = ratio.judged.ratio.expect("16 pairs");
        assert!((interval.median - 0.96).abs() < 1e-12 && interval.width() < 1e-12);
        assert_eq!(ratio.judged.verdict, Some(verdict));
    }
}

#[test]
fn verdicts_follow_from_the_goal_and_the_number_of_rounds() {
    let wide: &[f64] = &[11.0, 12.0, 13.0, 14.0, 15.0, 16.0];
    for (values, goal, verdict) in [
        (wide, 10.0, Verdict::Met),
        (wide, 12.0, Verdict::Undecided),
        (wide, 16.5, Verdict::Missed),
        (&[1.0; 5], 0.9, Verdict::Undecided),
    ] {
        let found = row(&[("ferry", values), ("a", &[1.0; 6])]);
        let ratio = judge(&found, &[target(Beside::side("a"), goal)]).remove(0);
        assert_eq!(ratio.judged.verdict, Some(verdict), "{values:?} {goal}");
    }
    let verdict = |value| Cost::limited("row", "s", value, 10.0).verdict;
    assert_eq!((verdict(10.0), verdict(10.001)), (Some(Verdict::Met), Some(Verdict::Missed)));
}

#[test]
fn what_was_not_measured_is_not_judged_and_says_why() {
    let mut found = row(&[("ferry", &[1.0; 6])]);
    let reason = "no wheel".to_owned();
    found.cells.push(Cell::of(Side { out: Some(Outcome::Unavailable { reason }), ..Side::new("a") }));
    let judged = judge(&found, &[target(OVER_TCP, 1.0), target(Beside::side("c"), 1.0)]);
    assert_eq!(judged.len(), 1, "c takes no part");
    assert_eq!((judged[0].judged.verdict, judged[0].judged.ratio), (None, None));
    let reason = judged[0].reason.as_deref().expect("a reason");
    assert!(reason.contains("no wheel") && reason.contains("not measured"), "{reason}");
}
