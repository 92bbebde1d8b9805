//! The headers in include/ are generated from the crate's source, one section per file, and checked in.
//! This test fails when they differ from it; `UPDATE=1 cargo test -p ferry-ffi --test header` regenerates the headers.

use std::fmt::Write;
use std::path::PathBuf;

/// A section: source file, title, and introduction.
type Section = (&'static str, &'static str, &'static str);

/// The sections of ferry.h in its order.
const SECTIONS: &[Section] = &[
    ("status", "Status and version", ""),
    ("error", "Errors", ""),
    (
        "handles",
        "Handles",
        "Handles are numbers that carry an engine tag and a generation. ferry refuses a stale handle, and\n\
         a handle of another engine; it never follows one.",
    ),
    (
        "config",
        "Configuration",
        "Every setting has a default, a FERRY_* environment variable that overrides it, and a key here\n\
         that overrides both. ferry_config_settings lists them with their descriptions.",
    ),
    ("engine", "Engines", ""),
    ("memory", "Memory", "A peer can touch only registered memory, in the direction that the region grants."),
    ("peer_info", "Peers: information", ""),
    ("peers", "Peers", "A peer has one handle, whichever side connected."),
    (
        "descriptor",
        "Descriptors",
        "Engines find each other by descriptors, which programs pass around out of band.",
    ),
    ("options", "Transfers: options", ""),
    ("results", "Transfers: results", ""),
    (
        "transfers",
        "Transfers",
        "A transfer reaches exactly one final state, and only when nothing can touch its memory any more,\n\
         on either side. Deadline and cancel are requests; the final state is the promise.",
    ),
    ("blocks", "Transfers of blocks", "For paged memory: a KV cache is a table of equal blocks per layer."),
    ("layers", "Transfers of layers of equal shape", ""),
    ("notify", "Notifications", ""),
    ("events", "Events", ""),
    (
        "queues",
        "Queues",
        "Each event goes to one queue, and is never taken from the reader of another queue.",
    ),
    ("stats", "Statistics", ""),
    ("names", "Names of numbers", "For logs."),
];

const OPENING: &str = r#"/** @file
 * ferry: moves bytes between the memories of machines.
 *
 * Generated from ffi/src by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. Above 500 lines,
 * because a program includes one file. ffi/README.md has the contract as a whole. These rules hold everywhere:
 *
 * - Every function that can fail returns a ferry_status. Outputs (out_*) are written only on success.
 *   `error` may be NULL; otherwise the call fills it when the status is negative.
 * - Any thread may make any call, unless its documentation says otherwise. It needs 64 KiB of stack. ferry
 *   borrows nothing beyond a call, except registered memory, the memory of transfers, and callbacks.
 * - Timeouts and deadlines are nanoseconds from now. Timeout 0 only looks, FERRY_FOREVER waits.
 * - Structs begin with a struct_size, so that programs and libraries of different versions agree. The caller
 *   sets it to sizeof and zeroes the other fields: `ferry_transfer_options options =
 *   FERRY_TRANSFER_OPTIONS_INIT;` does both. Reserved fields must be 0. ferry_request has no struct_size.
 * - In a forked child, every call on an inherited engine returns FERRY_ERR_CLOSED; closing and freeing
 *   do nothing. The child may open its own engines.
 * - ferry installs no signal handlers and prints nothing. A call that runs out of memory returns
 *   FERRY_ERR_NO_MEMORY; the process aborts only when one of the smallest allocations fails.
 */
"#;

/// The sections of ferry_kv.h in its order.
const KV_SECTIONS: &[Section] = &[
    (
        "kv/desc",
        "Descriptions of layouts",
        "A layout says what one rank holds of a paged KV cache: groups of layers that share their block ids,\n\
         each layer's place in memory, and how the ranks share the heads, layers and tokens.",
    ),
    ("kv/arrange", "Where a layer lies", ""),
    ("kv/layout", "Layouts", ""),
    ("kv/plan", "Plans", "Who sends what, from one instance to another that may be sharded differently."),
    ("kv/moves", "Bytes to move", ""),
    (
        "kv/id",
        "Handing a sequence over",
        "A producer offers blocks, consumers take them. ferry moves the tokens as they become ready, and tells both\n\
         sides when their blocks are theirs again. docs/internals/handoff.md has the rules.",
    ),
    ("kv/cache", "Caches", ""),
    ("kv/lists", "Lists of blocks", ""),
    ("kv/offer", "Offers", ""),
    ("kv/take", "Takes", ""),
    ("kv/events", "Events of a cache", ""),
    ("kv/state", "States", ""),
    ("kv/metrics", "Metrics of a cache", ""),
    ("kv/timeline", "Timeline of a cache", ""),
    (
        "kv/directory_info",
        "Directories: structs",
        "A directory finds peers by name: in a list, or in etcd. docs/directory.md has examples.",
    ),
    ("kv/directory", "Directories", ""),
    ("kv/names", "Names of numbers", "For logs."),
];

const KV_OPENING: &str = r#"/** @file
 * ferry for KV caches: layouts and resharding, handing sequences over, and directories of peers. Part of libferry.
 *
 * Generated from ffi/src/kv by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. Above 500
 * lines, because a program includes one file. docs/kv.md and docs/directory.md have examples. The rules of ferry.h hold, and:
 *
 * - Calls of layouts, plans and moves need no engine, touch none of the memory that a layout names, and never
 *   wait: they compute. A forked child may use what it inherited of these; of an inherited cache, each call
 *   returns FERRY_ERR_CLOSED, and closing and freeing do nothing.
 * - Layouts, plans and moves never change. Any number of threads may use one, or a cache; only its free must
 *   be alone.
 * - In an array of structs that the caller fills, each element has its struct_size, all the same, and the
 *   elements lie that far apart.
 */
"#;

/// The sections of ferry_pool.h in its order.
const POOL_SECTIONS: &[Section] = &[
    (
        "pool/key",
        "Keys",
        "A value has a key of 32 bytes, equal in every process and language that means the same value.",
    ),
    ("pool/keyspace", "Keys of a model", ""),
    ("pool/chain", "Keys of token ids", ""),
    ("pool/node", "Nodes", ""),
    ("pool/nodes", "The nodes of the cluster", ""),
    ("pool/drain", "Taking a node out", ""),
    ("pool/values", "Values", ""),
    ("pool/results", "Results", ""),
    ("pool/calls", "Calls", "Each call is for many keys, and each key has a result of its own."),
    ("pool/events", "Ends of calls", ""),
    (
        "pool/parts",
        "Engines that are sharded differently",
        "An engine's blocks become values by a layout of ferry_kv.h, so that engines with other numbers of ranks, other\n\
         blocks or another order of dimensions get what it has put. docs/pool.md has an example.",
    ),
    ("pool/cost", "Load or compute", ""),
    ("pool/stats", "Statistics", ""),
    ("pool/names", "Names of numbers", "For logs."),
];

const POOL_OPENING: &str = r#"/** @file
 * ferry's pool: a KV cache for a whole cluster, whose owners move the bytes. Part of libferry.
 *
 * Generated from ffi/src/pool by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. Above 500
 * lines, because a program includes one file. docs/pool.md has examples. The rules of ferry.h hold, and:
 *
 * - A node of the pool lives on an engine, and lends memory or is a client. Any number of threads may use it; only
 *   ferry_pool_free must be alone. In a forked child each call returns FERRY_ERR_CLOSED, and closing and freeing do
 *   nothing. Keys, keyspaces and parts need no engine, never wait, and work in a child.
 * - A value's memory belongs to its call until the call has ended: until a waiting call has returned something else
 *   than FERRY_ERR_TIMEOUT, else until ferry_pool_poll or ferry_pool_wait has returned its end.
 * - A call's status says whether the call was made. What became of each key is in its result.
 * - In an array of structs with a struct_size that the caller fills, each element has its struct_size, all the same,
 *   and the elements lie that far apart.
 */
"#;

/// A header, and what it is made of.
struct Header {
    path: &'static str,
    opening: &'static str,
    guard: &'static str,
    includes: &'static [&'static str],
    sections: &'static [Section],
}

