//! This test program again as another process, which runs one `#[ignore]`d test with a word that says what to do.

use crate::common::role::Role;

const WORD: &str = "OUTSIDE_ROLE";

/// Returns the word of the role that this process plays; None if the test is run as one.
pub fn word() -> Option<String> {
    std::env::var(WORD).ok()
}

pub fn start(name: &str, word: &str) -> Role {
    Role::start(name, |command| {
        command.env(WORD, word);
    })
}
