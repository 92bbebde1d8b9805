//! A process that runs one end of one engine (`benches/peers/agent.py`), with a line of JSON for each command and
//! answer. Other engines hang, crash and print: every answer has a deadline, and all other output goes to a log.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, Context};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;

use crate::child::{end, ended_within, write_line};
use crate::cpu::child_cpu_seconds;

/// Importing an engine and opening it.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A closed pipe ends the agent; an agent that runs longer than this is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// An agent's report instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// The engine, or the requested path, is missing; otherwise the engine failed at its task.
    pub unavailable: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

/// A line from an agent: a result, or the reason for its absence.
#[derive(Debug, Deserialize)]
struct Answer {
    ok: Option<Value>,
    error: Option<String>,
    #[serde(default)]
    unavailable: bool,
}

/// The command that starts an agent.
#[derive(Clone, Debug)]
pub struct AgentCommand {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Added to the environment.
    pub variables: Vec<(String, String)>,
    /// The agent's output is appended here.
    pub log: PathBuf,
}

/// An agent's first answer, when its engine is open.
#[derive(Clone, Debug, Deserialize)]
pub struct Opened {
    pub version: String,
}

/// Ends the process when dropped.
pub struct Agent {
    child: Child,
    /// Taken on drop: closing the pipe tells the agent to end.
    to: Option<ChildStdin>,
    from: Receiver<std::io::Result<String>>,
    log: PathBuf,
    stopped: bool,
    opened: Opened,
}

impl Agent {
    /// Starts the process and waits until its engine is open.
    pub fn start(command: &AgentCommand) -> anyhow::Result<Agent> {
        let log = append_to(&command.log)?;
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .envs(command.variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", command.program.display()))?;
        let (to, output) = (child.stdin.take(), child.stdout.take().context("the agent has no output")?);
        // At most one answer is due at a time. The thread ends with the agent's output.
        let (tell, from) = sync_channel(1);
        thread::spawn(move || BufReader::new(output).lines().all(|line| tell.send(line).is_ok()));
        let opened = Opened { version: String::new() };
        let mut agent = Agent { child, to, from, log: command.log.clone(), stopped: false, opened };
        agent.opened = agent.answer(START_TIMEOUT)?;
        Ok(agent)
    }

    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the user and system time so far.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        child_cpu_seconds(self.pid()).context("the CPU time of an agent")
    }

    /// Sends the agent a command and waits for the answer.
    pub fn ask<T: DeserializeOwned>(&mut self, message: &Value, timeout: Duration) -> anyhow::Result<T> {
        let to = self.to.as_mut().context("the agent is being ended")?;
        let told = write_line(to, message);
        // An agent whose input is closed has ended; its log says why, as in `answer`.
        if told.is_err() {
            return Err(self.ended());
        }
        self.answer(timeout)
    }

    fn answer<T: DeserializeOwned>(&mut self, timeout: Duration) -> anyhow::Result<T> {
        let line = match self.from.recv_timeout(timeout) {
            Ok(line) => line.context("reading from an agent")?,
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(anyhow!("no answer within {} s", timeout.as_secs()));
            }
        };
        let Answer { ok, error, unavailable } =
            serde_json::from_str(&line).with_context(|| format!("an agent said {line:?}"))?;
        match (ok, error) {
            (Some(result), None) => Ok(serde_json::from_value(result)?),
            (_, Some(reason)) => Err(Refusal { reason, unavailable }.into()),
            (None, None) => Err(anyhow!("an agent sent neither a result nor an error")),
        }
    }

    /// Returns how the process ended, with its last output.
    fn ended(&mut self) -> anyhow::Error {
        let status = ended_within(&mut self.child, EXIT_TIMEOUT);
        let status = status.map_or("without a status".to_owned(), |status| status.to_string());
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        anyhow!("the process ended ({status}); the last it said: {}", last.trim())
    }

    /// Stops the process: an engine that polls while it is idle would slow the next measurement.
    pub fn rest(&mut self) {
        self.signal(libc::SIGSTOP);
        self.stopped = true;
    }

    pub fn wake(&mut self) {
        if self.stopped {
            self.signal(libc::SIGCONT);
            self.stopped = false;
        }
    }

    fn signal(&self, number: libc::c_int) {
        // SAFETY: no memory is involved. The process is a child that has not been waited for, so the number names that
        // process. A failure means that the child has ended, which the next answer reports.
        unsafe { libc::kill(self.pid() as libc::pid_t, number) };
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.wake();
        self.to = None;
        end(&mut self.child, EXIT_TIMEOUT);
    }
}

