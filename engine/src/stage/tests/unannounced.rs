//! Regions that a transfer names before this engine knows them: the caller learned of them out of band, and the
//! announcement is still on its way.

use super::*;
use crate::notify::{EventBody, WHAT_NOTIFICATIONS};
use crate::types::RegionId;

/// Makes the engine forget the announcement of these regions.
fn forget(two: &Two, places: &[&Place]) {
    let regions: Vec<RegionId> = places.iter().map(|place| place.region).collect();
    two.a.whole().peers.get(two.peer).unwrap().remote.remove(&regions);
}

#[test]
fn memory_of_a_device_that_is_not_announced_yet_is_staged() {
    for transports in ["tcp", "local", "auto"] {
        let two = Two::new(&[("transports", transports)]);
        for (here, there) in [(None, Some(0)), (Some(0), Some(1)), (Some(0), None), (None, None)] {
            let (local, remote) = (two.place(&two.a, here, 8 * MIB), two.place(&two.b, there, 8 * MIB));
            forget(&two, &[&remote]);
            for (count, block) in [(1, 100), (1, 7 * MIB), (600, 8 << 10)] {
                for op in [Op::Write, Op::Read] {
                    local.write(0, &pattern(op as u64 | 0x100, 8 * MIB));
                    remote.write(0, &pattern(op as u64 | 0x200, 8 * MIB));
                    let mut requests = scattered(&local, &remote, count, block);
                    let started = Instant::now();
                    two.done(op, &requests);
                    assert!(started.elapsed() < BOUND / 2, "the waiting thread slept its whole time");
                    check(&requests, op, &local, &remote);
                    if transports == "local" {
                        continue; // there an address alone means nothing before it is announced
                    }
                    local.write(0, &pattern(op as u64 | 0x300, 8 * MIB));
                    requests.iter_mut().for_each(|request| request.remote_region = RegionId::NONE);
                    two.done(op, &requests);
                    check(&requests, op, &local, &remote);
                }
            }
        }
    }
}

/// The memory is announced while its bytes are in a slot here. The taken slots and the host memory of the same run do
/// not keep the transfer from its end.
#[test]
fn memory_of_a_device_that_is_announced_in_mid_transfer() {
    for transports in ["tcp", "auto"] {
        let two = Two::new(&[("transports", transports), ("staging_slots", "2")]);
        let (local, remote) = (two.place(&two.a, Some(0), 16 * MIB), two.place(&two.b, Some(1), 16 * MIB));
        let (from, host) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, None, MIB));
        local.write(0, &pattern(1, 16 * MIB));
        from.write(0, &pattern(2, MIB));
        let announced = &two.a.whole().peers.get(two.peer).unwrap().remote;
        let known = announced.snapshot().get(remote.region).unwrap().clone();
        forget(&two, &[&remote]);
        let mut requests = scattered(&local, &remote, 200, 64 << 10);
        requests.extend(scattered(&from, &host, 8, 64 << 10));
        let begun = two.fake.begun.load(Ordering::SeqCst);
        two.fake.hangs.store(true, Ordering::SeqCst);
        let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
        until("both slots are in use", || two.fake.begun.load(Ordering::SeqCst) >= begun + 2);
        announced.add(vec![known]);
        two.fake.hangs.store(false, Ordering::SeqCst);
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().status, Status::Ok);
        check(&requests[..200], Op::Write, &local, &remote);
        check(&requests[200..], Op::Write, &from, &host);
    }
}

/// Some of the memory is host memory, some is known device memory, and only the target can tell what the rest is.
#[test]
fn a_batch_of_what_is_announced_and_what_is_not() {
    for transports in ["tcp", "auto"] {
        let two = Two::new(&[("transports", transports)]);
        let here = [None, Some(0)].map(|device| two.place(&two.a, device, MIB));
        let there = [None, Some(1), None, Some(0)].map(|device| two.place(&two.b, device, MIB));
        forget(&two, &[&there[2], &there[3]]);
        for op in [Op::Write, Op::Read] {
            here.iter().for_each(|place| place.write(0, &pattern(op as u64, MIB)));
            there.iter().for_each(|place| place.write(0, &pattern(op as u64 + 7, MIB)));
            let requests: Vec<Request> = (0..96)
                .map(|nth| {
                    request(&here[nth % 2], &there[nth / 2 % 4], (nth * 8192, (95 - nth) * 8192), 5000)
                })
                .collect();
            two.done(op, &requests);
            for (nth, request) in requests.iter().enumerate() {
                check(std::slice::from_ref(request), op, &here[nth % 2], &there[nth / 2 % 4]);
            }
        }
    }
}

/// The data is refused once, so its notification must not have gone with it.
#[test]
fn a_notification_comes_after_data_that_was_staged_after_all() {
    for transports in ["tcp", "auto"] {
        let two = Two::new(&[("transports", transports)]);
        let queue = two.b.queue(WHAT_NOTIFICATIONS, 16).unwrap();
        let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
        local.write(0, &pattern(5, MIB));
        forget(&two, &[&remote]);
        for text in ["one", "two"] {
            let options = TransferOptions { notify: Some(text.as_bytes()), ordered: true, ..options() };
            remote.write(0, &vec![0; MIB]);
            let requests = [request(&local, &remote, (0, 0), 4096)];
            let transfer = two.a.submit(two.peer, Op::Write, &requests, &options).unwrap();
            let mut events = Vec::new();
            until("the notification", || queue.drain(&mut events, 1) == 1);
            let EventBody::Notification { bytes, .. } = &events[0].body else {
                panic!("{:?}", events[0].body)
            };
            assert_eq!(&bytes[..], text.as_bytes());
            assert!(remote.read(0, 4096) == pattern(5, 4096), "the data is not there");
            assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        }
    }
}

/// Slices that the target refuses for another reason stay refused: the target grants the rights.
#[test]
fn rights_hold_for_what_is_not_announced_yet() {
    for transports in ["tcp", "local", "auto"] {
        let two = Two::new(&[("transports", transports)]);
        let local = two.place(&two.a, None, MIB);
        let access = crate::types::Access::REMOTE_READ;
        let options = RegionOptions { access, ..RegionOptions::default() };
        let device = two.fake.alloc(0, MIB, 1);
        let host = vec![1u8; MIB].leak().as_ptr() as u64;
        for address in [device, host] {
            // SAFETY: memory of the device or the host that is never freed, and that no other thread touches.
            let region = unsafe { two.b.register(address as *mut u8, MIB, &options) }.unwrap();
            until("the region is announced", || {
                two.a.peer_regions(two.peer).unwrap().iter().any(|it| it.region == region)
            });
            let remote = Place { address, region, host: None, fake: two.fake.clone() };
            forget(&two, &[&remote]);
            let requests = [request(&local, &remote, (0, 0), 64)];
            assert_eq!(two.run(Op::Write, &requests, &super::options()).0.status, Status::Access);
            two.done(Op::Read, &requests);
        }
    }
}
