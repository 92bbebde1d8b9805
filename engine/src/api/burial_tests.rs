//! A panic in each kind of thread during a WRITE. Every call returns PANIC at once and names the thread; no transfer
//! becomes final and no memory is returned before everything posted is over, and afterwards both happen. The locks at
//! which threads panic are random: each test prints its seed.

use super::*;
use crate::complete::{Fence, State, Transfer as Core};
use crate::limits::NOTIFY_CREDITS;
use crate::notify::{EventBody, WHAT_TRANSFERS};
use crate::status::{Error, Result};
use crate::types::{Op, PeerId, Request};
use crate::{Config, Status};
use std::future::{Future, IntoFuture};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const BOUND: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(2000);
/// The limit for "at once": less than the lease, and more than the second for which dropped memory waits for peers that
/// hold its keys.
const AT_ONCE: Duration = Duration::from_millis(1500);
/// The devices of the two hosts of `make test-rdma`.
const HERE: &str = "rva0,rvb0";
const THERE: &str = "rva1,rvb1";

/// `devices`: the RDMA devices, if RDMA is among the transports.
fn open(transports: &str, devices: &str) -> Engine {
    let mut config = Config::default();
    if transports.contains("rdma") {
        config.set("rdma_devices", devices).unwrap();
    }
    let lease = LEASE.as_millis().to_string();
    for (key, value) in [
        ("transports", transports),
        ("lease_ms", &lease),
        ("drain_ms", "200"),
        ("workers", "1"),
        ("reconnect_timeout_ms", "2000"),
    ] {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < BOUND, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Two {
    a: Engine,
    b: Engine,
    peer: PeerId,
    from: Memory,
    to: Memory,
}

impl Two {
    fn new(transports: &str) -> Two {
        let (a, b) = (open(transports, HERE), open(transports, THERE));
        let peer = a.connect(b.address(), Some(BOUND)).unwrap();
        let options = RegionOptions::default();
        let (from, to) = (a.alloc(16 * MIB, &options).unwrap(), b.alloc(16 * MIB, &options).unwrap());
        until("the region is announced", || {
            a.peer_regions(peer).unwrap().iter().any(|known| known.region == to.region())
        });
        Two { a, b, peer, from, to }
    }

    fn request(&self, bytes: usize) -> [Request; 1] {
        [Request {
            local: self.from.address(),
            remote: self.to.address(),
            length: bytes as u64,
            remote_region: self.to.region(),
        }]
    }

    /// A WRITE that cannot end: its notification has no credit, because nobody takes the notifications before it.
    fn endless(&self, queue: &Arc<crate::notify::Queue>) -> Arc<Core> {
        let options = TransferOptions { notify: Some(b"x"), deadline: Deadline::Never, ..Default::default() };
        for _ in 0..NOTIFY_CREDITS {
            self.a.write(self.peer, &self.request(64), &options).unwrap();
        }
        let options = TransferOptions { queue: Some(queue.clone()), user_data: 7, ..options };
        self.a.submit_core(self.peer, Op::Write, &self.request(64), &options).unwrap()
    }

    /// Repeats every kind of work until a call fails.
    fn toil(&self, engine: &Engine, calls: &AtomicUsize) -> Error {
        let deadline = Deadline::After(BOUND);
        let options = TransferOptions { deadline, ..Default::default() };
        loop {
            let step = || -> Result<()> {
                let large = self.a.submit_core(self.peer, Op::Write, &self.request(8 * MIB), &options)?;
                self.a.write(self.peer, &self.request(4096), &options)?;
                drop(engine.alloc(4096, &RegionOptions::default())?);
                engine.probe(engine.peers()?[0], Some(BOUND))?;
                self.a.wait(&large, None)?;
                self.a.release(large.handle)
            };
            if let Err(error) = step() {
                return error;
            }
            calls.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn random(below: u32) -> u32 {
    (crate::sys::random_u64() % u64::from(below)) as u32
}

/// A failed test leaves no thread waiting.
struct CloseIfPanicking<'a>(&'a Engine);

impl Drop for CloseIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.close(None);
        }
    }
}

/// The initiator's thread panics.
pub fn initiator(transports: &str, thread: &'static str) {
    let left = random(60);
    println!("{thread} panics at lock {left}");
    let two = Two::new(transports);
    let queue = two.a.queue(WHAT_TRANSFERS, 64).unwrap();
    let called = Arc::new(AtomicBool::new(false));
    let told = two.a.queue(WHAT_TRANSFERS, 4096).unwrap();
    let count = called.clone();
    let callback = move |_: &crate::notify::Event| count.store(true, Ordering::SeqCst);
    two.a.hub().unwrap().set_callback(told.handle(), Some(Arc::new(callback))).unwrap();
    let endless = two.endless(&queue);
    let small = TransferOptions { queue: Some(told.clone()), ..Default::default() };
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let _close = CloseIfPanicking(&two.a);
        let toil = std::thread::Builder::new().name("app-toil".into());
        let toil = toil.spawn_scoped(scope, || (two.toil(&two.a, &calls), Instant::now())).unwrap();
        let caller = std::thread::Builder::new().name("app-calls".into());
        let caller = caller.spawn_scoped(scope, || loop {
            // Small transfers that no thread but the express lane's drives; the callback thread reports their end.
            let one = two.a.submit_core(two.peer, Op::Write, &two.request(64), &small);
            let ended = one.and_then(|core| {
                while !core.is_final() {
                    two.a.check_health()?;
                    std::thread::yield_now();
                }
                two.a.release(core.handle)
            });
            match ended {
                // The callback thread may take long.
                Err(error) if error.status == Status::Limit => std::thread::yield_now(),
                Err(error) => return (error, Instant::now()),
                Ok(()) => {}
            }
        });
        let caller = caller.unwrap();
        // A thread that waits for a small transfer takes the express lane's input from the lane's thread.
        let wait = || match thread {
            "ferry-express" => two.a.wait_any(std::slice::from_ref(&endless), None).map(|_| ()),
            _ => two.a.wait(&endless, None).map(|_| ()),
        };
        let waiter = scope.spawn(move || (wait().unwrap_err(), Instant::now()));
        let future = {
            let core = endless.clone();
            let transfer = Transfer { engine: two.a.clone(), core };
            scope.spawn(|| (block_on(transfer.into_future()).unwrap_err(), Instant::now()))
        };
        until("there is traffic", || calls.load(Ordering::SeqCst) > 2);
        let bomb = two.a.whole().health().hook.lay(thread, left);
        until("it goes off", || bomb.gone_off.get().is_some());
        let woken = [waiter.join(), future.join(), toil.join(), caller.join()].map(|it| it.unwrap());
        let since = bomb.gone_off.get().copied().unwrap();
        for (nth, (error, at)) in woken.iter().enumerate() {
            assert_eq!(error.status, Status::Panic, "{nth}: {error}");
            let named = if thread.starts_with("app") { "a thread of the program" } else { thread };
            assert!(error.message.contains(named), "{nth}: {error}");
            assert!(*at - since < AT_ONCE, "{nth} took {:?}", *at - since);
        }
        still_in_use(&two, &endless, since);
        let over = two.from.unregister(Some(BOUND));
        let took = since.elapsed();
        over.unwrap();
        assert!(took >= LEASE, "the memory came back after {took:?}, within the lease");
        let result = two.a.wait(&endless, Some(BOUND)).unwrap();
        assert_eq!((result.state, result.status, result.fence), (State::Failed, Status::Panic, Fence::Lease));
        let mut events = Vec::new();
        queue.drain(&mut events, 8);
        assert!(matches!(events[0].body, EventBody::Transfer { user_data: 7, status: Status::Panic, .. }));
    });
    is_sound(&two.b, transports);
    two.a.close(Some(BOUND)).unwrap();
    assert_eq!(two.a.peers().unwrap_err().status, Status::Closed);
}

