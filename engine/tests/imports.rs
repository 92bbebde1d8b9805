//! The import table of `engine/src`, and the house rules that can be checked line by line: imports point down, unsafe
//! code stays in few places, library code does not panic. Reads the sources; code must not use what the reader cannot
//! see (macros that build paths, `#[macro_use]`).
//!
//! `imports/scan.rs` turns a file into tokens without its tests and into the paths that the file names; the rules and
//! their tables are here. A violation is printed as `file:line: what`. Above 500 lines because the tables, which stand
//! beside the rules that read them, are most of the file.

#[path = "imports/comments.rs"]
mod comments;
#[path = "imports/scan.rs"]
mod scan;

use scan::{functions, Kind, Scan};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Top to bottom. A module may import from lines below its own; modules on one line do not import each other.
/// `command` carries transfers, and `peer` sends commands, so `command` lies between the two.
const LAYERS: &[&[&str]] = &[
    // Hands parts of all modules on to tests.
    &["internals"],
    &["api"],
    &["plan"],
    &["control", "transport", "stage"],
    &["context"],
    &["peer", "session"],
    &["command"],
    &["complete"],
    &["notify"],
    &["region"],
    &["device"],
    // Settings depend on the rights of the process.
    &["config", "schedule"],
    &["sys"],
    // Plain data and its rules from here on. Modules on every layer ask `route` about a path.
    &["route"],
    &["stats"],
    &["request_map", "handle", "lists", "loss", "try_reserve"],
    &["status"],
    &["limits", "types"],
];

/// Imports that point down and are still forbidden: `plan` and `route` are pure, and `api` passes them all they need.
const PURE: &[&str] = &["plan", "route"];
const PURE_MAY: &[&str] = &["region", "request_map", "handle", "limits", "try_reserve", "status", "types"];

/// Imports against the rules above: (file, imported path, reason).
const IMPORT_EXCEPTIONS: &[(&str, &str, &str)] =
    &[("engine/src/loss.rs", "sys::clock", "a loss has the time of day at which this side saw it")];

/// Crates over the engine, whose files keep the same rules; they contain the C interfaces.
const EDGES: [&str; 2] = ["ffi/src", "bindings/mooncake/src"];

/// Files that word operating-system errors: `status::reason`, and the resolver's errors, which have no number.
const REASONS_IN: [&str; 2] = ["engine/src/status.rs", "engine/src/sys/os/names.rs"];

/// Places where unsafe code is allowed, besides all of `EDGES`.
const UNSAFE_IN: &[(&str, &str)] = &[
    ("engine/src/sys/", "the operating system's edge"),
    ("engine/src/transport/", "posts the caller's memory"),
    ("engine/src/api/memory.rs", "storage: `register` takes the caller's promise about its memory"),
    ("engine/src/api/local.rs", "reads registered memory for the libraries above"),
    ("engine/src/api/devices.rs", "`hold_stream` takes the caller's promise about its stream"),
    ("engine/src/device/mod.rs", "`Start` takes the caller's promise about its event or stream"),
];

/// Accesses that assume that nobody else uses the memory. Registered memory is never accessed so: peers and the
/// application may use it at any time (`sys::racing`).
const PLAIN_ACCESS: &[&str] = &["from_raw_parts", "from_raw_parts_mut", "copy_nonoverlapping"];
/// Further places for such accesses: (file, the memory).
const PLAIN_ACCESS_IN: &[(&str, &str)] = &[
    ("engine/src/sys/os/copy.rs", "between two mapped ranges, where nothing looks at the bytes"),
    ("engine/src/sys/os/verbs/chain.rs", "work requests of this process alone"),
    ("engine/src/sys/os/verbs/device.rs", "the library's list of devices"),
];

/// Assertions outside tests: (file, macro, count, why it may stop the process).
const ASSERTIONS: &[(&str, &str, usize, &str)] = &[
    ("engine/src/api/memory.rs", "unreachable", 1, "the mapping is taken only by drop"),
    ("engine/src/complete/transfer.rs", "debug_assert", 2, "memory freed early, or DONE without the bytes"),
    ("engine/src/handle.rs", "debug_assert", 1, "tables give only parts that fit"),
    ("engine/src/notify/queue.rs", "assert", 1, "a reservation used twice would lose another's event"),
    ("engine/src/region/gate.rs", "assert", 1, "left more often than entered: revoke would return early"),
    ("engine/src/session/handshake/wire.rs", "assert", 1, "our own frames are bounded by construction"),
    ("engine/src/sys/os/unforked.rs", "assert_eq", 1, "keeps a call from being a jump; it cannot fail"),
    ("engine/src/sys/os/mapping.rs", "assert", 3, "bounds of an access to raw memory, as slices check"),
    ("engine/src/sys/sim/mapping.rs", "assert", 3, "the same"),
    (
        "engine/src/sys/os/verbs/library.rs",
        "unreachable",
        1,
        "objects to call with come from the open library alone",
    ),
    ("engine/src/sys/os/verbs/chain.rs", "assert", 2, "bounds of an access to raw memory, as slices check"),
    ("engine/src/sys/stream.rs", "unreachable", 2, "only `release` takes the socket, and consumes"),
    ("engine/src/transport/tcp/wire.rs", "debug_assert", 1, "padding is below the alignment"),
];

