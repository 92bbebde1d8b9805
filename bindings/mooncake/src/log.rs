//! Lines for a person, on stderr, and only where the environment asks for them (`FERRY_LOG=1`): the
//! interface has numbers for failures and no way to tell why.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// Writes one line, if lines are wanted.
pub fn line(text: fmt::Arguments) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let asked = || std::env::var_os("FERRY_LOG").is_some_and(|value| !value.is_empty() && value != "0");
    if *WANTED.get_or_init(asked) {
        // In one piece, so that the lines of several threads stay apart.
        let _ = std::io::stderr().write_all(format!("ferry: {text}\n").as_bytes());
    }
}
