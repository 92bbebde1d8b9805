//! What the kernel seldom does, planted: fdatasync that waits or fails, short calls, errors of a disk, a disk that
//! hangs.

use crate::sys::file::{FileCall, FileOp};
use crate::types::{Op, PeerId, Request};
use crate::{
    Config, Deadline, Engine, FileRegion, Memory, RegionOptions, State, Status, TransferOptions,
    TransferResult,
};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(60);
const BYTES: usize = 3 << 20;

struct Ends {
    a: Engine,
    b: Engine,
    peer: PeerId,
    memory: Memory,
}

fn config(settings: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    config.set("transports", "tcp").unwrap();
    settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
    config
}

fn ends(settings: &[(&str, &str)]) -> Ends {
    let [a, b] = [(); 2].map(|()| Engine::open(config(settings)).unwrap());
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let memory = a.alloc(BYTES, &RegionOptions::default()).unwrap();
    memory.write(0, &bytes(1));
    Ends { a, b, peer, memory }
}

fn bytes(tag: u64) -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|at| (tag << 40 | at).to_le_bytes()).collect()
}

fn temporary() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

impl Ends {
    fn register(&self, file: &File) -> FileRegion {
        let region = self.b.register_file(file, 0, BYTES as u64, &RegionOptions::default()).unwrap();
        while !self.a.peer_regions(self.peer).unwrap().iter().any(|known| known.region == region.region) {
            std::thread::yield_now();
        }
        region
    }

    fn request(&self, region: &FileRegion, at: usize, length: usize) -> Request {
        Request {
            local: self.memory.address() + at as u64,
            remote: region.address + at as u64,
            length: length as u64,
            remote_region: region.region,
        }
    }

    fn run(&self, op: Op, requests: &[Request], durable: bool) -> (TransferResult, Vec<(Status, i32)>) {
        let options = TransferOptions { durable, no_coalesce: true, ..TransferOptions::default() };
        let transfer = self.a.submit(self.peer, op, requests, &options).unwrap();
        let result = transfer.wait(Some(BOUND)).unwrap();
        (result, transfer.results().iter().map(|it| (it.status, it.os_error)).collect())
    }
}

/// Whether a call is on this file, whatever the descriptor.
fn is_on(call: &FileCall, file: &File) -> bool {
    let path = format!("/proc/self/fd/{}", call.fd);
    let (found, wanted) = (std::fs::metadata(path).unwrap(), file.metadata().unwrap());
    (found.dev(), found.ino()) == (wanted.dev(), wanted.ino())
}

fn contents(file: &File) -> Vec<u8> {
    let mut found = vec![0; BYTES];
    file.read_exact_at(&mut found, 0).unwrap();
    found
}

/// Plants an errno for the calls that `fails` names.
fn plant(engine: &Engine, errno: i32, fails: impl Fn(&FileCall) -> bool + Send + Sync + 'static) {
    let planted = move |(call, result): &(FileCall, Cell<i32>)| {
        if fails(call) {
            result.set(-errno);
        }
    };
    engine.files().hooks.ended.set(planted);
}

#[test]
fn durable_is_done_when_fdatasync_has_returned_for_each_file() {
    for io in ["auto", "threads"] {
        let ends = ends(&[("file_io", io)]);
        let files = [temporary(), temporary()];
        let regions = files.each_ref().map(|file| ends.register(file));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (tell, synced) = channel();
        let (go, wait) = channel::<()>();
        let (log, wait) = (seen.clone(), Mutex::new(wait));
        ends.b.files().hooks.ended.set(move |(call, _): &(FileCall, Cell<i32>)| {
            log.lock().unwrap().push((call.op, call.fd));
            if call.op == FileOp::Sync {
                tell.send(()).unwrap();
                wait.lock().unwrap().recv_timeout(BOUND).unwrap();
            }
        });
        let requests = [ends.request(&regions[0], 0, 4096), ends.request(&regions[1], 4096, 4096)];
        let options = TransferOptions { durable: true, ..TransferOptions::default() };
        let transfer = ends.a.submit(ends.peer, Op::Write, &requests, &options).unwrap();
        for _ in &files {
            synced.recv_timeout(BOUND).unwrap();
            assert_eq!(transfer.state(), State::Pending, "{io}: fdatasync has not returned");
            go.send(()).unwrap();
        }
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let syncs: Vec<_> = seen.iter().map(|(op, _)| *op == FileOp::Sync).collect();
        assert_eq!(syncs, [false, false, true, true], "{io}");
        assert_ne!(seen[2].1, seen[3].1, "each file is synced");
        // Without the option, for a READ of a peer's file, and for memory nothing is synced.
        ends.run(Op::Write, &requests, false);
        ends.run(Op::Read, &requests, true);
        assert!(synced.try_recv().is_err(), "{io}");
    }
}

