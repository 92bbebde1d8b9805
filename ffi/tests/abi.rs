//! What a linker and a compiler see of the library: the symbols of libferry.so and of the localised
//! libferry.a, the SONAME, and every size and offset. An ABI change shows as a change of `abi/`.

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

/// The folder with the library as it is shipped. `cargo test` builds no cdylib, so this asks for it.
fn release_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let manifest = crate_dir().join("Cargo.toml");
        output(Command::new(env!("CARGO")).args(["build", "--release", "--manifest-path"]).arg(manifest));
        // tests run from target/<profile>/deps/
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(3).unwrap().join("release")
    })
}

/// The names that `nm` lists with these options, sorted; `keep` looks at a symbol's type letter.
fn symbols(options: &[&str], file: &Path, keep: impl Fn(&str) -> bool) -> Vec<String> {
    let text = output(Command::new("nm").args(options).arg(file));
    let columns = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut names: Vec<String> =
        columns.filter(|c| c.len() == 3 && keep(c[1])).map(|c| c[2].to_owned()).collect();
    names.sort();
    names
}

fn listed() -> Vec<String> {
    let text = std::fs::read_to_string(crate_dir().join("abi/symbols.txt")).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_shared_library_exports_what_is_listed_and_nothing_else() {
    let library = release_dir().join("libferry.so");
    assert_eq!(symbols(&["-D", "--defined-only"], &library, |_| true), listed());
}

#[test]
fn the_header_declares_what_is_listed() {
    let header = std::fs::read_to_string(crate_dir().join("../include/ferry.h")).unwrap();
    let declared = header.split("ferry_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        // A declaration's name is followed by its arguments; prose writes no parenthesis behind it.
        rest[end..].starts_with('(').then(|| format!("ferry_{}", &rest[..end]))
    });
    let mut declared: Vec<String> = declared.collect();
    declared.sort();
    assert_eq!(declared, listed());
}

#[test]
fn the_localised_static_library_has_no_other_global_symbol() {
    let (whole, local) = (release_dir().join("libferry.a"), release_dir().join("libferry-local.a"));
    output(Command::new(crate_dir().join("abi/localize.sh")).args([&whole, &local]));
    assert_eq!(symbols(&["--extern-only", "--defined-only"], &local, |_| true), listed());
}

#[test]
fn the_soname_carries_the_abi_s_major() {
    let text = output(Command::new("readelf").arg("-d").arg(release_dir().join("libferry.so")));
    let soname = text.lines().find(|line| line.contains("(SONAME)")).unwrap();
    assert!(soname.contains("[libferry.so.0]"), "{soname}");
}

#[test]
fn nothing_is_linked_that_a_machine_might_lack() {
    let text = output(Command::new("readelf").arg("-d").arg(release_dir().join("libferry.so")));
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    for line in needed {
        let known = ["libc.so.", "libgcc_s.so.", "libm.so.", "libpthread.so.", "libdl.so.", "ld-linux"];
        assert!(known.iter().any(|name| line.contains(name)), "{line}");
    }
}

#[test]
fn sizes_and_offsets_are_as_asserted_in_c() {
    let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let include = format!("-I{}", crate_dir().join("../include").display());
    let layout = crate_dir().join("abi/layout.c");
    for (compiler, standard) in [("gcc", "-std=c99"), ("clang", "-std=c99")] {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("SKIPPED: {compiler} is not installed");
            continue;
        }
        let mut command = Command::new(compiler);
        output(command.args(warnings).args([standard, "-fsyntax-only", &include]).arg(&layout));
    }
}

#[test]
fn every_struct_has_its_size_asserted() {
    let header = std::fs::read_to_string(crate_dir().join("../include/ferry.h")).unwrap();
    let layout = std::fs::read_to_string(crate_dir().join("abi/layout.c")).unwrap();
    for line in header.lines().filter(|line| line.starts_with("typedef struct ") && line.ends_with('{')) {
        let name = line.split_whitespace().nth(2).unwrap();
        assert!(layout.contains(&format!("\nSIZE({name}, ")), "abi/layout.c says nothing of {name}");
    }
}

#[test]
fn the_header_compiles_on_its_own_as_c_and_as_cpp() {
    let header = crate_dir().join("../include/ferry.h");
    let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    let ways = [("gcc", "-std=c99", "c"), ("g++", "-std=c++17", "c++"), ("clang", "-std=c99", "c")];
    for (compiler, standard, language) in ways {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("SKIPPED: {compiler} is not installed");
            continue;
        }
        output(Command::new(compiler).args(warnings).args([standard, "-x", language]).arg(&header));
    }
}
