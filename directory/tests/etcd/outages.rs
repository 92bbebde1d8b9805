//! etcd is absent, killed, restarted with and without its data, or stopped for longer than a lease, while transfers and
//! handoffs go on between engines that found each other by it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferry::types::{PeerId, RegionId, Request};
use ferry::{Status, TransferOptions};
use ferry_directory::{Directory, DirectoryOptions};
use ferry_kv::handoff::{End, Event, Mode};

use super::big::{id, lists, offer_spec, rank, take_spec, Rank, LAYERS, TOKENS};
use super::server::{is_missing, Server};
use super::{engine, options, until, Node, NOW, PATIENCE};

/// A producer and a consumer that found each other by etcd.
struct Pair {
    producer: Rank,
    consumer: Rank,
    names: Directory,
    finder: Directory,
    peer: PeerId,
    region: RegionId,
    /// A page in the producer's engine.
    page: ferry::Memory,
}

impl Pair {
    fn new(server: &Server, ttl_s: u64) -> Pair {
        let (producer, consumer) = (rank("tcp"), rank("tcp"));
        let page = producer.engine.alloc(4_096, &ferry::RegionOptions::default()).unwrap();
        let names = Directory::open(&producer.engine, &server.url(), options(ttl_s)).unwrap();
        let finder = Directory::open(&consumer.engine, &server.url(), options(ttl_s)).unwrap();
        names.register("prefill/0", Some(PATIENCE)).unwrap();
        let peer = finder.connect("prefill/0", Some(PATIENCE)).unwrap();
        until("the page is announced", || {
            consumer.engine.peer_regions(peer).unwrap().iter().any(|region| region.address == page.address())
        });
        let region = page.region();
        Pair { producer, consumer, names, finder, peer, region, page }
    }

    /// Hands one sequence over, and reads its blocks.
    fn hand_over(&self, sequence: u64) {
        let (from, to) = (lists(3), lists(5));
        self.producer.cache.offer(offer_spec(id(sequence), from.clone(), PATIENCE)).unwrap();
        let spec = take_spec(id(sequence), vec![self.peer], to.clone(), Mode::Pull);
        self.consumer.cache.take(spec).unwrap();
        for layer in 0..LAYERS {
            self.producer.compute(sequence, layer, &from);
            self.producer.cache.offer_ready(id(sequence), layer..layer + 1, TOKENS).unwrap();
        }
        self.producer.cache.offer_seal(id(sequence), TOKENS).unwrap();
        for (side, expected) in [(&self.consumer, End::Received), (&self.producer, End::Sent)] {
            match side.cache.wait(Some(PATIENCE)).unwrap() {
                Event::Ended { end, .. } => assert_eq!(end, expected),
                other => panic!("{other:?}"),
            }
        }
        self.consumer.check(sequence, &to, TOKENS);
    }

    /// Writes a page of the sequence's number.
    fn write(&self, sequence: u64) {
        let bytes: Vec<u8> = (0..512).flat_map(|word| (sequence << 16 | word).to_le_bytes()).collect();
        let source = self.consumer.engine.alloc(4_096, &ferry::RegionOptions::default()).unwrap();
        source.write(0, &bytes);
        let request = Request {
            local: source.address(),
            remote: self.page.address(),
            length: 4_096,
            remote_region: self.region,
        };
        self.consumer.engine.write(self.peer, &[request], &TransferOptions::default()).unwrap();
        let mut found = vec![0; 4_096];
        self.page.read(0, &mut found);
        assert!(found == bytes);
    }

    /// Lets transfers and handoffs go on while `trouble` runs. `trouble` calls its argument to wait for two more of
    /// each.
    fn while_they_go_on(&self, trouble: impl FnOnce(&dyn Fn())) {
        let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let more = || {
            let before = count.load(Ordering::Relaxed);
            until("transfers go on", || count.load(Ordering::Relaxed) >= before + 2);
        };
        std::thread::scope(|threads| {
            let traffic = threads.spawn(|| {
                // `Over` ends this loop also if `trouble` panics, so that the panic is reported.
                let began = Instant::now();
                let mut sequence = 0;
                while !is_over.load(Ordering::Relaxed) && began.elapsed() < 4 * PATIENCE {
                    self.hand_over(sequence);
                    self.write(sequence);
                    count.fetch_add(1, Ordering::Relaxed);
                    sequence += 1;
                }
            });
            let over = Over(&is_over);
            trouble(&more);
            drop(over);
            traffic.join().unwrap();
        });
    }

    fn is_cut_off(&self) {
        for directory in [&self.names, &self.finder] {
            until("both sides notice", || directory.status().unwrap().cut_off.is_some());
            let status = directory.status().unwrap();
            assert!(!status.is_connected && !status.why.is_empty(), "{status:?}");
        }
        // The last known table stays in use.
        assert_eq!(self.finder.lookup("prefill/0").unwrap().address, self.producer.engine.address());
        assert_eq!(self.finder.connect("prefill/0", Some(PATIENCE)).unwrap(), self.peer);
        let missing = self.finder.lookup("prefill/1").unwrap_err();
        assert!(missing.message.contains("when etcd last answered"), "{missing}");
    }

