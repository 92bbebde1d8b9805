//! The error that no allowed transport reaches the other end: an error type of its own, because the run is not at
//! fault.

use std::fmt;

use ferry::Engine as Ferry;

use super::setup::is_auto;
use ferry::types::PeerId;

/// Fails with the reasons when no allowed transport reaches the server: nothing falls back.
pub(super) fn refuse_without_path(engine: &Ferry, peer: PeerId) -> anyhow::Result<()> {
    let paths = engine.peer_paths(peer)?;
    if paths.iter().any(|path| path.chosen) {
        return Ok(());
    }
    let wanted = paths
        .iter()
        .filter(|path| is_auto(engine.config()) || engine.config().transports.allows(path.transport));
    let reasons: Vec<_> = wanted.map(|path| format!("{}: {}", path.transport.name(), path.why)).collect();
    Err(NoPath(reasons.join("; ")).into())
}

/// No allowed transport reaches the server: contains each transport with its reason.
#[derive(Debug)]
pub struct NoPath(pub String);

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UNAVAILABLE: no allowed transport reaches the server: {}", self.0)
    }
}

impl std::error::Error for NoPath {}
