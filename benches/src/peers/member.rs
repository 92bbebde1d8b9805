//! One end of a pair: its process, its memory, and its options.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{json, Value};

use super::agent::{Agent, AgentCommand};
use super::foreign::ForeignMemory;

/// For filling memory, registering it, and building the lists of a workload, on a slow machine.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

/// The command that starts both ends of an engine.
#[derive(Clone, Debug)]
pub struct Launch {
    pub python: PathBuf,
    /// agent.py, with the engines beside it.
    pub agent: PathBuf,
    pub engine: String,
    pub initiator: Value,
    pub target: Value,
    /// Environment variables of both.
    pub variables: Vec<(String, String)>,
    pub log: PathBuf,
    /// The engine polls while it is idle, so it is stopped while others are measured.
    pub polls_when_idle: bool,
}

impl Launch {
    pub(super) fn command(&self, options: &Value) -> AgentCommand {
        AgentCommand {
            program: self.python.clone(),
            arguments: vec![self.agent.display().to_string(), self.engine.clone(), options.to_string()],
            variables: self.variables.clone(),
            log: self.log.clone(),
        }
    }
}

/// The place of an agent's memory, as its peers have to know it.
#[derive(Debug, Deserialize)]
pub(super) struct Area {
    pub address: u64,
    pub introduction: Value,
}

pub(super) struct Member {
    pub agent: Agent,
    pub memory: ForeignMemory,
    pub area: Area,
}

impl Member {
    pub fn start(command: &AgentCommand, memory_bytes: usize) -> anyhow::Result<Member> {
        let mut agent = Agent::start(command)?;
        let area: Area = agent.ask(&json!({"do": "memory", "bytes": memory_bytes}), SETUP_TIMEOUT)?;
        let memory = ForeignMemory::open(agent.pid(), area.address)?;
        Ok(Member { agent, memory, area })
    }
}
