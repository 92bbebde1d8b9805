//! Runs this test program again as another process, which runs one of the `#[ignore]`d tests: a role. The role gets
//! its commands line by line and answers each with a line that begins with "@@ ".

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};

/// Starts a role. A role should end at the end of its input, so that no role outlives a test.
pub fn start(role: &str, set: impl FnOnce(&mut Command)) -> (Child, ChildStdin, Receiver<String>) {
    launch(Command::new(program()), role, set)
}

/// Starts a role under a program, given by its name and first arguments.
pub fn start_under(
    outer: &[&str],
    role: &str,
    set: impl FnOnce(&mut Command),
) -> (Child, ChildStdin, Receiver<String>) {
    let mut command = Command::new(outer[0]);
    command.args(&outer[1..]).arg(program());
    launch(command, role, set)
}

pub fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Starts a role by a program that runs this test binary.
pub fn launch(
    mut command: Command,
    role: &str,
    set: impl FnOnce(&mut Command),
) -> (Child, ChildStdin, Receiver<String>) {
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
    let input = process.stdin.take().unwrap();
    (process, input, answers)
}
