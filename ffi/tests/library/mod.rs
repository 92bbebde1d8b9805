//! Questions that the tests of a C library ask of the tools: the shipped library, its symbols, its SONAME, its
//! dependencies. Works for the crate that includes this module.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must succeed and returns its output.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the folder of the shipped library. Builds the library first, because `cargo test` builds no cdylib.
pub fn release_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let build =
            crate_dir().ancestors().map(|folder| folder.join("scripts/build.sh")).find(|file| file.exists());
        output(Command::new(build.expect("the repository is around the crate")).env("CARGO", env!("CARGO")));
        // tests run from target/<profile>/deps/
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(3).unwrap().join("release")
    })
}

/// Returns the names that `nm` lists with these options, sorted.
pub fn symbols(options: &[&str], file: &Path) -> Vec<String> {
    let text = output(Command::new("nm").args(options).arg(file));
    let columns = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut names: Vec<String> = columns.filter(|c| c.len() == 3).map(|c| c[2].to_owned()).collect();
    names.sort();
    names
}

/// Returns the lines of a file of the crate.
pub fn lines(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(crate_dir().join(file)).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn dynamic(library: &Path, tag: &str) -> Vec<String> {
    let text = output(Command::new("readelf").arg("-d").arg(library));
    text.lines().filter(|line| line.contains(tag)).map(str::to_owned).collect()
}

#[track_caller]
pub fn check_soname(library: &Path, name: &str) {
    let soname = dynamic(library, "(SONAME)").remove(0);
    assert!(soname.contains(&format!("[{name}]")), "{soname}");
}

/// Checks that the library links only libraries that every machine has.
#[track_caller]
pub fn check_needed(library: &Path) {
    for line in dynamic(library, "(NEEDED)") {
        let known = ["libc.so.", "libgcc_s.so.", "libm.so.", "libpthread.so.", "libdl.so.", "ld-linux"];
        assert!(known.iter().any(|name| line.contains(name)), "{line}");
    }
}

/// Compiles a file with each installed compiler; warnings are errors. `compilers`: compiler, standard, language.
pub fn check_compiles(file: &Path, include: &Path, compilers: &[(&str, &str, &str)]) {
    for (compiler, standard, language) in compilers {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("SKIPPED: {compiler} is not installed");
            continue;
        }
        let mut command = Command::new(compiler);
        command.args([
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
            standard,
            "-x",
            language,
        ]);
        output(command.arg(format!("-I{}", include.display())).arg(file));
    }
}
