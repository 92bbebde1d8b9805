//! The state that a cache keeps under its lock.

use std::collections::BTreeMap;
use std::sync::Weak;

use ferry::status::Error;
use ferry::thread::JoinHandle;
use ferry::types::PeerId;
use ferry::{Probe, ReachedFuture, Transfer};

use super::inbox::Inbox;
use super::moving::Moving;
use super::Shared;
use crate::handoff::{Machine, Owner, PostId};
use crate::messages::Outgoing;

pub struct Inner {
    pub machine: Machine,
    /// Transfers and messages that are not final, by their numbers (`user_data`).
    pub under_way: BTreeMap<u64, UnderWay>,
    /// The machine's posts.
    pub moving: Moving,
    /// Events of devices for which offers wait, by their numbers.
    pub device_events: BTreeMap<u64, ReachedFuture>,
    pub next_number: u64,
    /// Messages of peers that are not heard yet, and messages to peers that are not submitted.
    pub inbox: Inbox,
    pub outgoing: Outgoing<Owner>,
    /// Peers that are gone, as a failed message to each showed. Earlier messages of theirs may still be in the queue.
    pub over: BTreeMap<PeerId, Error>,
    /// The goodbyes of a cache that closes, until they are final.
    pub goodbyes: Vec<Transfer>,
    /// The thread that plans, or has planned.
    pub planner: Option<JoinHandle<()>>,
    /// Probes of engines whose caches may not be open, by peer.
    pub probes: BTreeMap<PeerId, Probe>,
    /// The cache itself, for its threads.
    pub me: Weak<Shared>,
    /// Calls that wait for a retract.
    pub retracts: usize,
    pub is_closing: bool,
    /// For a cache that closes: since when it has had no handoffs, and whether its last messages were given up.
    pub idle_since: Option<u64>,
    pub is_cut: bool,
    /// The cache has said goodbye, and hears nothing any more.
    pub is_parting: bool,
    /// Nothing is under way any more, and the thread has ended.
    pub is_over: bool,
}

pub enum UnderWay {
    /// A part of a message.
    Part(Sent),
    /// A transfer of a post.
    Post(PostId),
}

/// A part of a message, so that it can be cancelled. `is_last`: the message ends with it; `of`: whose message it is.
pub struct Sent {
    pub peer: PeerId,
    pub of: Option<Owner>,
    pub is_last: bool,
    pub transfer: Transfer,
}

impl Inner {
    /// `parts_max`: of messages that are under way.
    pub fn new(machine: Machine, parts_max: usize) -> Inner {
        Inner {
            machine,
            under_way: BTreeMap::new(),
            moving: Moving::new(),
            device_events: BTreeMap::new(),
            next_number: 0,
            inbox: Inbox::default(),
            outgoing: Outgoing::new(parts_max),
            over: BTreeMap::new(),
            goodbyes: Vec::new(),
            planner: None,
            probes: BTreeMap::new(),
            me: Weak::new(),
            retracts: 0,
            is_closing: false,
            idle_since: None,
            is_cut: false,
            is_parting: false,
            is_over: false,
        }
    }
}
