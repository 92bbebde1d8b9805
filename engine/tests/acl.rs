//! Checks ferry's declarations of AscendCL: `sys/acl/bindings.rs` is generated from `sys/acl/facts.h` and checked in.
//! The test fails when the two differ; `UPDATE=1 cargo test -p ferry --test acl` regenerates the file.

use std::path::{Path, PathBuf};

const OPENING: &str = "//! AscendCL's types, constants and functions, made from facts.h by\n\
     //! `UPDATE=1 cargo test -p ferry --test acl`; don't edit.";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys/acl")
}

/// Returns None, and prints so, on a machine without libclang.
fn generate() -> Option<String> {
    if std::panic::catch_unwind(bindgen::clang_version).is_err() {
        eprintln!("SKIPPED: bindgen finds no libclang; scripts/setup.sh installs it");
        return None;
    }
    let bindings = bindgen::Builder::default()
        .header(folder().join("facts.h").to_str().unwrap())
        .allowlist_item("(?i)(acl|hixl).*")
        .raw_line(OPENING)
        .raw_line("")
        .raw_line("#![allow(non_camel_case_types)]")
        .disable_header_comment()
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .generate_comments(false)
        .layout_tests(false)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate();
    Some(bindings.unwrap().to_string())
}

#[test]
fn the_bindings_are_what_the_facts_say() {
    let Some(new) = generate() else { return };
    let path = folder().join("bindings.rs");
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(path, new).unwrap();
    }
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let differs = old.lines().zip(new.lines()).find(|(old, new)| old != new);
    assert!(
        old == new,
        "sys/acl/bindings.rs differs from facts.h, (checked in, generated): {differs:?}\n\
         UPDATE=1 cargo test -p ferry --test acl"
    );
}