    fn is_back(&self, server: &Server) {
        for directory in [&self.names, &self.finder] {
            until("both sides are back", || directory.status().unwrap().is_connected);
        }
        until("the name is in etcd", || server.get("/test/prefill/0").is_some());
        let own = self.producer.engine.descriptor().unwrap().incarnation;
        until("the name is in the table", || {
            let entry = self.finder.lookup("prefill/0");
            entry.is_ok_and(|entry| entry.identity.is_some_and(|identity| identity.incarnation == own))
        });
        until("the name is published", || self.names.status().unwrap().names_published == 1);
        assert_eq!(self.finder.connect("prefill/0", Some(PATIENCE)).unwrap(), self.peer);
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn etcd_may_be_absent_at_the_start() {
    if is_missing("etcd_may_be_absent_at_the_start") {
        return;
    }
    let mut server = Server::absent();
    let engine = engine("127.0.0.1:0");
    let brief = DirectoryOptions { open_timeout: Some(Duration::from_millis(300)), ..options(10) };
    let began = Instant::now();
    let error = Directory::open(&engine, &server.url(), brief).err().unwrap();
    assert!(error.status == Status::Unreachable && error.message.contains(&server.host()), "{error}");
    // ECONNREFUSED, as the system says it and as a number.
    assert!(error.os_error == 111 && error.message.ends_with("Connection refused"), "{error:?}");
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(10));

    // Or the directory goes on trying.
    let later = DirectoryOptions { open_timeout: None, ..options(10) };
    let directory = Directory::open(&engine, &server.url(), later).unwrap();
    let status = directory.status().unwrap();
    assert_eq!((status.is_connected, status.cut_off, status.entries), (false, None, 0));
    assert!(directory.lookup("a").unwrap_err().message.contains("not answered yet"));
    let error = directory.register("a", NOW).unwrap_err();
    assert_eq!(error.status, Status::Unreachable);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| directory.register("b", Some(PATIENCE)));
        server.start();
        waiting.join().unwrap().unwrap();
    });
    assert!(directory.status().unwrap().is_connected);
    until("what failed is not registered", || directory.status().unwrap().names == 1);
    assert_eq!((server.get("/test/a"), server.get("/test/b").is_some()), (None, true));
}

#[test]
fn transfers_go_on_while_etcd_is_killed_and_comes_back_with_its_data() {
    let Some(mut server) =
        Server::started("transfers_go_on_while_etcd_is_killed_and_comes_back_with_its_data")
    else {
        return;
    };
    let pair = Pair::new(&server, 3);
    pair.while_they_go_on(|more| {
        more();
        server.kill();
        pair.is_cut_off();
        // Beyond the lease, which etcd renews when it starts.
        until("the lease would be over", || {
            pair.names.status().unwrap().cut_off.is_some_and(|time| time > Duration::from_secs(4))
        });
        more();
        let error = pair.names.register("b", Some(Duration::from_millis(200))).unwrap_err();
        assert_eq!(error.status, Status::Unreachable);
        server.start();
        pair.is_back(&server);
        more();
    });
    assert_eq!(server.get("/test/b"), None);
    assert_eq!(pair.names.status().unwrap().sessions, 2);
}

#[test]
fn names_come_back_when_etcd_has_lost_its_data() {
    let Some(mut server) = Server::started("names_come_back_when_etcd_has_lost_its_data") else { return };
    let pair = Pair::new(&server, 3);
    pair.while_they_go_on(|more| {
        server.lose_data();
        pair.is_cut_off();
        server.start();
        pair.is_back(&server);
        more();
    });
}

#[test]
fn names_come_back_when_etcd_was_silent_for_longer_than_the_lease() {
    let Some(server) = Server::started("names_come_back_when_etcd_was_silent_for_longer_than_the_lease")
    else {
        return;
    };
    let pair = Pair::new(&server, 2);
    pair.while_they_go_on(|more| {
        let began = Instant::now();
        server.stop();
        pair.is_cut_off();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        more();
        until("the lease is over", || began.elapsed() > Duration::from_secs(5));
        server.go_on();
        pair.is_back(&server);
        more();
    });
    // And stays: the lease that keeps it now is alive.
    std::thread::sleep(Duration::from_secs(4));
    assert!(server.get("/test/prefill/0").is_some());
}

#[test]
fn a_name_that_was_withdrawn_while_etcd_was_away_goes_when_it_is_back() {
    let Some(mut server) =
        Server::started("a_name_that_was_withdrawn_while_etcd_was_away_goes_when_it_is_back")
    else {
        return;
    };
    let (node, watcher) = (Node::new(&server.url(), 3_600), Node::new(&server.url(), 10));
    node.register("a");
    node.register("b");
    watcher.finds("b", &node.engine);
    server.kill();
    until("it is noticed", || node.directory.status().unwrap().cut_off.is_some());
    let error = node.directory.unregister("a", Some(Duration::from_millis(100))).unwrap_err();
    assert_eq!(error.status, Status::Timeout);
    server.start();
    watcher.lacks("a");
    until("the other name is left", || node.directory.status().unwrap().names == 1);
    assert!(server.get("/test/b").is_some());
    // A directory closes in time though etcd is away.
    server.kill();
    let began = Instant::now();
    node.directory.close();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
