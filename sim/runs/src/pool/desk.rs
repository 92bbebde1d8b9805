//! The model of a pool: its nodes' openings, which calls have which memory, and who was said to hold a key. Part of the
//! ledger; no access to it contains a point.

use crate::kv;
use crate::ledger::{Ledger, LifeId};
use crate::plan::MS;
use ferry_pool::{NodeId, Outcome};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::memory::Access;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The memory of a life's calls is watched under this label plus the life.
pub const LABEL: u64 = 2 * kv::LABEL;
/// A call ends in this time, in which its process can run: it may wait for several silent nodes, one after the other,
/// and for fences of peers that stop in the midst of a copy.
const CALL_NS: u64 = 60_000 * MS;

#[derive(Default)]
pub struct Desk {
    pub nodes: BTreeMap<LifeId, Node>,
    pub openings: Vec<Opening>,
    /// By key: the openings that were said to store it.
    pub stored: BTreeMap<u64, BTreeSet<usize>>,
    /// By key: how many openings there were when it was removed. No put has been open since the removal began.
    pub removed: BTreeMap<u64, usize>,
    /// By key: puts that have begun, and those that have ended. A put whose process died does not end: it may be served
    /// yet.
    pub puts: BTreeMap<u64, [u64; 2]>,
    /// Keys that were said to be absent although an opening was said to store them.
    misses: Vec<Miss>,
}

/// A process that is a node.
pub struct Node {
    pub address: u64,
    /// Open calls: their numbers, their memory, and whether the memory may be written.
    pub open: BTreeMap<u64, (Vec<Range<u64>>, bool)>,
    pub opening: Option<usize>,
    /// After the last fault: what the node knows, and what it holds; and whether all agreed with that.
    pub known: usize,
    pub held: BTreeSet<u64>,
    pub leftovers: Vec<(&'static str, usize)>,
    pub passed: bool,
    pub lacks: String,
}

/// One opening of a node's pool.
pub struct Opening {
    pub life: LifeId,
    pub node: NodeId,
    /// It has not begun to close.
    pub is_open: bool,
    /// Objects that it has evicted, or dropped because they were bad, so far.
    pub drops: u64,
}

struct Miss {
    opening: usize,
    text: String,
}

/// A call that a program makes of its pool.
pub struct Made {
    pub number: u64,
    pub kind: Kind,
    pub keys: Vec<u64>,
    pub memory: Vec<Vec<(u64, u64)>>,
    /// The part of the node's memory that it has.
    pub part: usize,
    begun_ns: u64,
    frozen_ns: u64,
    /// When it began: openings of members, and by key who was said to store it.
    openings: Vec<usize>,
    stored: Vec<BTreeSet<usize>>,
    puts_ended: Vec<u64>,
    /// How many openings there were.
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put,
    Get,
    Exists { prefix: bool },
    Remove,
}

impl Desk {
    fn puts_of(&self, key: u64) -> [u64; 2] {
        self.puts.get(&key).copied().unwrap_or_default()
    }

    fn is_standing(&self, opening: usize, lives: &[crate::ledger::Life]) -> bool {
        let it = &self.openings[opening];
        it.is_open && lives[it.life].is_alive
    }
}

impl Ledger {
    /// A call begins: the memory of its values is the pool's.
    pub fn pool_call_begins(
        &mut self,
        life: LifeId,
        (number, kind, part): (u64, Kind, usize),
        keys: Vec<u64>,
        memory: Vec<Vec<(u64, u64)>>,
    ) -> Made {
        let frozen_ns = self.lives[life].frozen_ns();
        let desk = &mut self.pool;
        let all = 0..desk.openings.len();
        let openings = all.filter(|at| desk.is_standing(*at, &self.lives)).collect();
        let stored = keys.iter().map(|key| desk.stored.get(key).cloned().unwrap_or_default()).collect();
        let puts_ended = keys.iter().map(|key| desk.puts_of(*key)[1]).collect();
        if kind == Kind::Put {
            for key in &keys {
                desk.puts.entry(*key).or_default()[0] += 1;
                desk.removed.remove(key);
            }
        }
        let ranges = memory.iter().flatten().map(|(address, bytes)| *address..address + bytes).collect();
        let node = desk.nodes.get_mut(&life).expect("a node");
        node.open.insert(number, (ranges, kind == Kind::Get));
        let (begun_ns, count) = (virtual_ns(), desk.openings.len());
        Made { number, kind, keys, memory, part, begun_ns, frozen_ns, openings, stored, puts_ended, count }
    }

    /// A call is over: its memory is the program's.
    pub fn pool_call_is_over(&mut self, life: LifeId, made: &Made) {
        if let Some(node) = self.pool.nodes.get_mut(&life) {
            node.open.remove(&made.number);
        }
        for key in made.keys.iter().filter(|_| made.kind == Kind::Put) {
            self.pool.puts.entry(*key).or_default()[1] += 1;
        }
    }

