//! The command line as users type it.

use clap::CommandFactory;

use crate::workload::Limit;

use super::*;

/// What the words after `ferry-bench` come to.
pub(crate) fn settle(line: &str) -> Result<Settings, String> {
    let words = std::iter::once("ferry-bench").chain(line.split_whitespace());
    let command = Cli::try_parse_from(words).map_err(|e| e.to_string())?.command;
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
    assert_eq!((s.host.as_deref(), s.port, &s.sizes[..], s.tx_depth), (None, 18_515, &[65_536][..], 128));
    assert_eq!((s.limit, s.requests, s.layout), (Limit::Transfers(1_000), 1, Layout::Contiguous));
    let s = settle("write_lat localhost").expect("a client");
    assert_eq!((s.host.as_deref(), &s.sizes[..], s.tx_depth), (Some("localhost"), &[2][..], 1));
}

#[test]
fn all_sizes_are_2_to_2_to_the_23() {
    let sizes = settle("write_bw -a host").expect("a client").sizes;
    assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8_388_608));
}

#[test]
fn options_may_stand_before_and_after_the_host() {
    let s =
        settle("write_bw -s 16k -l 1024 host -D 3 --layout scattered -q 2 --report_gbits").expect("a client");
    assert_eq!((&s.sizes[..], s.requests, s.limit), (&[16_384][..], 1_024, Limit::Seconds(3.0)));
    assert_eq!((s.layout, s.lanes, s.report_gbits), (Layout::Scattered, Some(2), true));
}

#[test]
fn options_of_rdma_go_with_rdma_and_auto() {
    for transport in ["rdma", "auto"] {
        let line = "-d rva0,rvb0 -x 1 -m 4096 -I 64 -q 2 --acked-only host";
        let s = settle(&format!("write_bw --transport {transport} {line}")).expect("a client");
        assert_eq!((s.rdma.devices.as_deref(), s.rdma.gid_index), (Some("rva0,rvb0"), Some(1)));
        assert_eq!((s.rdma.mtu, s.rdma.inline_bytes, s.lanes), (Some(4_096), Some(64), Some(2)));
        assert!(s.acked_only);
    }
    assert!(!settle("read_lat --transport rdma host").expect("a client").acked_only);
}

#[test]
fn sizes_have_a_first_and_a_last() {
    assert_eq!(settle("write_bw -s 1 host").expect("the smallest").sizes, [1]);
    assert_eq!(settle("write_bw -s 1024m host").expect("the largest").sizes, [1 << 30]);
    for size in ["0", "1073741825", "1025m", "x", "", "-1", "99999999999999999999m"] {
        refusal(&format!("write_bw --size={size} host"));
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
        ("write_bw --json out.json", "HOST"),
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