/// Internals of the engine that files of ferry-bench and ferry-compare may name: (path's beginning, part of
/// `ferry::internals`, reason). Other crates don't switch the feature on.
const INTERNALS_IN: &[(&str, &str, &str)] = &[
    ("benches/tool/src/device", "sys::acl", "plays the host program that allocates a device's memory"),
    ("benches/tool/src/device", "sys::cuda", "the same"),
    (
        "benches/compare/src/raw",
        "sys",
        "a reference makes the engine's system calls by the engine's wrappers, and nothing else",
    ),
    ("benches/tool/src/memory.rs", "sys::mapping", "maps memory that ferry did not allocate"),
    ("benches/tool/src/subject", "sys::socket::poll_readable", "waits for a queue and a socket at once"),
    ("benches/tool/src/subject", "sys::random_bytes", "draws the secret of a run"),
];

/// Manifests that name the feature `internals`. The libraries that are shipped are built without it.
const INTERNALS_BY: &[(&str, &str)] = &[
    ("engine", "has the feature, and switches it on for its own tests"),
    ("benches/tool", "allocates device memory, and waits for a queue as the engine does"),
    ("benches/compare", "its references use it"),
    ("fuzz", "the fuzz targets call the parsers and the state machines"),
    ("kv", "a test breaks an engine; on the simulated kernel it takes what the engine takes"),
    ("directory", "a test breaks an engine"),
    ("ffi", "a test breaks an engine"),
];

/// Places where std's locks and threads, or `sys::bare`, may be named: the locks that mark a broken engine are made of
/// them.
const BARE: &[(&str, &str)] = &[
    ("engine/src/sys/os/bare.rs", "hands them on"),
    (
        "engine/src/internals.rs",
        "hands those of the simulated kernel on to ferry-kv, in the feature `sim` alone",
    ),
    ("engine/src/sys/health.rs", "what is kept of a broken engine itself"),
    ("engine/src/sys/lock.rs", "wraps them"),
    ("engine/src/sys/thread.rs", "starts them"),
    (
        "engine/src/notify/waiter.rs",
        "a model checker's take their place; nothing that can panic runs under them",
    ),
    ("engine/src/region/mod.rs", "the same"),
];
const BARE_LOCKS: [&str; 2] = ["sys", "bare"];
const BARE_NAMES: &[&str] = &["Condvar", "Mutex", "RwLock", "Builder", "spawn"];

/// What reads a clock, lets a thread wait, draws at random, makes a connection or asks the machine, and the variables
/// by which threads hand work to each other: (module of std or a crate, its names, empty for all). Only `sys` uses
/// them, so that one place has all that a simulation must replace.
const OF_SYS: &[(&str, &[&str])] = &[
    ("Instant", &["now"]),
    ("SystemTime", &["now"]),
    (
        "std",
        &[
            "now",
            "thread",
            "spin_loop",
            "mpsc",
            "atomic",
            "Barrier",
            "LazyLock",
            "Once",
            "OnceLock",
            "thread_local",
            "TcpListener",
            "TcpStream",
            "ToSocketAddrs",
            "UdpSocket",
            "UnixDatagram",
            "UnixListener",
            "UnixStream",
            "OwnedFd",
            "env",
            "fs",
            "process",
            "hash_map",
            "hash_set",
            "HashMap",
            "HashSet",
            "RandomState",
            "DefaultHasher",
        ],
    ),
    // These make a map with std's random hasher: `default` makes one with that of `sys::map`.
    ("HashMap", &["from", "new", "with_capacity"]),
    ("HashSet", &["from", "new", "with_capacity"]),
    ("collections", &["hash_map", "hash_set", "HashMap", "HashSet"]),
    ("thread", &["sleep", "park", "park_timeout", "yield_now"]),
    ("hint", &["spin_loop"]),
    ("getrandom", &[]),
    ("socket2", &[]),
];

