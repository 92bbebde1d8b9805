//! The engines in the comparison, and their settings. The reasons for the peers' best settings are in docs/bench.md
//! ("Beside the peers").

use std::path::{Path, PathBuf};

use clap::Args;
use ferry_bench::subject::Origin;
use ferry_bench::workload::Engine;
use serde_json::{json, Value};

use super::python::Launch;
use super::rows::WALK_BYTES;
use crate::raw::same_host::SameHostEngine;
use crate::raw::{RawEngine, CONGESTION_CONTROL};

/// Names by which the targets refer to engines.
pub const RAW_TCP: &str = "raw TCP";
pub const RAW_VM_1: &str = "raw process_vm ×1";
pub const RAW_VM_2: &str = "raw process_vm ×2";
pub const RAW_SHARED: &str = "raw shared copy ×2";
pub const FERRY_TCP: &str = "ferry tcp";
pub const FERRY_LOCAL: &str = "ferry local, own memory";
pub const FERRY_LOCAL_ALLOCATED: &str = "ferry local, allocated";
pub const FERRY_AUTO: &str = "ferry auto, own memory";
pub const FERRY_AUTO_ALLOCATED: &str = "ferry auto, allocated";
pub const MOONCAKE: &str = "Mooncake TCP default";
pub const MOONCAKE_BEST: &str = "Mooncake TCP best";
pub const NIXL_TCP: &str = "NIXL UCX-TCP default";
pub const NIXL_TCP_BEST: &str = "NIXL UCX-TCP best";
pub const NIXL_AUTO: &str = "NIXL auto default";
pub const NIXL_AUTO_BEST: &str = "NIXL auto best";
pub const NIXL_FERRY_TCP: &str = "NIXL over ferry, tcp";
pub const NIXL_FERRY_AUTO: &str = "NIXL over ferry, auto";

/// A reference of this program, an engine driven from Python, or a reference for the bulk and Python for the rest.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: &'static str,
    pub settings: String,
    pub reference: Option<Start>,
    pub python: Option<Launch>,
    /// The reason why the engine cannot take part, if that is known beforehand.
    pub absent: Option<String>,
}

/// Paths of the programs and files.
#[derive(Args, Clone, Debug)]
pub struct Places {
    /// The Python that has the peers' wheels
    #[arg(long, default_value = "python3")]
    pub python: PathBuf,
    /// Where agent.py and the engines are
    #[arg(long, default_value = "benches/compare/peers")]
    pub scripts: PathBuf,
    /// ferry's library
    #[arg(long, default_value = "target/release/libferry.so")]
    pub library: PathBuf,
    /// The folder of libplugin_FERRY.so
    #[arg(long, default_value = "target/nixl")]
    pub plugins: PathBuf,
    /// What the engines print is appended to this file
    #[arg(long, default_value = "/dev/null")]
    pub log: PathBuf,
    /// Folder with a file PEER.failed for each peer that could not be installed
    #[arg(long)]
    pub install: Option<PathBuf>,
    /// Made for the comparison.
    #[arg(skip)]
    pub secret: PathBuf,
}

/// Starts a raw reference from a program, this one, whose child is the other end.
pub type Start = fn(&Path) -> anyhow::Result<Box<dyn Engine>>;

fn tcp(program: &Path) -> anyhow::Result<Box<dyn Engine>> {
    Ok(Box::new(RawEngine::start_best(program, WALK_BYTES, CONGESTION_CONTROL)?))
}

fn shared(program: &Path) -> anyhow::Result<Box<dyn Engine>> {
    Ok(Box::new(SameHostEngine::start(program, Origin::Alloc, WALK_BYTES, 2)?))
}

fn vm<const THREADS: usize>(program: &Path) -> anyhow::Result<Box<dyn Engine>> {
    Ok(Box::new(SameHostEngine::start(program, Origin::Own, WALK_BYTES, THREADS)?))
}

pub fn entries(places: &Places) -> Vec<Entry> {
    let raw = [
        raw(
            RAW_TCP,
            "sockets, gathering and scattering in place; best of 1, 2, 4 connections and 1 to 8 in flight per row; \
             reno; latency from Rust, spinning 50 µs",
            tcp,
        ),
        raw_vm(places, RAW_VM_1, 1, vm::<1>),
        raw_vm(places, RAW_VM_2, 2, vm::<2>),
        raw(RAW_SHARED, "two threads copy into and out of the target's mapping; latency from Rust", shared),
    ];
    let ferry = FERRY.map(|variant| ferry(places, variant));
    let mooncake = MOONCAKES.map(|variant| mooncake(places, variant));
    let nixl = NIXLS.map(|variant| nixl(places, variant));
    let over_ferry = NIXLS_OVER_FERRY.map(|variant| nixl_over_ferry(places, variant));
    raw.into_iter().chain(ferry).chain(mooncake).chain(nixl).chain(over_ferry).collect()
}

fn raw(name: &'static str, settings: &str, reference: Start) -> Entry {
    let settings = settings.to_owned();
    Entry { name, settings, reference: Some(reference), python: None, absent: None }
}

fn raw_vm(places: &Places, name: &'static str, threads: usize, reference: Start) -> Entry {
    let settings = format!(
        "process_vm_writev and readv from {threads} thread(s), best of several counts of blocks a call; latency, \
         and four peers, from Python"
    );
    let entry = python(places, name, settings, launch(places, "vm", json!({"threads": threads}), &[]));
    Entry { reference: Some(reference), ..entry }
}

