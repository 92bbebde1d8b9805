//! A panic in the threads that move memory of devices, while a WRITE of such memory is under way.

use super::*;
use crate::notify::{EventBody, WHAT_PEERS};

const LEASE: Duration = Duration::from_millis(1500);

/// A WRITE from a device that is repeated until the engine is broken: its error.
fn toil(two: &Two, request: Request) -> crate::Error {
    loop {
        let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
        let ended = two.a.submit(two.peer, Op::Write, &[request], &options).and_then(|it| it.wait(None));
        match ended {
            Ok(result) => assert_eq!(result.state, State::Done),
            Err(error) => return error,
        }
    }
}

fn breaks(thread: &'static str, hangs: bool, aborts: bool) {
    let left = (crate::sys::random_u64() % 40) as u32;
    println!("{thread} panics at lock {left}");
    let two = Two::new(&[("transports", "tcp"), ("device_timeout_ms", "300"), ("drain_ms", "200")]);
    two.fake.delay_us.store(200, Ordering::SeqCst);
    let (from, to) = (two.place(&two.a, Some(0), 8 * MIB), two.place(&two.b, None, 8 * MIB));
    let request =
        Request { local: from.address, remote: to.address, length: 8 * MIB as u64, remote_region: to.region };
    let copies = two.fake.copies.load(Ordering::SeqCst);
    let toil = std::thread::scope(|scope| {
        let toil = scope.spawn(|| (toil(&two, request), Instant::now()));
        until("there are copies", || two.fake.copies.load(Ordering::SeqCst) > copies + 4);
        if hangs {
            let before = two.fake.hung.load(Ordering::SeqCst);
            two.fake.aborts.store(aborts, Ordering::SeqCst);
            two.fake.hangs.store(true, Ordering::SeqCst);
            until("a copy hangs", || two.fake.hung.load(Ordering::SeqCst) > before);
        }
        let bomb = two.a.whole().health().hook.lay(thread, left);
        until("it goes off", || bomb.gone_off.get().is_some());
        let (error, at) = toil.join().unwrap();
        assert_eq!(error.status, Status::Panic, "{error}");
        assert!(error.message.contains(thread), "{error}");
        let since = *bomb.gone_off.get().unwrap();
        assert!(at - since < LEASE, "{:?}", at - since);
        since
    });
    let busy = two.a.unregister(from.region, Some(Duration::ZERO)).unwrap_err();
    assert_eq!(busy.status, Status::Busy, "{busy}");
    if hangs && !aborts {
        // A copy that cannot be stopped may write for ever.
        let busy = two.a.unregister(from.region, Some(BOUND)).unwrap_err();
        assert_eq!(busy.status, Status::Busy, "{busy}");
        assert!(two.a.close(Some(BOUND)).is_err_and(|error| error.status == Status::Panic));
        return;
    }
    two.a.unregister(from.region, Some(BOUND)).unwrap();
    assert!(toil.elapsed() >= LEASE, "within the lease");
    two.a.close(Some(BOUND)).unwrap();
    // The copies that the device had begun have ended: the memory is the program's again.
    let ours = vec![0x5a; 8 * MIB];
    from.write(0, &ours);
    assert!(from.read(0, 8 * MIB) == ours);
}

/// A device here copies from and to mapped memory of the peer, and the peer counts these uses. A count that never falls
/// would keep the broken engine from closing, and the peer's engine from reporting PEER_LOST.
#[test]
fn a_thread_panics_while_a_device_copies_over_mapped_memory() {
    for thread in ["ferry-control", "ferry-stage"] {
        let two = Two::new(&[("drain_ms", "200"), ("reconnect_timeout_ms", "500")]);
        two.fake.shares.store(true, Ordering::SeqCst);
        let lost = two.b.queue(WHAT_PEERS, 8).unwrap();
        let (from, to) = (two.place(&two.a, Some(0), 8 * MIB), two.place(&two.b, Some(1), 8 * MIB));
        let length = 8 * MIB as u64;
        let request = Request { local: from.address, remote: to.address, length, remote_region: to.region };
        until("the memory is mapped", || {
            two.done(Op::Write, &[request]);
            !two.fake.mapped.lock().unwrap().is_empty()
        });
        two.fake.delay_us.store(2_000, Ordering::SeqCst);
        let copies = two.fake.copies.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let toil = scope.spawn(|| toil(&two, request));
            until("there are copies", || two.fake.copies.load(Ordering::SeqCst) > copies + 4);
            let bomb = two.a.whole().health().hook.lay(thread, 1);
            until("it goes off", || bomb.gone_off.get().is_some());
            assert_eq!(toil.join().unwrap().status, Status::Panic);
        });
        two.a.unregister(from.region, Some(BOUND)).unwrap();
        two.a.close(Some(BOUND)).unwrap();
        let mut events = Vec::new();
        until("PEER_LOST comes", || {
            lost.drain(&mut events, 8);
            events.iter().any(|event| matches!(event.body, EventBody::PeerLost { .. }))
        });
    }
}

#[test]
fn the_stage_s_thread_panics() {
    breaks("ferry-stage", false, true);
}

#[test]
fn a_device_s_thread_panics() {
    breaks("ferry-cuda", false, true);
}

#[test]
fn a_device_s_thread_panics_and_its_copies_hang() {
    breaks("ferry-cuda", true, true);
}

#[test]
fn a_device_that_can_t_be_stopped_keeps_its_memory() {
    breaks("ferry-cuda", true, false);
}