/// Places outside `sys` that may use them: (file, the path after its root, reason).
const OF_SYS_EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("engine/src/config/mod.rs", "env", "settings: a simulation passes its own"),
    ("engine/src/config/secret.rs", "fs", "a setting that names a file"),
    ("engine/src/config/secret.rs", "os::unix::fs", "the same"),
    ("engine/src/transport/ascend/across.rs", "fs", "the addresses of real devices"),
    ("engine/src/transport/rdma/discovery.rs", "fs", "the list of real devices"),
    ("engine/src/transport/rdma/locality.rs", "fs", "where real devices are"),
    ("engine/src/stats.rs", "sync::atomic", "counters: a thread that adds hands nothing over"),
];

/// Statics outside `sys` that are not a process's own (`sys::local::process_local`): (file, name, why all processes of
/// a simulation may share it).
const STATICS: &[(&str, &str, &str)] = &[
    ("engine/src/config/mod.rs", "SETTINGS", "a table of constants"),
    ("engine/src/transport/tcp/landing.rs", "SINK_BYTES", "nothing reads these bytes"),
];

/// Names with which a thread waits. The threads of an engine wait in the driver of their turns alone (`sys::turns`), so
/// that a simulation can take its place; `sys` keeps the start of threads and the wait of pollers to itself.
const WAITS: &[&str] = &["Condvar", "sleep", "yield_now"];
/// Places outside `sys` that may name them: (file, the wait).
const WAITS_IN: &[(&str, &str)] = &[
    ("engine/src/api/burial.rs", "teardown of a broken engine, on its last thread"),
    ("engine/src/api/closing.rs", "a caller, for the threads to end"),
    ("engine/src/command.rs", "a caller, for the control loop's answer"),
    ("engine/src/device/worker.rs", "for copies under way, after a panic"),
    ("engine/src/internals.rs", "hands the simulated sleep on to ferry-kv, in the feature `sim` alone"),
    ("engine/src/notify/dispatcher.rs", "a caller, for the end of a callback"),
    ("engine/src/notify/waiter.rs", "a caller, for the end of a transfer or an event"),
    ("engine/src/region/gate.rs", "a caller, for a region's users"),
    ("engine/src/region/grants.rs", "a caller, for a region's users in other processes"),
    ("engine/src/region/mod.rs", "the same, as the model checker has it"),
    ("engine/src/region/teardown.rs", "a caller, for the region's other unregistration"),
    ("engine/src/transport/ascend/across.rs", "for servers to end, when their device is closed"),
    ("engine/src/transport/rdma/closing.rs", "for a device's last completions, for a bounded time"),
    ("engine/src/transport/rdma/key_holders.rs", "a caller, for the peers that hold keys"),
    ("engine/src/transport/rdma/path.rs", "a caller, for its transfer"),
];

const LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 80;
const SAFETY_WITHIN_LINES: usize = 4;
const METHODS_FORBIDDEN: &[&str] = &["expect", "expect_err", "unwrap", "unwrap_err"];
const MACROS_FORBIDDEN: &[&str] =
    &["dbg", "eprint", "eprintln", "panic", "print", "println", "todo", "unimplemented"];
const MACROS_COUNTED: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "unreachable",
];

/// A source file: its path from the workspace's root, and its text.
#[derive(Clone)]
struct File {
    path: String,
    text: String,
}

/// The violations, as `file:line: what`.
#[derive(Default)]
struct Report(Vec<String>);

impl Report {
    fn add(&mut self, file: &File, line: usize, what: impl AsRef<str>) {
        self.0.push(format!("{}:{line}: {}", file.path, what.as_ref()));
    }

    fn assert_empty(mut self) {
        self.0.sort();
        let list = self.0.iter().fold(String::new(), |mut list, line| {
            let _ = writeln!(list, "  {line}");
            list
        });
        assert!(self.0.is_empty(), "{} violations:\n{list}", self.0.len());
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads all Rust files below `folder`.
fn read(folder: &str) -> Vec<File> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(next) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                files.push(File { path, text });
            }
        }
    }
    files
}

/// Reads the files below `folder` without those that only tests compile.
fn sources(folder: &str) -> Vec<File> {
    let mut files = read(folder);
    let tests: Vec<String> = files.iter().flat_map(|file| scan::test_files(&file.path, &file.text)).collect();
    files.retain(|file| !is_test(&file.path) && !tests.contains(&file.path));
    files
}

/// Decides by name: a component is or ends with `tests`.
fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part.trim_end_matches(".rs").ends_with("tests"))
}

