//! Runs this test program again as another process, which runs one of the `#[ignore]`d tests: a role. The role gets
//! its commands line by line and answers each with a line that begins with "@@ ".

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// Longer than a role takes to answer or to stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process in a role, which ends with this value. A role should end at the end of its input, too, so that no role
/// outlives a test.
pub struct Role {
    pub process: Child,
    input: Option<ChildStdin>,
    pub answers: Receiver<String>,
}

pub fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

impl Role {
    pub fn start(role: &str, set: impl FnOnce(&mut Command)) -> Role {
        Role::launch(Command::new(program()), role, set)
    }

    /// Starts a role under a program, given by its name and first arguments.
    pub fn start_under(outer: &[&str], role: &str, set: impl FnOnce(&mut Command)) -> Role {
        let mut command = Command::new(outer[0]);
        command.args(&outer[1..]).arg(program());
        Role::launch(command, role, set)
    }

    /// Starts a role by a program that runs this test binary.
    fn launch(mut command: Command, role: &str, set: impl FnOnce(&mut Command)) -> Role {
        command.args(["--exact", role, "--ignored", "--nocapture", "--test-threads=1"]);
        set(&mut command);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, answers) = channel();
        let output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The first answer follows the test's name on its line.
                if let Some((_, answer)) = line.split_once("@@ ") {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        let input = process.stdin.take();
        Role { process, input, answers }
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.input.as_ref().unwrap(), "{command}").unwrap();
    }

    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("the other process must answer")
    }

    /// Sends a command and returns the answer.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    #[track_caller]
    pub fn number(&mut self, command: &str) -> u64 {
        let answer = self.ask(command);
        answer.parse().unwrap_or_else(|_| panic!("{command}: {answer}"))
    }

    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved, and the process is ours and not yet waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Sends SIGSTOP, and waits until every thread has stopped.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let end = Instant::now() + PATIENCE;
        let is_running = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        let tasks = || std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        while tasks().any(is_running) {
            assert!(Instant::now() < end, "the other process has not stopped");
            std::thread::yield_now();
        }
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends the input, and waits until the process has ended without an error.
    #[track_caller]
    pub fn ends_well(&mut self) {
        drop(self.input.take());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