/// Checks the state between the panic and the end of the lease.
fn still_in_use(two: &Two, endless: &Core, since: Instant) {
    let busy = two.from.unregister(Some(Duration::ZERO)).unwrap_err();
    let submitted = two.a.submit_core(two.peer, Op::Write, &two.request(64), &TransferOptions::default());
    let known = two.a.peers();
    let closed = two.a.close(Some(Duration::ZERO)).unwrap_err();
    let was_final = endless.is_final();
    // The checks above count only if they ended before the lease did.
    if since.elapsed() < LEASE {
        assert_eq!(
            (busy.status, closed.status, was_final),
            (Status::Busy, Status::Busy, false),
            "{busy}; {closed}"
        );
    }
    assert!(submitted.is_err_and(|error| matches!(error.status, Status::Panic | Status::Closed)));
    assert!(known.is_err_and(|error| matches!(error.status, Status::Panic | Status::Closed)));
}

/// The peer of a broken engine serves other engines as before.
fn is_sound(b: &Engine, transports: &str) {
    let c = open(transports, HERE);
    let peer = c.connect(b.address(), Some(BOUND)).unwrap();
    let options = RegionOptions::default();
    let (from, to) = (c.alloc(MIB, &options).unwrap(), b.alloc(MIB, &options).unwrap());
    let pattern: Vec<u8> = (0..MIB).map(|at| ((at * 7) >> 3) as u8).collect();
    from.write(0, &pattern);
    until("the region is announced", || {
        c.peer_regions(peer).unwrap().iter().any(|known| known.region == to.region())
    });
    let request = Request {
        local: from.address(),
        remote: to.address(),
        length: MIB as u64,
        remote_region: to.region(),
    };
    c.write(peer, &[request], &TransferOptions::default()).unwrap();
    let mut found = vec![0; MIB];
    to.read(0, &mut found);
    assert_eq!(found, pattern);
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn the_control_thread_panics() {
    initiator("tcp", "ferry-control");
}

#[test]
fn a_bulk_lane_s_thread_panics() {
    initiator("tcp", "ferry-lane");
}

#[test]
fn an_express_lane_s_thread_panics() {
    initiator("tcp", "ferry-express");
}

#[test]
fn the_callback_thread_panics_in_the_engine_s_own_code() {
    initiator("tcp", "ferry-callback");
}

#[test]
fn a_thread_of_the_program_panics_inside_a_call() {
    initiator("tcp", "app-calls");
}

#[test]
fn the_thread_for_peers_on_this_host_panics() {
    initiator("local,tcp", "ferry-local");
}

#[test]
fn a_copying_thread_panics() {
    initiator("local,tcp", "ferry-copy");
}

/// The target's thread panics while it receives. After the target's memory was returned nothing lands there.
#[test]
fn nothing_lands_at_a_target_that_broke() {
    for (transports, thread) in
        [("tcp", "ferry-lane"), ("tcp", "ferry-express"), ("local,tcp", "ferry-control")]
    {
        let left = random(60);
        println!("{thread} of the target panics at lock {left}");
        let two = Two::new(transports);
        let calls = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let _close = CloseIfPanicking(&two.b);
            let toil = scope.spawn(|| two.toil(&two.b, &calls));
            until("there is traffic", || calls.load(Ordering::SeqCst) > 2);
            let bomb = two.b.whole().health().hook.lay(thread, left);
            until("it is broken", || two.b.check_health().is_err());
            let since = *bomb.gone_off.get().unwrap();
            two.to.unregister(Some(BOUND)).unwrap();
            assert!(since.elapsed() >= LEASE);
            let ours = vec![0xa5; two.to.length()];
            two.to.write(0, &ours);
            toil.join().unwrap();
            // The initiator's transfers end too: it learns that the peer or the region is lost.
            until("the peer is lost", || {
                two.a.peer_info(two.peer).unwrap().state == crate::peer::PeerState::Lost
            });
            let mut found = vec![0; ours.len()];
            two.to.read(0, &mut found);
            assert!(found == ours, "something landed after unregister");
        });
        two.b.close(Some(BOUND)).unwrap();
        is_sound(&two.a, transports);
    }
}
