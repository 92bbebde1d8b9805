//! An engine that moves between its own regions, of the host and of a device.

use super::*;

/// One engine as both ends.
fn own() -> Two {
    let mut two = Two::new(&[("transports", "tcp")]);
    two.peer = two.a.own_peer().unwrap();
    two
}

/// Nothing moves before the event, and ORDERED transfers behind it wait, too.
#[test]
fn a_transfer_to_oneself_starts_after_its_event() {
    let two = own();
    for (round, (device, bytes)) in [(None, 8), (None, 4 * MIB), (Some(0), MIB)].into_iter().enumerate() {
        let (local, remote) = (two.place(&two.a, device, bytes), two.place(&two.a, device, bytes));
        let untouched = remote.read(0, bytes);
        local.write(0, &pattern(5, bytes));
        let event = 900 + round as u64;
        let start = Some((MemoryKind::Cuda, Start::Event(event)));
        let requests = [request(&local, &remote, (0, 0), bytes)];
        let ordered = TransferOptions { ordered: true, ..options() };
        let first = TransferOptions { start, ..ordered.clone() };
        let first = two.a.submit(two.peer, Op::Write, &requests, &first).unwrap();
        let second = two.a.submit(two.peer, Op::Write, &requests, &ordered).unwrap();
        let free = two.place(&two.a, None, 16);
        two.done(Op::Write, &[request(&free, &free, (0, 8), 8)]);
        assert_eq!((first.state(), second.state()), (State::Pending, State::Pending));
        assert!(remote.read(0, bytes) == untouched);
        two.fake.events.lock().unwrap().push(event);
        assert_eq!(first.wait(Some(BOUND)).unwrap().state, State::Done);
        assert_eq!(second.wait(Some(BOUND)).unwrap().state, State::Done);
        check(&requests, Op::Write, &local, &remote);
    }
}

/// The device's copies take rights of nobody: memory that grants nothing is moved all the same.
#[test]
fn device_memory_without_rights_is_the_engines_own() {
    let two = own();
    let (host, device) = (two.place(&two.a, None, MIB), two.fake.alloc(0, MIB, 0xee));
    let options = RegionOptions { access: crate::Access(0), ..RegionOptions::default() };
    // SAFETY: only the device's copies can touch the memory, and it is never freed.
    let region = unsafe { two.a.register(device as *mut u8, MIB, &options) }.unwrap();
    host.write(0, &pattern(3, MIB));
    let there = Place { address: device, region, host: None, fake: two.fake.clone() };
    two.done(Op::Write, &[request(&host, &there, (0, 0), MIB)]);
    assert!(there.read(0, MIB) == pattern(3, MIB));
    host.write(0, &pattern(4, MIB));
    two.done(Op::Read, &[request(&host, &there, (0, 0), MIB)]);
    assert!(host.read(0, MIB) == pattern(3, MIB));
    two.a.unregister(region, Some(BOUND)).unwrap();
}

/// A cancel in the middle of device copies ends the transfer when nothing can land any more.
#[test]
fn a_strike_ends_what_the_device_has_not_begun() {
    let two = own();
    let (local, remote) = (two.place(&two.a, Some(0), 32 * MIB), two.place(&two.a, None, 32 * MIB));
    two.fake.delay_us.store(2_000, Ordering::SeqCst);
    let requests = [request(&local, &remote, (0, 0), 32 * MIB)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    transfer.cancel().unwrap();
    assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Cancelled);
    for place in [&local, &remote] {
        let known = two.a.peer_regions(two.peer).unwrap().iter().any(|it| it.region == place.region);
        assert!(known);
    }
    two.a.unregister(local.region, Some(BOUND)).unwrap();
}

/// This engine's own device has no lease.
#[test]
fn a_struck_transfer_to_oneself_is_final_when_the_device_has_ended() {
    let mut two = Two::new(&[("transports", "tcp"), ("lease_ms", "1000"), ("device_timeout_ms", "50")]);
    two.peer = two.a.own_peer().unwrap();
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.a, Some(0), MIB));
    two.fake.aborts.store(false, Ordering::SeqCst);
    let hung = two.fake.hung.load(Ordering::SeqCst);
    two.fake.hangs.store(true, Ordering::SeqCst);
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    until("the device copies", || two.fake.hung.load(Ordering::SeqCst) > hung);
    transfer.cancel().unwrap();
    let beyond_the_lease = Duration::from_millis(1000 + 50 + crate::limits::DEVICE_IDLE_MS + 500);
    assert!(transfer.wait(Some(beyond_the_lease)).is_err(), "the device may still write");
    assert_eq!(two.a.close(Some(Duration::ZERO)).unwrap_err().status, Status::Busy);
    two.fake.hangs.store(false, Ordering::SeqCst);
    two.a.close(Some(BOUND)).unwrap();
}