/// Names, transports, and whether ferry allocates the memory.
const FERRY: [(&str, &str, bool); 5] = [
    (FERRY_TCP, "tcp", false),
    (FERRY_LOCAL, "local", false),
    (FERRY_LOCAL_ALLOCATED, "local", true),
    (FERRY_AUTO, "auto", false),
    (FERRY_AUTO_ALLOCATED, "auto", true),
];

fn ferry(places: &Places, (name, transports, allocated): (&'static str, &str, bool)) -> Entry {
    let memory = if allocated { "memory of ferry_memory_alloc" } else { "the caller's memory" };
    let settings = format!("transports={transports}, secret, otherwise defaults; {memory}; 4 in flight");
    let options = json!({
        "library": places.library,
        "settings": {"transports": transports, "secret_file": places.secret},
        "allocated": allocated,
    });
    python(places, name, settings, launch(places, "ferry", options, &[]))
}

type Variables = &'static [(&'static str, &'static str)];

/// Names, batches in flight, and variables. Queues are long enough for 1,024 blocks and more: the default refuses a
/// second batch of that size.
const MOONCAKES: [(&str, usize, Variables); 2] = [
    (MOONCAKE, 1, &[]),
    (
        MOONCAKE_BEST,
        2,
        &[
            ("MC_TCP_ENABLE_CONNECTION_POOL", "1"),
            ("MC_TCP_LANES_PER_PEER", "8"),
            ("MC_TCP_SLICE_SIZE", "1048576"),
            ("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "65535"),
            ("MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", "65535"),
            ("MC_LOG_LEVEL", "WARNING"),
        ],
    ),
];

fn mooncake(places: &Places, (name, in_flight, variables): (&'static str, usize, Variables)) -> Entry {
    let settings = format!("{}; {in_flight} batch(es) in flight", stated(variables));
    let options = json!({"in_flight": in_flight});
    python(places, name, settings, launch(places, "mooncake", options, variables))
}

const UCX_TCP: Variables = &[("UCX_TLS", "tcp")];
/// Names, whether the initiator has a progress thread, and variables.
const NIXLS: [(&str, bool, Variables); 4] = [
    (NIXL_TCP, true, UCX_TCP),
    (NIXL_TCP_BEST, false, UCX_TCP),
    (NIXL_AUTO, true, &[]),
    (NIXL_AUTO_BEST, false, &[]),
];

fn nixl(places: &Places, (name, progress, variables): (&'static str, bool, Variables)) -> Entry {
    let thread = format!("progress thread {} at the initiator", if progress { "on" } else { "off" });
    let settings = format!("{}, {thread}; requests made ahead, 2 in flight", stated(variables));
    let options = json!({"progress_thread": progress, "in_flight": 2});
    let launch = launch(places, "nixl", options, variables);
    // The target needs the thread: nobody polls the target, so nothing else answers.
    python(places, name, settings, Launch { target: json!({}), polls_when_idle: true, ..launch })
}

/// Names, and the transports that ferry may use.
const NIXLS_OVER_FERRY: [(&str, &str); 2] = [(NIXL_FERRY_TCP, "tcp"), (NIXL_FERRY_AUTO, "auto")];

/// NIXL with ferry's plugin, as the programs that call NIXL get ferry.
fn nixl_over_ferry(places: &Places, (name, transports): (&'static str, &str)) -> Entry {
    let settings =
        format!("ferry's plugin, transports={transports}, secret; requests made ahead, 4 in flight");
    let options = json!({
        "plugins": places.plugins,
        "parameters": {
            "transports": transports, "secret_file": places.secret, "listen_address": "127.0.0.1:0",
        },
        "in_flight": 4,
    });
    python(places, name, settings, launch(places, "nixl", options, &[]))
}

/// Returns the command that starts both ends with the same options.
fn launch(places: &Places, engine: &str, options: Value, variables: Variables) -> Launch {
    Launch {
        python: places.python.clone(),
        agent: places.scripts.join("agent.py"),
        engine: engine.to_owned(),
        initiator: options.clone(),
        target: options,
        variables: variables.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        log: places.log.clone(),
        polls_when_idle: false,
    }
}

fn python(places: &Places, name: &'static str, settings: String, launch: Launch) -> Entry {
    let failed = places.install.as_ref().map(|folder| folder.join(format!("{}.failed", launch.engine)));
    let absent = failed.and_then(|path| std::fs::read_to_string(path).ok());
    let absent = absent.map(|reason| format!("it does not install: {}", reason.trim()));
    Entry { name, settings, reference: None, python: Some(launch), absent }
}

fn stated(variables: Variables) -> String {
    match variables {
        [] => "defaults".to_owned(),
        set => set.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(install: Option<PathBuf>) -> Places {
        let path = || PathBuf::from("x");
        let (python, scripts, library, plugins) = (path(), path(), path(), path());
        Places { python, scripts, library, plugins, secret: path(), log: path(), install }
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = entries(&places(None)).iter().map(|entry| entry.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_peer_that_did_not_install_is_absent_with_the_reason() {
        let folder = tempfile::tempdir().expect("a new folder");
        std::fs::write(folder.path().join("nixl.failed"), "no wheel for this Python\n").expect("written");
        for entry in entries(&places(Some(folder.path().to_owned()))) {
            let expected = entry.name.starts_with("NIXL");
            let reason = "it does not install: no wheel for this Python";
            assert_eq!(entry.absent.as_deref(), expected.then_some(reason), "{}", entry.name);
        }
    }
}