/// Returns the modules that `path` lies in: `engine/src/a/b.rs` and `engine/src/a/b/mod.rs` are a, b.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner).trim_end_matches(".rs");
    let parts = inner.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main"));
    parts.map(str::to_owned).collect()
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Checks the table, and that transports do not import one another.
fn check_imports(file: &File, scan: &Scan, report: &mut Report) {
    let module = module_of(&file.path);
    // lib.rs names every module: it is the list of them.
    let Some(own) = module.first() else { return };
    let Some(own_layer) = layer_of(own) else {
        return report.add(file, 1, format!("module `{own}` has no place in LAYERS of tests/imports.rs"));
    };
    for path in &scan.paths(&module) {
        let name = path.parts.join("::");
        let excepted = |(at, what, _): &(&str, &str, &str)| *at == file.path && name.starts_with(what);
        if IMPORT_EXCEPTIONS.iter().any(excepted) {
            continue;
        }
        let Some(other) = path.parts.first().filter(|first| layer_of(first).is_some()) else {
            report.add(file, path.line, format!("`crate::{name}`: name the module that defines it"));
            continue;
        };
        if other != own && layer_of(other) <= Some(own_layer) {
            report.add(file, path.line, format!("`{own}` imports `{name}`, which is not below it"));
        }
        if PURE.contains(&own.as_str()) && other != own && !PURE_MAY.contains(&other.as_str()) {
            report.add(file, path.line, format!("`{own}` is pure and may not import `{name}`"));
        }
        if other == "transport"
            && own == "transport"
            && module.len() > 1
            && path.parts.get(1) != module.get(1)
        {
            let this = &module[1];
            report.add(file, path.line, format!("`transport/{this}` imports `{name}`, not its own"));
        }
    }
}

fn check_unsafe(file: &File, scan: &Scan, report: &mut Report) {
    let edge = EDGES.iter().any(|folder| file.path.starts_with(folder));
    let allowed = edge || UNSAFE_IN.iter().any(|(at, _)| file.path.starts_with(at));
    for token in &scan.tokens {
        if token.is("extern") && !edge && !file.path.starts_with("engine/src/sys/") {
            report.add(file, token.line, "`extern`: foreign functions are declared in sys only");
        }
        if token.is("unsafe") && !allowed {
            report.add(file, token.line, "unsafe code outside ffi, sys, transport and UNSAFE_IN");
        }
    }
    check_argued(file, scan, report);
}

/// Each unsafe block says why it is sound.
fn check_argued(file: &File, scan: &Scan, report: &mut Report) {
    let lines: Vec<&str> = file.text.lines().collect();
    for (at, token) in scan.tokens.iter().enumerate().filter(|(_, token)| token.is("unsafe")) {
        let next = scan.tokens.get(at + 1).map_or("", |next| next.text.as_str());
        let above = token.line.saturating_sub(1 + SAFETY_WITHIN_LINES);
        let argued = lines[above..token.line].iter().any(|line| line.contains("SAFETY:"));
        if matches!(next, "{" | "impl") && !argued {
            report.add(
                file,
                token.line,
                format!("no SAFETY comment within {SAFETY_WITHIN_LINES} lines above"),
            );
        }
    }
}

fn check_plain_access(file: &File, scan: &Scan, report: &mut Report) {
    if PLAIN_ACCESS_IN.iter().any(|(path, _)| *path == file.path) {
        return;
    }
    for token in scan.tokens.iter().filter(|token| PLAIN_ACCESS.iter().any(|name| token.is(name))) {
        report.add(file, token.line, format!("`{}` outside PLAIN_ACCESS_IN", token.text));
    }
}

fn check_head(file: &File, report: &mut Report) {
    if !file.text.starts_with("//!") {
        report.add(file, 1, "does not start with `//!`");
    }
    let count = file.text.lines().count();
    let head = file.text.lines().take_while(|line| line.starts_with("//!"));
    if count > LINES_MAX && !head.into_iter().any(|line| line.contains("lines")) {
        report.add(file, count, format!("{count} lines, more than {LINES_MAX}, and `//!` does not say why"));
    }
}

fn check_functions(file: &File, report: &mut Report) {
    for (name, line, count) in functions(&file.text).iter().filter(|(.., count)| *count > FUNCTION_LINES_MAX)
    {
        report.add(file, *line, format!("`{name}` has {count} lines, more than {FUNCTION_LINES_MAX}"));
    }
}

