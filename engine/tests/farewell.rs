//! An orderly end: the events at the other side, and how soon they come.

use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS};
use ferry::status::Status;
use ferry::{Config, Deadline, Engine};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn engine() -> Engine {
    let mut config = Config::new().unwrap();
    // So long that a lost Bye cannot be mistaken for a received one.
    config.set("reconnect_timeout_ms", "600000").unwrap();
    Engine::open(config).unwrap()
}

/// Returns the next event that `wanted` takes, within ten seconds.
fn next<T>(queue: &Arc<Queue>, wanted: impl Fn(EventBody) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut events = Vec::new();
    loop {
        while queue.drain(&mut events, 1) == 0 {
            assert!(Instant::now() < deadline, "the event did not come");
            std::thread::yield_now();
        }
        if let Some(found) = events.pop().and_then(|event| wanted(event.body)) {
            return found;
        }
    }
}

/// In both directions, and many times: the Bye races with the ends of the lanes, which make the other side write to a
/// connection that nobody reads any more.
#[test]
fn an_engine_that_closes_is_lost_at_once() {
    for round in 0..30 {
        let (dialer, acceptor) = (engine(), engine());
        let queues = [&dialer, &acceptor].map(|engine| engine.queue(WHAT_PEERS, 16).unwrap());
        dialer.connect(acceptor.address(), Some(Duration::from_secs(10))).unwrap();
        next(&queues[1], |body| (body == EventBody::PeerUp { again: false }).then_some(()));
        let (leaver, stayer) = if round % 2 == 0 { (dialer, &queues[1]) } else { (acceptor, &queues[0]) };
        leaver.close(Some(Duration::from_secs(10))).unwrap();
        let status = next(stayer, |body| match body {
            EventBody::PeerLost { status, .. } => Some(status),
            _ => None,
        });
        assert_eq!(status, Status::PeerLost);
    }
}

/// The notification makes the target close, so the target has received it: its sender must be told DONE.
#[test]
fn what_was_taken_before_the_end_is_confirmed() {
    for _ in 0..30 {
        let (teller, listener) = (engine(), engine());
        let news = listener.queue(WHAT_NOTIFICATIONS, 16).unwrap();
        let peer = teller.connect(listener.address(), Some(Duration::from_secs(10))).unwrap();
        let listening = std::thread::spawn(move || {
            next(&news, |body| matches!(body, EventBody::Notification { .. }).then_some(()));
            listener.close(Some(Duration::from_secs(10))).unwrap();
        });
        teller.notify(peer, b"that is all", Deadline::Default).unwrap();
        listening.join().unwrap();
    }
}
