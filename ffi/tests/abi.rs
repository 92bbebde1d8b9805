//! The library as a linker and a compiler see it: the symbols of libferry.so and of the localised libferry.a,
//! the SONAME, and every size and offset. An ABI change shows as a change of `abi/`.

mod library;

use library::{check_compiles, check_needed, check_soname, crate_dir, lines, output, release_dir, symbols};
use std::process::Command;

/// The headers, relative to the crate.
const HEADERS: [&str; 3] = ["../include/ferry.h", "../include/ferry_kv.h", "../include/ferry_pool.h"];

fn listed() -> Vec<String> {
    lines("abi/symbols.txt")
}

/// The text of all headers.
fn headers() -> String {
    HEADERS.map(|header| std::fs::read_to_string(crate_dir().join(header)).unwrap()).concat()
}

#[test]
fn the_shared_library_exports_what_is_listed_and_nothing_else() {
    let library = release_dir().join("libferry.so");
    assert_eq!(symbols(&["-D", "--defined-only"], &library), listed());
}

#[test]
fn the_headers_declare_what_is_listed() {
    let headers = headers();
    let declared = headers.split("ferry_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        // A parenthesis follows the name in a declaration, but never in prose.
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
    assert_eq!(symbols(&["--extern-only", "--defined-only"], &local), listed());
}

#[test]
fn the_soname_carries_the_abi_s_major() {
    check_soname(&release_dir().join("libferry.so"), "libferry.so.0");
}

#[test]
fn nothing_is_linked_that_a_machine_might_lack() {
    check_needed(&release_dir().join("libferry.so"));
}

#[test]
fn sizes_and_offsets_are_as_asserted_in_c() {
    let (layout, include) = (crate_dir().join("abi/layout.c"), crate_dir().join("../include"));
    check_compiles(&layout, &include, &[("gcc", "-std=c99", "c"), ("clang", "-std=c99", "c")]);
}

#[test]
fn every_struct_has_its_size_asserted() {
    let headers = headers();
    let layout = std::fs::read_to_string(crate_dir().join("abi/layout.c")).unwrap();
    for line in headers.lines().filter(|line| line.starts_with("typedef struct ") && line.ends_with('{')) {
        let name = line.split_whitespace().nth(2).unwrap();
        assert!(layout.contains(&format!("\nSIZE({name}, ")), "abi/layout.c has no SIZE({name}, ...)");
    }
}

#[test]
fn each_header_compiles_on_its_own_as_c_and_as_cpp() {
    let compilers = [("gcc", "-std=c99", "c"), ("g++", "-std=c++17", "c++"), ("clang", "-std=c99", "c")];
    for header in HEADERS {
        check_compiles(&crate_dir().join(header), &crate_dir(), &compilers);
    }
}

/// The engine's features are doors for its tests and for the simulation.
#[test]
fn the_shipped_libraries_have_no_feature_of_the_engine() {
    let tree = output(
        Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--prefix", "none", "-e", "normal,build,features"])
            .args(["-p", "ferry-ffi", "-p", "ferry-mooncake"])
            .current_dir(crate_dir()),
    );
    assert!(tree.lines().any(|line| line.starts_with("ferry v")), "{tree}");
    assert!(!tree.contains("ferry-sim-kernel"), "{tree}");
    for line in tree.lines().filter(|line| line.starts_with("ferry feature")) {
        assert!(line.starts_with("ferry feature \"default\""), "{line}");
    }
}
