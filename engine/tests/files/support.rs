//! Files of tests, and a pair of engines of which either end may name one.

use crate::common::data::check;
use crate::common::{run, wait_for_region, Pair};
use ferry::types::{Op, Request};
use ferry::{
    Access, Config, Engine, FileRegion, RegionOptions, State, Status, TransferOptions, TransferResult,
};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// The ways to read and write files.
pub const WAYS: [&str; 2] = ["io_uring", "threads"];

/// Returns the ways that this machine allows, and says aloud which it does not.
pub fn ways(test: &str) -> Vec<&'static str> {
    let works = |way: &&str| match register_by(way) {
        Ok(_) => true,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED files::{test} by {way}: {error} (1 skipped)");
            false
        }
    };
    WAYS.into_iter().filter(works).collect()
}

fn register_by(way: &str) -> Result<FileRegion, ferry::Error> {
    let mut config = Config::new().unwrap();
    config.set("file_io", way).unwrap();
    let engine = Engine::open(config).unwrap();
    engine.register_file(temporary(), 0, 4096, &RegionOptions::default())
}

/// A file without a name, for reading and writing.
pub fn temporary() -> File {
    let folder = std::env::temp_dir();
    let open =
        |flags| OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE | flags).open(&folder);
    open(0).unwrap()
}

pub fn holding(bytes: &[u8]) -> File {
    let file = temporary();
    file.write_all_at(bytes, 0).unwrap();
    file
}

pub fn bytes_of(file: &File, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset as u64).unwrap();
    bytes
}

pub fn check_file(what: &str, file: &File, offset: usize, expected: &[u8]) {
    check(what, &bytes_of(file, offset, expected.len()), expected);
}

pub fn open_region() -> RegionOptions {
    RegionOptions { access: Access::BOTH, ..RegionOptions::default() }
}

pub fn pair(way: &str, transports: &str) -> Pair {
    Pair::new(&[("file_io", way), ("transports", transports)])
}

/// Registers a range of a file at `b`, which `a` knows then.
pub fn at_b(pair: &Pair, file: &File, offset: u64, length: u64) -> FileRegion {
    let region = pair.b.register_file(file, offset, length, &open_region()).unwrap();
    wait_for_region(&pair.a, pair.b_at_a, region.region);
    region
}

pub fn to_b(local: u64, region: &FileRegion, at: usize, length: usize) -> Request {
    Request { local, remote: region.address + at as u64, length: length as u64, remote_region: region.region }
}

pub fn moved(pair: &Pair, op: Op, requests: &[Request]) -> TransferResult {
    run(&pair.a, pair.b_at_a, op, requests, &TransferOptions::default())
}

/// Moves, and returns each request's status and errno.
pub fn results(pair: &Pair, op: Op, requests: &[Request]) -> Vec<(Status, i32)> {
    let options = TransferOptions { no_coalesce: true, ..TransferOptions::default() };
    let transfer = pair.a.submit(pair.b_at_a, op, requests, &options).unwrap();
    transfer.wait(Some(crate::common::PATIENCE)).unwrap();
    transfer.results().iter().map(|result| (result.status, result.os_error)).collect()
}

pub fn done(what: &str, result: &TransferResult) {
    assert_eq!((result.state, result.status), (State::Done, Status::Ok), "{what}");
}