const HEADERS: [Header; 3] = [
    Header {
        path: "include/ferry.h",
        opening: OPENING,
        guard: "FERRY_H",
        includes: &["<stddef.h>", "<stdint.h>"],
        sections: SECTIONS,
    },
    Header {
        path: "include/ferry_kv.h",
        opening: KV_OPENING,
        guard: "FERRY_KV_H",
        includes: &["\"ferry.h\""],
        sections: KV_SECTIONS,
    },
    Header {
        path: "include/ferry_pool.h",
        opening: POOL_OPENING,
        guard: "FERRY_POOL_H",
        includes: &["\"ferry_kv.h\""],
        sections: POOL_SECTIONS,
    },
];

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns cbindgen's text for one file.
fn section(file: &str) -> String {
    let source = crate_dir().join("src").join(file).with_extension("rs");
    let mut config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml")).unwrap();
    // Otherwise cbindgen omits types that no function of the same file mentions.
    config.export.include = types_of(&std::fs::read_to_string(&source).unwrap());
    let bindings = cbindgen::Builder::new().with_config(config).with_src(&source).generate();
    let mut text = Vec::new();
    bindings.unwrap_or_else(|error| panic!("{}: {error}", source.display())).write(&mut text);
    String::from_utf8(text).unwrap()
}

