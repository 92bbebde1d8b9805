//! This test program again as another process, which runs one `#[ignore]`d test with a word that says what to do.

use crate::common::{role, PATIENCE};
use std::io::Write;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::Receiver;

const WORD: &str = "OUTSIDE_ROLE";

pub struct Role {
    pub process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

/// Returns the word of the role that this process plays; None if the test is run as one.
pub fn word() -> Option<String> {
    std::env::var(WORD).ok()
}

impl Role {
    pub fn start(name: &str, word: &str) -> Role {
        let (process, input, answers) = role::start(name, |command| {
            command.env(WORD, word);
        });
        Role { process, input, answers }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("the role answers")
    }

    #[track_caller]
    pub fn ends_well(&mut self) {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
