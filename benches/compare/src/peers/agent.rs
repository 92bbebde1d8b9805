//! A process that runs one end of one engine (`benches/compare/peers/agent.py`), with a line of JSON for each command
//! and answer. Other engines hang, crash and print: every answer has a deadline, and all other output goes to a log.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{anyhow, Context};
use ferry_bench::child::ChildProcess;
use rustix::process::{kill_process, Pid, Signal};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;

use crate::contest::Refusal;

/// Importing an engine and opening it.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A line from an agent: a result, or the reason for its absence.
#[derive(Debug, Deserialize)]
struct Answer {
    ok: Option<Value>,
    error: Option<String>,
    #[serde(default)]
    unavailable: bool,
}

/// Ends the process when dropped.
pub struct Agent {
    process: ChildProcess,
    log: PathBuf,
    stopped: bool,
    version: String,
}

impl Agent {
    /// Starts the process and waits until its engine is open. Other output than answers is appended to the log.
    pub fn start(command: &mut Command, log: &Path) -> anyhow::Result<Agent> {
        let output = OpenOptions::new().create(true).append(true).open(log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let process = ChildProcess::spawn(command.stderr(output))?;
        let mut agent = Agent { process, log: log.to_owned(), stopped: false, version: String::new() };
        agent.version = field(&mut agent.answer(START_TIMEOUT)?, "version")?;
        Ok(agent)
    }

    /// Returns the version of the engine.
    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends the agent a command and waits for the answer.
    pub fn ask(&mut self, message: &Value, timeout: Duration) -> anyhow::Result<Value> {
        // An agent whose input is closed has ended; its log says why, as in `answer`.
        self.process.tell(message).map_err(|_| self.ended())?;
        self.answer(timeout)
    }

    fn answer(&mut self, timeout: Duration) -> anyhow::Result<Value> {
        let Some(line) = self.process.line_within(timeout)? else { return Err(self.ended()) };
        let Answer { ok, error, unavailable } =
            serde_json::from_str(&line).with_context(|| format!("an agent said {line:?}"))?;
        match (ok, error) {
            (Some(result), None) => Ok(result),
            (_, Some(reason)) => Err(Refusal { reason, unavailable }.into()),
            (None, None) => Err(anyhow!("an agent sent neither a result nor an error")),
        }
    }

    /// Returns how the process ended, with its last output.
    fn ended(&mut self) -> anyhow::Error {
        let status = self.process.status().map_or("without a status".to_owned(), |status| status.to_string());
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        anyhow!("the process ended ({status}); the last it said: {}", last.trim())
    }

    /// Stops the process: an engine that polls while it is idle would slow the next measurement.
    pub fn rest(&mut self) {
        self.signal(Signal::STOP);
        self.stopped = true;
    }

    pub fn wake(&mut self) {
        if self.stopped {
            self.signal(Signal::CONT);
            self.stopped = false;
        }
    }

    /// The process is a child that has not been waited for, so the number names that process. A failure means that the
    /// child has ended, which the next answer reports.
    fn signal(&self, signal: Signal) {
        let _ = Pid::from_raw(self.pid() as i32).map(|child| kill_process(child, signal));
    }
}

/// Takes a field out of an answer.
pub fn field<T: DeserializeOwned>(answer: &mut Value, name: &str) -> anyhow::Result<T> {
    serde_json::from_value(answer[name].take()).with_context(|| format!("{name} of an agent's answer"))
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use tempfile::NamedTempFile;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const OPENED: &str = r#"echo '{"ok": {"version": "1.2"}}'"#;

    /// Starts an agent that is a shell script, with a log that is removed when the test ends.
    fn start(script: &str) -> (anyhow::Result<Agent>, NamedTempFile) {
        let log = NamedTempFile::new().expect("a log");
        let mut command = Command::new("sh");
        (Agent::start(command.args(["-c", script]).env("GREETING", "hello"), log.path()), log)
    }

    fn opened(script: &str) -> (Agent, NamedTempFile) {
        let (agent, log) = start(&format!("{OPENED}; {script}"));
        (agent.expect("it opened"), log)
    }

    fn refusal<T: fmt::Debug>(result: anyhow::Result<T>) -> Refusal {
        result.expect_err("refused").downcast::<Refusal>().expect("a refusal")
    }

    #[test]
    fn it_opens_answers_and_ends_with_its_input() {
        let (mut agent, _log) = opened(r#"while read -r line; do echo "{\"ok\": $line}"; done"#);
        assert_eq!(agent.version(), "1.2");
        for number in 0..3 {
            let echo = agent.ask(&serde_json::json!({"do": number}), TIMEOUT).expect("an echo");
            assert_eq!(echo["do"], number);
        }
        agent.rest();
        agent.wake();
        agent.ask(&Value::from(1), TIMEOUT).expect("it is awake");
    }

    #[test]
    fn a_refusal_keeps_its_kind_and_the_agent_lives_on() {
        let (mut agent, _log) = opened(
            r#"read -r _; echo '{"error": "no such path", "unavailable": true}'
               read -r _; echo '{"error": "-1"}'; read -r _; echo '{"ok": "'$GREETING'"}'; cat"#,
        );
        let mut ask = || agent.ask(&Value::from(0), TIMEOUT);
        assert_eq!(refusal(ask()), Refusal { reason: "no such path".to_owned(), unavailable: true });
        assert_eq!(refusal(ask()), Refusal { reason: "-1".to_owned(), unavailable: false });
        assert_eq!(ask().expect("an answer"), "hello");
    }

    #[test]
    fn an_engine_that_does_not_open_says_why() {
        let script = r#"echo '{"error": "ModuleNotFoundError: No module", "unavailable": true}'"#;
        assert!(refusal(start(script).0.map(drop)).unavailable);
    }

    #[test]
    fn a_death_is_told_with_the_last_words() {
        let (mut agent, _log) = opened("read -r _; echo 'assertion failed' >&2; exit 3");
        let error = agent.ask(&Value::from(0), TIMEOUT).expect_err("it died");
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("assertion failed"), "{text}");
    }

    #[test]
    fn one_that_hangs_is_not_waited_for() {
        let (mut agent, _log) = opened("while read -r _; do :; done");
        let error = agent.ask(&Value::from(0), Duration::from_millis(50));
        assert!(format!("{:#}", error.expect_err("nothing came")).contains("no answer"));
    }
}
