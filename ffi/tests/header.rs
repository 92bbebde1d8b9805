//! include/ferry.h is generated from the crate's source, one section per file, and checked in. This
//! test fails when the two differ; `UPDATE=1 cargo test -p ferry-ffi --test header` writes it anew.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The sections in the header's order: source file, title, and what a reader of C should know first.
const SECTIONS: &[(&str, &str, &str)] = &[
    ("status", "Status and version", ""),
    ("error", "Errors", ""),
    (
        "handles",
        "Handles",
        "Handles are numbers that carry the engine and a generation: one that is stale, or that belongs\n\
         to another engine, is refused and never followed.",
    ),
    (
        "config",
        "Configuration",
        "Every setting has a default, a FERRY_* environment variable that overrides it, and a key here\n\
         that overrides both. ferry_config_settings lists them with what they do.",
    ),
    ("engine", "Engines", ""),
    ("memory", "Memory", "A peer can touch only what is registered, in the direction granted."),
    ("peer_info", "Peers: what is known", ""),
    (
        "peers",
        "Peers",
        "Peers that this engine connects to and peers that connect to it have the same handles.",
    ),
    ("descriptor", "Descriptors", "What engines can pass around out of band, to find each other."),
    ("options", "Transfers: options", ""),
    ("results", "Transfers: results", ""),
    (
        "transfers",
        "Transfers",
        "A transfer reaches exactly one final state, and only when nothing can touch the memory that it\n\
         named any more, on either side. Deadline and cancel are requests; the final state is the promise.",
    ),
    ("blocks", "Transfers of blocks", "For paged memory: a KV cache is a table of equal blocks per layer."),
    ("notify", "Notifications", ""),
    ("events", "Events", ""),
    ("queues", "Queues", "Each queue has its own events; none is taken from another's reader."),
    ("stats", "Statistics", ""),
];

const OPENING: &str = r#"/** @file
 * ferry: moves bytes between the memories of machines.
 *
 * Generated from ffi/src by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. The contract
 * as a whole is in ffi/README.md. What holds everywhere:
 *
 * - Every function that can fail returns a ferry_status. Outputs (out_*) are written only on success.
 *   `error` may be NULL; if it isn't, it is filled when the status is negative.
 * - Any call from any thread, save where it says otherwise. Nothing is borrowed beyond a call, save
 *   registered memory and callbacks.
 * - Timeouts and deadlines are nanoseconds from now. Timeout 0 only looks, FERRY_FOREVER waits.
 * - Structs that carry struct_size: the caller sets it to sizeof, so that programs and libraries of
 *   different versions agree. Zero the rest; what is reserved must be 0.
 * - In a process that inherited an engine by fork, every call on it returns FERRY_ERR_CLOSED, and
 *   closing and freeing do nothing. Such a process may open engines of its own.
 * - ferry installs no signal handlers, prints nothing, and never ends the process. The smallest
 *   allocations excepted, running out of memory is FERRY_ERR_NO_MEMORY.
 */
#ifndef FERRY_H
#define FERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
"#;

const CLOSING: &str = r#"
#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FERRY_H */
"#;

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// What cbindgen makes of one file.
fn section(file: &str) -> String {
    let source = crate_dir().join("src").join(file).with_extension("rs");
    let mut config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml")).unwrap();
    // Else it leaves out types that no function of the same file mentions.
    config.export.include = types_of(&std::fs::read_to_string(&source).unwrap());
    let bindings = cbindgen::Builder::new().with_config(config).with_src(&source).generate();
    let mut text = Vec::new();
    bindings.unwrap_or_else(|error| panic!("{}: {error}", source.display())).write(&mut text);
    String::from_utf8(text).unwrap()
}

/// The types that a file declares for C.
fn types_of(source: &str) -> Vec<String> {
    let declares = |line: &str| {
        let rest = line.strip_prefix("pub struct ").or(line.strip_prefix("pub type "))?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        rest[..end].starts_with("ferry_").then(|| rest[..end].to_owned())
    };
    source.lines().filter_map(declares).collect()
}

fn banner(title: &str, introduction: &str) -> String {
    let mut text = format!("\n/* ---- {title} {:-<1$} */\n", "", 90_usize.saturating_sub(title.len()));
    if !introduction.is_empty() {
        write!(text, "\n/* {} */\n", introduction.replace('\n', "\n   ")).unwrap();
    }
    text
}

/// Negative constants in parentheses, as macros should be; types by their typedefs throughout.
fn tidy(section: &str) -> String {
    let mut lines = Vec::new();
    for line in section.trim().lines() {
        match line.strip_prefix("#define ").and_then(|rest| rest.split_once(" -")) {
            Some((name, number)) => lines.push(format!("#define {name} (-{number})")),
            None if line.starts_with("typedef") => lines.push(line.trim_end().to_owned()),
            None => lines.push(line.trim_end().replace("struct ferry_", "ferry_")),
        }
    }
    lines.join("\n")
}

fn generate() -> String {
    let mut header = OPENING.to_owned();
    for (file, title, introduction) in SECTIONS {
        header += &banner(title, introduction);
        write!(header, "\n{}\n", tidy(&section(file))).unwrap();
    }
    header + CLOSING
}

/// The first line that differs, for the message.
fn first_difference(old: &str, new: &str) -> String {
    let pairs = old.lines().chain(std::iter::repeat("")).zip(new.lines());
    match pairs.enumerate().find(|(_, (old, new))| old != new) {
        Some((number, (old, new))) => {
            format!("line {}:\n  checked in: {old}\n  generated:  {new}", number + 1)
        }
        None => "the checked-in header is longer".into(),
    }
}

fn header_path() -> PathBuf {
    crate_dir().join("../include/ferry.h")
}

#[test]
fn the_header_is_what_the_source_says() {
    let new = generate();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(header_path(), &new).unwrap();
        return;
    }
    let old = std::fs::read_to_string(header_path()).unwrap_or_default();
    assert!(
        old == new,
        "include/ferry.h differs from ffi/src, {}\nUPDATE=1 cargo test -p ferry-ffi --test header",
        first_difference(&old, &new)
    );
}

#[test]
fn every_file_with_an_entry_point_has_its_section() {
    for entry in std::fs::read_dir(crate_dir().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let name = Path::new(path.file_stem().unwrap()).to_str().unwrap().to_owned();
        let exports = source.contains("#[no_mangle]");
        let listed = SECTIONS.iter().any(|(file, _, _)| *file == name);
        assert!(!exports || listed, "{name}.rs exports functions but has no section in the header");
    }
}
