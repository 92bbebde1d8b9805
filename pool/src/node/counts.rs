//! What a node counts: the program's calls, and what the owner did.

use crate::index::NodeId;
use crate::outcome::Outcome;

use super::call::{Call, KeyEnd, Kind};

/// What was asked of the pool through this node since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub gets: u64,
    pub hits: u64,
    pub hits_here: u64,
    pub misses: u64,
    pub puts: u64,
    /// The keys of gets and of puts, by the numbers of their outcomes.
    pub gets_ended: [u64; Outcome::ALL.len()],
    pub puts_ended: [u64; Outcome::ALL.len()],
    pub put_bytes: u64,
    pub got_bytes: u64,
    /// Nodes that were silent, and were fenced.
    pub silent: u64,
}

/// What this node did as an owner: bytes of values, objects that were stored, evicted, and dropped because they were bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCounts {
    pub served_bytes: u64,
    pub stored_bytes: u64,
    pub stored: u64,
    pub evicted: u64,
    pub corrupt: u64,
    /// Values that were brought again after that, and those that could not be.
    pub repaired: u64,
    pub repairs_failed: u64,
    /// Values that a drain has moved to other nodes, and that it found there.
    pub drained: u64,
    pub drained_here: u64,
    /// Values that were copied to the file, brought back from it, evicted there, and copies that failed.
    pub saved: u64,
    pub loaded: u64,
    pub tier_evicted: u64,
    pub tier_failed: u64,
}

impl Counts {
    /// Counts a call that has ended, at the node `me`.
    pub fn add(&mut self, call: &Call, ends: &[KeyEnd], me: NodeId) {
        for end in ends.iter().filter(|_| !call.is_own) {
            match call.kind {
                Kind::Get => {
                    self.gets += 1;
                    self.gets_ended[end.outcome as usize] += 1;
                    match end.outcome {
                        Outcome::Ok => {
                            self.hits += 1;
                            self.hits_here += u64::from(end.node == Some(me));
                            self.got_bytes += end.bytes;
                        }
                        _ => self.misses += 1,
                    }
                }
                Kind::Put { .. } => {
                    self.puts += 1;
                    self.puts_ended[end.outcome as usize] += 1;
                    self.put_bytes += if end.outcome == Outcome::Ok { end.bytes } else { 0 };
                }
                _ => {}
            }
        }
    }
}