fn append_to(log: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().create(true).append(true).open(log);
    opened.with_context(|| format!("opening {}", log.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const OPENED: &str = r#"echo '{"ok": {"version": "1.2"}}'"#;

    /// An agent that is a shell script; its log is removed when the test ends.
    struct Fake {
        agent: anyhow::Result<Agent>,
        log: PathBuf,
    }

    impl Fake {
        fn start(script: &str) -> Fake {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("ferry-bench-agent-{}-{number}.log", std::process::id());
            let log = std::env::temp_dir().join(name);
            let (program, variables) = ("sh".into(), vec![("GREETING".to_owned(), "hello".to_owned())]);
            let arguments = vec!["-c".to_owned(), script.to_owned()];
            let agent = Agent::start(&AgentCommand { program, arguments, variables, log: log.clone() });
            Fake { agent, log }
        }

        fn agent(&mut self) -> &mut Agent {
            self.agent.as_mut().expect("it opened")
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.log);
        }
    }

    fn refusal<T: fmt::Debug>(result: anyhow::Result<T>) -> Refusal {
        result.expect_err("refused").downcast::<Refusal>().expect("a refusal")
    }

    #[test]
    fn it_opens_answers_and_ends_with_its_input() {
        let mut fake =
            Fake::start(&format!(r#"{OPENED}; while read -r line; do echo "{{\"ok\": $line}}"; done"#));
        let agent = fake.agent();
        assert_eq!(agent.opened().version, "1.2");
        for number in 0..3 {
            let echo: Value = agent.ask(&serde_json::json!({"do": number}), TIMEOUT).expect("an echo");
            assert_eq!(echo["do"], number);
        }
        agent.rest();
        agent.wake();
        agent.ask::<Value>(&Value::from(1), TIMEOUT).expect("it is awake");
    }

    #[test]
    fn a_refusal_keeps_its_kind_and_the_agent_lives_on() {
        let script = format!(
            r#"{OPENED}; read -r _; echo '{{"error": "no such path", "unavailable": true}}'
               read -r _; echo '{{"error": "-1"}}'; read -r _; echo '{{"ok": "'$GREETING'"}}'; cat"#
        );
        let mut fake = Fake::start(&script);
        let mut ask = || fake.agent().ask::<String>(&Value::from(0), TIMEOUT);
        assert_eq!(refusal(ask()), Refusal { reason: "no such path".to_owned(), unavailable: true });
        assert_eq!(refusal(ask()), Refusal { reason: "-1".to_owned(), unavailable: false });
        assert_eq!(ask().expect("an answer"), "hello");
    }

    #[test]
    fn an_engine_that_does_not_open_says_why() {
        let script = r#"echo '{"error": "ModuleNotFoundError: No module", "unavailable": true}'"#;
        let mut fake = Fake::start(script);
        let opened = std::mem::replace(&mut fake.agent, Err(anyhow!("taken"))).map(|_| ());
        assert!(refusal(opened).unavailable);
    }

    #[test]
    fn a_death_is_told_with_the_last_words() {
        let mut fake = Fake::start(&format!("{OPENED}; read -r _; echo 'assertion failed' >&2; exit 3"));
        let error = fake.agent().ask::<Value>(&Value::from(0), TIMEOUT).expect_err("it died");
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("assertion failed"), "{text}");
    }

    #[test]
    fn one_that_hangs_is_not_waited_for() {
        let mut fake = Fake::start(&format!("{OPENED}; while read -r _; do :; done"));
        let error = fake.agent().ask::<Value>(&Value::from(0), Duration::from_millis(50));
        assert!(format!("{:#}", error.expect_err("nothing came")).contains("no answer"));
    }
}
