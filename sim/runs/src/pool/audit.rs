//! After the last fault: each node knows all others, nothing is left over, each key that a node holds is found and can
//! be got from everywhere, and no other key is.

use super::desk::{Kind, Node};
use super::keys::{key_of, twin};
use super::player::{Player, KEYS_MAX};
use crate::ledger::Ledger;
use ferry_pool::Outcome;
use ferry_sim_kernel::task;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const REST: Duration = Duration::from_millis(1);

impl Player {
    /// Says what this node has, and when all nodes have said so, asks for everything.
    pub fn audit(&mut self) {
        let Some(pool) = self.pool.clone().filter(|_| self.open.is_empty()) else { return };
        let life = self.program.life;
        let (known, held, leftovers) = pool.look(|machine| {
            let held: BTreeSet<u64> = machine.held().iter().map(key_of).collect();
            let mut leftovers = machine.leftovers();
            leftovers.retain(|(_, count)| *count > 0);
            (machine.nodes_known(), held, leftovers)
        });
        let (ready, passed) = self.book().with(|ledger| {
            let node = ledger.pool.nodes.get_mut(&life).expect("a node");
            (node.known, node.held, node.leftovers) = (known, held, leftovers);
            (ledger.pool_lacks().is_none(), ledger.pool.nodes[&life].passed)
        });
        if ready && !passed {
            self.ask_for_all();
        }
    }

    /// Asks for all keys, then gets those that are held. Notes what is not as the nodes say.
    fn ask_for_all(&mut self) {
        let (book, life) = (self.book(), self.program.life);
        let count = self.program.world.plan.pool.as_ref().map_or(0, |plan| plan.keys);
        let held: BTreeSet<u64> =
            book.with(|ledger| ledger.pool_nodes().flat_map(|node| node.held.clone()).collect());
        let found = self.ask(Kind::Exists { prefix: false }, (0..count).collect());
        // The index knows fingerprints.
        let is_known = |key: u64| held.contains(&key) || twin(key).is_some_and(|twin| held.contains(&twin));
        let expected = |key: u64| if is_known(key) { Outcome::Ok } else { Outcome::Absent };
        let mut wrong = found.into_iter().find(|(key, outcome)| *outcome != expected(*key));
        for keys in held.iter().copied().collect::<Vec<_>>().chunks(KEYS_MAX as usize) {
            let got = self.ask(Kind::Get, keys.to_vec());
            wrong = wrong.or(got.into_iter().find(|(_, outcome)| *outcome != Outcome::Ok));
        }
        book.with(|ledger| {
            if let Some(key) = ledger.removed_in_vain(&held) {
                ledger.fail(format!("key {key} is held, although it was removed"));
            }
            let lacks = wrong.map(|(key, outcome)| {
                let place = if held.contains(&key) { "a node holds" } else { "no node holds" };
                format!("{} is told that key {key}, which {place}, is {outcome}", ledger.named(life))
            });
            let node = ledger.pool.nodes.get_mut(&life).expect("a node");
            node.passed = lacks.is_none();
            node.lacks = lacks.unwrap_or_default();
        });
    }

    /// Makes a call, and waits for its end.
    fn ask(&mut self, kind: Kind, keys: Vec<u64>) -> BTreeMap<u64, Outcome> {
        self.outcomes.clear();
        self.make(kind, keys);
        while !self.open.is_empty() && !self.program.is_leaving() {
            task::sleep(REST);
            self.hear();
            self.check_due();
        }
        std::mem::take(&mut self.outcomes)
    }
}

impl Ledger {
    /// The nodes whose processes live.
    fn pool_nodes(&self) -> impl Iterator<Item = &Node> {
        self.pool
            .nodes
            .iter()
            .filter(|(life, _)| self.life_of(self.lives[**life].slot) == Some(**life))
            .map(|(_, node)| node)
    }

    /// Returns what the nodes of the pool lack before they can agree.
    fn pool_lacks(&self) -> Option<String> {
        let all = self.slots.len();
        let nodes: Vec<&Node> = self.pool_nodes().collect();
        if nodes.len() < all {
            return Some("not all nodes are there".into());
        }
        let lonely = nodes.iter().find(|node| node.known + 1 < all);
        if let Some(node) = lonely {
            return Some(format!("a node knows {} others of {}", node.known, all - 1));
        }
        let busy = nodes.iter().find(|node| !node.open.is_empty() || !node.leftovers.is_empty());
        busy.map(|node| format!("{} calls are open, and {:?} left", node.open.len(), node.leftovers))
    }

    /// Returns why the audit of the pool has not passed yet.
    pub fn pool_failure(&self) -> Option<String> {
        let failed = self.pool_nodes().find(|node| !node.passed);
        failed.map(|node| node.lacks.clone()).filter(|lacks| !lacks.is_empty()).or_else(|| self.pool_lacks())
    }
}
