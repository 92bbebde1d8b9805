//! The bounds that an application can reach by itself: the last valid call is accepted, the next is refused with LIMIT
//! (REFUSED where the peer's bound is met) and a message that names the bound, and room that comes back is usable.
//! docs/settings.md names the tests of the other bounds.

mod common;

use common::process::raise_descriptor_limit;
use common::*;
use ferry::limits::{self, NOTIFY_BYTES_MAX};
use ferry::notify::{EventBody, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Access, Op};
use ferry::{Deadline, Engine, Error, RegionSpec, Status, TransferOptions};
use std::time::Duration;

/// A bound: what may be taken how often, the status and the words of the refusal, and the place of the bound.
struct Bound {
    name: &'static str,
    most: usize,
    status: Status,
    words: &'static [&'static str],
    meet: fn(&Bound),
}

const BOUNDS: &[Bound] = &[
    Bound {
        name: "transfers",
        most: 3,
        status: Status::Limit,
        words: &["3 transfers are not yet released", "transfers_max"],
        meet: transfers,
    },
    Bound {
        name: "transfers of a queue",
        most: 3,
        status: Status::Limit,
        words: &["3 of 3 places are taken", "in progress (", "drain it, or create it with a larger capacity"],
        meet: transfers_of_a_queue,
    },
    Bound {
        name: "connects of a queue",
        most: 2,
        status: Status::Limit,
        words: &["2 of 2 places are taken", "in progress (", "drain it, or create it with a larger capacity"],
        meet: connects_of_a_queue,
    },
    Bound {
        name: "peers of the engine that connects",
        most: 2,
        status: Status::Limit,
        words: &["2 peers are known", "peers_max"],
        meet: peers_here,
    },
    Bound {
        name: "peers of the engine that is connected to",
        most: 2,
        status: Status::Refused,
        words: &["2 peers are known", "peers_max"],
        meet: peers_there,
    },
    Bound {
        name: "events that lost peers leave behind",
        most: 1,
        status: Status::Refused,
        words: &["1024 events wait for the application", "peers_max"],
        meet: events_of_lost_peers,
    },
    Bound {
        name: "queues",
        most: 4096,
        status: Status::Limit,
        words: &["at most 4096 queues"],
        meet: queues,
    },
    Bound {
        name: "regions",
        most: 1 << 20,
        status: Status::Limit,
        words: &["more than 1048576 regions"],
        meet: regions,
    },
    Bound {
        name: "bytes of a notification",
        most: NOTIFY_BYTES_MAX,
        status: Status::Limit,
        words: &["above 16384"],
        meet: notification_bytes,
    },
];

impl Bound {
    /// Takes all that may be taken, is refused, gives one back, and takes another.
    fn drive<T>(&self, mut take: impl FnMut() -> Result<T, Error>, mut give_back: impl FnMut(T)) {
        let mut taken: Vec<T> = (0..self.most)
            .map(|nth| take().unwrap_or_else(|error| panic!("{}: number {}: {error}", self.name, nth + 1)))
            .collect();
        for _ in 0..2 {
            self.check(take().err());
            // The last: an engine that is lost most lately is remembered longest.
            give_back(taken.pop().unwrap());
            taken.push(take().unwrap_or_else(|error| panic!("{}: after room came back: {error}", self.name)));
        }
        self.check(take().err());
        taken.into_iter().for_each(give_back);
    }

    fn check(&self, error: Option<Error>) {
        let error = error.unwrap_or_else(|| panic!("{}: more than {}", self.name, self.most));
        assert_eq!(error.status, self.status, "{}: {error}", self.name);
        for words in self.words {
            assert!(error.message.contains(words), "{}: {words:?} is not in {:?}", self.name, error.message);
        }
    }
}