fn check_panics(file: &File, scan: &Scan, report: &mut Report) {
    let mut found: Vec<(&str, Vec<usize>)> = MACROS_COUNTED.iter().map(|name| (*name, Vec::new())).collect();
    for (at, token) in scan.tokens.iter().enumerate() {
        let text = |offset: usize| scan.tokens.get(at + offset).map_or("", |next| next.text.as_str());
        let before = |back: usize| at.checked_sub(back).map_or("", |at| scan.tokens[at].text.as_str());
        if token.kind != Kind::Word {
            continue;
        }
        let name = token.text.as_str();
        if METHODS_FORBIDDEN.contains(&name) && text(1) == "(" && matches!(before(1), "." | "::") {
            report.add(file, token.line, format!("`{name}()` outside tests"));
        }
        if text(1) != "!" || text(2) == "=" {
            continue;
        }
        if MACROS_FORBIDDEN.contains(&name) {
            report.add(file, token.line, format!("`{name}!` outside tests"));
        }
        // The compiler checks `const _: () = assert!(…)`.
        let constant = before(1) == "=" && before(2) == ")" && before(5) == "_" && before(6) == "const";
        if let Some((_, lines)) = found.iter_mut().find(|(counted, _)| *counted == name && !constant) {
            lines.push(token.line);
        }
    }
    for (name, lines) in found {
        let listed = ASSERTIONS.iter().find(|(path, listed, ..)| *path == file.path && *listed == name);
        let count = listed.map_or(0, |(_, _, count, _)| *count);
        if lines.len() != count {
            let line = lines.last().copied().unwrap_or(1);
            let what = format!("{} `{name}!`, but ASSERTIONS has {count}: say there why", lines.len());
            report.add(file, line, what);
        }
    }
}

/// A lock without health would let other threads in behind a panic, and a thread without it would end unnoticed.
fn check_bare(file: &File, scan: &Scan, report: &mut Report) {
    if BARE.iter().any(|(at, _)| file.path == *at) {
        return;
    }
    for pair in scan.tokens.windows(3).filter(|it| it[0].is("fn") && it[1].is("lock") && it[2].text == "<") {
        report.add(file, pair[1].line, "a second `lock`: that of `sys::lock::Mutex` needs none around it");
    }
    for path in scan.paths_of("std") {
        let from = path.parts.first().is_some_and(|first| first == "sync" || first == "thread");
        if from && path.parts.iter().any(|part| BARE_NAMES.contains(&part.as_str())) {
            report.add(
                file,
                path.line,
                format!("`std::{}`: sys has those of engines", path.parts.join("::")),
            );
        }
    }
    for path in scan
        .paths(&module_of(&file.path))
        .iter()
        .filter(|path| path.parts.iter().zip(BARE_LOCKS).filter(|(part, name)| part == name).count() == 2)
    {
        report.add(file, path.line, "`sys::bare`: engines have the locks of `sys::lock`");
    }
}

/// Checks that time, waiting, randomness and connections come from `sys`.
fn check_of_sys(file: &File, scan: &Scan, report: &mut Report) {
    if file.path.starts_with("engine/src/sys/") {
        return;
    }
    for (root, names) in OF_SYS {
        let is_meant = |part: &String| names.is_empty() || names.contains(&part.as_str());
        for path in scan.paths_of(root).iter().filter(|path| path.parts.iter().any(is_meant)) {
            let name = path.parts.join("::");
            let excepted = |(at, what, _): &(&str, &str, &str)| *at == file.path && name.starts_with(what);
            if !OF_SYS_EXCEPTIONS.iter().any(excepted) {
                report.add(file, path.line, format!("`{root}::{name}`: sys has that"));
            }
        }
    }
    for call in scan.tokens.windows(3).filter(|it| it[0].is(".") && it[1].is("elapsed") && it[2].is("(")) {
        report.add(file, call[1].line, "`elapsed()` reads a clock: sys::clock has `now`");
    }
}

/// Checks that variables of threads and statics are those of `sys::local`.
fn check_variables(file: &File, scan: &Scan, report: &mut Report) {
    if file.path.starts_with("engine/src/sys/") {
        return;
    }
    let own = scan.calls_of(&["local", "process_local"]);
    for (at, token) in scan.tokens.iter().enumerate() {
        let next = scan.tokens.get(at + 1).map_or("", |next| next.text.as_str());
        if token.is("thread_local") && next == "!" {
            report.add(file, token.line, "`thread_local!`: sys has `local`");
        }
        let is_static = token.is("static") && !(at > 0 && scan.tokens[at - 1].is("'"));
        let listed = STATICS.iter().any(|(path, name, _)| *path == file.path && *name == next);
        if is_static && !listed && !own.iter().any(|call| call.contains(&at)) {
            report.add(file, token.line, format!("`static {next}`: sys has `process_local`"));
        }
    }
}

/// Checks that threads wait in `sys::turns`, and others in few places.
fn check_waits(file: &File, scan: &Scan, report: &mut Report) {
    if file.path.starts_with("engine/src/sys/") || WAITS_IN.iter().any(|(at, _)| file.path == *at) {
        return;
    }
    for token in scan.tokens.iter().filter(|token| WAITS.iter().any(|name| token.is(name))) {
        let what = format!("`{}` outside WAITS_IN: a thread's turn does not wait (sys::turns)", token.text);
        report.add(file, token.line, what);
    }
}

