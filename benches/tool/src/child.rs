//! A child process: the other end of a measurement, or an engine's agent. Commands and answers go over its standard
//! input and output, one JSON object per line.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use serde::de::DeserializeOwned;
use serde::Serialize;

/// A closed pipe ends the child; a child that runs longer than this is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Ends the child when dropped.
pub struct ChildProcess {
    child: Child,
    /// Taken on drop: closing the pipe tells the child to end.
    to: Option<ChildStdin>,
    lines: Receiver<io::Result<String>>,
}

impl ChildProcess {
    /// Starts this program in the role of the other end; `parse_role` parses the role.
    pub fn start(program: &Path, role: &impl Serialize) -> anyhow::Result<ChildProcess> {
        ChildProcess::spawn(Command::new(program).args(["child", &serde_json::to_string(role)?]))
    }

    pub fn spawn(command: &mut Command) -> anyhow::Result<ChildProcess> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let program = Path::new(command.get_program()).display();
        let mut child = child.with_context(|| format!("starting {program}"))?;
        let (to, output) = (child.stdin.take(), child.stdout.take().context("the child has no output")?);
        // At most one answer is due at a time. The thread ends with the child's output.
        let (tell, lines) = sync_channel(1);
        thread::spawn(move || BufReader::new(output).lines().all(|line| tell.send(line).is_ok()));
        Ok(ChildProcess { child, to, lines })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        Ok(write_line(self.to.as_mut().context("the child is being ended")?, message)?)
    }

    /// Waits for the child's next line; fails if the child has ended.
    pub fn reply<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let line = self.lines.recv().ok().context("the process ended unexpectedly")??;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits for the child's next line; returns `None` if the child has ended.
    pub fn line_within(&mut self, timeout: Duration) -> anyhow::Result<Option<String>> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(Some(line?)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("no answer within {} s", timeout.as_secs()),
        }
    }

    /// Returns the status of a child whose output has ended, if it ends soon.
    pub fn status(&mut self) -> Option<ExitStatus> {
        ended_within(&mut self.child, EXIT_TIMEOUT)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.to = None;
        if self.status().is_none() {
            // Nothing more can be done about a child that survives this.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
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

/// Parses a role from a hidden command's argument.
pub fn parse_role<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text)
}
