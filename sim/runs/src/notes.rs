//! The model of notifications: each has a number, which its bytes begin with, and is known from its submit on.

use crate::ledger::{Ledger, LifeId, TransferId};
use ferry::types::Op;
use ferry::Notification;

/// How long a payload is at least.
pub const BYTES_MIN: usize = 16;

pub struct Note {
    pub from: LifeId,
    pub to: LifeId,
    pub channel: u16,
    pub bytes: usize,
    pub transfer: Option<TransferId>,
    pub invoked: u64,
    pub returned: u64,
    /// The outcome that the sender was told.
    pub outcome: Option<Notification>,
    pub has_arrived: bool,
}

impl Note {
    /// True if the data must stay as it is until the notification has arrived.
    pub fn keeps_data(&self) -> bool {
        !self.has_arrived && matches!(self.outcome, Some(Notification::Delivered | Notification::Unknown))
    }
}

/// Returns the bytes of a notification.
pub fn payload(number: usize, bytes: usize) -> Vec<u8> {
    let mut all = (number as u64).to_le_bytes().to_vec();
    all.extend((bytes as u64).to_le_bytes());
    all.extend((BYTES_MIN..bytes).map(|at| (at * 7 + number) as u8));
    all
}

impl Ledger {
    pub fn new_note(&mut self, from: LifeId, to: LifeId, channel: u16, bytes: usize) -> usize {
        let invoked = self.tick();
        self.notes.push(Note {
            from,
            to,
            channel,
            bytes,
            transfer: None,
            invoked,
            returned: u64::MAX,
            outcome: None,
            has_arrived: false,
        });
        self.notes.len() - 1
    }

    /// The application of `at` was given a notification by the queue of this channel.
    pub fn arrived(&mut self, at: LifeId, from: Option<LifeId>, channel: u16, bytes: &[u8]) {
        let number = bytes.first_chunk().map(|word| u64::from_le_bytes(*word) as usize);
        let Some(number) = number.filter(|number| *number < self.notes.len()) else {
            return self
                .fail(format!("{} got a notification that nobody sent: {bytes:02x?}", self.named(at)));
        };
        let note = &mut self.notes[number];
        let was_here = std::mem::replace(&mut note.has_arrived, true);
        let (sender, returned, transfer) = (note.from, note.returned, note.transfer);
        let intact = bytes == payload(number, note.bytes);
        let wrong = if was_here {
            "arrives again"
        } else if note.to != at || from.is_some_and(|from| from != note.from) {
            "arrives at another engine, or as another's"
        } else if note.channel != channel {
            "arrives on another channel"
        } else if !intact {
            "is damaged"
        } else if note.outcome == Some(Notification::NotSent) {
            "arrives although its sender was told NOT_SENT"
        } else {
            ""
        };
        if !wrong.is_empty() {
            self.fail(format!("{} {wrong}", self.told_of_note(number)));
        }
        let later = self
            .notes
            .iter()
            .enumerate()
            .filter(|(_, it)| (it.from, it.to, it.channel) == (sender, at, channel))
            .find(|(_, it)| it.has_arrived && it.invoked > returned);
        if let Some((later, _)) = later {
            self.fail(format!("{} arrives after {later}, which was sent later", self.told_of_note(number)));
        }
        let Some(id) = transfer else { return };
        if self.transfers[id].wish.op == Op::Write {
            let wrong = (0..self.transfers[id].pieces.len()).find_map(|nth| self.wrong_data(id, nth));
            if let Some(wrong) = wrong {
                let told = self.told_of_note(number);
                self.fail(format!("{told} arrives before the data of {}: {wrong}", self.told(id)));
            }
        }
        self.release_remote(id);
    }

    /// The sender was told what became of a notification.
    pub fn note_ended(&mut self, number: usize, outcome: Notification) {
        self.notes[number].outcome = Some(outcome);
        if outcome == Notification::NotSent && self.notes[number].has_arrived {
            self.fail(format!("{} is told as NOT_SENT and has arrived", self.told_of_note(number)));
        }
    }

    fn told_of_note(&self, number: usize) -> String {
        let note = &self.notes[number];
        let (from, to) = (self.named(note.from), self.named(note.to));
        format!(
            "notification {number} ({from} to {to}, channel {}, {:?}, of transfer {:?})",
            note.channel, note.outcome, note.transfer
        )
    }

    /// Finds notifications that were delivered and did not arrive, although both ends remember each other.
    pub fn undelivered(&self) -> Option<String> {
        let lost = self.notes.iter().position(|note| {
            note.outcome == Some(Notification::Delivered)
                && !note.has_arrived
                && self.lives[note.to].is_alive
                && !self.lives[note.to].leaves
                && !self.lives[note.to].parted.contains(&note.from)
        });
        lost.map(|number| format!("{} has not arrived", self.told_of_note(number)))
    }
}
