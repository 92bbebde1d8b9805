//! Why an offer or a take ends before all have it, and the rank of the other side that is the cause.
//!
//! A cause has two sentences: `why` for this side's program, and `told` for the other side's ranks. The latter names ranks
//! by their addresses, and says nothing of this process's connections.

use ferry::status::Error;
use ferry::Status;

use super::machine::Machine;
use super::remote::Handoff;
use super::types::Other;

#[derive(Clone, Debug)]
pub struct Cause {
    pub status: Status,
    pub why: String,
    told: Option<String>,
    pub by: Option<Other>,
}

impl Cause {
    /// One of this side's own.
    pub fn own(status: Status, why: impl Into<String>) -> Cause {
        Cause { status, why: why.into(), told: None, by: None }
    }

    /// The sentence for the other side.
    pub fn told(&self) -> String {
        self.told.as_ref().unwrap_or(&self.why).clone()
    }
}

impl From<&Error> for Cause {
    fn from(error: &Error) -> Cause {
        Cause::own(error.status, &error.message)
    }
}

impl Machine {
    /// A rank of the other side has ended its side of the handoff, and says why.
    pub(super) fn ended_by(&self, of: Handoff, by: Other, status: Status, why: &str) -> Cause {
        let what = match of {
            Handoff::Offer(_) => "take",
            Handoff::Take(_) => "offer",
        };
        let colon = if why.is_empty() { "" } else { ": " };
        let why = format!("{} ended its {what}{colon}{why}", self.name_of(of, by));
        Cause { by: Some(by), ..Cause::own(status, why) }
    }

    /// Something failed between this rank and one of the other side; or that one is lost.
    pub(super) fn failed_with(&self, of: Handoff, by: Other, status: Status, why: &str) -> Cause {
        let name = self.name_of(of, by);
        let is_lost = self.remotes.get(&by.peer).is_some_and(|remote| remote.is_lost);
        let told = is_lost.then(|| format!("it lost {name}"));
        let what = if is_lost { " is lost" } else { "" };
        Cause { told, by: Some(by), ..Cause::own(status, format!("{name}{what}: {why}")) }
    }

    fn name_of(&self, of: Handoff, Other { peer, rank }: Other) -> String {
        let side = match of {
            Handoff::Offer(_) => "consumer",
            Handoff::Take(_) => "producer",
        };
        match self.remotes.get(&peer).map_or("", |remote| &remote.name) {
            "" => format!("rank {rank} of the {side}"),
            name => format!("rank {rank} of the {side} ({name})"),
        }
    }
}
