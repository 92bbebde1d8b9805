//! The command line as users type it.

use clap::CommandFactory;

use crate::subject::Term;
use crate::workload::Limit;

use super::*;

/// Parses and settles the words after `ferry-bench`.
pub(crate) fn settle(line: &str) -> Result<Settings, String> {
    let words = std::iter::once("ferry-bench").chain(line.split_whitespace());
    let command = Cli::read(words).map_err(|e| e.to_string())?.command;
    let (test, arguments) = command.into_test().expect("a line of these tests names a test");
    arguments.settle(test)
}

fn refusal(line: &str) -> String {
    settle(line).expect_err(line)
}

#[test]
fn the_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_perftests() {
    let s = settle("write_bw").expect("a server");
    assert_eq!(
        (s.server.as_deref(), s.said.port, &s.sizes[..], s.tx_depth),
        (None, None, &[65_536][..], 128)
    );
    assert_eq!((s.limit, s.requests, s.said.layout), (Limit::Transfers(1_000), 1, Layout::Contiguous));
    let s = settle("write_lat localhost").expect("a client");
    assert_eq!((s.server.as_deref(), &s.sizes[..], s.tx_depth), (Some("localhost:18515"), &[2][..], 1));
}

#[test]
fn all_sizes_are_2_to_2_to_the_23() {
    let sizes = settle("write_bw -a host").expect("a client").sizes;
    assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8_388_608));
}

#[test]
fn options_may_stand_before_and_after_the_host() {
    let s = settle("ib_write_bw -s 16k --post_list 1024 host -D 3 --layout scattered -q 2 --report_gbits")
        .expect("a client");
    assert_eq!((&s.sizes[..], s.requests, s.limit), (&[16_384][..], 1_024, Limit::Seconds(3.0)));
    assert_eq!((s.said.layout, s.said.lanes, s.said.report_gbits), (Layout::Scattered, Some(2), true));
}

#[test]
fn options_of_rdma_go_with_rdma_and_auto() {
    for transport in ["rdma", "auto"] {
        let line = "-d rva0,rvb0 -x 1 -m 4096 -I 64 -q 2 --acked-only host";
        let s = settle(&format!("write_bw --transport {transport} {line}")).expect("a client");
        assert_eq!((s.said.rdma.devices.as_deref(), s.said.rdma.gid_index), (Some("rva0,rvb0"), Some(1)));
        assert_eq!(
            (s.said.rdma.mtu, s.said.rdma.inline_bytes, s.said.lanes),
            (Some(4_096), Some(64), Some(2))
        );
        assert!(s.said.acked_only);
    }
    assert!(!settle("read_lat --transport rdma host").expect("a client").said.acked_only);
}

#[test]
fn perftests_options_with_a_meaning_are_taken() {
    let s = settle("write_bw -F -N -c RC --perform_warm_up --run_infinitely host").expect("a client");
    assert!(s.said.perftest.no_peak && s.said.perftest.run_infinitely);
    assert_eq!((s.limit, s.warm_up), (Limit::Seconds(5.0), Some(Limit::Seconds(1.0))));
    assert_eq!(settle("write_bw --run_infinitely -D 2 host").expect("a client").limit, Limit::Seconds(2.0));
    assert_eq!(settle("write_bw -F").expect("a server").limit, Limit::Transfers(1_000));
}

#[test]
fn cold_transfers_are_left_out_unless_they_are_wanted() {
    for (line, expected) in [
        ("write_bw host", Some(Limit::Transfers(200))),
        ("write_bw -n 6 host", Some(Limit::Transfers(2))),
        ("write_bw -n 1 host", Some(Limit::Transfers(1))),
        ("read_bw -D 2 host", Some(Limit::Seconds(0.4))),
        ("read_bw -D 60 host", Some(Limit::Seconds(1.0))),
        ("write_lat host", Some(Limit::Transfers(100))),
        ("notify_lat -n 99 host", Some(Limit::Transfers(99))),
        ("read_lat -D 5 host", Some(Limit::Transfers(100))),
        ("write_bw --warm-up 7 host", Some(Limit::Transfers(7))),
        ("write_bw --warm-up 0.5 -D 5 host", Some(Limit::Seconds(0.5))),
        ("write_bw --warm-up 0 host", None),
        ("write_lat --warm-up 0 -D 5 host", None),
    ] {
        assert_eq!(settle(line).expect(line).warm_up, expected, "{line}");
    }
}

