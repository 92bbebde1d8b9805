//! `ferry-bench` as users run it: a server process and a client process, the options on which they agree, and their
//! failures.

// Each test program uses its own part of it.
#[allow(dead_code)]
mod support;

use serde_json::Value;
use support::{assert_failure, assert_success, json_of, measure, Server};

const TESTS: [&str; 5] = ["write_bw", "read_bw", "write_lat", "read_lat", "notify_lat"];

#[test]
fn every_test_runs_between_two_processes() {
    for test in TESTS {
        let validation = if test == "notify_lat" { "" } else { "--data_validation" };
        let (client, server) = measure(test, "", &format!("-n 50 {validation}"));
        assert_success(&client);
        assert_success(&server);
        let rule = "-".repeat(87);
        assert_eq!(client.out.lines().filter(|line| *line == rule).count(), 3, "{}", client.out);
    }
}

#[test]
fn options_reach_the_run_and_the_file() {
    let line = "-s 4k -l 64 -t 3 -n 20 -q 1 --layout scattered --transport tcp --data_validation \
                --memory own --report_gbits --cpu_util";
    let (client, report) = json_of("read_bw", line);
    assert!(client.out.contains("BW peak[Gb/sec]") && client.out.contains("CPU_Util[%]"), "{}", client.out);
    assert!(client.out.contains("scattered"), "{}", client.out);
    let size = &report["sizes"][0];
    assert_eq!((&report["test"], &size["request_bytes"]), (&"read_bw".into(), &4_096.into()));
    assert_eq!((&size["transfers"], &size["bytes"]), (&20.into(), &(20 * 64 * 4_096).into()));
    for (key, value) in [
        ("transfers_in_flight", Value::from(3)),
        ("requests_per_transfer", 64.into()),
        ("lanes", 1.into()),
        ("layout", "scattered".into()),
        ("memory", "own".into()),
        ("transport", "tcp".into()),
        ("data_validation", true.into()),
        ("bidirectional", false.into()),
    ] {
        assert_eq!(report["options"][key], value, "{key}");
    }
    assert!(report["path"].as_str().is_some_and(|path| path.starts_with("tcp (")), "{report}");
}

#[test]
fn the_file_has_every_size_with_all_its_figures() {
    let (_, report) = json_of("write_bw", "-a -n 5 -t 2");
    let sizes = report["sizes"].as_array().expect("a list");
    assert_eq!((sizes.len(), &sizes[22]["request_bytes"]), (23, &8_388_608.into()));
    let bandwidth = [
        "peak_gb_per_second",
        "median_gb_per_second",
        "average_gb_per_second",
        "average_gib_per_second",
        "requests_per_second",
        "cpu_seconds_per_gib_both_ends",
    ];
    assert!(sizes.iter().all(|size| bandwidth.iter().all(|key| size[key].is_f64())), "{report}");
    let (_, report) = json_of("notify_lat", "-a -n 20");
    let sizes = report["sizes"].as_array().expect("a list");
    assert_eq!((sizes.len(), &sizes[13]["request_bytes"]), (14, &16_384.into()));
    let latency = ["min_us", "p50_us", "p90_us", "p99_us", "p99_9_us", "max_us", "mean_us", "stdev_us"];
    assert!(sizes.iter().all(|size| latency.iter().all(|key| size[key].is_f64())), "{report}");
    for key in ["tool", "version", "units", "machine", "path", "options"] {
        assert!(!report[key].is_null(), "{key}");
    }
}

#[test]
fn both_directions_at_once_are_summed_and_checked() {
    for test in ["write_bw", "read_bw"] {
        let line = "-b -s 64k -l 4 -t 4 -n 40 --layout scattered --data_validation";
        let (_, report) = json_of(test, line);
        let size = &report["sizes"][0];
        assert_eq!((&size["transfers"], &report["options"]["bidirectional"]), (&80.into(), &true.into()));
    }
}

/// The lines of a table from its heading on, without the rule.
fn table(out: &str) -> Vec<&str> {
    let lines = out.lines().skip_while(|line| !line.starts_with(" #bytes"));
    lines.filter(|line| line.starts_with(' ')).collect()
}

#[test]
fn the_server_shows_the_clients_table() {
    for (test, line) in
        [("write_bw", "-a -n 5 -t 2 --report_gbits"), ("write_lat", "-n 20"), ("notify_lat", "-n 20")]
    {
        let (client, server) = measure(test, "", line);
        assert_success(&server);
        let rows = table(&client.out);
        assert_eq!(rows.len(), if line.starts_with("-a") { 24 } else { 2 }, "{}", client.out);
        assert_eq!(table(&server.out), rows, "{}", server.out);
    }
}

