//! What a linker and a compiler see of the library: its symbols, its SONAME, what it needs, and the header
//! that declares it. `tests/run.sh` has what it does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The output of a command that must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The library as it is shipped. `cargo test` builds no cdylib, so this asks for it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let manifest = crate_dir().join("Cargo.toml");
        output(Command::new(env!("CARGO")).args(["build", "--release", "--manifest-path"]).arg(manifest));
        // tests run from target/<profile>/deps/
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(3).unwrap().join("release/libferry_mooncake.so")
    })
}

fn listed() -> Vec<String> {
    let text = std::fs::read_to_string(crate_dir().join("symbols.txt")).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_library_exports_the_interface_and_nothing_else() {
    let text = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    names.sort_unstable();
    assert_eq!(names, listed());
}

#[test]
fn the_header_declares_the_interface() {
    let header = std::fs::read_to_string(crate_dir().join("ferry_mooncake.h")).unwrap();
    // A declaration's name is followed by its arguments; prose writes no parenthesis behind a name.
    let names = header.split('(').filter_map(|before| {
        let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        name.starts_with(|c: char| c.is_ascii_lowercase()).then(|| name.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, listed());
}

#[test]
fn the_library_has_a_name_and_needs_what_every_machine_has() {
    let text = output(Command::new("readelf").arg("-d").arg(library()));
    let soname = text.lines().find(|line| line.contains("(SONAME)")).unwrap();
    assert!(soname.contains("[libferry_mooncake.so.0]"), "{soname}");
    for line in text.lines().filter(|line| line.contains("(NEEDED)")) {
        let known = ["libc.so.", "libgcc_s.so.", "libm.so.", "libpthread.so.", "libdl.so.", "ld-linux"];
        assert!(known.iter().any(|name| line.contains(name)), "{line}");
    }
}

#[test]
fn the_header_has_the_interface_s_layout_in_c_and_in_cpp() {
    let include = format!("-I{}", crate_dir().display());
    let layout = crate_dir().join("tests/layout.c");
    let ways = [("gcc", "-std=c99", "c"), ("g++", "-std=c++17", "c++"), ("clang", "-std=c99", "c")];
    for (compiler, standard, language) in ways {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("SKIPPED: {compiler} is not installed");
            continue;
        }
        let flags = [
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
            &include,
            standard,
            "-x",
            language,
        ];
        output(Command::new(compiler).args(flags).arg(&layout));
    }
}