fn transfers(bound: &Bound) {
    let pair = Pair::new(&[("transfers_max", "3")]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    bound.drive(
        || pair.a.submit_core(pair.b_at_a, Op::Write, &one, &TransferOptions::default()),
        |core| {
            pair.a.wait(&core, Some(PATIENCE)).unwrap();
            pair.a.release(core.handle).unwrap();
        },
    );
}

fn transfers_of_a_queue(bound: &Bound) {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    let queue = pair.a.queue(WHAT_TRANSFERS, bound.most).unwrap();
    let options = TransferOptions { queue: Some(queue.clone()), ..TransferOptions::default() };
    bound.drive(
        || pair.a.submit(pair.b_at_a, Op::Write, &one, &options),
        |transfer| {
            // An event takes room until it is drained.
            transfer.wait(Some(PATIENCE)).unwrap();
            eventually("an event comes", || queue.drain(&mut Vec::new(), 1) == 1);
        },
    );
}

fn connects_of_a_queue(bound: &Bound) {
    let (a, b) = (engine(&[]), engine(&[]));
    let queue = a.queue(WHAT_PEERS, bound.most).unwrap();
    bound.drive(
        || a.connect_async(b.address(), Some(PATIENCE), &queue, 0),
        |()| {
            let mut events = Vec::new();
            eventually("a connect ends", || {
                queue.drain(&mut events, 1);
                events.iter().any(|it| matches!(it.body, EventBody::PeerConnect { .. }))
            });
        },
    );
}

fn peers_here(bound: &Bound) {
    let a = engine(&[("peers_max", "2")]);
    let mut others: Vec<Engine> = Vec::new();
    bound.drive(
        || {
            others.push(engine(&[]));
            a.connect(others[others.len() - 1].address(), Some(PATIENCE))
        },
        |peer| a.close_peer(peer, Some(PATIENCE)).unwrap(),
    );
}

fn peers_there(bound: &Bound) {
    let hub = engine(&[("peers_max", "2")]);
    let known = || hub.peers().unwrap().iter().filter(|it| hub.probe(**it, Some(PATIENCE)).is_ok()).count();
    let mut here = 0;
    let connected = std::cell::Cell::new(0);
    bound.drive(
        || {
            let other = engine(&[]);
            other.connect(hub.address(), Some(PATIENCE))?;
            connected.set(connected.get() + 1);
            here += 1;
            Ok(other)
        },
        |other| {
            other.close(Some(PATIENCE)).unwrap();
            connected.set(connected.get() - 1);
            eventually("the hub notices", || known() == connected.get());
        },
    );
    assert!(here > bound.most);
}

/// As many notifications wait as one peer may leave, and no queue takes them; then a queue drains them.
fn events_of_lost_peers(bound: &Bound) {
    let hub = engine(&[("peers_max", "1")]);
    let leave = |count: usize| {
        let other = engine(&[]);
        let peer = other.connect(hub.address(), Some(PATIENCE))?;
        (0..count).for_each(|_| other.notify(peer, b"left", Deadline::After(PATIENCE)).unwrap());
        other.close(Some(PATIENCE)).unwrap();
        eventually("the hub notices", || {
            hub.peers().unwrap().iter().all(|it| hub.probe(*it, Some(PATIENCE)).is_err())
        });
        Ok(())
    };
    let credits = limits::NOTIFY_CREDITS as usize;
    leave(credits - 1).unwrap();
    leave(1).unwrap();
    bound.check(leave(1).err());
    let mut events = Vec::new();
    hub.queue(WHAT_NOTIFICATIONS, 1).unwrap().drain(&mut events, credits);
    assert_eq!(events.len(), credits);
    leave(1).expect("room is usable again");
}

fn queues(bound: &Bound) {
    let descriptors = raise_descriptor_limit();
    if descriptors < bound.most as u64 + 100 {
        println!("SKIPPED: {} queues need a descriptor each, the limit is {descriptors}", bound.most);
        return;
    }
    let a = engine(&[("listen_address", "")]);
    bound.drive(|| a.queue(WHAT_TRANSFERS, 1), |queue| a.hub().unwrap().destroy(queue.handle()).unwrap());
}

/// Registers all but one at once: one by one they would take a minute.
fn regions(bound: &Bound) {
    let a = engine(&[("listen_address", "")]);
    let bytes = vec![0u8; bound.most + 2];
    let spec = |at: usize| RegionSpec {
        address: bytes.as_ptr() as u64 + at as u64,
        length: 1,
        access: Access(0),
        ..RegionSpec::default()
    };
    // SAFETY: `bytes` outlives the regions, and nobody may access them.
    let register = |specs| unsafe { a.register_batch(specs, None) };
    register((2..bound.most + 1).map(spec).collect()).unwrap();
    let last = Bound { most: 1, ..*bound };
    let mut at = 0;
    last.drive(
        || {
            at = 1 - at;
            register(vec![spec(at)])
        },
        |regions| a.unregister(regions[0], Some(Duration::ZERO)).unwrap(),
    );
}

fn notification_bytes(bound: &Bound) {
    let pair = Pair::new(&[]);
    let words = vec![7; bound.most + 1];
    let notify = |bytes: &[u8]| pair.a.notify(pair.b_at_a, bytes, Deadline::Default);
    for _ in 0..2 {
        notify(&words[1..]).unwrap();
        bound.check(notify(&words).err());
    }
}

#[test]
fn each_bound_is_met_at_its_number_and_named() {
    for bound in BOUNDS {
        let begun = std::time::Instant::now();
        (bound.meet)(bound);
        println!("{}: {} in {:?}", bound.name, bound.most, begun.elapsed());
    }
}
