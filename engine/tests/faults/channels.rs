//! Channels of notifications when connections are lost (docs/contracts.md, notifications): the credits of each channel
//! are granted again, because a grant may have been lost with its connection.

use crate::proxy::{Proxy, Verdict, Way};
use crate::support::*;
use ferry::limits::NOTIFY_CREDITS;
use ferry::notify::{Queue, WHAT_NOTIFICATIONS};
use ferry::types::Op;
use ferry::{Transfer, TransferOptions};

#[test]
fn grants_that_are_lost_with_their_connection_are_granted_again() {
    let _turn = alone();
    let (a, b) = (engine(&[]), engine(&[]));
    let proxy = Proxy::new(b.address());
    let peer = connect(&a, &proxy.address);
    let queue = b.channel_queue(WHAT_NOTIFICATIONS, 1, 3).unwrap();
    let send = |number: u32| {
        let bytes = number.to_le_bytes();
        let options = TransferOptions { notify: Some(&bytes), channel: 3, ..TransferOptions::default() };
        a.submit(peer, Op::Write, &[], &options).unwrap()
    };
    let sent: Vec<_> = (0..NOTIFY_CREDITS).map(send).collect();
    Transfer::wait_all(&sent, Some(BOUND)).unwrap();
    // From here on nothing of the control connection reaches `a`: the grants for what is drained are lost.
    proxy.judge(
        |piece| if !piece.is_lane && piece.way == Way::Back { Verdict::Swallow } else { Verdict::Pass },
    );
    assert_eq!(drained(&queue, NOTIFY_CREDITS), NOTIFY_CREDITS as usize);
    let waits = send(0);
    assert!(waits.wait(Some(std::time::Duration::from_millis(200))).is_err(), "sent without a grant");
    proxy.judge(|_| Verdict::Pass);
    proxy.cut(true);
    waits.wait(Some(BOUND)).unwrap();
    assert_eq!(drained(&queue, 1), 1);
}

fn drained(queue: &Queue, count: u32) -> usize {
    let mut events = Vec::new();
    wait_until("the notifications come", || {
        queue.drain(&mut events, 1 << 20);
        events.len() >= count as usize
    });
    events.len()
}
