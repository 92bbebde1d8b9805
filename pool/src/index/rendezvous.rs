//! Who keeps what, without a service that says so: each node computes the same answer from the same list of nodes, by
//! rendezvous hashing. `Table` uses it for homes, the node machine for placement.

use super::check_count;
use crate::limits::{HOMES, INDEX_MEMBERS_MAX, NODES_MAX, NODE_NAME_BYTES_MAX, RAMP_NS};
use ferry::status::Result;
use ferry::Error;
use sha2::{Digest as _, Sha256};
use std::fmt;

/// Keeps draws for one purpose apart from draws for another.
const OF_MEMBERS: u64 = 0x6d65_6d62_6572_7331;
const OF_HOMES: u64 = 0x686f_6d65_735f_5f31;
const OF_PLACES: u64 = 0x706c_6163_6573_5f31;

/// A node: a hash of its name, equal everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub id: NodeId,
    /// The bytes that the node lends: placement weighs them.
    pub weight: u64,
}

/// The nodes of the cluster, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    list: Vec<Member>,
    index: IndexMembers,
}

/// The nodes that keep the index: all up to 8, and otherwise the 8 that draw highest. A node that joins or leaves changes
/// at most one of them. Sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexMembers {
    ids: Vec<NodeId>,
    /// A draw of each, which all draws for homes begin with.
    draws: Vec<u64>,
}

/// The index members that keep a key: two, or one where there is one index member, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Homes {
    ids: [NodeId; HOMES],
    count: usize,
}

/// A node that may take a new object. One of weight 0 never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: NodeId,
    pub weight: u64,
}

impl NodeId {
    pub fn of(name: &str) -> NodeId {
        let [a, b, c, d, e, f, g, h, ..]: [u8; 32] =
            Sha256::new_with_prefix(b"ferry-pool node1").chain_update(name).finalize().into();
        NodeId(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    fn draw(self, purpose: u64, fingerprint: u64) -> u64 {
        mix(fingerprint ^ mix(self.0 ^ purpose))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Members {
    /// Takes names and weights in any order. Fails where two nodes have one name, and names it.
    pub fn new(nodes: impl IntoIterator<Item = (String, u64)>) -> Result<Members> {
        let member = |(name, weight): (String, u64)| Member { id: NodeId::of(&name), name, weight };
        let mut list: Vec<Member> = nodes.into_iter().map(member).collect();
        check_count("nodes", list.len(), NODES_MAX)?;
        list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for Member { name, .. } in &list {
            if name.is_empty() || name.len() > NODE_NAME_BYTES_MAX {
                let bytes = name.len();
                return Err(Error::invalid(format!(
                    "node: a name of {bytes} bytes, not 1 to {NODE_NAME_BYTES_MAX}"
                )));
            }
        }
        let mut drawn: Vec<NodeId> = list.iter().map(|member| member.id).collect();
        drawn.sort_unstable();
        if let Some(pair) = drawn.windows(2).find(|pair| pair[0] == pair[1]) {
            let same = list.iter().filter(|member| member.id == pair[0]).map(|member| member.name.as_str());
            return Err(Error::invalid(format!(
                "node: one identity for {}",
                same.collect::<Vec<_>>().join(", ")
            )));
        }
        drawn.sort_unstable_by_key(|id| (std::cmp::Reverse(id.draw(OF_MEMBERS, 0)), *id));
        drawn.truncate(INDEX_MEMBERS_MAX);
        drawn.sort_unstable();
        let draws = drawn.iter().map(|id| mix(id.0 ^ OF_HOMES)).collect();
        Ok(Members { list, index: IndexMembers { ids: drawn, draws } })
    }

    pub fn list(&self) -> &[Member] {
        &self.list
    }

    pub fn index(&self) -> &IndexMembers {
        &self.index
    }
}

impl IndexMembers {
    pub fn ids(&self) -> &[NodeId] {
        &self.ids
    }

    /// Names this list: an inventory says for which list an owner has cut it.
    pub fn stamp(&self) -> u64 {
        self.ids.iter().fold(self.ids.len() as u64, |stamp, id| mix(stamp ^ id.0))
    }

    pub fn homes(&self, fingerprint: u64) -> Homes {
        let mut best = [(0, NodeId(0)); HOMES];
        for (&id, &draw) in self.ids.iter().zip(&self.draws) {
            let mut drawn = (mix(fingerprint ^ draw), id);
            for kept in &mut best {
                if drawn > *kept {
                    std::mem::swap(kept, &mut drawn);
                }
            }
        }
        Homes { ids: best.map(|(_, id)| id), count: self.ids.len().min(HOMES) }
    }

    pub fn is_home(&self, id: NodeId, fingerprint: u64) -> bool {
        self.homes(fingerprint).ids().contains(&id)
    }
}

impl Homes {
    /// Returns the homes, the one that drew highest first.
    pub fn ids(&self) -> &[NodeId] {
        &self.ids[..self.count]
    }
}

/// Returns up to `count` nodes for an object, the best first. A node gets a share of the objects in proportion to its
/// weight, and a change of one weight moves no object between two others.
pub fn place(fingerprint: u64, candidates: &[Candidate], count: usize) -> Vec<NodeId> {
    let drawn = candidates.iter().filter(|candidate| candidate.weight > 0).map(|candidate| {
        // A number in (0, 1]: 53 bits are all that an f64 tells apart.
        let uniform = ((candidate.id.draw(OF_PLACES, fingerprint) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() / candidate.weight as f64, candidate.id)
    });
    let mut drawn: Vec<(f64, NodeId)> = drawn.collect();
    drawn.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    drawn.into_iter().take(count).map(|(_, id)| id).collect()
}

/// Returns the weight of a node that joined `age_ns` ago: it grows over 60 s, so that an empty node does not draw every
/// put. It is never 0 unless `weight` is: where all nodes are new, they still take objects.
pub fn ramped(weight: u64, age_ns: u64) -> u64 {
    let grown = u128::from(weight) * u128::from(age_ns.min(RAMP_NS)) / u128::from(RAMP_NS);
    (grown as u64).max(weight.min(1))
}

/// The finaliser of splitmix64: each bit of the input changes each bit of the output with probability 1/2.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
mod tests;
