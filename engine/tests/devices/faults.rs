//! Library calls that fail, copies that hang, contexts that are spoiled. Whatever happens to the device, a transfer
//! ends and reports the library's error, and the engine still moves host memory.

use crate::common::eventually;
use crate::ends::{list, whole, Ends, Memory, BOTH, KIB, MIB};
use ferry::types::Op;

fn host_memory_moves(ends: &mut Ends, what: &str, (local, remote): (Memory, Memory)) {
    for op in BOTH {
        ends.case(what, op, "-", local, remote, &whole(local));
    }
}

/// The n-th call of the function fails once, at the end that has the device. The transfer fails with that code or is
/// done all the same; the next transfer is done.
fn each_call(place: &str, library: &str, faults: &[(&str, u32, i32)]) {
    for at_target in [false, true] {
        let mut ends = Ends::new("transports=auto");
        let pair = if at_target { ("host", place) } else { (place, "host") };
        let (local, remote) = ends.places(pair, 256 * KIB);
        let host = ends.places(("host", "host"), 64 * KIB);
        let spans: Vec<_> = (0..24).map(|nth| (nth * 9000, (23 - nth) * 9000 + 3, 8000 + nth)).collect();
        for op in BOTH {
            ends.case(place, op, "-", local, remote, &spans);
            for (function, nth, code) in faults {
                let what = format!(
                    "{library} at the {} {op:?} {function}:{nth}",
                    ["initiator", "target"][usize::from(at_target)]
                );
                // The last printed line names the fault that failed.
                println!("{what}");
                ends.fill(local, remote);
                let end = if at_target { &mut ends.b } else { &mut ends.a };
                end.knob(library, "FAULT", &format!("{function}:{nth}:{code}"));
                let ended = ends.run(op, "-", &list(local, remote, &spans));
                let end = if at_target { &mut ends.b } else { &mut ends.a };
                end.knob(library, "FAULT", "");
                match ended.state.as_str() {
                    "Done" => ends.assert_moved(&what, op, local, remote, &spans),
                    "Failed" => {
                        assert_eq!(ended.bytes, 0, "{what}: {ended:?}");
                        assert!(
                            ended.requests.split(',').all(|it| it.ends_with(&format!("/{code}"))),
                            "{what}: {ended:?}"
                        );
                    }
                    _ => panic!("{what}: {ended:?}"),
                }
                host_memory_moves(&mut ends, &what, host);
                ends.case(&what, op, "-", local, remote, &spans);
            }
        }
        ends.end();
    }
}

/// OUT_OF_MEMORY, INVALID_VALUE, a launch out of resources spoil nothing.
#[test]
fn each_call_of_cuda_may_fail_once() {
    each_call(
        "cuda0",
        "cuda",
        &[
            ("cuMemcpyBatchAsync", 1, 2),
            ("cuMemcpyHtoDAsync_v2", 1, 2),
            ("cuMemcpyDtoHAsync_v2", 1, 1),
            ("cuLaunchKernel", 1, 2),
            ("cuLaunchKernel", 1, 701),
            ("cuEventRecord", 1, 400),
            ("cuEventQuery", 1, 400),
        ],
    );
}

/// PARAMETER and OUT_OF_DEVICE_MEMORY spoil nothing.
#[test]
fn each_call_of_acl_may_fail_once() {
    each_call(
        "ascend0",
        "ascend",
        &[
            ("aclrtMemcpyBatchAsync", 1, 107_000),
            ("aclrtMemcpyAsync", 1, 207_001),
            ("aclrtMemcpyAsync", 2, 107_000),
        ],
    );
}

/// Once the knob is turned, all transfers that need the device fail for this reason, whichever end has it and
/// whichever direction the first transfer has; host memory still moves.
fn fails_from_then_on(settings: &str, place: &str, (library, knob, value): (&str, &str, &str), reason: &str) {
    for (pair, at_target) in [((place, "host"), false), (("host", place), true)] {
        for op in BOTH {
            let mut ends = Ends::new(settings);
            let (local, remote) = ends.places(pair, MIB);
            let host = ends.places(("host", "host"), MIB);
            ends.case("before", op, "-", local, remote, &whole(local));
            let end = if at_target { &mut ends.b } else { &mut ends.a };
            end.knob(library, knob, value);
            for op in [op, Op::Read, Op::Write] {
                let ended = ends.run(op, "-", &list(local, remote, &whole(local)));
                let found = (ended.state.as_str(), ended.requests.as_str());
                assert_eq!(found, ("Failed", reason), "{pair:?} {op:?}");
            }
            host_memory_moves(&mut ends, "after it", host);
        }
    }
}

/// A task fails on the device: its stream stops, and later transfers that need the stream report the cause.
#[test]
fn an_ascend_stream_that_failed_is_given_up() {
    let knob = ("ascend", "FAULT", "task:1:507035");
    fails_from_then_on("transports=auto", "ascend0", knob, "UNAVAILABLE/507035");
}