/// Returns the types that a file declares for C.
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

/// Puts negative constants into parentheses, and uses types by their typedefs.
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

/// Adds an initializer behind each struct with a struct_size. It names every field, because compilers warn of fields
/// that an initializer lacks; C and C++ alike take it.
fn with_initializers(section: &str) -> String {
    let mut text = String::new();
    let mut fields: Vec<String> = Vec::new();
    for line in section.lines() {
        text += line;
        text.push('\n');
        let code = line.trim();
        if let Some(name) = code.strip_prefix("} ").and_then(|rest| rest.strip_suffix(';')) {
            if let Some((first, others)) =
                fields.split_first().filter(|(first, _)| first.ends_with(" struct_size;"))
            {
                assert!(first.starts_with("uint32_t "), "{name}: {first}");
                text += &initializer(name, others);
            }
            fields.clear();
        } else if code.ends_with(';') && !code.starts_with("typedef") {
            fields.push(code.to_owned());
        }
    }
    text.trim_end().to_owned()
}

/// Returns the macro of one struct, whose further fields are declared so.
fn initializer(name: &str, others: &[String]) -> String {
    let empty = |field: &String| match field {
        field if field.ends_with("];") => ", {0}",
        field if field.contains('*') => ", NULL",
        field if field.starts_with("ferry_kv_id ") || field.starts_with("ferry_pool_key ") => ", {{0}}",
        _ => ", 0",
    };
    let macro_name = format!("{}_INIT", name.to_uppercase());
    let values: String = others.iter().map(empty).collect();
    format!(
        "\n/// Initializes a {name}: its struct_size, and zero in all other fields.\n\
         #define {macro_name} \\\n    {{ (uint32_t)sizeof({name}){values} }}\n"
    )
}

impl Header {
    fn generate(&self) -> String {
        let Header { opening, guard, includes, .. } = self;
        let includes: String = includes.iter().map(|file| format!("#include {file}\n")).collect();
        let mut header = format!(
            "{opening}#ifndef {guard}\n#define {guard}\n\n{includes}\n\
             #ifdef __cplusplus\nextern \"C\" {{\n#endif\n"
        );
        for (file, title, introduction) in self.sections {
            header += &banner(title, introduction);
            write!(header, "\n{}\n", with_initializers(&tidy(&section(file)))).unwrap();
        }
        header + &format!("\n#ifdef __cplusplus\n}} /* extern \"C\" */\n#endif\n\n#endif /* {guard} */\n")
    }

    fn file(&self) -> PathBuf {
        crate_dir().join("..").join(self.path)
    }
}

/// Returns the first line that differs, for the message.
fn first_difference(old: &str, new: &str) -> String {
    let pairs = old.lines().chain(std::iter::repeat("")).zip(new.lines());
    match pairs.enumerate().find(|(_, (old, new))| old != new) {
        Some((number, (old, new))) => {
            format!("line {}:\n  checked in: {old}\n  generated:  {new}", number + 1)
        }
        None => "the checked-in header is longer".into(),
    }
}

#[test]
fn the_headers_are_what_the_source_says() {
    for header in HEADERS {
        let new = header.generate();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(header.file(), &new).unwrap();
            continue;
        }
        let old = std::fs::read_to_string(header.file()).unwrap_or_default();
        assert!(
            old == new,
            "{} differs from ffi/src, {}\nUPDATE=1 cargo test -p ferry-ffi --test header",
            header.path,
            first_difference(&old, &new)
        );
    }
}

#[test]
fn every_file_with_an_entry_point_has_its_section() {
    let folders = ["kv/", "pool/"];
    for folder in [""].iter().chain(&folders) {
        for entry in std::fs::read_dir(crate_dir().join("src").join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let is_known = folders
                    .iter()
                    .any(|folder| path.ends_with(format!("src/{}", &folder[..folder.len() - 1])));
                assert!(is_known, "{}: look into this folder too", path.display());
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let name = format!("{folder}{}", path.file_stem().unwrap().to_str().unwrap());
            let exports = source.contains("#[no_mangle]");
            let listed = HEADERS.iter().flat_map(|header| header.sections).any(|(file, _, _)| *file == name);
            assert!(!exports || listed, "{name}.rs exports functions but has no section in a header");
        }
    }
}
