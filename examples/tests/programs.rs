//! Runs the examples as a user does: as separate processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

#[test]
fn transfer_moves_bytes_between_two_processes() {
    let program = env!("CARGO_BIN_EXE_transfer");
    let mut target = Command::new(program).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(target.stdout.take().unwrap());
    let mut address = String::new();
    lines.read_line(&mut address).unwrap();

    let worker = Command::new(program).arg(address.trim()).output().unwrap();
    let text = String::from_utf8_lossy(&worker.stdout).into_owned();
    if !worker.status.success() {
        // The target waits for a notification that will not come.
        target.kill().unwrap();
    }
    let status = target.wait().unwrap();
    assert!(worker.status.success(), "{text}{}", String::from_utf8_lossy(&worker.stderr));
    assert!(text.contains("wrote 1048576 bytes over local") && text.contains("read 1048576 bytes"), "{text}");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(rest, "written: hello\ngoodbye: hello\n");
}

#[test]
fn exchange_finds_every_byte_in_its_place_on_both_sides() {
    let program = env!("CARGO_BIN_EXE_exchange");
    let mut server = Command::new(program).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let address = first.trim().strip_prefix("ADDRESS ").unwrap_or_default();

    let client = Command::new(program).args(["connect", address]).output().unwrap();
    if !client.status.success() {
        // The server waits for a notification that will not come.
        server.kill().unwrap();
    }
    let status = server.wait().unwrap();
    assert!(client.status.success(), "{first}{}", String::from_utf8_lossy(&client.stderr));
    assert_eq!(client.stdout, b"OK\n");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(rest, "OK\n");
}

/// A short sequence runs the same code as 4,096 tokens.
fn demo(more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv_demo"));
    command.args(["--tokens", "128", "--passes", "2"]).args(more).output().unwrap()
}

#[test]
fn the_demo_moves_the_cache_and_shows_the_table() {
    let output = demo(&[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    // 32 layers x K and V x 8 blocks, twice; 32 KiB each.
    for expected in
        ["push (WRITE)", "pull (READ)", "1,024", "33,554,432", "path local   used", "every 8 bytes"]
    {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
}

#[test]
fn the_demo_fails_when_blocks_arrive_in_the_wrong_place() {
    let output = demo(&["--corrupt"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("would belong to layer 0 K block 7 word 0 of pass 1"), "{errors}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("every 8 bytes"));
}

#[test]
fn a_wrong_option_is_refused() {
    for wrong in [&["--tokens", "15"][..], &["--passes", "0"], &["--bogus"], &["--tokens"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_kv_demo")).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}
