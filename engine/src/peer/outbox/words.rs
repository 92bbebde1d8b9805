//! Notifications that go apart from data, and the numbers that will carry none. Their numbers are the order
//! in which the peer takes them, so the lowest that waits goes first, and what the peer has not granted
//! yet holds up nothing that it has.

use crate::complete::Transfer;
use crate::limits::RDMA_WORD_BYTES_MAX;
use crate::types::Transport;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

pub enum Word {
    Notify(Arc<Transfer>),
    Skip,
}

impl Word {
    fn bytes(&self) -> usize {
        match self {
            Word::Notify(transfer) => transfer.spec.notify.as_ref().map_or(0, |bytes| bytes.len()),
            Word::Skip => 0,
        }
    }

    /// Whether it may go by RDMA: where that is not ruled out and it is short enough.
    fn is_mail(&self) -> bool {
        let allowed = match self {
            Word::Notify(transfer) => transfer.spec.allowed & Transport::Rdma.bit() != 0,
            Word::Skip => true,
        };
        allowed && self.bytes() <= RDMA_WORD_BYTES_MAX
    }
}

/// By number, those that may go by RDMA apart. They do while there is such a path, whatever carried their
/// data, and by TCP otherwise, as all others do. The target puts them in order.
#[derive(Default)]
pub struct Words {
    mail: BTreeMap<u64, Word>,
    others: BTreeMap<u64, Word>,
}

impl Words {
    pub fn push_notify(&mut self, transfer: Arc<Transfer>) {
        let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
        self.push(sequence, Word::Notify(transfer));
    }

    pub fn push_skip(&mut self, sequence: u64) {
        self.push(sequence, Word::Skip);
    }

    fn push(&mut self, sequence: u64, word: Word) {
        let list = if word.is_mail() { &mut self.mail } else { &mut self.others };
        list.insert(sequence, word);
    }

    /// Takes back a notification that is queued; whether it was.
    pub fn drop_notify(&mut self, transfer: &Transfer) -> bool {
        let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
        let ours = |word: &Word| matches!(word, Word::Notify(other) if other.handle == transfer.handle);
        for list in [&mut self.mail, &mut self.others] {
            if list.get(&sequence).is_some_and(ours) {
                list.remove(&sequence);
                return true;
            }
        }
        false
    }

    /// The first one for this transport, if the peer has granted it and it fits; with its number.
    pub fn pull(&mut self, via: Transport, rdma: bool, limit: u64, bytes_max: usize) -> Option<(u64, Word)> {
        let list = self.first_of(via, rdma)?;
        let entry = list.first_entry()?;
        let goes = *entry.key() < limit && entry.get().bytes() <= bytes_max;
        goes.then(|| entry.remove_entry())
    }

    pub fn has(&self, via: Transport, rdma: bool) -> bool {
        match via {
            Transport::Rdma => rdma && !self.mail.is_empty(),
            Transport::Tcp => !self.others.is_empty() || (!rdma && !self.mail.is_empty()),
            _ => false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.mail.is_empty() && self.others.is_empty()
    }

    /// The list in which this transport's next one is. `rdma`: that path is open.
    fn first_of(&mut self, via: Transport, rdma: bool) -> Option<&mut BTreeMap<u64, Word>> {
        let first = |list: &BTreeMap<u64, Word>| list.keys().next().copied().unwrap_or(u64::MAX);
        match via {
            Transport::Rdma if rdma => Some(&mut self.mail),
            Transport::Tcp if !rdma && first(&self.mail) < first(&self.others) => Some(&mut self.mail),
            Transport::Tcp => Some(&mut self.others),
            _ => None,
        }
    }
}
