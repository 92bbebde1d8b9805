//! The library as a linker and a compiler see it: its symbols, its SONAME, its dependencies and its header.
//! `tests/run.sh` tests its behaviour.

#[path = "../../../ffi/tests/library/mod.rs"]
mod library;

use library::{check_compiles, check_needed, check_soname, crate_dir, lines, release_dir, symbols};
use std::path::PathBuf;

fn shipped() -> PathBuf {
    release_dir().join("libferry_mooncake.so")
}

fn listed() -> Vec<String> {
    lines("symbols.txt")
}

#[test]
fn the_library_exports_the_interface_and_nothing_else() {
    assert_eq!(symbols(&["-D", "--defined-only"], &shipped()), listed());
}

#[test]
fn the_header_declares_the_interface() {
    let header = std::fs::read_to_string(crate_dir().join("ferry_mooncake.h")).unwrap();
    // A parenthesis follows the name in a declaration, but never in prose.
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
    check_soname(&shipped(), "libferry_mooncake.so.0");
    check_needed(&shipped());
}

#[test]
fn the_header_has_the_interface_s_layout_in_c_and_in_cpp() {
    let compilers = [("gcc", "-std=c99", "c"), ("g++", "-std=c++17", "c++"), ("clang", "-std=c99", "c")];
    check_compiles(&crate_dir().join("tests/layout.c"), &crate_dir(), &compilers);
}