#[test]
fn a_durable_read_syncs_the_local_file() {
    let ends = ends(&[]);
    let (here, there) = (temporary(), temporary());
    there.write_all_at(&bytes(7), 0).unwrap();
    let remote = ends.register(&there);
    let local = ends.a.register_file(&here, 0, BYTES as u64, &RegionOptions::default()).unwrap();
    let syncs = [&ends.a, &ends.b].map(|engine| {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        engine.files().hooks.ended.set(move |(call, _): &(FileCall, Cell<i32>)| {
            counter.fetch_add(usize::from(call.op == FileOp::Sync), Ordering::SeqCst);
        });
        count
    });
    let whole = Request { local: local.address, ..ends.request(&remote, 0, BYTES) };
    assert_eq!(ends.run(Op::Read, &[whole], true).0.state, State::Done);
    assert!(contents(&here) == bytes(7));
    let [here, there] = syncs.map(|count| count.load(Ordering::SeqCst));
    assert!(here >= 1 && there == 0, "{here} {there}");
}

/// The kernel reports lost data to one fdatasync, and forgets it. Later durable transfers of the region must not be
/// told that all is well.
#[test]
fn after_a_failed_fdatasync_no_durable_write_of_the_region_is_done() {
    let ends = ends(&[]);
    let file = temporary();
    let region = ends.register(&file);
    let failed = AtomicBool::new(false);
    plant(&ends.b, libc::EIO, move |call| call.op == FileOp::Sync && !failed.swap(true, Ordering::SeqCst));
    let requests = [ends.request(&region, 0, 4096), ends.request(&region, 65536, 100)];
    let lost = (Status::System, libc::EIO);
    assert_eq!(ends.run(Op::Write, &requests, true).1, [lost, lost]);
    assert_eq!(ends.run(Op::Write, &requests, true).1, [lost, lost], "fdatasync now returns 0");
    assert_eq!(ends.run(Op::Write, &requests, false).0.state, State::Done);
    ends.b.unregister(region.region, Some(BOUND)).unwrap();
    let anew = ends.register(&file);
    assert_eq!(ends.run(Op::Write, &[ends.request(&anew, 0, 4096)], true).0.state, State::Done);
}

#[test]
fn an_error_of_the_disk_fails_the_requests_that_it_hit() {
    for io in ["auto", "threads"] {
        let ends = ends(&[("file_io", io)]);
        let file = temporary();
        file.write_all_at(&bytes(2), 0).unwrap();
        let region = ends.register(&file);
        let hit = |call: &FileCall| (1 << 20..(1 << 20) + 4096).contains(&call.offset) && call.length > 0;
        for op in [Op::Write, Op::Read] {
            plant(&ends.b, libc::EIO, hit);
            let list = [0, 1 << 20, 2 << 20].map(|at| ends.request(&region, at, 4096));
            let (result, each) = ends.run(op, &list, false);
            assert_eq!((result.status, result.bytes_confirmed), (Status::Partial, 8192), "{io}");
            assert_eq!(each, [(Status::Ok, 0), (Status::System, libc::EIO), (Status::Ok, 0)], "{io}");
            plant(&ends.b, 0, |_| false);
            assert_eq!(ends.run(op, &list, false).0.state, State::Done, "{io}: the disk is used again");
        }
    }
}

#[test]
fn short_calls_are_continued_and_refused_direct_calls_go_through_the_page_cache() {
    for io in ["auto", "threads"] {
        let ends = ends(&[("file_io", io)]);
        let file = temporary();
        let region = ends.register(&file);
        let whole = [ends.request(&region, 0, BYTES)];
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        ends.b.files().hooks.ended.set(move |(_, result): &(FileCall, Cell<i32>)| {
            counter.fetch_add(1, Ordering::SeqCst);
            if result.get() > 5000 {
                result.set(result.get() / 2 - 1);
            }
        });
        assert_eq!(ends.run(Op::Write, &whole, false).0.state, State::Done);
        assert!(contents(&file) == bytes(1), "{io}");
        assert!(calls.load(Ordering::SeqCst) > 10);
        let descriptors = Arc::new(Mutex::new(Vec::new()));
        let log = descriptors.clone();
        ends.b.files().hooks.ended.set(move |(call, result): &(FileCall, Cell<i32>)| {
            let path = format!("/proc/self/fdinfo/{}", call.fd);
            let flags = std::fs::read_to_string(path).unwrap();
            let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
            let is_direct = i32::from_str_radix(&flags, 8).unwrap() & libc::O_DIRECT != 0;
            log.lock().unwrap().push(is_direct);
            if is_direct {
                result.set(-libc::EINVAL);
            }
        });
        ends.memory.write(0, &bytes(9));
        assert_eq!(ends.run(Op::Write, &whole, false).0.state, State::Done);
        assert!(contents(&file) == bytes(9), "{io}");
        let seen = std::mem::take(&mut *descriptors.lock().unwrap());
        assert!(
            seen.iter().any(|is_direct| *is_direct) && seen.iter().any(|is_direct| !is_direct),
            "{seen:?}"
        );
        ends.run(Op::Write, &whole, false);
        assert!(descriptors.lock().unwrap().iter().all(|is_direct| !*is_direct), "not tried again");
    }
}

