//! `selftest` and `compare` from start to end, as small as possible, so that they keep working.

// Each test program uses its own part of it.
#[allow(dead_code)]
mod support;

use serde_json::Value;
use support::{assert_failure, assert_success, has_rdma, run, temporary};

fn json(arguments: &[&str]) -> (support::Ended, Value) {
    let file = temporary("json");
    let path = file.display().to_string();
    let ended = run(&[arguments, &["--json", &path]].concat());
    assert_success(&ended);
    let text = std::fs::read_to_string(&file).expect("the file was written");
    std::fs::remove_file(&file).expect("removable");
    (ended, serde_json::from_str(&text).expect("one object"))
}

#[test]
fn the_selftest_passes_and_its_file_has_every_part() {
    let (_, report) = json(&["selftest"]);
    let parts = report["parts"].as_array().expect("a list");
    let tests: Vec<_> = parts.iter().filter_map(|part| part["test"].as_str()).collect();
    let expected = ["write_bw", "read_bw", "write_bw", "read_bw", "write_lat", "read_lat", "notify_lat"];
    assert_eq!(tests, expected);
    assert!(parts.iter().all(|part| part["sizes"].as_array().is_some_and(|sizes| sizes.len() == 1)));
}

#[test]
fn the_selftest_fails_on_one_wrong_byte() {
    assert_failure(&run(&["selftest", "--spoil"]), &["wrong data at byte"]);
}

#[test]
fn a_tiny_comparison_has_every_kind_of_row() {
    let rows = "^WRITE 4 KiB × 1,024|two CPUs|one CPU|submitted by|idle|peers connected";
    let plot = temporary("svg");
    let plot_path = plot.display().to_string();
    let (ended, report) = json(&[
        "compare",
        "--plot",
        &plot_path,
        "--rows",
        rows,
        "--pairs",
        "1",
        "--seconds",
        "0.02",
        "--samples",
        "50",
        "--idle-seconds",
        "0.2",
        "--peers",
        "8",
    ]);
    assert!(ended.out.contains("Final table") && ended.out.contains("too few pairs"), "{}", ended.out);
    let lines = report["lines"].as_array().expect("a list");
    let svg = std::fs::read_to_string(&plot).expect("the plot was written");
    std::fs::remove_file(&plot).expect("removable");
    assert!(lines.iter().all(|line| svg.contains(line["row"].as_str().expect("a name"))), "{svg}");
    assert!(!ended.out.contains('\x1b'), "no terminal, no colours: {}", ended.out);
    let has =
        |text: &str| lines.iter().any(|line| line["row"].as_str().is_some_and(|row| row.contains(text)));
    assert!(has("WRITE 4 KiB × 1,024 scattered") && has("WRITE 64 KiB submitted by 4 threads"), "{report}");
    assert!(lines.iter().all(|line| line["verdict"] == "undecided" && line["ratio"]["n"] == 1), "{report}");
    let costs = report["costs"].as_array().expect("a list");
    let row = |text: &str| {
        costs.iter().filter(|cost| cost["row"].as_str().is_some_and(|row| row.contains(text))).count()
    };
    assert_eq!((row("idle engine"), row("8 peers connected")), (2, 6), "{report}");
    assert_eq!(report["standings"].as_array().map(Vec::len), Some(1));
    assert!(report["latencies"].as_array().is_some_and(|pairs| !pairs.is_empty()));
}

/// The rows are measured if the same-host path is available, and otherwise named with the reason.
#[test]
fn rows_of_one_machine_are_measured_or_say_why_not() {
    let rows = "^local, .*(WRITE 4 KiB|synchronous)";
    let options = ["--pairs", "1", "--seconds", "0.02", "--samples", "50"];
    let (ended, report) = json(&[&["compare", "--rows", rows], &options[..]].concat());
    let list = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let rows = [list("lines"), list("unavailable")].concat();
    let names: Vec<_> = rows.iter().filter_map(|row| row["row"].as_str()).collect();
    let expected = [
        "local, own: WRITE 4 KiB × 1,024 scattered",
        "local, own: WRITE 4 KiB synchronous",
        "local, alloc: WRITE 4 KiB × 1,024 scattered",
    ];
    assert!(names.len() == 3 && expected.iter().all(|row| names.contains(row)), "{report}");
    for row in list("unavailable") {
        assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("UNAVAILABLE")), "{row}");
        assert!(ended.out.contains("unavailable"), "{}", ended.out);
    }
}

#[test]
fn rows_that_are_no_expression_are_refused() {
    assert_failure(&run(&["compare", "--rows", "("]), &["--rows"]);
}

#[test]
fn a_comparison_on_devices_that_are_not_there_says_so_for_each_side() {
    let ended = run(&["rdma", "--initiator", "ferry_none0", "--target", "ferry_none1", "--rounds", "1"]);
    assert_failure(&ended, &["perftest: "]);
    for side in ["perftest", "verbs, proven", "verbs, acked only", "ferry, proven", "ferry, acked only"] {
        assert!(ended.out.contains(&format!("{side} was not measured everywhere: ")), "{}", ended.out);
    }
}

/// Uses another transport for ferry: the test is not about RDMA.
#[test]
fn a_tiny_comparison_on_two_devices_has_every_kind_of_row() {
    if !has_rdma() {
        return;
    }
    let rows = "WRITE 64 KiB|contiguous|2 B";
    let little = ["--rounds", "1", "--seconds", "0.05", "--samples", "20", "--transport", "local"];
    let (ended, report) = json(&[&["rdma", "--rows", rows], &little[..]].concat());
    let found = report["rows"].as_array().expect("a list");
    let names: Vec<_> = found.iter().filter_map(|row| row["row"].as_str()).collect();
    let expected =
        ["WRITE 64 KiB", "WRITE 16 KiB × 1,024 contiguous", "WRITE 2 B ping-pong", "WRITE 2 B until done"];
    assert_eq!(names, expected, "{}", ended.out);
    for side in found.iter().flat_map(|row| row["sides"].as_array().expect("a list")) {
        assert!(side["values"].as_array().is_some_and(|values| values.len() == 1), "{side}");
    }
    assert!(ended.out.contains("undecided: too few rounds"), "{}", ended.out);
}
