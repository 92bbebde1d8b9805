//! Memory of devices at either end, over the stand-ins for the devices' libraries, with the options that users give.

// Each test program uses its own part of it.
#[allow(dead_code)]
mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use support::{assert_failure, assert_success, run_in, Server};

const STANDIN: &str = "the figures are a stand-in's and say nothing about speed";

/// Returns the variables that name the stand-ins. They are built once, unless FERRY_TEST_STANDIN names their folder.
fn libraries() -> [(&'static str, &'static str); 2] {
    static PATHS: OnceLock<[String; 2]> = OnceLock::new();
    let [cuda, ascend] = PATHS.get_or_init(|| {
        let named = std::env::var_os("FERRY_TEST_STANDIN").map(PathBuf::from);
        let folder = named.unwrap_or_else(|| {
            let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("standin");
            std::fs::create_dir_all(&folder).expect("a folder");
            let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/standin/build.sh");
            let built = Command::new(build).arg(&folder).status();
            assert!(built.expect(build).success(), "{build}");
            folder
        });
        ["cuda-12.8/libcuda.so.1", "cann-9.1/libascendcl.so"]
            .map(|name| folder.join(name).display().to_string())
    });
    [("FERRY_CUDA_LIBRARY", cuda), ("FERRY_ASCEND_LIBRARY", ascend)]
}

#[test]
fn either_end_may_have_memory_of_a_device() {
    for (at_server, at_client) in [
        ("--use_cuda=0", ""),
        ("", "--use_ascend=0"),
        ("--use_ascend=1", "--use_cuda=1"),
        ("--use_cuda=1", "--use_cuda=0"),
    ] {
        for (test, shape) in [
            ("write_bw", "-s 16k -l 16 -n 20 --layout scattered"),
            ("read_bw", "-s 1000 -l 16 -n 20 --layout scattered"),
            ("write_bw", "-s 64k -n 10 -b"),
            ("read_lat", "-s 4k -n 20"),
        ] {
            let server = Server::start_in(&libraries(), test, at_server);
            let line = format!("{shape} --data_validation {at_client}");
            let client = server.client_in(&libraries(), test, &line);
            assert_success(&client);
            assert_success(&server.end());
            assert!(client.out.contains(STANDIN), "{}", client.out);
            for (end, said) in [("Client", at_client), ("Server", at_server)] {
                let line = client.out.lines().find(|line| line.trim_start().starts_with(end)).expect(end);
                let named = match said.split_once('=') {
                    Some(("--use_cuda", device)) => format!("CUDA device {device}"),
                    Some((_, device)) => format!("Ascend device {device}"),
                    None => "memory of the host".to_owned(),
                };
                assert!(line.contains(&named), "{named}: {line}");
            }
        }
    }
}

#[test]
fn one_wrong_byte_in_a_device_s_memory_is_found() {
    for (test, at_server, at_client) in [
        ("write_bw", "--use_cuda=0", ""),
        ("read_bw", "", "--use_ascend=0"),
        ("write_bw", "--use_ascend=0", ""),
    ] {
        let server = Server::start_in(&libraries(), test, at_server);
        let line = format!("-s 4k -n 5 --data_validation --spoil {at_client}");
        assert_failure(&server.client_in(&libraries(), test, &line), &["wrong data at byte"]);
    }
}

#[test]
fn the_selftest_runs_with_a_device_at_either_end_and_both() {
    for (device, named) in [("--use_cuda=1", "CUDA device 1"), ("--use_ascend=0", "Ascend device 0")] {
        let ended = run_in(&libraries(), &["selftest", device]);
        assert_success(&ended);
        for end in ["Client", "Server"] {
            let lines = ended.out.lines().filter(|line| line.trim_start().starts_with(end));
            let (of_device, of_host): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(named));
            assert_eq!((of_device.len(), of_host.len()), (12, 6), "{end}: {}", ended.out);
        }
        assert_eq!(ended.out.matches(STANDIN).count(), 18, "{}", ended.out);
        assert_failure(&run_in(&libraries(), &["selftest", device, "--spoil"]), &["wrong data at byte"]);
    }
}

#[test]
fn what_is_not_there_is_unavailable_with_the_reason() {
    for (environment, device, said) in [
        (&libraries()[..], "--use_cuda=2", "there is no device 2"),
        (&libraries(), "--use_ascend=2", "has devices 0 to 1"),
        (&[("FERRY_CUDA_LIBRARY", "/nowhere/libcuda.so")], "--use_cuda=0", "/nowhere/libcuda.so"),
        (&[("FERRY_ASCEND_LIBRARY", "/nowhere/libacl.so")], "--use_ascend=0", "/nowhere/libacl.so"),
    ] {
        assert_failure(&run_in(environment, &["selftest", device]), &[device, "UNAVAILABLE", said]);
        let server = Server::start("write_bw", "");
        let client = server.client_in(environment, "write_bw", device);
        assert_failure(&client, &[device, "UNAVAILABLE", said]);
        let server = Server::start_in(environment, "write_bw", device);
        assert_failure(&server.client("write_bw", ""), &["the server refuses", device, "UNAVAILABLE", said]);
    }
}

#[test]
fn words_that_contradict_each_other_name_the_option() {
    for (line, said) in [
        (&["selftest", "--use_cuda=0", "--use_ascend=0"][..], "--use_ascend"),
        (&["write_bw", "--use_cuda=0", "--use_ascend=0", "127.0.0.1"], "--use_ascend"),
        (&["write_lat", "--pingpong", "--use_cuda=0", "127.0.0.1"], "--use_cuda=0 says it is a device's"),
    ] {
        assert_failure(&run_in(&libraries(), line), &[said]);
    }
    // Each end learns the other end's options only when they connect.
    let server = Server::start_in(&libraries(), "write_lat", "--use_cuda=0");
    assert_failure(&server.client("write_lat", "--pingpong"), &["the server refuses", "--pingpong"]);
}
