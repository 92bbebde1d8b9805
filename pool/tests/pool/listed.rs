//! Nodes that a directory lists, without a service: `static:`. pool/program/tests has etcd.

use std::time::Duration;

use ferry::Status;
use ferry_pool::{DirectoryOptions, Outcome, Pool, PoolOptions};

use crate::{engine, key, wait_for, PATIENCE};

#[test]
fn nodes_find_each_other_in_a_list() {
    let engines = [engine(), engine()];
    let at = |nth: usize| engines[nth].address().to_owned();
    // The third one is another cluster's.
    let list = format!("static:pool/ferry/a={},pool/ferry/b={},pool/other/c=127.0.0.1:1", at(0), at(1));
    let pools = [0, 1].map(|nth: usize| {
        let (name, directory) = (["a", "b"][nth].into(), Some(list.clone()));
        let options = PoolOptions { name, directory, memory_bytes: 1 << 20, ..PoolOptions::default() };
        Pool::open(&engines[nth], options).unwrap()
    });
    for (nth, pool) in pools.iter().enumerate() {
        wait_for(pool, 2);
        let listed = pool.nodes();
        assert_eq!((listed.len(), listed[1].address.clone()), (2, at(1 - nth)));
        assert_eq!(pool.exists(&[key(1)], false, PATIENCE).unwrap()[0].outcome, Outcome::Absent);
    }
    pools.iter().for_each(|pool| pool.close(PATIENCE).unwrap());
}

#[test]
fn a_directory_that_cannot_be_is_named() {
    let engine = engine();
    let of = |url: &str| PoolOptions { directory: Some(url.into()), ..PoolOptions::default() };
    let member = |name: &str| PoolOptions {
        name: name.into(),
        memory_bytes: 1 << 20,
        ..of("static:pool/ferry/a=h:1")
    };
    let brief = DirectoryOptions { open_timeout: Some(Duration::from_millis(100)), ..Default::default() };
    let never = DirectoryOptions { open_timeout: None, ..Default::default() };
    let long = DirectoryOptions { ttl: Duration::from_secs(3_601), ..Default::default() };
    let etcd = || of("etcd:http://127.0.0.1:1/a");
    for (options, status, says) in [
        (of("consul:a"), Status::Invalid, "options.directory: url begins neither"),
        (of("etcd:http://"), Status::Invalid, "options.directory: "),
        (
            member("b"),
            Status::Invalid,
            "options.directory: name: the list of the static: directory has no pool/ferry/b",
        ),
        (member("two words"), Status::Invalid, "options.directory: name is \"pool/ferry/two words\""),
        (
            PoolOptions { cluster: "a b".into(), ..of("static:") },
            Status::Invalid,
            "options.directory: prefix is",
        ),
        (PoolOptions { cluster: "a/b".into(), ..of("static:") }, Status::Invalid, "options.cluster and name"),
        (
            PoolOptions { directory_options: brief, ..etcd() },
            Status::Unreachable,
            "options.directory: url: etcd",
        ),
        (
            PoolOptions { directory_options: never, ..etcd() },
            Status::Invalid,
            "options.directory_options.open_timeout",
        ),
        (
            PoolOptions { directory_options: long, ..etcd() },
            Status::Invalid,
            "options.directory: ttl is 3601s",
        ),
    ] {
        let error = Pool::open(&engine, options).unwrap_err();
        assert!(error.status == status && error.message.starts_with(says), "{error}");
    }
    // Each has given the engine back.
    Pool::open(&engine, PoolOptions::default()).unwrap().close(PATIENCE).unwrap();
}
