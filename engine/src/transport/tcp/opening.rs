//! Decides which lanes a session opens. A session opens none until work is queued for TCP. Pure; `service` carries out
//! the steps, `greetings` dials.
//!
//! ```text
//!         wanted            attached           lost
//!  IDLE ─────────▶ OPENING ───────────▶ ATTACHED ─────▶ OPENING
//!                   ▲  └─ failed ─┐        │            (the pause begins anew)
//!                   │             ▼        │ lost before anything moved on it
//!                   └──────────PAUSING ◀───┘
//!                 pause, doubled each time
//! ```
//! The dialer of the session opens its lanes. The acceptor asks the dialer to open them.

use crate::peer::transport::{ALL, BULK, EXPRESS};
use crate::types::{LaneId, Monotonic};

/// Returns the kind of the lane in a slot.
pub fn kind(slot: u32) -> u32 {
    if slot == 0 {
        EXPRESS
    } else {
        BULK
    }
}

/// Returns the message by which the acceptor of a session asks its dialer for these kinds of lanes.
pub fn ask(kinds: u32) -> Vec<u8> {
    kinds.to_le_bytes().to_vec()
}

/// Returns the kinds of lanes that a message asks for; None if it is not well formed.
pub fn asked(message: &[u8]) -> Option<u32> {
    message.try_into().ok().map(u32::from_le_bytes)
}

#[derive(Debug, PartialEq, Eq)]
pub enum LaneStep {
    /// Dial a lane for this slot.
    Open(u32),
    /// Ask the dialer for these kinds.
    Ask(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    pub min_ns: u64,
    pub max_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneSlot {
    Idle,
    /// `pause_ns`: the pause before the next try if nothing moves on this lane.
    Attached {
        lane: LaneId,
        pause_ns: u64,
    },
    /// `pause_ns`: the pause before the next try if this one fails.
    Opening {
        pause_ns: u64,
    },
    Pausing {
        until_ns: Monotonic,
        pause_ns: u64,
    },
}

pub struct Opening {
    pauses: Pauses,
    slots: Vec<LaneSlot>,
    /// The kinds of lanes that must be attached whenever the session is up.
    wanted: u32,
    /// Whether this side dialed the session's connection. None: there is no connection.
    dialed: Option<bool>,
    /// The highest lane number attached in each slot since the session began. Numbers rise, so the dialer has given up
    /// any lane with a lower number.
    used: Vec<LaneId>,
}

impl Opening {
    /// `lanes` includes the express lane.
    pub fn new(lanes: u32, pauses: Pauses) -> Opening {
        Opening {
            pauses,
            slots: vec![LaneSlot::Idle; lanes as usize],
            wanted: 0,
            dialed: None,
            used: vec![LaneId::NONE; lanes as usize],
        }
    }

    /// Begins on a new connection; every lane of an earlier one is closed. Lanes that were wanted are wanted again.
    pub fn begin(&mut self, dialed: bool) -> Vec<LaneStep> {
        self.dialed = Some(dialed);
        self.slots.fill(LaneSlot::Idle);
        self.used.fill(LaneId::NONE);
        let wanted = std::mem::take(&mut self.wanted);
        self.want(wanted)
    }

    /// Ends with the connection. The caller closes all lanes.
    pub fn end(&mut self) {
        self.dialed = None;
        self.slots.fill(LaneSlot::Idle);
    }

    /// Returns whether the peer may ask for lanes: not if the peer dials them.
    pub fn may_be_asked(&self) -> bool {
        self.dialed != Some(false)
    }

    /// Requests lanes of these kinds from now on.
    pub fn want(&mut self, kinds: u32) -> Vec<LaneStep> {
        let fresh = kinds & ALL & !self.wanted;
        self.wanted |= fresh;
        match self.dialed {
            Some(false) if fresh != 0 => vec![LaneStep::Ask(fresh)],
            Some(true) => {
                let slots = 0..self.slots.len();
                slots.filter_map(|slot| self.open(slot, self.pauses.min_ns)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Opens the lane of an idle slot, if the lane is wanted and this side dials.
    fn open(&mut self, slot: usize, pause_ns: u64) -> Option<LaneStep> {
        let is_due = self.slots[slot] == LaneSlot::Idle && self.wanted & kind(slot as u32) != 0;
        if !is_due || self.dialed != Some(true) {
            return None;
        }
        self.slots[slot] = LaneSlot::Opening { pause_ns };
        Some(LaneStep::Open(slot as u32))
    }

    /// Returns whether a lane with this number may be attached in this slot.
    pub fn takes(&self, slot: u32, lane: LaneId) -> bool {
        self.dialed.is_some() && self.used.get(slot as usize).is_some_and(|used| lane > *used)
    }

    pub fn attached(&mut self, slot: u32, lane: LaneId) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            let pause_ns = match *place {
                LaneSlot::Opening { pause_ns } => pause_ns,
                _ => self.pauses.min_ns,
            };
            *place = LaneSlot::Attached { lane, pause_ns };
            self.used[slot as usize] = lane;
        }
    }

    /// Notes that opening a lane failed. The next try follows a pause that doubles each time.
    pub fn failed(&mut self, now_ns: Monotonic, slot: u32) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            if let LaneSlot::Opening { pause_ns } = *place {
                *place = LaneSlot::Pausing { until_ns: now_ns.saturating_add(pause_ns), pause_ns };
            }
        }
    }

    /// Notes that an attached lane is lost. A lane on which nothing moved was no better than one that could not be
    /// opened: without the pause, a peer that ends each lane at its first frame would be dialed in a loop.
    pub fn lost(&mut self, now_ns: Monotonic, lane: LaneId, has_moved: bool) -> Option<LaneStep> {
        let (slot, pause_ns) = self.slots.iter().enumerate().find_map(|(at, slot)| match *slot {
            LaneSlot::Attached { lane: its, pause_ns } if its == lane => Some((at, pause_ns)),
            _ => None,
        })?;
        if has_moved || self.dialed != Some(true) {
            self.slots[slot] = LaneSlot::Idle;
            return self.open(slot, self.pauses.min_ns);
        }
        self.slots[slot] = LaneSlot::Pausing { until_ns: now_ns.saturating_add(pause_ns), pause_ns };
        None
    }

    /// Returns when to call `timer` next.
    pub fn next_timer(&self) -> Option<Monotonic> {
        let until = |slot: &LaneSlot| match slot {
            LaneSlot::Pausing { until_ns, .. } => Some(*until_ns),
            _ => None,
        };
        self.slots.iter().filter_map(until).min()
    }

    pub fn timer(&mut self, now_ns: Monotonic) -> Vec<LaneStep> {
        let mut steps = Vec::new();
        for slot in 0..self.slots.len() {
            match self.slots[slot] {
                LaneSlot::Pausing { until_ns, pause_ns } if until_ns <= now_ns => {
                    self.slots[slot] = LaneSlot::Idle;
                    steps.extend(self.open(slot, (pause_ns * 2).min(self.pauses.max_ns)));
                }
                _ => {}
            }
        }
        steps
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
