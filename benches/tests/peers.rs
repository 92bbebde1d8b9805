//! `ferry-bench peers` from start to end with an engine that needs only Python: its rows, its table, its file, and a
//! check that can fail.

// Each test program uses its own part of it.
#[allow(dead_code)]
mod support;

use std::process::Command;

use serde_json::Value;
use support::{assert_failure, assert_success, run, temporary};

/// Runs the named rows with the bare system calls from one thread; returns the output and the JSON.
fn peers(rows: &str, more: &[&str]) -> Option<(String, Value)> {
    if !Command::new("python3").arg("--version").output().is_ok_and(|ended| ended.status.success()) {
        println!("SKIPPED: there is no python3");
        return None;
    }
    let file = temporary("json");
    let path = file.display().to_string();
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
    let common = ["peers", "--scripts", scripts, "--rows", rows, "--rounds", "2", "--seconds", "0.01"];
    let ended = run(&[&common, &["--samples", "50", "--json", &path][..], more].concat());
    assert_success(&ended);
    let text = std::fs::read_to_string(&file).expect("the file was written");
    std::fs::remove_file(&file).expect("removable");
    Some((ended.out, serde_json::from_str(&text).expect("one object")))
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