#[test]
fn sizes_have_a_first_and_a_last() {
    assert_eq!(settle("write_bw -s 1 host").expect("the smallest").sizes, [1]);
    assert_eq!(settle("write_bw -s 1024m host").expect("the largest").sizes, [1 << 30]);
    for (size, bytes) in
        [("1M", 1 << 20), ("1MiB", 1 << 20), ("64k", 65_536), ("64KiB", 65_536), ("1g", 1 << 30)]
    {
        assert_eq!(settle(&format!("write_bw -s {size} host")).expect(size).sizes, [bytes]);
    }
    for size in ["0", "1073741825", "1025m", "2g", "99999999999999999999m"] {
        assert!(refusal(&format!("write_bw -s {size} host")).contains("from 1 byte to 1 GiB"), "{size}");
    }
    for size in ["x", "1kb", "1.5m", "k"] {
        assert!(refusal(&format!("write_bw -s {size} host")).contains("as 65536, 64k or 64KiB"), "{size}");
    }
}

#[test]
fn contradictions_name_the_option() {
    for (line, named) in [
        ("write_bw -a -s 8 host", "--size"),
        ("write_bw -n 5 -D 1 host", "--duration"),
        ("write_bw -H host", "-H belongs to latency"),
        ("write_bw -U host", "-U belongs to latency"),
        ("write_lat -b host", "-b belongs to bandwidth"),
        ("write_lat -t 4 host", "-t belongs to bandwidth"),
        ("write_lat -l 4 host", "-l belongs to bandwidth"),
        ("write_lat --layout scattered host", "--layout scattered"),
        ("write_lat -a -H host", "one size"),
        ("notify_lat --data_validation host", "carries none"),
        ("write_bw --json out.json", "--json is the client's: name the HOST"),
        ("write_bw --plot out.svg", "--plot is the client's: name the HOST"),
        ("write_bw -R host", "perftest's -R connects by rdma_cm"),
        ("write_bw -Fz host", "--transport rdma"),
        ("write_bw -r 512 host", "-t sets the transfers in flight"),
        ("write_bw -S 3 host", "perftest's -S sets a field of the packets' headers"),
        ("write_bw -i1 host", "the first active one of each device. -d chooses"),
        ("write_bw --output=message_rate host", "here --json FILE has all"),
        ("write_bw --output bandwidth host", "here --json FILE has all"),
        ("ib_read_bw --use_rocm=0 host", "--use_cuda=N and --use_ascend=N"),
        ("write_bw --wait_destroy 1 host", "Leave it out"),
        ("write_bw --nonsense host", "unexpected argument '--nonsense'"),
        ("write_bw -c UC host", "over RDMA ferry uses RC"),
        ("write_bw -s -1 host", "no option takes a negative number such as -1"),
        ("write_bw -n 1M host", "\"1M\" is no whole number, or too large, for --iters"),
        ("write_bw host:7000 -p 7001", "host:7000 says port 7000, and -p says 7001"),
        ("ib_send_bw host", "ib_send_bw is no test; the first word is write_bw"),
        ("write_lat -N host", "-N belongs to bandwidth"),
        ("write_bw --run_infinitely -n 5 host", "--iters"),
        ("write_bw --run_infinitely -a host", "--all"),
        ("write_bw --run_infinitely --json x host", "--json"),
        ("write_bw --warm-up 1.5 -n 10 host", "--warm-up 1.5 is no number of transfers"),
        ("write_bw --warm-up=-1 host", "from 0"),
        ("write_bw --warm-up NaN host", "from 0"),
        ("write_bw -n 0 host", "--iters"),
        ("write_bw -t 0 host", "from 1"),
        ("write_bw -D 0 host", "--duration"),
        ("write_bw --transport pigeon host", "pigeon"),
        ("write_bw --transport tcp -d rva0 host", "-d is of RDMA, and --transport tcp uses none"),
        ("write_bw --transport local -x 1 host", "-x is of RDMA"),
        ("write_lat --transport tcp -m 1024 host", "-m is of RDMA"),
        ("write_lat --transport tcp -I 0 host", "-I is of RDMA"),
        ("write_bw --transport tcp --acked-only host", "--acked-only is of RDMA"),
        ("read_bw --transport rdma --acked-only host", "--acked-only belongs to WRITE"),
        ("notify_lat --acked-only host", "--acked-only belongs to WRITE"),
        ("write_bw --pingpong host", "--pingpong belongs to write_lat"),
        ("read_lat --pingpong host", "--pingpong belongs to write_lat"),
        ("write_bw --use_cuda=0 --use_ascend=0 host", "--use_ascend"),
        ("notify_lat --use_cuda=1 host", "--use_cuda=1 is of memory, and a notification carries none"),
        ("write_lat --pingpong --use_ascend=2 host", "--use_ascend=2 says it is a device's"),
        ("write_bw --use_cuda=-1 host", "--use_cuda"),
        ("write_bw -m 1000 host", "4096"),
        ("write_bw -x 256 host", "--gid-index"),
        ("write_bw -I 1025 host", "--inline_size"),
        ("write_bw -d rva0,,rvb0 host", "separated by commas"),
    ] {
        let text = refusal(line);
        assert!(text.contains(named), "{line}: {text}");
    }
}