    pub fn is_overdue(&self, life: LifeId, made: &Made) -> bool {
        let frozen_ns = self.lives[life].frozen_ns() - made.frozen_ns;
        virtual_ns() > made.begun_ns + CALL_NS + frozen_ns + self.late_pages_ns()
    }

    /// A put was said to have stored a key, or found it there, at a node.
    pub fn was_stored(&mut self, made: &Made, key: u64, node: NodeId) {
        let desk = &self.pool;
        let is_same = |at: &usize| desk.openings[*at].node == node && desk.is_standing(*at, &self.lives);
        // It has been open all the time, so no other opening of the node's name can have stored the key.
        let Some(opening) = made.openings.iter().copied().find(is_same) else { return };
        // Where the node has begun anew, others may still take its earlier process for alive, and say "no" of that.
        if desk.openings[..opening].iter().any(|earlier| earlier.node == node) {
            return;
        }
        self.pool.stored.entry(key).or_default().insert(opening);
    }

    /// A key was said to be absent. That is wrong if an opening that was said to store it before the call is still open
    /// and has dropped nothing, as its counts tell later.
    pub fn was_absent(&mut self, life: LifeId, made: &Made, at: usize) {
        let desk = &self.pool;
        let holder = made.stored[at].iter().find(|opening| desk.is_standing(**opening, &self.lives));
        let Some(opening) = holder.copied() else { return };
        let (node, holder) = (self.named(life), self.named(desk.openings[opening].life));
        let Made { number, kind, keys, .. } = made;
        let text = format!(
            "{kind:?} {number} of {node} says that key {} is absent, which {holder} stores",
            keys[at]
        );
        self.pool.misses.push(Miss { opening, text });
    }

    /// A removal of a key has ended.
    pub fn was_removed(&mut self, made: &Made, key: u64) {
        let desk = &mut self.pool;
        let ended_before =
            made.keys.iter().zip(&made.puts_ended).find(|(of, _)| **of == key).map(|(_, ended)| *ended);
        if ended_before == Some(desk.puts_of(key)[0]) && desk.openings.len() == made.count {
            desk.removed.insert(key, made.count);
        }
    }

    /// Returns a key that is there although it was removed, all nodes have been open since, and nobody has put it.
    pub fn removed_in_vain(&self, held: &BTreeSet<u64>) -> Option<u64> {
        let desk = &self.pool;
        let is_whole = (0..desk.openings.len()).all(|at| {
            let slot = self.lives[desk.openings[at].life].slot;
            let last =
                (0..desk.openings.len()).rfind(|other| self.lives[desk.openings[*other].life].slot == slot);
            last != Some(at) || desk.is_standing(at, &self.lives)
        });
        let count = desk.openings.len();
        let mut all = desk.removed.iter().filter(|(_, since)| is_whole && **since == count);
        all.find(|(key, _)| held.contains(key)).map(|(key, _)| *key)
    }

    /// The kernel has touched the memory of a pool's calls.
    pub fn saw_call(&mut self, access: &Access) {
        let life = (access.label - LABEL) as LifeId;
        if !access.write || !self.lives[life].is_alive {
            return;
        }
        let node = &self.pool.nodes[&life];
        let from = node.address + access.offset;
        let at = from..from + access.length;
        let is_in = |ranges: &[Range<u64>]| {
            let mut covered = at.start;
            let mut sorted: Vec<&Range<u64>> = ranges.iter().collect();
            sorted.sort_unstable_by_key(|range| range.start);
            for range in sorted {
                if range.start <= covered && range.end > covered {
                    covered = range.end;
                }
            }
            covered >= at.end
        };
        let is_open = node.open.values().any(|(ranges, is_written)| *is_written && is_in(ranges));
        if !is_open {
            let named = self.named(life);
            let text = format!(
                "the kernel writes {} bytes at {} of the calls of {named} ({}), where no get is open",
                access.length, access.offset, access.by
            );
            self.fail(text);
        }
    }

    /// Looks at the books of pools when all engines are closed.
    pub fn check_pools(&mut self) {
        let desk = &self.pool;
        let is_wrong = |miss: &&Miss| {
            let opening = &desk.openings[miss.opening];
            self.lives[opening.life].is_alive && opening.drops == 0
        };
        if let Some(text) = desk.misses.iter().find(is_wrong).map(|miss| miss.text.clone()) {
            self.fail(text);
        }
        let open =
            self.pool.nodes.iter().find(|(life, node)| self.lives[**life].is_alive && !node.open.is_empty());
        if let Some(life) = open.map(|(life, _)| *life) {
            let text = format!("a call of {} has not ended", self.named(life));
            self.fail(text);
        }
    }
}

impl Made {
    /// True if no call of this kind has such an outcome.
    pub fn is_wrong(kind: Kind, outcome: Outcome) -> bool {
        use Outcome::*;
        match kind {
            Kind::Put => matches!(outcome, Absent | Unknown | Evicted | Length),
            Kind::Get => matches!(outcome, Here | Full | TooLong | Length),
            Kind::Exists { .. } | Kind::Remove => {
                !matches!(outcome, Ok | Absent | Unknown | OwnerLost | Closed)
            }
        }
    }
}
