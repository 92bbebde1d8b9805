//! Notifications that are posted apart from data, and numbers that were given up. The peer delivers the notifications
//! of a channel in the order of their numbers, so the lowest number goes first; the channels take turns. A number that
//! the peer has not granted yet delays none that it has granted. `route::NotificationPaths` decides which transport
//! posts a notification.

use crate::complete::Transfer;
use crate::limits::{CHANNELS_MAX, NOTIFY_CREDITS};
use crate::route::NotificationPaths;
use crate::sys::atomic::Ordering;
use crate::types::numbers::{channel_of, number};
use crate::types::Transport;
use std::collections::BTreeMap;
use std::sync::Arc;

pub enum Queued {
    Notify(Arc<Transfer>),
    Skip,
}

type ByNumber = BTreeMap<u64, Arc<Transfer>>;

/// The notifications of all channels.
#[derive(Default)]
pub struct Notifications {
    /// By number, up to the highest that was used.
    channels: Vec<Channel>,
    /// The channel that was pulled from last; the next one comes first.
    last: usize,
}

/// Notifications of one channel by number, in a queue for each of `NotificationPaths`. The target restores the order.
struct Channel {
    next: u64,
    /// The first number that the peer has not granted.
    limit: u64,
    rdma_or_tcp: ByNumber,
    tcp_only: ByNumber,
    /// Given-up numbers: the first of each contiguous range, and the number after its last. Adjacent ranges merge, so
    /// the waiting notifications bound their number, even if an application gives up notifications without end towards
    /// a peer that takes none.
    skips: BTreeMap<u64, u64>,
}

fn bytes_of(transfer: &Transfer) -> usize {
    transfer.spec.notify.as_ref().map_or(0, |bytes| bytes.len())
}

/// The queue that holds a number.
#[derive(Clone, Copy)]
enum Holder {
    Notify(NotificationPaths),
    Skips,
}

impl Holder {
    const ALL: [Holder; 3] = [
        Holder::Notify(NotificationPaths::RdmaOrTcp),
        Holder::Notify(NotificationPaths::TcpOnly),
        Holder::Skips,
    ];

    fn paths(self) -> NotificationPaths {
        match self {
            Holder::Notify(paths) => paths,
            Holder::Skips => NotificationPaths::OF_SKIPS,
        }
    }
}

impl Notifications {
    /// Returns the channel of a number, and makes those up to it. Callers have checked that there is such a channel.
    fn channel(&mut self, of: u16) -> &mut Channel {
        let at = usize::from(of);
        for channel in self.channels.len()..=at {
            self.channels.push(Channel::new(channel as u16));
        }
        &mut self.channels[at]
    }

    /// Draws the next number of a channel.
    pub fn next_number(&mut self, channel: u16) -> u64 {
        let channel = self.channel(channel);
        channel.next += 1;
        channel.next - 1
    }

    /// Raises the limit of a channel's numbers. Returns false if there is no such channel.
    pub fn grant(&mut self, limit: u64) -> bool {
        let is_known = channel_of(limit) < CHANNELS_MAX;
        if is_known {
            let channel = self.channel(channel_of(limit));
            channel.limit = channel.limit.max(limit);
        }
        is_known
    }

    /// Returns whether the peer has granted this number.
    pub fn is_granted(&self, number: u64) -> bool {
        self.channels.get(usize::from(channel_of(number))).is_some_and(|channel| number < channel.limit)
    }

    pub fn push_notify(&mut self, transfer: Arc<Transfer>) {
        self.channel(transfer.spec.channel).push_notify(transfer);
    }

    pub fn push_skip(&mut self, number: u64) {
        self.channel(channel_of(number)).push_skip(number);
    }

    /// Removes a queued notification. Returns whether it was queued.
    pub fn drop_notify(&mut self, transfer: &Transfer) -> bool {
        self.channel(transfer.spec.channel).drop_notify(transfer)
    }

    /// Pulls the transport's first notification or skip of the next channel that has one: with its number, if the peer
    /// has granted it and it fits. `open`: mask of `Transport::bit`, the open paths.
    pub fn pull(&mut self, transport: Transport, open: u64, bytes_max: usize) -> Option<(u64, Queued)> {
        let count = self.channels.len();
        for at in (1..=count).map(|step| (self.last + step) % count) {
            let pulled = self.channels[at].pull(transport, open, bytes_max);
            if pulled.is_some() {
                self.last = at;
                return pulled;
            }
        }
        None
    }

    pub fn has(&self, transport: Transport, open: u64) -> bool {
        self.channels.iter().any(|channel| channel.first_of(transport, open).is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.channels.iter().all(Channel::is_empty)
    }
}

impl Channel {
    fn new(channel: u16) -> Channel {
        Channel {
            next: number(channel, 0),
            limit: number(channel, NOTIFY_CREDITS.into()),
            rdma_or_tcp: ByNumber::new(),
            tcp_only: ByNumber::new(),
            skips: BTreeMap::new(),
        }
    }

    fn push_notify(&mut self, transfer: Arc<Transfer>) {
        let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
        let paths = NotificationPaths::of(transfer.spec.allowed, bytes_of(&transfer));
        self.queue(paths).insert(sequence, transfer);
    }

    fn queue(&mut self, paths: NotificationPaths) -> &mut ByNumber {
        match paths {
            NotificationPaths::RdmaOrTcp => &mut self.rdma_or_tcp,
            NotificationPaths::TcpOnly => &mut self.tcp_only,
        }
    }