/// Returns the server's answer to a client, both given by their command lines.
fn accept(server: &str, client: &str) -> Result<(), String> {
    let config = ferry::Config::new().expect("no FERRY_ variable is wrong");
    let terms = |line: &str| {
        let Settings { test, said, .. } = settle(line).expect(line);
        let mut config = config.clone();
        if let Some(spin_us) = said.spin_us {
            config.set("spin_us", &spin_us.to_string()).expect("a number");
        }
        said.terms(test, &config)
    };
    let stated: Vec<_> = terms(client).into_iter().map(Term::state).collect();
    crate::subject::accept(&terms(server), &stated)
}

#[test]
fn what_the_server_was_not_told_is_the_clients_to_choose() {
    let client = "write_bw -a -D 3 -t 3 -l 2 -b --data_validation --layout scattered --memory own -q 1 host";
    assert_eq!(accept("write_bw", client), Ok(()));
    assert_eq!(accept("write_bw -a -D 3 -t 3 -l 2 -b --memory own -q 1", client), Ok(()));
    assert_eq!(accept("write_lat", "write_lat --pingpong --acked-only --transport rdma host"), Ok(()));
}

#[test]
fn every_difference_is_named_with_both_values() {
    let server = "write_bw -a -D 3 -t 1 -l 2 -b --data_validation --acked-only --layout scattered \
                  --memory own --transport rdma -q 4 --spin-us 0";
    let text = accept(server, "read_bw -l 16 -q 2 --spin-us 50 host").expect_err("all differ");
    for part in [
        "the test is write_bw at the server and read_bw at the client",
        "-s or -a is 23 sizes from 2 to 8388608 at the server and 65536 at the client",
        "-n or -D is 3 s at the server and 1000 transfers",
        "-t is 1 at the server and 128",
        "-l is 2 at the server and 16",
        "-b is on at the server and off",
        "--data_validation is on at the server and off",
        "--acked-only is on at the server and off",
        "--layout is scattered at the server and contiguous",
        "--memory is own at the server and alloc",
        "--transport is rdma at the server and auto",
        "-q is 4 at the server and 2",
        "--spin-us is 0 at the server and 50",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = accept("write_lat --pingpong", "write_lat host").expect_err("one differs");
    let only = "differ: --pingpong is on at the server and off at the client. Give both ends the same, or";
    assert!(text.contains(only), "{text}");
}
