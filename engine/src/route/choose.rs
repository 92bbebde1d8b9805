//! Which paths a transfer takes, and for each path why or why not: the answer that `ferry_peer_paths`
//! gives a person. Health and speed come in as arguments, from `peer`.

use crate::status::{Error, Result, Status};
use crate::types::Transport;
use std::cmp::Reverse;

/// One way to the peer, as it is now.
#[derive(Clone, Debug)]
pub struct PathState {
    pub transport: Transport,
    /// Or the reason why not.
    pub usable: std::result::Result<(), String>,
    /// Speed relative to the other paths.
    pub weight: u32,
    pub slice_bytes_max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Indexes of the paths to use, the fastest first: all good ones of one transport, so that several
    /// devices can share a transfer (`split` by their weights). Never empty.
    pub chosen: Vec<usize>,
    /// Every path in the caller's order: whether it was chosen, and the reason.
    pub why: Vec<(Transport, bool, String)>,
}

/// The usable, allowed paths of the best transport. Best is the transport of the path with the highest
/// weight, the first of equals; TCP comes after all others, whatever its weight. `allowed` is a mask
/// of `Transport::bit`; 0 allows all. UNAVAILABLE, with every path's reason, when there is none.
pub fn choose(paths: &[PathState], allowed: u64) -> Result<Choice> {
    let obstacles: Vec<Option<String>> = paths.iter().map(|path| obstacle(path, allowed)).collect();
    let mut fit: Vec<usize> = (0..paths.len()).filter(|&index| obstacles[index].is_none()).collect();
    // Stable, so the caller's order decides among equals.
    fit.sort_by_key(|&index| {
        let path = &paths[index];
        (path.transport == Transport::Tcp, Reverse(path.weight))
    });
    let Some(&best) = fit.first() else { return Err(unavailable(paths, &obstacles)) };
    let winner = paths[best].transport;

    let why = paths.iter().zip(obstacles).enumerate().map(|(index, (path, obstacle))| {
        let chosen = obstacle.is_none() && path.transport == winner;
        let reason = obstacle.unwrap_or_else(|| reason(paths, index, best));
        (path.transport, chosen, reason)
    });
    let why = why.collect();
    fit.retain(|&index| paths[index].transport == winner);
    Ok(Choice { chosen: fit, why })
}

/// What keeps a path from being used at all.
fn obstacle(path: &PathState, allowed: u64) -> Option<String> {
    if allowed != 0 && allowed & path.transport.bit() == 0 {
        return Some("not among the allowed transports".to_owned());
    }
    path.usable.as_ref().err().cloned()
}

/// Why a path without obstacle was or was not chosen.
fn reason(paths: &[PathState], index: usize, best: usize) -> String {
    let (path, winner) = (&paths[index], paths[best].transport);
    if index == best {
        "the best usable path".to_owned()
    } else if path.transport == winner {
        format!("shares the load with the best {} path", winner.name())
    } else if path.transport == Transport::Tcp {
        format!("the last resort, and {} is usable", winner.name())
    } else {
        format!("{} is preferred: weight {} against {}", winner.name(), paths[best].weight, path.weight)
    }
}

fn unavailable(paths: &[PathState], obstacles: &[Option<String>]) -> Error {
    let mut message = "no usable path".to_owned();
    let mut separator = ": ";
    for (path, obstacle) in paths.iter().zip(obstacles) {
        let reason = obstacle.as_deref().unwrap_or_default();
        message += &format!("{separator}{}: {reason}", path.transport.name());
        separator = "; ";
    }
    Error::new(Status::Unavailable, message)
}