    fn push_skip(&mut self, sequence: u64) {
        let before = self.skips.range(..=sequence).next_back().map(|(first, end)| (*first, *end));
        let first = match before {
            Some((_, end)) if end > sequence => return, // already queued
            Some((first, end)) if end == sequence => first,
            _ => sequence,
        };
        let end = self.skips.remove(&(sequence + 1)).unwrap_or(sequence + 1);
        self.skips.insert(first, end);
    }

    fn drop_notify(&mut self, transfer: &Transfer) -> bool {
        let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
        for list in [&mut self.rdma_or_tcp, &mut self.tcp_only] {
            if list.get(&sequence).is_some_and(|other| other.handle == transfer.handle) {
                list.remove(&sequence);
                return true;
            }
        }
        false
    }

    fn pull(&mut self, transport: Transport, open: u64, bytes_max: usize) -> Option<(u64, Queued)> {
        let limit = self.limit;
        let (sequence, holder) = self.first_of(transport, open)?;
        let queue = match holder {
            Holder::Notify(paths) => self.queue(paths),
            Holder::Skips => return (sequence < limit).then(|| self.pull_skip(sequence)),
        };
        let entry = queue.first_entry()?;
        let goes = sequence < limit && bytes_of(entry.get()) <= bytes_max;
        goes.then(|| (sequence, Queued::Notify(entry.remove())))
    }

    fn pull_skip(&mut self, sequence: u64) -> (u64, Queued) {
        if let Some(end) = self.skips.remove(&sequence).filter(|end| *end > sequence + 1) {
            self.skips.insert(sequence + 1, end);
        }
        (sequence, Queued::Skip)
    }

    fn is_empty(&self) -> bool {
        self.rdma_or_tcp.is_empty() && self.tcp_only.is_empty() && self.skips.is_empty()
    }

    fn first(&self, holder: Holder) -> Option<u64> {
        match holder {
            Holder::Notify(NotificationPaths::RdmaOrTcp) => self.rdma_or_tcp.keys().next(),
            Holder::Notify(NotificationPaths::TcpOnly) => self.tcp_only.keys().next(),
            Holder::Skips => self.skips.keys().next(),
        }
        .copied()
    }

    /// Returns the transport's next number and the queue that holds the number.
    fn first_of(&self, transport: Transport, open: u64) -> Option<(u64, Holder)> {
        let its = Holder::ALL.into_iter().filter(|holder| holder.paths().now(open) == transport);
        let firsts = its.filter_map(|holder| Some((self.first(holder)?, holder)));
        firsts.min_by_key(|(sequence, _)| *sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// For any order of pushes and pulls, each number is pulled once, the lowest first, and only if it was granted.
    fn check(pushed: &[u64], limit: u64) -> Result<(), TestCaseError> {
        let (mut notifications, mut model) = (Channel { limit, ..Channel::new(0) }, BTreeSet::new());
        for (at, sequence) in pushed.iter().enumerate() {
            notifications.push_skip(*sequence);
            model.insert(*sequence);
            if at % 3 == 2 {
                let pulled = notifications.pull(Transport::Tcp, 0, 0).map(|(sequence, _)| sequence);
                let expected = model.first().copied().filter(|sequence| *sequence < limit);
                prop_assert_eq!(pulled, expected);
                expected.map(|sequence| model.remove(&sequence));
            }
            let held: u64 = notifications.skips.iter().map(|(first, end)| end - first).sum();
            prop_assert_eq!(held, model.len() as u64);
            let ranges: Vec<_> = notifications.skips.iter().collect();
            prop_assert!(ranges.windows(2).all(|two| two[0].1 < two[1].0), "adjacent ranges merge");
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
        let mut notifications = Notifications::default();
        (0..1_000_000).for_each(|sequence| notifications.push_skip(sequence));
        notifications.channels[0].limit = 0;
        assert_eq!(notifications.channels[0].skips.len(), 1);
        let rdma = Transport::Rdma.bit();
        assert!(notifications.has(Transport::Tcp, 0) && notifications.has(Transport::Rdma, rdma));
        assert!(
            !notifications.has(Transport::Tcp, rdma) && notifications.pull(Transport::Tcp, 0, 0).is_none()
        );
    }

    #[test]
    fn channels_take_turns_and_one_without_credits_holds_up_none() {
        let mut notifications = Notifications::default();
        for channel in [0, 2, 2, 0, 5] {
            let number = notifications.next_number(channel);
            notifications.push_skip(number);
        }
        notifications.channels[0].limit = 0;
        let mut pulled = || notifications.pull(Transport::Tcp, 0, 0).map(|(number, _)| number);
        let first = |channel| Some(number(channel, 0));
        assert_eq!([pulled(), pulled(), pulled(), pulled()], [first(2), first(5), Some(number(2, 1)), None]);
        assert!(notifications.grant(number(0, 1)) && !notifications.is_granted(number(0, 1)));
        assert_eq!(notifications.pull(Transport::Tcp, 0, 0).map(|(number, _)| number), first(0));
        assert!(!notifications.is_empty() && notifications.pull(Transport::Tcp, 0, 0).is_none());
    }

    #[test]
    fn a_grant_for_a_channel_that_does_not_exist_is_told() {
        let mut notifications = Notifications::default();
        assert!(notifications.grant(number(CHANNELS_MAX - 1, 7)));
        assert!(!notifications.grant(number(CHANNELS_MAX, 7)));
        assert!(notifications.is_granted(number(CHANNELS_MAX - 1, 1023)));
        assert!(!notifications.is_granted(number(CHANNELS_MAX - 1, 1024)));
    }
}
