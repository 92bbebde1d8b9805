//! The program bounds what a tenant has of it: the secret is in a file, and the metrics say what the tenant has.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ferry::{Access, Config, Engine, RegionOptions};
use ferry_pool::{Identity, Keyspace, Outcome, Pool, PoolOptions, PutOptions, Value};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
const SECRET: &[u8] = b"the secret of the tenant";
/// A unit of the program's memory.
const BYTES: u64 = 16 << 10;

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn metrics(url: &str) -> String {
    let mut stream =
        TcpStream::connect(url.trim_start_matches("http://").trim_end_matches("/metrics")).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_tenant_has_no_more_of_the_program_than_its_quota() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let mut secret = std::fs::OpenOptions::new();
    secret.write(true).create_new(true).mode(0o600);
    secret.open(&file).unwrap().write_all(&[SECRET, b"\n"].concat()).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ferry-pool"))
        .args(["serve", "--memory", "4M", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .arg("--allow-unauthenticated")
        .env("FERRY_POOL_QUOTAS", format!("small=64K:{},plain=32K", file.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut program = Program(child);
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let mut word = || lines.next().unwrap().unwrap().rsplit(' ').next().unwrap().to_owned();
    let (url, address) = (word(), word());

    let mut config = Config::default();
    config.set("allow_unauthenticated", "true").unwrap();
    let engine = Engine::open(config).unwrap();
    let pool = Pool::open(&engine, PoolOptions { nodes: vec![address], ..PoolOptions::default() }).unwrap();
    pool.wait_for_nodes(2, PATIENCE).unwrap();
    let access = RegionOptions { access: Access::BOTH, ..RegionOptions::default() };
    let memory = engine.alloc(8 * BYTES as usize, &access).unwrap();
    let identity = Identity { model: "quota".into(), ..Identity::default() };
    let space = |tenant, secret| Keyspace::with_secret(tenant, secret, &identity).unwrap();
    let values = |space: &Keyspace| -> Vec<Value> {
        let place = |nth: u64| (memory.address() + nth * BYTES, BYTES);
        let key = |nth: u64| space.own(&nth.to_le_bytes()).unwrap();
        (0..8).map(|nth| Value { key: key(nth), memory: vec![place(nth)] }).collect()
    };
    let other = values(&space("small", None));
    let own = values(&space("small", Some(SECRET)));
    for all in [&other, &own] {
        for value in all {
            let one = std::slice::from_ref(value);
            let end = pool.put(one, &PutOptions::default(), PATIENCE).unwrap()[0];
            assert_eq!(end.outcome, Outcome::Ok);
        }
    }
    let held = |values: &[Value]| {
        let keys: Vec<_> = values.iter().map(|value| value.key).collect();
        let ends = pool.exists(&keys, false, PATIENCE).unwrap();
        ends.iter().map(|end| end.outcome == Outcome::Ok).collect::<Vec<_>>()
    };
    // The same tenant without the secret has other keys, and no quota.
    assert_eq!(held(&other), [true; 8]);
    let text = metrics(&url);
    for line in [
        "ferry_pool_tenant_bytes{tenant=\"small\"} 65536",
        "ferry_pool_tenant_values{tenant=\"small\"} 4",
        "ferry_pool_tenant_evictions_total{tenant=\"small\"} 4",
        "ferry_pool_tenant_bytes{tenant=\"plain\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let mut found = held(&own);
    while found[..4].contains(&true) {
        // The index hears of it after the caller.
        found = held(&own);
    }
    assert_eq!(found[4..], [true; 4]);
    pool.close(PATIENCE).unwrap();
}

#[test]
fn a_quota_without_a_size_is_told_and_no_node_begins() {
    let output = Command::new(env!("CARGO_BIN_EXE_ferry-pool"))
        .args([
            "serve",
            "--memory",
            "4M",
            "--listen",
            "127.0.0.1:0",
            "--allow-unauthenticated",
            "--quota",
            "a=many",
        ])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("--quota: the size of a; give TENANT=SIZE"), "{told}");
}
