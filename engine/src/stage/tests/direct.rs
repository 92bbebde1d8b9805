//! Devices that reach both memories and copy directly, and lent memory when regions, sessions and devices end.

use super::*;
use crate::command::Command;
use crate::types::PeerId;

/// Two engines whose devices reach each other, on one host with a same-host path.
fn shared() -> Two {
    let two = Two::new(&[]);
    two.fake.shares.store(true, Ordering::SeqCst);
    until("there is a same-host path", || why(&two.a, two.peer, Transport::Local).0);
    two
}

/// Returns the reason that `peer_paths` shows for a path.
fn why(engine: &Engine, peer: PeerId, transport: Transport) -> (bool, String) {
    let paths = engine.peer_paths(peer).unwrap();
    let path = paths.into_iter().find(|path| path.transport == transport).unwrap();
    (path.chosen, path.why)
}

fn mapped(two: &Two) -> usize {
    two.fake.mapped.lock().unwrap().len()
}

/// (all pieces copied, those from device to device) so far.
fn copied(two: &Two) -> (u64, u64) {
    (two.fake.copies.load(Ordering::SeqCst), two.fake.crossings.load(Ordering::SeqCst))
}

#[test]
fn between_devices_there_is_one_copy_and_no_host_memory() {
    let two = shared();
    let before = copied(&two);
    every_pair(&two, &[(Some(0), Some(1)), (Some(1), Some(0)), (Some(0), Some(0))], Transport::Cuda);
    let after = copied(&two);
    let counts = two.a.stats().unwrap().counts;
    assert_eq!(counts.bytes_device, counts.bytes_written + counts.bytes_read);
    assert_eq!(two.b.stats().unwrap().counts.bytes_device, 0);
    assert!(after.0 > before.0 && after.0 - before.0 == after.1 - before.1, "staged: {before:?} {after:?}");
    // Each of the three regions is mapped once.
    assert_eq!((mapped(&two), two.fake.exported.load(Ordering::SeqCst)), (3, 3));
    assert!(why(&two.a, two.peer, Transport::Cuda).1.starts_with("taken where"));
}

/// The transfer is staged until the device has memory for the mapping.
#[test]
fn a_device_without_memory_for_a_mapping_is_asked_again() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    *two.fake.import_fails.lock().unwrap() = Some(Status::NoMemory);
    assert_eq!(two.done(Op::Write, &requests).transport, Transport::Local);
    assert!(why(&two.a, two.peer, Transport::Cuda).1.contains("it can't be mapped"));
    until("it is mapped", || two.done(Op::Write, &requests).transport == Transport::Cuda);
}

#[test]
fn a_batch_goes_over_the_devices_and_through_the_hosts() {
    let two = shared();
    let (device, host) = (two.place(&two.a, Some(0), MIB), two.place(&two.a, None, MIB));
    let remotes = [two.place(&two.b, Some(1), MIB), two.place(&two.b, None, MIB)];
    for op in [Op::Write, Op::Read] {
        device.write(0, &pattern(1, MIB));
        host.write(0, &pattern(2, MIB));
        remotes.iter().for_each(|remote| remote.write(0, &pattern(3, MIB)));
        let pairs =
            [(&device, &remotes[0]), (&device, &remotes[1]), (&host, &remotes[0]), (&host, &remotes[1])];
        let requests: Vec<Request> = (0..40)
            .map(|nth| (pairs[nth % 4], nth * 20_000))
            .map(|((local, remote), at)| request(local, remote, (at, at), 19_999))
            .collect();
        let before = copied(&two);
        two.done(op, &requests);
        let after = copied(&two);
        assert!(after.1 > before.1 && after.0 - before.0 > after.1 - before.1, "both ways");
        for (nth, request) in requests.into_iter().enumerate() {
            check(&[request], op, pairs[nth % 4].0, pairs[nth % 4].1);
        }
    }
}