#[test]
fn cold_transfers_are_measured_apart() {
    let (client, report) = json_of("write_bw", "-n 50 -s 64k --data_validation");
    assert!(
        client.out.contains(" Warm-up         : 10 transfers of each size, not counted"),
        "{}",
        client.out
    );
    let size = &report["sizes"][0];
    assert_eq!((&size["transfers"], &size["warm_up"]["transfers"]), (&50.into(), &10.into()));
    assert!(size["warm_up"]["gb_per_second"].is_f64(), "{report}");
    let (client, report) = json_of("write_bw", "-n 50 -s 64k --warm-up 0");
    assert!(client.out.contains(" Warm-up         : off"), "{}", client.out);
    assert!(report["sizes"][0]["warm_up"].is_null() && report["options"]["warm_up"].is_null(), "{report}");
    let (_, report) = json_of("write_lat", "-n 20 --warm-up 30");
    assert_eq!(report["sizes"][0]["samples"], 20);
    assert_eq!(report["options"]["warm_up"], "30 transfers");
}

#[test]
fn without_a_peak_there_is_one_batch() {
    let (client, report) = json_of("write_bw", "-N -n 20 -F -c RC");
    let size = &report["sizes"][0];
    assert_eq!(
        (&size["transfers"], size["batches_gb_per_second"].as_array().map(Vec::len)),
        (&20.into(), Some(1))
    );
    let row = table(&client.out)[1].split_whitespace().nth(2).map(str::to_owned);
    assert_eq!(row.as_deref(), Some("0.00"), "{}", client.out);
}

#[test]
fn an_endless_test_shows_row_after_row_and_turns_others_away_until_it_is_stopped() {
    let server = Server::start("write_bw", "");
    let rows = server.rows_of_endless_client("write_bw", "--run_infinitely -D 1 -s 64k -t 4", 2, || {
        let address = format!("127.0.0.1:{}", server.address.rsplit(':').next().expect("a port"));
        let second = support::run(&["read_bw", &address]);
        assert_failure(&second, &[&format!("the server at {address}"), "busy with another client"]);
    });
    assert!(rows.iter().all(|row| row.starts_with(" 65536 ")), "{rows:?}");
    assert_failure(&server.end(), &["the other end is lost"]);
}

#[test]
fn a_plot_is_drawn_of_every_size() {
    let file = support::temporary("svg");
    let (client, _) = measure("read_bw", "", &format!("-a -n 5 --plot {}", file.path().display()));
    assert_success(&client);
    let svg = support::text(&file);
    // Two lines, average and peak, of 23 sizes.
    assert_eq!(svg.matches("<circle").count(), 46, "{svg}");
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("READ BW Test, GB/s"),
        "{svg}"
    );
}

#[test]
fn what_is_piped_has_no_bar_and_no_colour() {
    let (client, server) = measure("write_bw", "", "-D 1 -s 64k -t 4");
    assert_success(&client);
    assert_eq!((client.errors.as_str(), server.errors.as_str()), ("", ""));
    assert!(!client.out.contains('\x1b') && !client.out.contains('\r'), "{}", client.out);
}

#[test]
fn a_duration_lasts_and_samples_are_listed() {
    let (_, report) = json_of("write_bw", "-D 1 -s 64k -t 4");
    let seconds = report["sizes"][0]["seconds"].as_f64().expect("a number");
    assert!(seconds >= 1.0, "{seconds}");
    let (client, _) = measure("write_lat", "", "-n 30 -U -H");
    assert!(client.out.contains("#, usec\n1, ") && client.out.contains("\n30, "), "{}", client.out);
    assert!(client.out.contains("percentile") && client.out.contains("100.0000"), "{}", client.out);
}

#[test]
fn a_ping_pong_over_any_transport_brings_what_was_sent() {
    for transport in ["tcp", "local"] {
        for (memory, bytes) in
            [("alloc", "1"), ("own", "2"), ("alloc", "64"), ("own", "65"), ("alloc", "200k")]
        {
            let line = format!("--pingpong -n 100 -s {bytes} --memory {memory} --transport {transport}");
            let (client, server) = measure("write_lat", "", &format!("{line} --data_validation"));
            assert_success(&client);
            assert_success(&server);
            assert!(client.out.contains("two applications that poll their memory"), "{}", client.out);
        }
    }
}

#[test]
fn a_ping_pong_has_all_sizes_and_a_duration() {
    let (_, report) = json_of("write_lat", "--pingpong -a -n 20 --data_validation");
    let sizes = report["sizes"].as_array().expect("a list");
    assert_eq!((sizes.len(), &report["options"]["pingpong"]), (23, &true.into()));
    let (_, report) = json_of("write_lat", "--pingpong -D 1");
    let (samples, mean) = (&report["sizes"][0]["samples"], &report["sizes"][0]["mean_us"]);
    let seconds = samples.as_f64().expect("a count") * mean.as_f64().expect("a time") * 2e-6;
    assert!((0.9..10.0).contains(&seconds), "{report}");
}

#[test]
fn a_secret_is_shared_or_nothing_is_measured() {
    let secrets = ["one", "two"].map(support::secret);
    let [one, two] = secrets.each_ref().map(|file| format!("--secret-file {}", file.path().display()));
    let (client, server) = measure("write_bw", &one, &format!("-n 10 --data_validation {one}"));
    assert_success(&client);
    assert_success(&server);
    let server = Server::start("write_bw", &one);
    for other in [two, String::new()] {
        let client = server.client("write_bw", &format!("-n 10 {other}"));
        assert_failure(&client, &["give both ends the same --secret-file", "REFUSED"]);
    }
}

