//! Notifications that are posted apart from data, and numbers that were given up. The peer delivers notifications in
//! the order of their numbers, so the lowest number goes first. A number that the peer has not granted yet delays none
//! that it has granted.

use crate::complete::Transfer;
use crate::limits::RDMA_WORD_BYTES_MAX;
use crate::types::Transport;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

pub enum Queued {
    Notify(Arc<Transfer>),
    Skip,
}

/// Notifications by number. `mail` may be posted by RDMA: they are while an RDMA path is open, regardless of the path
/// of their data, and by TCP otherwise. `others` are posted by TCP. The target restores the order.
#[derive(Default)]
pub struct Notifications {
    mail: BTreeMap<u64, Arc<Transfer>>,
    others: BTreeMap<u64, Arc<Transfer>>,
    /// Given-up numbers: the first of each contiguous range, and the number after its last. Even if an application
    /// gives up notifications without end, towards a peer that takes none, the ranges are at most as many as waiting
    /// notifications.
    skips: BTreeMap<u64, u64>,
}

/// Returns whether the notification may be posted by RDMA: RDMA is allowed and the notification is short enough.
fn is_mail(transfer: &Transfer) -> bool {
    transfer.spec.allowed & Transport::Rdma.bit() != 0 && bytes_of(transfer) <= RDMA_WORD_BYTES_MAX
}

fn bytes_of(transfer: &Transfer) -> usize {
    transfer.spec.notify.as_ref().map_or(0, |bytes| bytes.len())
}

/// The list that holds a number.
#[derive(Clone, Copy)]
enum List {
    Mail,
    Others,
    Skips,
}

impl Notifications {
    pub fn push_notify(&mut self, transfer: Arc<Transfer>) {
        let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
        let list = if is_mail(&transfer) { &mut self.mail } else { &mut self.others };
        list.insert(sequence, transfer);
    }

    pub fn push_skip(&mut self, sequence: u64) {
        let before = self.skips.range(..=sequence).next_back().map(|(first, end)| (*first, *end));
        let first = match before {
            Some((_, end)) if end > sequence => return, // already queued
            Some((first, end)) if end == sequence => first,
            _ => sequence,
        };
        let end = self.skips.remove(&(sequence + 1)).unwrap_or(sequence + 1);
        self.skips.insert(first, end);
    }

    /// Removes a queued notification. Returns whether it was queued.
    pub fn drop_notify(&mut self, transfer: &Transfer) -> bool {
        let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
        for list in [&mut self.mail, &mut self.others] {
            if list.get(&sequence).is_some_and(|other| other.handle == transfer.handle) {
                list.remove(&sequence);
                return true;
            }
        }
        false
    }

    /// Pulls the transport's first notification or skip with its number, if the peer has granted it and it fits.
    pub fn pull(
        &mut self,
        transport: Transport,
        rdma: bool,
        limit: u64,
        bytes_max: usize,
    ) -> Option<(u64, Queued)> {
        let (sequence, list) = self.first_of(transport, rdma)?;
        let list = match list {
            List::Mail => &mut self.mail,
            List::Others => &mut self.others,
            List::Skips => return (sequence < limit).then(|| self.pull_skip(sequence)),
        };
        let entry = list.first_entry()?;
        let goes = sequence < limit && bytes_of(entry.get()) <= bytes_max;
        goes.then(|| (sequence, Queued::Notify(entry.remove())))
    }

    fn pull_skip(&mut self, sequence: u64) -> (u64, Queued) {
        if let Some(end) = self.skips.remove(&sequence).filter(|end| *end > sequence + 1) {
            self.skips.insert(sequence + 1, end);
        }
        (sequence, Queued::Skip)
    }

    pub fn has(&self, transport: Transport, rdma: bool) -> bool {
        self.first_of(transport, rdma).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.mail.is_empty() && self.others.is_empty() && self.skips.is_empty()
    }

    /// Returns the transport's next number and its list. `rdma`: the RDMA path is open.
    fn first_of(&self, transport: Transport, rdma: bool) -> Option<(u64, List)> {
        let first = |list: &BTreeMap<u64, Arc<Transfer>>| list.keys().next().copied();
        let mail = first(&self.mail).map(|sequence| (sequence, List::Mail));
        let skips = self.skips.keys().next().map(|sequence| (*sequence, List::Skips));
        let others = first(&self.others).map(|sequence| (sequence, List::Others));
        let all = match transport {
            Transport::Rdma if rdma => [mail, skips, None],
            Transport::Tcp if !rdma => [mail, skips, others],
            Transport::Tcp => [None, None, others],
            _ => [None; 3],
        };
        all.into_iter().flatten().min_by_key(|(sequence, _)| *sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// For any order of pushes and pulls, each number is pulled once, the lowest first, and only if it was granted.
    fn check(pushed: &[u64], limit: u64) -> Result<(), TestCaseError> {
        let (mut words, mut model) = (Notifications::default(), BTreeSet::new());
        for (at, sequence) in pushed.iter().enumerate() {
            words.push_skip(*sequence);
            model.insert(*sequence);
            if at % 3 == 2 {
                let pulled = words.pull(Transport::Tcp, false, limit, 0).map(|(sequence, _)| sequence);
                let expected = model.first().copied().filter(|sequence| *sequence < limit);
                prop_assert_eq!(pulled, expected);
                expected.map(|sequence| model.remove(&sequence));
            }
            let held: u64 = words.skips.iter().map(|(first, end)| end - first).sum();
            prop_assert_eq!(held, model.len() as u64);
            let stretches: Vec<_> = words.skips.iter().collect();
            prop_assert!(stretches.windows(2).all(|two| two[0].1 < two[1].0), "adjacent ranges merge");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn numbers_that_are_skipped_are_pulled_once_and_in_order(
            pushed in prop::collection::vec(0u64..64, 0..200), limit in 0u64..80
        ) {
            check(&pushed, limit)?;
        }
    }

    #[test]
    fn skips_that_nobody_takes_do_not_pile_up() {
        let mut words = Notifications::default();
        (0..1_000_000).for_each(|sequence| words.push_skip(sequence));
        assert_eq!(words.skips.len(), 1);
        assert!(words.has(Transport::Tcp, false) && words.has(Transport::Rdma, true));
        assert!(!words.has(Transport::Tcp, true) && words.pull(Transport::Tcp, false, 0, 0).is_none());
    }
}
