//! The comparisons from start to end, as small as possible, so that they keep working: `peers` with an engine that
//! needs only Python.

// Each test program uses its own part of it.
#[allow(dead_code)]
#[path = "../../tool/tests/support/mod.rs"]
mod support;

use std::process::Command;

use serde_json::Value;
use support::{assert_failure, has_rdma, json, run, temporary};

/// Runs the named rows with the bare system calls from one thread; returns the output and the JSON.
fn peers(rows: &str, more: &[&str]) -> Option<(String, Value)> {
    if !Command::new("python3").arg("--version").output().is_ok_and(|ended| ended.status.success()) {
        println!("SKIPPED: there is no python3");
        return None;
    }
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
    let common = ["peers", "--scripts", scripts, "--rows", rows, "--rounds", "2", "--seconds", "0.01"];
    let (ended, found) = json(&[&common, &["--samples", "50"][..], more].concat());
    Some((ended.out, found))
}

const ONE: [&str; 2] = ["--engines", "raw process_vm ×1"];

#[test]
fn rows_are_measured_checked_and_told() {
    let Some((out, found)) = peers("WRITE 1 MiB|READ 64 KiB|64 B|connect", &ONE) else { return };
    let rows = found["rows"].as_array().expect("a list");
    let outcomes: Vec<_> = rows.iter().filter_map(|row| row["cells"][0]["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["measured", "measured", "measured", "not_applicable", "measured"], "{found:#}");
    let quantities = [
        ["gb_per_second", "cpu_seconds_per_gib"],
        ["gb_per_second", "cpu_seconds_per_gib"],
        ["p50_us", "p99_us"],
    ];
    for (row, quantities) in rows.iter().zip(quantities) {
        for quantity in quantities {
            let values = row["cells"][0]["rounds"][quantity].as_array().expect("a list");
            assert!(values.len() == 2 && values.iter().all(|value| value.as_f64() > Some(0.0)), "{row:#}");
        }
    }
    for part in ["| raw process_vm ×1 |", "WRITE, GB/s", "READ, GB/s", "64 B WRITE, µs", "4 peers, GB/s"] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn one_wrong_byte_fails_the_row_and_nothing_else() {
    let spoilt = [&ONE[..], &["--spoil"]].concat();
    let Some((out, found)) = peers("to 4 peers|WRITE 4 KiB synchronous", &spoilt) else { return };
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for row in rows {
        let cell = &row["cells"][0];
        let reason = cell["reason"].as_str().unwrap_or_default();
        assert!(cell["outcome"] == "failed" && reason.contains("wrong data at byte"), "{row:#}");
    }
    assert!(out.contains("failed [1]") && out.contains("[1] raw process_vm ×1: failed: round 1"), "{out}");
}

#[test]
fn an_engine_that_cannot_run_is_in_the_table_with_its_reason() {
    let engines = ["--engines", "Mooncake|raw process_vm ×2", "--python", "/nowhere/python3"];
    let Some((out, found)) = peers("WRITE 1 MiB × 16 contiguous$", &engines) else { return };
    let cells = found["rows"][0]["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 3);
    assert!(cells.iter().all(|cell| cell["outcome"] == "failed"), "{found:#}");
    assert!(out.contains("starting /nowhere/python3"), "{out}");
}

#[test]
fn names_that_match_nothing_are_refused() {
    assert_failure(&run(&["peers", "--rows", "no such row"]), &["no row has such a name"]);
    assert_failure(&run(&["peers", "--engines", "no such engine"]), &["no engine has such a name"]);
}

#[test]
fn a_tiny_comparison_has_every_kind_of_row() {
    let rows = "^WRITE 4 KiB × 1,024|two CPUs|one CPU|submitted by|idle|peers connected";
    let plot = temporary("svg");
    let plot_path = plot.path().display().to_string();
    let words = "--rounds 1 --seconds 0.02 --samples 50 --idle-seconds 0.2 --peers 8";
    let words: Vec<_> = words.split(' ').collect();
    let (ended, report) = json(&[&["sockets", "--plot", &plot_path, "--rows", rows], &words[..]].concat());
    assert!(ended.out.contains("Targets") && ended.out.contains("too few rounds"), "{}", ended.out);
    let ratios = report["ratios"].as_array().expect("a list");
    let svg = support::text(&plot);
    assert!(ratios.iter().all(|it| svg.contains(it["row"].as_str().expect("a name"))), "{svg}");
    assert!(!ended.out.contains('\x1b'), "no terminal, no colours: {}", ended.out);
    let count = |list: &Value, text: &str| {
        let rows = list.as_array().expect("a list").iter();
        rows.filter(|it| it["row"].as_str().is_some_and(|row| row.contains(text))).count()
    };
    let rows = &report["rows"];
    assert_eq!(count(rows, "WRITE 4 KiB × 1,024 scattered"), 2, "{report}");
    assert_eq!(count(rows, "WRITE 64 KiB submitted by 4 threads"), 1, "{report}");
    assert!(ratios.iter().all(|it| it["verdict"] == "undecided" && it["ratio"]["n"] == 1), "{report}");
    let costs = &report["costs"];
    assert_eq!((count(costs, "idle engine"), count(costs, "8 peers connected")), (2, 6), "{report}");
    assert_eq!(ratios.iter().filter(|it| it["beside"] == "memcpy").count(), 1, "{report}");
    let latencies =
        rows.as_array().expect("a list").iter().filter(|row| row["cells"][0]["latency"].is_object());
    assert!(latencies.count() > 0);
}

/// The rows are measured if the same-host path is available, and otherwise named with the reason.
#[test]
fn rows_of_one_machine_are_measured_or_say_why_not() {
    let rows = "^local, .*(WRITE 4 KiB|synchronous)";
    let options = ["--rounds", "1", "--seconds", "0.02", "--samples", "50"];
    let (ended, report) = json(&[&["sockets", "--rows", rows], &options[..]].concat());
    let rows = report["rows"].as_array().expect("a list");
    let names = rows.iter().filter_map(|row| row["row"].as_str());
    // With two CPUs there are rows of the reference alone.
    let names: Vec<_> = names.filter(|name| !name.ends_with(": the reference")).collect();
    let expected = [
        "local, own: WRITE 4 KiB × 1,024 scattered",
        "local, own: WRITE 4 KiB synchronous",
        "local, alloc: WRITE 4 KiB × 1,024 scattered",
    ];
    assert!(names.len() == 3 && expected.iter().all(|row| names.contains(row)), "{report}");
    for cell in rows.iter().map(|row| &row["cells"][1]).filter(|cell| cell["outcome"] != "measured") {
        assert!(cell["reason"].as_str().is_some_and(|reason| reason.contains("UNAVAILABLE")), "{cell}");
        assert!(ended.out.contains("UNAVAILABLE"), "{}", ended.out);
    }
}

#[test]
fn rows_that_are_no_expression_are_refused() {
    assert_failure(&run(&["sockets", "--rows", "("]), &["--rows"]);
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
    for (row, cell) in found
        .iter()
        .flat_map(|row| row["cells"].as_array().expect("a list").iter().map(move |cell| (row, cell)))
    {
        assert!(cell["outcome"] == "measured", "{row}: {cell}");
    }
    assert!(ended.out.contains("undecided: too few rounds"), "{}", ended.out);
}
