//! Which lanes a session has and is to have: none before something is to go over TCP. Pure; `lanes_of` carries the
//! steps out, `control` dials.
//!
//! ```text
//!         wanted                attached              lost
//!  IDLE ─────────▶ OPENING ───────────────▶ ATTACHED ──────▶ OPENING
//!                   ▲   └ failed ─▶ RESTING                  (the pause begins anew)
//!                   └─── pause, doubled each time ┘
//! ```
//! The dialer of the session opens its lanes. The acceptor asks it to.

use crate::types::Monotonic;

/// Kinds of lanes, as bits: slot 0, and all others.
pub const EXPRESS: u32 = 1;
pub const BULK: u32 = 2;
pub const ALL: u32 = EXPRESS | BULK;

/// The kind of the lane in a slot.
pub fn kind(slot: u32) -> u32 {
    if slot == 0 {
        EXPRESS
    } else {
        BULK
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
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
enum Slot {
    Idle,
    Attached(u32),
    /// `pause_ns`: before it is tried again, should it fail.
    Opening {
        pause_ns: u64,
    },
    Resting {
        until_ns: Monotonic,
        pause_ns: u64,
    },
}

pub struct Opening {
    pauses: Pauses,
    slots: Vec<Slot>,
    /// The kinds that are to stand whenever the session does.
    wanted: u32,
    /// Whether this side dialed the session's connection. None: there is no connection.
    dialed: Option<bool>,
    /// The highest lane number attached in each slot since the session began. Numbers only rise, so the dialer has
    /// given up a lane with a lower one.
    used: Vec<u32>,
}

impl Opening {
    /// `lanes`: the express lane included.
    pub fn new(lanes: u32, pauses: Pauses) -> Opening {
        Opening {
            pauses,
            slots: vec![Slot::Idle; lanes as usize],
            wanted: 0,
            dialed: None,
            used: vec![0; lanes as usize],
        }
    }

    /// A connection stands on which every lane of an earlier one is closed. What was wanted still is.
    pub fn begin(&mut self, dialed: bool) -> Vec<Step> {
        self.dialed = Some(dialed);
        self.slots.fill(Slot::Idle);
        self.used.fill(0);
        let wanted = std::mem::take(&mut self.wanted);
        self.want(wanted)
    }

    /// The connection is gone, and the caller closes all lanes.
    pub fn end(&mut self) {
        self.dialed = None;
        self.slots.fill(Slot::Idle);
    }

    /// Whether the peer may ask for lanes: not if it is the one that dials them.
    pub fn may_be_asked(&self) -> bool {
        self.dialed != Some(false)
    }

    /// Lanes of these kinds are to stand from here on.
    pub fn want(&mut self, kinds: u32) -> Vec<Step> {
        let fresh = kinds & ALL & !self.wanted;
        self.wanted |= fresh;
        match self.dialed {
            Some(false) if fresh != 0 => vec![Step::Ask(fresh)],
            Some(true) => {
                let slots = 0..self.slots.len();
                slots.filter_map(|slot| self.open(slot, self.pauses.min_ns)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Opens a lane for a slot that has none, if the lane is wanted and this side dials.
    fn open(&mut self, slot: usize, pause_ns: u64) -> Option<Step> {
        let is_due = self.slots[slot] == Slot::Idle && self.wanted & kind(slot as u32) != 0;
        if !is_due || self.dialed != Some(true) {
            return None;
        }
        self.slots[slot] = Slot::Opening { pause_ns };
        Some(Step::Open(slot as u32))
    }

    /// Whether a lane with this number may be attached in this slot.
    pub fn takes(&self, slot: u32, lane: u32) -> bool {
        self.dialed.is_some() && self.used.get(slot as usize).is_some_and(|used| lane > *used)
    }

    pub fn attached(&mut self, slot: u32, lane: u32) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Slot::Attached(lane);
            self.used[slot as usize] = lane;
        }
    }

    /// Nothing came of opening a lane: the next one is tried after a pause that doubles each time.
    pub fn failed(&mut self, now_ns: Monotonic, slot: u32) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            if let Slot::Opening { pause_ns } = *place {
                *place = Slot::Resting { until_ns: now_ns.saturating_add(pause_ns), pause_ns };
            }
        }
    }

    /// An attached lane is gone.
    pub fn lost(&mut self, lane: u32) -> Option<Step> {
        let slot = self.slots.iter().position(|slot| *slot == Slot::Attached(lane))?;
        self.slots[slot] = Slot::Idle;
        self.open(slot, self.pauses.min_ns)
    }

    /// When `timer` should be called next.
    pub fn next_timer(&self) -> Option<Monotonic> {
        let until = |slot: &Slot| match slot {
            Slot::Resting { until_ns, .. } => Some(*until_ns),
            _ => None,
        };
        self.slots.iter().filter_map(until).min()
    }

    pub fn timer(&mut self, now_ns: Monotonic) -> Vec<Step> {
        let mut steps = Vec::new();
        for slot in 0..self.slots.len() {
            match self.slots[slot] {
                Slot::Resting { until_ns, pause_ns } if until_ns <= now_ns => {
                    self.slots[slot] = Slot::Idle;
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