#[test]
fn what_is_not_shared_or_not_wanted_is_staged() {
    let two = shared();
    two.fake.shares.store(false, Ordering::SeqCst);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    local.write(0, &pattern(1, MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    assert_eq!(two.done(Op::Write, &requests).transport, Transport::Local);
    check(&requests, Op::Write, &local, &remote);
    let told = why(&two.a, two.peer, Transport::Cuda).1;
    assert!(told.contains("nothing is shared"), "{told}");

    // From here on the memory could be mapped.
    two.fake.shares.store(true, Ordering::SeqCst);
    let remote = two.place(&two.b, Some(1), MIB);
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let tcp = TransferOptions { transports_allowed: Transport::Tcp.bit(), ..options() };
    let summed = TransferOptions { checksum: true, ..options() };
    for (options, carrier) in [(tcp, Transport::Tcp), (summed, Transport::Tcp), (options(), Transport::Cuda)]
    {
        let (result, _) = two.run(Op::Write, &requests, &options);
        assert_eq!((result.state, result.transport), (State::Done, carrier));
    }
}

/// The owner frees memory only when no process has it mapped.
#[test]
fn unregister_recalls_what_is_lent() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    two.done(Op::Write, &requests);
    assert_eq!(mapped(&two), 1);
    // Mapped but idle: that is known at once, and changes nothing.
    let busy = two.b.unregister(remote.region, Some(Duration::ZERO)).unwrap_err();
    assert_eq!(busy.status, Status::Busy);
    assert_eq!(two.done(Op::Read, &requests).transport, Transport::Cuda);

    two.fake.delay_us.store(150_000, Ordering::SeqCst);
    let begun = two.fake.begun.load(Ordering::SeqCst);
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    until("it copies", || two.fake.begun.load(Ordering::SeqCst) > begun);
    let before = copied(&two).1;
    two.b.unregister(remote.region, Some(BOUND)).unwrap();
    // The copy that had begun has ended, its mapping is closed, and the export is withdrawn.
    assert_eq!((mapped(&two), two.fake.exported.load(Ordering::SeqCst), copied(&two).1), (0, 0, before + 1));
    two.fake.delay_us.store(0, Ordering::SeqCst);
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!(result.state, State::Done);
    // The transfer may get as far as a slot of the initiator.
    remote.write(0, &pattern(7, MIB));
    let (result, _) = two.run(Op::Write, &requests, &options());
    assert_eq!((result.status, copied(&two).1), (Status::Stale, before + 1));
    assert!(remote.read(0, MIB) == pattern(7, MIB));
}

/// A peer that ends closes its mappings, and a peer that returns maps the memory again.
#[test]
fn sessions_end_with_nothing_mapped() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), 8 * MIB), two.place(&two.b, Some(1), 8 * MIB));
    let requests = [request(&local, &remote, (0, 0), 8 * MIB)];
    for seed in 1..4 {
        local.write(0, &pattern(seed, 8 * MIB));
        let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
        let broken = Command::PathBroken { peer: two.peer, transport: Transport::Local };
        two.a.whole().commands.push(broken);
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        check(&requests, Op::Write, &local, &remote);
    }
    two.a.close(Some(BOUND)).unwrap();
    until("all is closed", || mapped(&two) == 0);
    until("nobody has it", || two.b.unregister(remote.region, Some(Duration::ZERO)).is_ok());
    assert_eq!(two.fake.exported.load(Ordering::SeqCst), 0);
}

/// Unregister waits for a withdrawal because of a lost peer as for its own withdrawals.
#[test]
fn unregister_waits_for_what_was_lent_to_a_peer_that_is_gone() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    two.done(Op::Write, &[request(&local, &remote, (0, 0), MIB)]);
    two.fake.withdraw_waits.store(true, Ordering::SeqCst);
    two.a.close(Some(BOUND)).unwrap();
    until("the device withdraws it", || two.fake.withdrawing.load(Ordering::SeqCst) > 0);
    // The device hangs for ever: after a while it keeps the memory it has.
    let before = Instant::now();
    two.b.unregister(remote.region, Some(BOUND)).unwrap();
    let waited = before.elapsed();
    assert!(waited >= crate::stage::lending::PATIENCE, "only {waited:?}");
    two.fake.withdraw_waits.store(false, Ordering::SeqCst);
    until("it is withdrawn", || two.fake.exported.load(Ordering::SeqCst) == 0);
}

/// Struck while a device copies: the transfer is final when the copy has ended, and no copy of it begins later.
#[test]
fn a_struck_copy_ends_first() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    two.done(Op::Write, &requests);
    two.fake.delay_us.store(50_000, Ordering::SeqCst);
    for _ in 0..3 {
        let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
        transfer.cancel().unwrap();
        let result = transfer.wait(Some(BOUND)).unwrap();
        let copies = copied(&two);
        assert!(matches!(result.state, State::Done | State::Cancelled | State::Failed), "{result:?}");
        two.fake.delay_us.store(0, Ordering::SeqCst);
        two.done(Op::Read, &requests);
        assert_eq!(copied(&two).1, copies.1 + 1, "a copy after the final state");
        two.fake.delay_us.store(50_000, Ordering::SeqCst);
    }
}

#[test]
fn a_copy_that_fails_fails_its_request() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    two.done(Op::Write, &requests);
    two.fake.fail_in.store(0, Ordering::SeqCst);
    let (result, statuses) = two.run(Op::Write, &requests, &options());
    assert_eq!((result.state, statuses), (State::Failed, vec![Status::System]));
    two.done(Op::Write, &requests);
    two.b.unregister(remote.region, Some(BOUND)).unwrap();
}

/// A fenced peer copies nothing more, even with memory still mapped.
#[test]
fn after_a_fence_no_device_of_the_peer_copies() {
    let two = shared();
    let (local, remote) = (two.place(&two.a, Some(0), 8 * MIB), two.place(&two.b, Some(1), 8 * MIB));
    let blocks: Vec<Request> =
        (0..8).map(|nth| request(&local, &remote, (nth * MIB, nth * MIB), MIB / 2)).collect();
    two.done(Op::Write, &blocks);
    two.fake.delay_us.store(20_000, Ordering::SeqCst);
    let begun = two.fake.begun.load(Ordering::SeqCst);
    let transfers: Vec<_> =
        (0..8).map(|_| two.a.submit(two.peer, Op::Write, &blocks, &options()).unwrap()).collect();
    until("it copies", || two.fake.begun.load(Ordering::SeqCst) > begun);
    let known = |handle: &PeerId| two.b.peer_info(*handle).is_ok_and(|it| it.address == two.a.address());
    let initiator = two.b.peers().unwrap().into_iter().find(known).unwrap();
    two.b.fence(initiator, Some(BOUND)).unwrap();
    let copies = copied(&two);
    remote.write(0, &pattern(5, 8 * MIB));
    for transfer in &transfers {
        transfer.wait(Some(BOUND)).unwrap();
    }
    assert_eq!(copied(&two).1, copies.1, "a copy after the fence");
    assert!(remote.read(0, 8 * MIB) == pattern(5, 8 * MIB));
    until("nobody has it", || two.b.unregister(remote.region, Some(Duration::ZERO)).is_ok());
}