/// Checks that no text has an operating-system error in Rust's words, which end in "(os error 111)": `status::reason`
/// has the system's own. By name: in a text, `error` is such an error, and errors of other kinds have other names.
fn check_reasons(file: &File, scan: &Scan, report: &mut Report) {
    if REASONS_IN.contains(&file.path.as_str()) {
        return;
    }
    let tokens = &scan.tokens;
    for literal in tokens.iter().filter(|token| token.kind == Kind::Literal && token.text.contains("{error}"))
    {
        // thiserror's attribute formats the field `error`, an error of ferry.
        if literal.text != "{error}" {
            report.add(file, literal.line, "an operating-system error in a text: `status::reason` words it");
        }
    }
    for call in tokens.windows(4).filter(|it| it[0].is("error") && it[2].is("to_string") && it[3].is("(")) {
        report.add(file, call[0].line, "`error.to_string()`: `status::reason` words it");
    }
    for call in scan.calls_of(&["format", "format_args", "write"]) {
        for at in call {
            let (before, after) = (&tokens[at - 1], tokens.get(at + 1));
            let is_argument =
                tokens[at].is("error") && before.is(",") && after.is_some_and(|it| it.is(",") || it.is(")"));
            if is_argument || tokens[at].is("last_os_error") {
                report.add(
                    file,
                    tokens[at].line,
                    "an operating-system error in a text: `status::reason` words it",
                );
            }
        }
    }
}

/// Reports internals of the engine that a file may not name.
fn check_internals(file: &File, scan: &Scan, report: &mut Report) {
    for path in scan.paths_of("ferry") {
        // `use ferry as x` and `use ferry::*` hide what is named.
        let parts = match path.parts.first().map(String::as_str) {
            Some("internals") => &path.parts[1..],
            Some("*") => &path.parts[..],
            _ => continue,
        };
        let used = parts.join("::");
        let within =
            |part: &str| used == *part || used.strip_prefix(part).is_some_and(|rest| rest.starts_with("::"));
        if !INTERNALS_IN.iter().any(|(at, part, _)| file.path.starts_with(at) && within(part)) {
            report.add(file, path.line, format!("`ferry::internals::{used}` is not in INTERNALS_IN"));
        }
    }
}