/// Calls on a file that do not return until the other end is dropped.
fn hang(engine: &Engine, file: &File) -> (Sender<()>, Receiver<()>) {
    let (release, wait) = channel::<()>();
    let (tell, begun) = channel();
    let (wait, file) = (Mutex::new(wait), file.try_clone().unwrap());
    engine.files().hooks.begins.set(move |call: &FileCall| {
        if is_on(call, &file) {
            let _ = tell.send(());
            let _ = wait.lock().unwrap().recv_timeout(BOUND);
        }
    });
    (release, begun)
}

/// A disk that hangs keeps what is on it, and nothing else; when it answers again, it is used again.
#[test]
fn a_disk_that_hangs_keeps_its_own_transfers_and_no_others() {
    let ends = ends(&[("file_io", "threads"), ("device_timeout_ms", "50"), ("lease_ms", "1000")]);
    let hanging = temporary();
    // SAFETY: a fresh descriptor, on a file system of its own.
    let other = unsafe { File::from_raw_fd(libc::memfd_create(c"other".as_ptr(), 0)) };
    let (slow, fast) = (ends.register(&hanging), ends.register(&other));
    let memory = ends.b.alloc(4096, &RegionOptions::default()).unwrap();
    let (release, begun) = hang(&ends.b, &hanging);
    let submit = |region: &FileRegion| {
        let one = [ends.request(region, 0, 4096)];
        let deadline = Deadline::After(Duration::from_millis(100));
        let options = TransferOptions { deadline, ..TransferOptions::default() };
        ends.a.submit(ends.peer, Op::Write, &one, &options).unwrap()
    };
    let stuck = submit(&slow);
    begun.recv_timeout(BOUND).unwrap();
    for _ in 0..20 {
        assert_eq!(ends.run(Op::Write, &[ends.request(&fast, 0, 4096)], false).0.state, State::Done);
        let one = Request {
            remote: memory.address(),
            remote_region: memory.region(),
            ..ends.request(&fast, 0, 4096)
        };
        assert_eq!(ends.run(Op::Write, &[one], false).0.state, State::Done);
    }
    let busy = ends.b.unregister(slow.region, Some(Duration::ZERO)).unwrap_err();
    assert_eq!(busy.status, Status::Busy);
    // After device_timeout_ms what comes for the disk fails, instead of waiting behind it.
    let failed = loop {
        let state = submit(&slow).wait(Some(BOUND)).unwrap();
        if state.state != State::TimedOut {
            break state;
        }
    };
    assert_eq!(failed.status, Status::Unavailable);
    assert_eq!(stuck.wait(Some(BOUND)).unwrap().state, State::TimedOut);
    let busy = ends.b.unregister(slow.region, Some(Duration::ZERO)).unwrap_err();
    assert_eq!(busy.status, Status::Busy, "the disk may still write from the slot");
    drop(release);
    while submit(&slow).wait(Some(BOUND)).unwrap().state != State::Done {
        std::thread::yield_now();
    }
    ends.b.unregister(slow.region, Some(BOUND)).unwrap();
}

/// Close waits for calls that are under way.
#[test]
fn close_waits_for_a_disk_that_hangs() {
    let ends = ends(&[("file_io", "threads"), ("device_timeout_ms", "600000"), ("lease_ms", "1000")]);
    let file = temporary();
    let local = ends.a.register_file(&file, 0, BYTES as u64, &RegionOptions::default()).unwrap();
    let memory = ends.b.alloc(4096, &RegionOptions::default()).unwrap();
    while ends.a.peer_regions(ends.peer).unwrap().is_empty() {
        std::thread::yield_now();
    }
    let (release, begun) = hang(&ends.a, &file);
    let one = [Request {
        local: local.address,
        remote: memory.address(),
        length: 4096,
        remote_region: memory.region(),
    }];
    let transfer = ends.a.submit(ends.peer, Op::Read, &one, &TransferOptions::default()).unwrap();
    begun.recv_timeout(BOUND).unwrap();
    let busy = ends.a.close(Some(Duration::from_millis(50))).unwrap_err();
    assert_eq!(busy.status, Status::Busy, "{busy}");
    assert_ne!(transfer.state(), State::Done);
    drop(release);
    ends.a.close(Some(BOUND)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4096, "the call has ended before close returned");
}

