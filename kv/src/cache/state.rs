//! What a cache keeps under its lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

use ferry::types::PeerId;
use ferry::{ReachedFuture, Transfer};

use super::Shared;
use crate::handoff::{Action, Machine, Owner, PostId};

pub struct Inner {
    pub machine: Machine,
    /// Transfers and messages that are not final, by their numbers (`user_data`).
    pub under_way: BTreeMap<u64, UnderWay>,
    /// The transfers of the machine's posts, to be cancelled.
    pub posts: BTreeMap<PostId, Transfer>,
    /// Events of devices for which offers wait, by their numbers.
    pub device_events: BTreeMap<u64, ReachedFuture>,
    pub next_number: u64,
    /// What the engine had no room for.
    pub backlog: VecDeque<Action>,
    /// The parts of the message at its front that are submitted.
    pub parts_sent: usize,
    /// The cache itself, for its threads.
    pub me: Weak<Shared>,
    /// Calls that wait for a retract.
    pub retracts: usize,
    pub is_closing: bool,
    /// Nothing is under way any more, and the thread has ended.
    pub is_over: bool,
}

pub enum UnderWay {
    /// A part of a message that is not its last.
    Part,
    /// And what counts it.
    Message(PeerId, Option<Owner>),
    Post(PostId),
}

impl Inner {
    pub fn new(machine: Machine) -> Inner {
        Inner {
            machine,
            under_way: BTreeMap::new(),
            posts: BTreeMap::new(),
            device_events: BTreeMap::new(),
            next_number: 0,
            backlog: VecDeque::new(),
            parts_sent: 0,
            me: Weak::new(),
            retracts: 0,
            is_closing: false,
            is_over: false,
        }
    }
}
