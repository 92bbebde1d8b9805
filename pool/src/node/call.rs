//! What a program asks of the pool, and how it ended: the calls that are open, key by key. `machine` carries them on.

use crate::index::NodeId;
use crate::key::Digest;
use crate::outcome::Outcome;
use crate::wire::Wanted;

/// A call of the program, for many keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The values come into the segments. `checked`, for each key: the CPU can read the memory, and sums what came.
    Get {
        keys: Vec<Wanted>,
        checked: Vec<bool>,
    },
    /// The values of the segments are stored, on `replicas` nodes; `preferred` is the first choice.
    Put {
        keys: Vec<Wanted>,
        replicas: usize,
        preferred: Option<NodeId>,
    },
    /// `prefix`: the keys are a prefix's chunks in order, and those behind the first miss count as misses.
    Exists {
        digests: Vec<Digest>,
        prefix: bool,
    },
    Remove {
        digests: Vec<Digest>,
    },
}

/// How one key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEnd {
    pub outcome: Outcome,
    /// The value's length where it is known: what a get brought or would bring, what a put stored.
    pub bytes: u64,
    /// The node that served, stored or has it; None: no node did, or several.
    pub node: Option<NodeId>,
}

#[derive(Debug)]
pub struct Call {
    pub kind: Kind,
    pub keys: Vec<Key>,
    /// Keys without an end.
    pub open: usize,
    /// The node's own call: no count has it, and what it puts stays in this node.
    pub is_own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get,
    Put { replicas: usize, preferred: Option<NodeId> },
    Exists { prefix: bool },
    Remove,
}

#[derive(Debug)]
pub struct Key {
    pub wanted: Wanted,
    pub end: Option<KeyEnd>,
    /// What the key is missing for, as far as it is known.
    pub reason: Outcome,
    /// Owners that are not asked yet. The best is the last.
    pub owners: Vec<NodeId>,
    /// The CPU sums what a get brings.
    pub is_checked: bool,
    /// The owner that is asked is a hint's: the index was not asked.
    pub is_hinted: bool,
    /// Index members that were asked, and whether all nodes were.
    pub homes_asked: usize,
    pub all_asked: bool,
    /// Answers that are awaited from several nodes, and the best one so far.
    pub awaited: usize,
    pub best: Option<KeyEnd>,
    /// Nodes that a put was sent to.
    pub tried: Vec<NodeId>,
}

impl Call {
    pub fn new(ask: Ask) -> Call {
        let plain = |digest| Wanted { digest, checksum: None, segments: Vec::new() };
        let mut checked = Vec::new();
        let (kind, wanted): (Kind, Vec<Wanted>) = match ask {
            Ask::Get { keys, checked: which } => {
                checked = which;
                (Kind::Get, keys)
            }
            Ask::Put { keys, replicas, preferred } => (Kind::Put { replicas, preferred }, keys),
            Ask::Exists { digests, prefix } => {
                (Kind::Exists { prefix }, digests.into_iter().map(plain).collect())
            }
            Ask::Remove { digests } => (Kind::Remove, digests.into_iter().map(plain).collect()),
        };
        let key = |wanted| Key {
            wanted,
            end: None,
            reason: Outcome::Absent,
            owners: Vec::new(),
            is_checked: false,
            is_hinted: false,
            homes_asked: 0,
            all_asked: false,
            awaited: 0,
            best: None,
            tried: Vec::new(),
        };
        let mut keys: Vec<Key> = wanted.into_iter().map(key).collect();
        keys.iter_mut().zip(checked).for_each(|(key, is_checked)| key.is_checked = is_checked);
        Call { kind, open: keys.len(), keys, is_own: false }
    }

    pub fn end(&mut self, at: usize, end: KeyEnd) {
        let key = &mut self.keys[at];
        if key.end.is_none() {
            key.end = Some(end);
            self.open -= 1;
        }
    }

    /// The ends of all keys. In prefix mode those behind the first miss are misses.
    pub fn ends(&self) -> Vec<KeyEnd> {
        let mut ends: Vec<KeyEnd> = self.keys.iter().map(|key| key.end.unwrap_or(CLOSED)).collect();
        if self.kind == (Kind::Exists { prefix: true }) {
            let first_miss = ends.iter().position(|end| !end.outcome.is_ok()).unwrap_or(ends.len());
            ends.iter_mut()
                .skip(first_miss + 1)
                .for_each(|end| *end = KeyEnd { outcome: Outcome::Absent, ..CLOSED });
        }
        ends
    }
}

const CLOSED: KeyEnd = KeyEnd { outcome: Outcome::Closed, bytes: 0, node: None };

impl KeyEnd {
    pub fn of(outcome: Outcome) -> KeyEnd {
        KeyEnd { outcome, ..CLOSED }
    }
}

impl Key {
    /// Notes one of several awaited answers: a success counts before any failure, and stored before there already. A
    /// removal has failed if one node has.
    pub fn note(&mut self, end: KeyEnd, is_removal: bool) {
        let worth = |end: &KeyEnd| match end.outcome {
            Outcome::Failed if is_removal => 5,
            Outcome::Ok => 4,
            Outcome::Here => 3,
            Outcome::Absent => 0,
            // Another node has no room for it now, but might have.
            Outcome::TooLong => 1,
            _ => 2,
        };
        if self.best.is_none_or(|best| worth(&end) > worth(&best)) {
            self.best = Some(end);
        }
    }
}
