//! A child process of this program: it runs the other end of a measurement, with commands and answers over its
//! standard input and output, one JSON object per line.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::role::Role;

/// A closed pipe ends the child; a child that runs longer than this is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Ends the child when dropped.
pub struct ChildProcess {
    child: Child,
    /// Taken on drop: closing the pipe tells the child to end.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl ChildProcess {
    pub fn start(program: &Path, role: &Role) -> anyhow::Result<ChildProcess> {
        let mut child = Command::new(program)
            .args(["child", &serde_json::to_string(role)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("the child has no output")?);
        Ok(ChildProcess { child, to, from })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        Ok(write_line(self.to.as_mut().context("the child is being ended")?, message)?)
    }

    /// Waits for the child's next line; fails if the child has ended.
    pub fn reply<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        read_line(&mut self.from)?.context("the process ended unexpectedly")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.to = None;
        end(&mut self.child, EXIT_TIMEOUT);
    }
}

/// Returns the child's status, if it ends within this time.
pub fn ended_within(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + timeout;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            status => return status.ok().flatten(),
        }
    }
}

/// Waits for a child that was told to end, and kills it after the timeout.
pub fn end(child: &mut Child, timeout: Duration) {
    if ended_within(child, timeout).is_none() {
        // Nothing more can be done about a child that survives this.
        let _ = child.kill();
        let _ = child.wait();
    }
}

pub fn write_line(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads a line; returns `None` at the end of the stream.
pub fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    match from.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}