/// Pinning a slot fails: that transfer fails, and the next transfer pins again.
#[test]
fn host_memory_that_can_t_be_locked_fails_the_transfer() {
    for (place, library, function, code) in
        [("cuda0", "cuda", "cuMemHostRegister_v2", 2), ("ascend0", "ascend", "aclrtHostRegister", 207_001)]
    {
        for pair in [(place, "host"), ("host", place)] {
            let mut ends = Ends::new("transports=tcp");
            let (local, remote) = ends.places(pair, 64 * KIB);
            let end = if pair.0 == place { &mut ends.a } else { &mut ends.b };
            end.knob(library, "FAULT", &format!("{function}:1:{code}"));
            let ended = ends.run(Op::Write, "-", &list(local, remote, &whole(local)));
            let failed = ("Failed", format!("NO_MEMORY/{code}"));
            assert_eq!((ended.state.as_str(), ended.requests), failed, "{library} {pair:?}");
            for op in BOTH {
                ends.case(library, op, "-", local, remote, &whole(local));
            }
            ends.end();
        }
    }
}

/// A device can't be opened when its memory is registered: the reason is reported, and the next try works.
#[test]
fn a_device_that_can_t_be_opened_says_why() {
    for (place, library, function, code) in [
        ("cuda0", "cuda", "cuStreamCreate", 2),
        ("ascend0", "ascend", "aclrtCreateStreamWithConfig", 207_001),
    ] {
        let mut ends = Ends::new("transports=auto");
        ends.a.knob(library, "FAULT", &format!("{function}:1:{code}"));
        let error = ends.a.try_place(place, MIB).expect_err("the device's queue can't be made");
        assert!(error.starts_with("NO_MEMORY") && error.contains(function), "{error}");
        assert!(error.ends_with(&format!("({code})")), "{error}");
        let (local, remote) = ends.places((place, "host"), MIB);
        for op in BOTH {
            ends.case(library, op, "-", local, remote, &whole(local));
        }
        ends.end();
    }
}

/// A copy hangs for good. AscendCL can stop the copy: the transfer fails. The device is given up, and the reason is
/// reported.
#[test]
fn an_ascend_device_that_hangs_is_given_up() {
    let settings = "transports=auto device_timeout_ms=200";
    fails_from_then_on(settings, "ascend0", ("ascend", "HANG", "1"), "UNAVAILABLE/0");
}

/// CUDA can't stop the copy: only the memory that the copy may still touch is kept until the copy has ended.
#[test]
fn a_cuda_device_that_hangs_keeps_what_it_has() {
    for (pair, at_target) in [(("cuda0", "host"), false), (("host", "cuda0"), true)] {
        for op in BOTH {
            // At the target a struck transfer waits for the lease and the device's time, and no longer.
            let mut ends = Ends::new("transports=auto device_timeout_ms=200 lease_ms=60000");
            let (local, remote) = ends.places(pair, MIB);
            let host = ends.places(("host", "host"), MIB);
            ends.case("before", op, "-", local, remote, &whole(local));
            let end = if at_target { &mut ends.b } else { &mut ends.a };
            end.knob("cuda", "HANG", "1");
            let request = list(local, remote, &whole(local));
            let first = ends.submit(op, "deadline=100", &request);
            // This copy hangs, not a later copy on the device's other stream.
            eventually("its deadline is over", || ends.a.ask(&format!("state {first}")) == "Draining");
            // Until the device is given up, later copies hang behind the first.
            eventually("it is given up", || {
                let later = ends.submit(op, "deadline=100", &request);
                let mut state = String::new();
                eventually("its deadline, at the latest", || {
                    state = ends.a.ask(&format!("state {later}"));
                    state != "Pending"
                });
                state == "Failed" && ends.wait(later).status == "UNAVAILABLE"
            });
            assert_eq!(ends.a.ask(&format!("state {first}")), "Draining", "{pair:?} {op:?}");
            host_memory_moves(&mut ends, "beside a hang", host);
            let end = if at_target { &mut ends.b } else { &mut ends.a };
            end.ok("release cuda");
            // The hanging copy may have been the transfer's last.
            let ended = ends.wait(first);
            assert!(["Done", "TimedOut"].contains(&ended.state.as_str()), "{pair:?} {op:?}: {ended:?}");
        }
    }
}

/// A hang at the target beyond all that a struck transfer may wait for: the transfer is final, while its memory at the
/// target stays in use until the device is through.
#[test]
fn a_hang_at_the_target_doesn_t_hold_a_struck_transfer_for_ever() {
    for op in BOTH {
        let mut ends = Ends::new("transports=auto lease_ms=400 drain_ms=50 device_timeout_ms=300");
        let (local, remote) = ends.places(("host", "cuda0"), MIB);
        ends.case("before", op, "-", local, remote, &whole(local));
        ends.b.knob("cuda", "HANG", "1");
        let before = ends.b.calls("cuda", "task");
        let transfer = ends.submit(op, "deadline=100", &list(local, remote, &whole(local)));
        eventually("the device has begun", || ends.b.calls("cuda", "task") > before);
        let ended = ends.wait(transfer);
        assert_eq!(ended.state, "TimedOut", "{op:?}: {ended:?}");
        let answer = ends.b.ask(&format!("unregister {} 0", remote.index()));
        assert!(answer.starts_with("BUSY"), "{op:?}: {answer}");
        ends.b.ok("release cuda");
        ends.b.ok(&format!("unregister {}", remote.index()));
        ends.close();
    }
}

/// An error that stays with the context: all later transfers that need the device fail with that error.
#[test]
fn a_spoiled_context_says_the_same_every_time() {
    fails_from_then_on("transports=auto", "cuda0", ("cuda", "STICKY", "719"), "UNAVAILABLE/719");
}