/// A second call that was past the page cache when the first was refused is made again, too.
#[test]
fn each_direct_call_that_is_refused_goes_through_the_page_cache() {
    let ends = ends(&[("file_io", "threads")]);
    let file = temporary();
    let region = ends.register(&file);
    let (both, count) = (Barrier::new(2), AtomicUsize::new(0));
    ends.b.files().hooks.begins.set(move |_: &FileCall| {
        if count.fetch_add(1, Ordering::SeqCst) < 2 {
            both.wait();
        }
    });
    let refused = Arc::new(AtomicUsize::new(0));
    let counter = refused.clone();
    ends.b.files().hooks.ended.set(move |(call, result): &(FileCall, Cell<i32>)| {
        let flags = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", call.fd)).unwrap();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
        if i32::from_str_radix(&flags, 8).unwrap() & libc::O_DIRECT != 0 {
            counter.fetch_add(1, Ordering::SeqCst);
            result.set(-libc::EINVAL);
        }
    });
    let requests = [0, 1 << 20].map(|at| ends.request(&region, at, 65536));
    assert_eq!(ends.run(Op::Write, &requests, false).1, [(Status::Ok, 0); 2]);
    assert_eq!(refused.load(Ordering::SeqCst), 2);
}

/// The kernel tells of lost data once: to the fdatasync that fails, and not to one beside it.
#[test]
fn one_fdatasync_of_a_file_is_under_way_at_a_time() {
    let ends = ends(&[("file_io", "threads")]);
    let file = temporary();
    let region = ends.register(&file);
    let (tell, beside) = channel::<()>();
    let (begun, first_begins) = channel::<()>();
    let (syncs, beside) = (AtomicUsize::new(0), Mutex::new(beside));
    ends.b.files().hooks.begins.set(move |call: &FileCall| {
        if call.op == FileOp::Sync && syncs.fetch_add(1, Ordering::SeqCst) == 0 {
            begun.send(()).unwrap();
            let _ = beside.lock().unwrap().recv_timeout(Duration::from_millis(300));
        }
    });
    let ended = AtomicUsize::new(0);
    ends.b.files().hooks.ended.set(move |(call, result): &(FileCall, Cell<i32>)| {
        if call.op == FileOp::Sync {
            let _ = tell.send(());
            // Two at once: the second ends first, and hears of nothing.
            let is_last = ended.fetch_add(1, Ordering::SeqCst) == 1;
            result.set(if is_last { 0 } else { -libc::EIO });
        }
    });
    let options = TransferOptions { durable: true, ..TransferOptions::default() };
    let submit =
        |at| ends.a.submit(ends.peer, Op::Write, &[ends.request(&region, at, 4096)], &options).unwrap();
    let first = submit(0);
    first_begins.recv_timeout(BOUND).unwrap();
    let second = submit(1 << 20);
    for transfer in [first, second] {
        transfer.wait(Some(BOUND)).unwrap();
        assert_eq!(transfer.results()[0].status, Status::System);
    }
}

/// Calls of a batch that was given up are not continued, and its files are not synced.
#[test]
fn a_batch_that_was_given_up_makes_no_further_call() {
    let ends = ends(&[("file_io", "threads"), ("device_timeout_ms", "50"), ("lease_ms", "1000")]);
    let file = temporary();
    let region = ends.register(&file);
    let (release, begun) = hang(&ends.b, &file);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let log = calls.clone();
    ends.b.files().hooks.ended.set(move |(call, result): &(FileCall, Cell<i32>)| {
        log.lock().unwrap().push((call.op, call.offset));
        result.set(result.get() / 2);
    });
    let submit = |durable| {
        let deadline = Deadline::After(Duration::from_millis(100));
        let options = TransferOptions { durable, deadline, ..TransferOptions::default() };
        ends.a.submit(ends.peer, Op::Write, &[ends.request(&region, 0, 8192)], &options).unwrap()
    };
    let stuck = submit(true);
    begun.recv_timeout(BOUND).unwrap();
    while submit(false).wait(Some(BOUND)).unwrap().status != Status::Unavailable {}
    assert_eq!(stuck.wait(Some(BOUND)).unwrap().state, State::TimedOut);
    drop(release);
    ends.b.unregister(region.region, Some(BOUND)).unwrap();
    let calls = calls.lock().unwrap();
    assert!(!calls.is_empty() && calls.iter().all(|call| *call == (FileOp::Write, 0)), "{calls:?}");
}