#[test]
fn ends_that_were_told_different_things_say_so() {
    for (server, client, named) in [
        ("-s 4k", "-s 8k", "-s or -a is 4096 at the server and 8192 at the client"),
        ("-n 10", "-D 1", "-n or -D is 10 transfers at the server and 1 s at the client"),
        ("-b", "-n 10", "-b is on at the server and off at the client"),
        ("--spin-us 0", "-n 10", "--spin-us is 0 at the server and 50 at the client"),
        ("--memory own", "-n 10", "--memory is own at the server and alloc at the client"),
        ("--acked-only", "-n 10", "--acked-only is on at the server and off at the client"),
        ("-q 4", "-n 10", "-q is 4 at the server and 2 at the client"),
    ] {
        let (client, server) = measure("write_bw", server, client);
        assert_failure(&client, &["the server refuses", named]);
        assert_failure(&server, &[named]);
    }
    let server = Server::start("read_bw", "");
    let client = server.client("write_bw", "-n 10");
    assert_failure(&client, &["the test is read_bw at the server and write_bw at the client"]);
}

#[test]
fn one_wrong_byte_fails_both_ends_where_it_is_found() {
    for (test, place) in
        [("write_bw", "at the server"), ("read_bw", "at the client"), ("write_lat", "at the server")]
    {
        let (client, server) = measure(test, "", "-n 10 --data_validation --spoil");
        assert_failure(&client, &["wrong data at byte", place]);
        if place == "at the server" {
            assert_failure(&server, &["wrong data at byte"]);
        }
    }
    let (client, server) = measure("write_lat", "", "--pingpong -n 10 --data_validation --spoil");
    assert_failure(&client, &["wrong data at byte", "at the server"]);
    assert_failure(&server, &["wrong data at byte"]);
    // Without a check the damaged byte stays unnoticed.
    let (client, _) = measure("write_bw", "", "-n 10 --spoil");
    assert_success(&client);
}

#[test]
fn a_transport_that_is_not_there_is_named_with_the_reason() {
    let server = Server::start("write_bw", "");
    if !support::has_rdma() {
        let client = server.client("write_bw", "-n 10 --transport rdma -q 2 -I 64 --acked-only");
        assert_failure(&client, &["UNAVAILABLE", "rdma: "]);
    }
    // Either end names a missing device before it looks for the other.
    for end in [&["write_bw", "-d", "ferry_none0", "127.0.0.1:1"][..], &["write_bw", "-d", "ferry_none0"]] {
        assert_failure(&support::run(end), &["-d ferry_none0: this host has no such RDMA device"]);
    }
}

#[test]
fn a_client_takes_the_address_that_the_server_prints() {
    let environment = [("FERRY_ADVERTISE_ADDRESS", "localhost:0")];
    let mut hosts = vec!["localhost"];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        hosts.push("[::1]");
    }
    for host in hosts {
        let server = Server::start_in(&environment, "write_bw", "");
        let address = server.address.replace("localhost", host);
        let client = support::run(&["write_bw", "-n", "10", &address]);
        assert_success(&client);
        assert_success(&server.end());
        assert!(
            client.out.contains(" Path            : ") && !client.out.contains("not used"),
            "{}",
            client.out
        );
    }
    let (client, _) = measure("write_bw", "", "-v -n 10");
    assert!(client.out.contains("not used: ") && client.out.contains(" Machine "), "{}", client.out);
}

#[test]
fn no_server_and_no_port_are_errors() {
    let client = support::run(&["write_bw", "-n", "1", "-p", "1", "127.0.0.1"]);
    let start = "nothing listens at 127.0.0.1:1: start `ferry-bench write_bw -p 1` there first";
    assert_failure(&client, &[start, "UNREACHABLE"]);
    let client = support::run(&["write_bw", "--json", "/nowhere/x.json", "127.0.0.1:1"]);
    assert_failure(&client, &["writing /nowhere/x.json"]);
    let taken = std::net::TcpListener::bind("0.0.0.0:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let server = support::run(&["write_bw", "-p", &port]);
    assert_failure(&server, &[&format!("port {port} is taken; choose another -p"), "listening on"]);
    let client = support::run(&["write_bw", "-s", "1g", "-l", "65", "127.0.0.1:1"]);
    assert_failure(&client, &["make -s or -l smaller"]);
}

#[test]
fn the_selftest_passes_and_its_file_has_every_part() {
    let (_, report) = support::json(&["selftest"]);
    let parts = report["parts"].as_array().expect("a list");
    let tests: Vec<_> = parts.iter().filter_map(|part| part["test"].as_str()).collect();
    let expected = ["write_bw", "read_bw", "write_bw", "read_bw", "write_lat", "read_lat", "notify_lat"];
    assert_eq!(tests, expected);
    assert!(parts.iter().all(|part| part["sizes"].as_array().is_some_and(|sizes| sizes.len() == 1)));
}

#[test]
fn the_selftest_fails_on_one_wrong_byte() {
    assert_failure(&support::run(&["selftest", "--spoil"]), &["wrong data at byte"]);
}
