//! The settings that came from the process's environment, so that errors name the variable that must be changed, and
//! the `FERRY_*` variables that are no settings, of which an engine warns. Used by `config`.

use super::{nearest, Setting, SETTINGS};
use crate::limits::WARNINGS_MAX;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The values that a configuration has from the environment. Part of `Config`; programs need not know it.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The values that came from variables, as the settings showed them then.
    given: BTreeMap<&'static str, String>,
    pub(crate) warnings: Vec<String>,
}

impl Environment {
    pub(super) fn gave(&mut self, setting: &Setting, shown: String) {
        self.given.insert(setting.name, shown);
    }

    /// The caller has set the setting: the variable does not count any more.
    pub(super) fn overridden(&mut self, key: &str) {
        self.given.remove(key);
    }

    /// Returns the variable if the setting still has the variable's value, and the key otherwise.
    pub(super) fn name_of(&self, setting: &Setting, shown: &str) -> String {
        match self.given.get(setting.name) {
            Some(given) if given == shown => setting.variable(),
            _ => setting.name.to_owned(),
        }
    }
}

/// Variables that other parts of ferry read. With `*` at the end: all that begin so.
const OTHERS: &[(&str, &str)] = &[
    ("FERRY_LIBRARY", "the Python package's libferry.so"),
    ("FERRY_LOG", "the log of the Mooncake interface"),
    ("FERRY_BENCH", "where the tests find ferry-bench"),
    ("FERRY_CARGO_ARGS", "what a build passes to cargo"),
    ("FERRY_DOCS", "where the documentation is built"),
    ("FERRY_ETCD_*", "directories in etcd"),
    ("FERRY_FUZZ_*", "fuzzing"),
    ("FERRY_GO_TEST_*", "tests of the Go module"),
    ("FERRY_GROWTH*", "a test of tables that grow"),
    ("FERRY_HOSTILE_*", "tests with hostile peers"),
    ("FERRY_MDBOOK", "the program that makes the book"),
    ("FERRY_NO_INSTALL", "whether a set-up installs Rust"),
    ("FERRY_NIGHTLY", "the toolchain of sanitizers and fuzzing"),
    ("FERRY_POOL_*", "the program ferry-pool"),
    ("FERRY_SIM_*", "the simulation"),
    ("FERRY_SKIP_VALGRIND", "tests of the C interface"),
    ("FERRY_STANDIN_*", "the stand-ins for device libraries"),
    ("FERRY_TEST_*", "tests"),
];

/// Whether ferry reads a variable of this name, in any of its parts.
pub(crate) fn is_known(variable: &str) -> bool {
    let is_setting = SETTINGS.iter().any(|setting| setting.variable() == variable);
    let is_other = |known: &str| match known.strip_suffix('*') {
        Some(beginning) => variable.starts_with(beginning),
        None => variable == known,
    };
    is_setting || OTHERS.iter().any(|(known, _)| is_other(known))
}

/// Returns a sentence for each variable that looks like a setting and is none, in order of the names.
pub(super) fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut strange: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with("FERRY_") && !is_known(name))
        .collect();
    strange.sort_unstable();
    let beyond = strange.len().saturating_sub(WARNINGS_MAX);
    strange.truncate(WARNINGS_MAX);
    let mut warnings: Vec<String> = strange.iter().map(|name| not_a_setting(name)).collect();
    if beyond > 0 {
        warnings.push(format!("{beyond} more variables that begin with FERRY_ are not settings"));
    }
    warnings
}

fn not_a_setting(variable: &str) -> String {
    // A name may be any text of the environment: bound the part that is compared and repeated.
    let variable: String = variable.chars().take(64).flat_map(char::escape_debug).collect();
    let key = variable.trim_start_matches("FERRY_").to_ascii_lowercase();
    match nearest(&key) {
        Some(setting) => format!("{variable} is not a setting; did you mean {}?", setting.variable()),
        None => format!("{variable} is not a setting, and changes nothing"),
    }
}
