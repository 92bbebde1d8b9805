//! The standing of one owner: which entries are its own, whether its inventory is complete, and which removals it
//! missed. `Table` keeps one of these for each owner, and moves the entries.

use super::NodeId;
use ferry::status::Result;
use ferry::{Error, Status};

/// One life of a node, whose entries end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub node: NodeId,
    pub incarnation: u64,
}

/// A part of an inventory: fingerprints of what the owner holds and the table's node is a home of. The owner cuts each
/// part from what it holds when it sends the part, on the channel that carries its adds and removes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The owner's number of this inventory.
    pub inventory: u64,
    /// Counts from 0, which begins the inventory, again or for the first time.
    pub number: u32,
    pub last: bool,
    /// [`IndexMembers::stamp`](super::IndexMembers::stamp) of the list for which the owner cuts it.
    pub members: u64,
    /// None: all that the owner holds. Otherwise only what the table's node was no home of by the list of this stamp,
    /// for which the owner's last inventory was complete, and from which it went straight to `members`.
    pub since: Option<u64>,
    pub fingerprints: &'a [u64],
}

/// An inventory that has begun.
#[derive(Debug)]
struct Running {
    inventory: u64,
    next: u32,
    is_whole: bool,
    /// The number of the last burial before it began.
    burials: u64,
}

#[derive(Debug)]
pub(super) struct Standing {
    pub owner: Owner,
    /// The slot of its entries.
    pub slot: u16,
    /// The slot of the entries before the whole inventory that runs or was interrupted: hints until it ends.
    pub previous: Option<u16>,
    running: Option<Running>,
    /// The stamp of the index members for which it announces.
    pub stamp: u64,
    /// Its inventory is complete for the present index members; for the settled ones.
    pub is_current: bool,
    pub is_settled: bool,
    /// It missed burials above the first and up to the second, and may still announce what was removed.
    heard: u64,
    missed: u64,
}

impl Standing {
    /// Returns a new owner's standing: it may bring back what was removed before it came.
    pub fn new(owner: Owner, slot: u16, burials: u64) -> Standing {
        Standing {
            owner,
            slot,
            previous: None,
            running: None,
            stamp: 0,
            is_current: false,
            is_settled: false,
            heard: 0,
            missed: burials,
        }
    }

    pub fn missed_burials(&self) -> (u64, u64) {
        (self.heard, self.missed)
    }

    pub fn miss_burial(&mut self, number: u64) {
        self.missed = number;
    }

    /// Its messages may have been lost: only a whole inventory makes it complete again. Its entries stay as hints.
    pub fn doubt(&mut self) {
        self.interrupt();
        (self.is_current, self.is_settled) = (false, false);
    }

    /// The inventory that runs, if one does, has to begin again.
    pub fn interrupt(&mut self) {
        self.running = None;
    }

    /// Takes note of a part, before its fingerprints are added. `settled` is the stamp of the settled index members. A
    /// whole inventory begins with a `fresh` slot. Returns the slot that is no longer shown.
    pub fn take(
        &mut self,
        part: &Part<'_>,
        settled: u64,
        burials: u64,
        fresh: Option<u16>,
    ) -> Result<Option<u16>> {
        if part.number == 0 {
            self.interrupt();
            match part.since {
                None => self.doubt(),
                Some(since) if since == settled && self.is_settled => {}
                Some(_) => return Err(stale("inventory: only a whole one completes what the table knows")),
            }
            self.running =
                Some(Running { inventory: part.inventory, next: 0, is_whole: part.since.is_none(), burials });
        }
        let due = self.running.as_ref().map(|running| (running.inventory, running.next));
        if due != Some((part.inventory, part.number)) {
            self.interrupt();
            let (number, inventory) = (part.number, part.inventory);
            return Err(stale(&format!(
                "inventory {inventory}: part {number} is not due; begin again with part 0"
            )));
        }
        let Some(fresh) = fresh else { return Ok(None) };
        let old = std::mem::replace(&mut self.slot, fresh);
        // The second slot of an interrupted inventory has less than the one before it.
        Ok(self.previous.replace(self.previous.unwrap_or(old)).map(|_| old))
    }

    /// Counts a part whose fingerprints are in the table. Returns the slot that is no longer shown.
    pub fn taken(&mut self, part: &Part<'_>) -> Option<u16> {
        if let Some(running) = self.running.as_mut() {
            running.next += 1;
            if part.last {
                self.heard = if running.is_whole { running.burials } else { self.heard };
                self.is_current = true;
                self.running = None;
                return self.previous.take();
            }
        }
        None
    }
}

pub(super) fn stale(message: &str) -> Error {
    Error::new(Status::Stale, message)
}
