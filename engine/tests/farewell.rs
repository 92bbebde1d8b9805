//! Leaving in good order: what the other side hears, and how soon.

use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS};
use ferry::status::Status;
use ferry::{Config, Deadline, Engine};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn engine() -> Engine {
    let mut config = Config::new().unwrap();
    // So long that a goodbye which got lost cannot be mistaken for one that came.
    config.set("reconnect_timeout_ms", "600000").unwrap();
    Engine::open(config).unwrap()
}

/// The next event that `wanted` takes, within ten seconds.
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

/// Both directions, and many times: the goodbye races with the lanes' ends, which make the other side
/// speak on a connection that nobody reads any more.
#[test]
fn who_closes_is_missed_at_once() {
    for round in 0..30 {
        let (dialer, acceptor) = (engine(), engine());
        let queues = [&dialer, &acceptor].map(|engine| engine.queue(WHAT_PEERS, 16).unwrap());
        dialer.connect(acceptor.address(), Some(Duration::from_secs(10))).unwrap();
        next(&queues[1], |body| (body == EventBody::PeerUp).then_some(()));
        let (leaver, stayer) = if round % 2 == 0 { (dialer, &queues[1]) } else { (acceptor, &queues[0]) };
        leaver.close(Some(Duration::from_secs(10))).unwrap();
        let status = next(stayer, |body| match body {
            EventBody::PeerLost { status, .. } => Some(status),
            _ => None,
        });
        assert_eq!(status, Status::PeerLost);
    }
}

/// A target that closes because of what it was told has taken it: its sender must hear so.
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
