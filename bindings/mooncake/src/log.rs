//! Log lines for people, on stderr, only if the environment asks for them (`FERRY_LOG=1`). The interface returns only
//! numbers and cannot give the reason of a failure.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// Writes one line if logging is on.
pub fn line(text: fmt::Arguments) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let asked = || is_asked(is_privileged(), std::env::var_os("FERRY_LOG"));
    if *WANTED.get_or_init(asked) {
        // One write, so that the lines of several threads do not mix.
        let _ = std::io::stderr().write_all(format!("ferry: {text}\n").as_bytes());
    }
}

/// True for a set-user-id or set-group-id process, or one that got capabilities from its file.
fn is_privileged() -> bool {
    // SAFETY: getauxval only looks up a number in the vector that the kernel gave this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A process with more rights than its caller logs nothing, so that the caller learns nothing from it.
fn is_asked(is_privileged: bool, value: Option<OsString>) -> bool {
    !is_privileged && value.is_some_and(|value| !value.is_empty() && value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_for_processes_that_may_ask_and_do() {
        for (value, asked) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
            assert_eq!(is_asked(false, value.map(OsString::from)), asked, "{value:?}");
            assert!(!is_asked(true, value.map(OsString::from)), "{value:?}");
        }
    }
}