#[test]
fn the_engine_keeps_its_import_table_and_house_rules() {
    let mut report = Report::default();
    let files = sources("engine/src");
    assert!(files.len() > 50, "only {} files found", files.len());
    for file in &files {
        let scan = Scan::new(&file.text);
        check_imports(file, &scan, &mut report);
        check_unsafe(file, &scan, &mut report);
        check_plain_access(file, &scan, &mut report);
        check_head(file, &mut report);
        check_functions(file, &mut report);
        check_panics(file, &scan, &mut report);
        check_bare(file, &scan, &mut report);
        check_of_sys(file, &scan, &mut report);
        check_variables(file, &scan, &mut report);
        check_waits(file, &scan, &mut report);
        check_reasons(file, &scan, &mut report);
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let named = ASSERTIONS.iter().map(|(path, ..)| ("ASSERTIONS", path));
    let named = named.chain(WAITS_IN.iter().map(|(path, _)| ("WAITS_IN", path)));
    let named = named.chain(OF_SYS_EXCEPTIONS.iter().map(|(path, ..)| ("OF_SYS_EXCEPTIONS", path)));
    let named = named.chain(STATICS.iter().map(|(path, ..)| ("STATICS", path)));
    for (table, path) in named.filter(|(_, path)| !paths.contains(path)) {
        report.0.push(format!("engine/tests/imports.rs:1: {table} names {path}, which is gone"));
    }
    report.assert_empty();
}

#[test]
fn the_crates_above_the_engine_keep_their_house_rules() {
    let mut report = Report::default();
    for file in [EDGES[0], EDGES[1], "kv/src", "pool/src", "directory/src"].map(sources).concat() {
        let scan = Scan::new(&file.text);
        check_unsafe(&file, &scan, &mut report);
        check_head(&file, &mut report);
        check_functions(&file, &mut report);
        check_panics(&file, &scan, &mut report);
        check_reasons(&file, &scan, &mut report);
    }
    for file in sources("benches") {
        check_internals(&file, &Scan::new(&file.text), &mut report);
    }
    for folder in [
        "engine",
        "kv",
        "pool",
        "directory",
        "ffi",
        "bindings/mooncake",
        "benches/tool",
        "benches/compare",
        "examples",
        "fuzz",
    ] {
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let named = manifest.contains("internals");
        let listed = INTERNALS_BY.iter().any(|(by, _)| *by == folder);
        assert_eq!(named, listed, "{folder}/Cargo.toml names `internals`, or INTERNALS_BY does");
        assert!(!manifest.lines().any(|line| line.starts_with("default =")), "{folder} has default features");
    }
    report.assert_empty();
}

/// Returns files that no module names: they are never compiled, but look as if they were.
fn orphans(files: &[File]) -> Vec<String> {
    // `sim/a.rs` takes the place of `a.rs`.
    let is_twin = |path: &str| {
        let Some((folder, name)) = path.split_once("/sim/") else { return false };
        let named = format!("#[cfg_attr(feature = \"sim\", path = \"sim/{name}\")]");
        let own = format!("{folder}/mod.rs");
        files.iter().any(|other| other.path == own && other.text.contains(&named))
    };
    let is_named = |file: &File| {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or_default();
        let (folder, name) = match name.trim_end_matches(".rs") {
            "lib" | "main" => return true,
            "mod" => folder.rsplit_once('/').unwrap_or_default(),
            name => (folder, name),
        };
        // Separate programs.
        if folder.ends_with("/bin") {
            return true;
        }
        let owners = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"].map(|end| format!("{folder}{end}"));
        let names = [format!("mod {name};"), format!("\"{name}.rs\"]"), format!("/{name}.rs\"]")];
        let siblings = files.iter().filter(|other| {
            owners.contains(&other.path) || other.path.rsplit_once('/').is_some_and(|(at, _)| at == folder)
        });
        siblings
            .filter(|other| other.path != file.path)
            .any(|other| names.iter().any(|it| other.text.contains(it)))
            || is_twin(&file.path)
    };
    files.iter().filter(|file| !is_named(file)).map(|file| file.path.clone()).collect()
}

#[test]
fn every_file_is_named_by_a_module() {
    for folder in [
        "engine/src",
        "ffi/src",
        "bindings/mooncake/src",
        "benches/tool/src",
        "benches/compare/src",
        "examples/src",
        "pool/sim/src",
        "sim/kernel/src",
        "sim/runs/src",
    ] {
        assert_eq!(orphans(&read(folder)), Vec::<String>::new(), "{folder}");
    }
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let files = [file("a/src/lib.rs", "mod b;"), file("a/src/b/mod.rs", "mod c;"), file("a/src/b/d.rs", "")];
    assert_eq!(orphans(&files), ["a/src/b/d.rs"]);
    let twin = "mod c; #[cfg_attr(feature = \"sim\", path = \"sim/e.rs\")] mod e;";
    let files = [file("a/src/b/mod.rs", twin), file("a/src/b/sim/e.rs", ""), file("a/src/b/sim/f.rs", "")];
    assert!(orphans(&files).ends_with(&["a/src/b/sim/f.rs".into()]) && orphans(&files).len() == 2);
}

/// The transport of the tests shows what a transport needs. No program that is shipped has it, and no number of the
/// ABI.
#[test]
fn the_transport_of_the_tests_is_short_and_theirs_alone() {
    const PATH: &str = "engine/src/transport/loopback.rs";
    const LINES: usize = 250;
    let file = read("engine/src/transport").into_iter().find(|file| file.path == PATH).unwrap();
    let lines = file.text.lines().count();
    assert!(lines < LINES, "{PATH} has {lines} lines, {LINES} are too many");
    assert!(
        sources("engine/src").iter().all(|file| file.path != PATH),
        "{PATH} is compiled for more than tests"
    );
    let mut shipped = ["ffi/src", "bindings", "benches", "examples"].map(sources).concat();
    let header = std::fs::read_to_string(root().join("include/ferry.h")).unwrap();
    shipped.push(File { path: "include/ferry.h".into(), text: header });
    for File { path, text } in &shipped {
        for name in ["Transport::Loopback", "TRANSPORT_LOOPBACK", "ALLOW_LOOPBACK"] {
            assert!(!text.contains(name), "{path} names {name}");
        }
    }
}

#[test]
fn comments_fit_a_line() {
    let mut report = Report::default();
    for folder in ["engine", "ffi", "bindings/mooncake", "benches", "examples", "sim"] {
        for file in read(folder) {
            for line in comments::too_long(&file.text) {
                report.add(&file, line, format!("a comment of more than {} columns", comments::COLUMNS_MAX));
            }
        }
    }
    report.assert_empty();
    let most = "x".repeat(comments::COLUMNS_MAX - 7);
    let text = format!(
        "    // {most}\n    // {most}x\n//! {most}─{most}\n    f(\"{most} // \");\nf(\"{most}\"); // x"
    );
    assert_eq!(comments::too_long(&text), [2, 3, 5]);
}

/// A predicate changes nothing: the name of what acts is a verb.
fn acting_predicates(text: &str) -> Vec<usize> {
    let is_predicate =
        |name: &str| ["is_", "has_", "have_", "can_", "are_"].iter().any(|word| name.starts_with(word));
    let acts = |line: &str| {
        let (name, arguments) = line.split_once("fn ")?.1.split_once('(')?;
        (is_predicate(name) && arguments.starts_with("&mut self")).then_some(())
    };
    let numbered = text.lines().enumerate();
    numbered.filter(|(_, line)| acts(line).is_some()).map(|(at, _)| at + 1).collect()
}

#[test]
fn predicates_change_nothing() {
    let mut report = Report::default();
    for folder in [
        "engine",
        "kv",
        "pool",
        "directory",
        "ffi",
        "bindings/mooncake",
        "benches",
        "examples",
        "fuzz",
        "sim",
    ] {
        for file in read(folder) {
            for line in acting_predicates(&file.text) {
                report.add(&file, line, "a predicate that takes &mut self");
            }
        }
    }
    report.assert_empty();
    let text =
        "fn is_a(&self)\nfn is_b(&mut self)\npub(super) fn has_c(&mut self, d: u8)\nfn isolate(&mut self)";
    assert_eq!(acting_predicates(text), [2, 3]);
}

/// The simulation panics where a program or a test is wrong, and says why files are long as all others do.
#[test]
fn the_simulation_keeps_heads_and_argues_unsafe_code() {
    let mut report = Report::default();
    for file in ["sim/kernel/src", "sim/runs/src", "pool/sim/src"].into_iter().flat_map(read) {
        check_head(&file, &mut report);
        let scan = Scan::new(&file.text);
        check_argued(&file, &scan, &mut report);
    }
    report.assert_empty();
}

/// Runs the rules on a small example of everything that they forbid, and of code that only looks like it.
#[test]
fn each_rule_can_fail() {
    let text = include_str!("imports/bad.txt");
    let file = File { path: "engine/src/transport/tcp/bad.rs".into(), text: text.into() };
    let mut report = Report::default();
    let scan = Scan::new(text);
    check_imports(&file, &scan, &mut report);
    check_unsafe(&file, &scan, &mut report);
    check_plain_access(&file, &scan, &mut report);
    check_head(&file, &mut report);
    check_panics(&file, &scan, &mut report);
    check_bare(&file, &scan, &mut report);
    check_of_sys(&file, &scan, &mut report);
    check_variables(&file, &scan, &mut report);
    check_internals(&file, &scan, &mut report);
    check_waits(&file, &scan, &mut report);
    check_reasons(&file, &scan, &mut report);
    let mut found: Vec<usize> =
        report.0.iter().map(|line| line.split(':').nth(1).unwrap().parse().unwrap()).collect();
    let marked = text.lines().enumerate().filter(|(_, line)| line.contains("BAD"));
    let mut expected: Vec<usize> = marked.map(|(at, _)| at + 1).collect();
    found.sort_unstable();
    found.dedup();
    expected.sort_unstable();
    assert_eq!(found, expected, "{:#?}", report.0);

    let lines = "    act();\n".repeat(FUNCTION_LINES_MAX - 2);
    let sample = format!("fn short(&self) -> [u8; 4] {{\n{lines}}}\nfn none();\nfn long() {{\n{lines}\n}}\n");
    let found = [("short".into(), 1, FUNCTION_LINES_MAX), ("long".into(), 82, FUNCTION_LINES_MAX + 1)];
    assert_eq!(functions(&sample), found);
    let long = "//! Its job.\n".to_owned() + &"\n".repeat(LINES_MAX);
    for (text, failures) in [(&long[..], 1), (&long[..long.len() - 1], 0), (&long.replace("job", "lines"), 0)]
    {
        let mut report = Report::default();
        check_head(&File { path: "engine/src/long.rs".into(), text: text.into() }, &mut report);
        assert_eq!(report.0.len(), failures);
    }
    for (module, imports, failures) in [
        ("plan", "crate::route::slice", 1),
        ("plan", "crate::sys::clock", 1),
        ("route", "crate::types::Op", 0),
    ] {
        let file = File { path: format!("engine/src/{module}/x.rs"), text: format!("use {imports};") };
        let mut report = Report::default();
        check_imports(&file, &Scan::new(&file.text), &mut report);
        assert!(report.0.is_empty() == (failures == 0), "{module} {imports}: {:?}", report.0);
    }
}
