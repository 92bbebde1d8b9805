//! Refusals: wrong arguments, memory that is gone, memory that can't be allocated.

use crate::ends::{list, whole, Ends, BOTH, KIB, MIB};
use ferry::types::Op;

#[test]
fn a_wrong_place_is_refused_and_named() {
    let mut ends = Ends::new("transports=auto");
    // Both libraries are in use, so that each can be asked.
    ends.places(("cuda0", "ascend0"), 4 * KIB);
    ends.a.place("ascend0", 4 * KIB);
    for (place, kind, device, named) in [
        ("host", "cuda", 0, "INVALID: options.kind: address is no memory of a cuda device"),
        ("host", "ascend", 0, "INVALID: options.kind: address is no memory of a ascend device"),
        ("cuda0", "ascend", 0, "INVALID: options.kind: address is memory of cuda device 0"),
        ("ascend0", "cuda", 0, "INVALID: options.kind: address is memory of ascend device 0"),
        ("cuda0", "cuda", 1, "INVALID: options.device: address is memory of cuda device 0"),
        ("cuda1", "cuda", 0, "INVALID: options.device: address is memory of cuda device 1"),
        ("ascend0", "ascend", 1, "INVALID: options.device: address is memory of ascend device 0"),
    ] {
        let answer = ends.a.ask(&format!("hint {place} {kind} {device}"));
        assert!(answer.starts_with(named), "{place} as {kind} {device}: {answer}");
    }
    for place in ["cuda", "ascend"] {
        let answer = ends.a.ask(&format!("hint {place}0 {place} 0"));
        assert!(answer.parse::<u64>().is_err() && answer.contains(' ') && !answer.contains(':'), "{answer}");
    }
    ends.end();
}

#[test]
fn a_library_that_is_switched_off_or_absent_says_so() {
    for (settings, named) in [
        ("cuda=false ascend=false", "UNAVAILABLE: cuda is switched off by the settings"),
        (
            "cuda_library=/nowhere/libcuda.so",
            "UNAVAILABLE: the driver's library can't be opened: /nowhere/libcuda.so: ",
        ),
    ] {
        let mut ends = Ends::new(settings);
        let answer = ends.a.ask("hint cuda0 cuda 0");
        assert!(answer.starts_with(named), "{settings}: {answer}");
        // Other transfers still work.
        let (local, remote) = ends.places(("host", "host"), MIB);
        ends.case(settings, Op::Write, "-", local, remote, &whole(local));
        ends.end();
    }
}

#[test]
fn no_length_is_an_error_that_names_the_argument() {
    let mut ends = Ends::new("transports=auto");
    for places in [("cuda0", "ascend0"), ("ascend0", "cuda0")] {
        let (local, remote) = ends.places(places, 4 * KIB);
        for op in BOTH {
            for spans in [&[(0, 0, 0)][..], &[(0, 0, 8), (8, 8, 0)]] {
                let list = list(local, remote, spans);
                let answer = ends.a.ask(&format!("submit {op:?} {} - {list}", ends.peer));
                let last = spans.len() - 1;
                assert!(answer.starts_with(&format!("INVALID: requests[{last}].length is 0")), "{answer}");
            }
            let answer = ends.a.ask(&format!("submit {op:?} {} -", ends.peer));
            assert!(answer.starts_with("INVALID: requests: the list is empty"), "{answer}");
            ends.case("then", op, "-", local, remote, &whole(local));
        }
    }
    ends.end();
}

/// The owner frees memory under its region. The library refuses the copy: that transfer fails, and no other.
#[test]
fn freed_memory_fails_what_names_it_alone() {
    for (place, library) in [("cuda0", "cuda"), ("ascend0", "ascend")] {
        for at_target in [true, false] {
            let mut ends = Ends::new("transports=auto");
            let pair = if at_target { ("host", place) } else { (place, "host") };
            let (local, remote) = ends.places(pair, MIB);
            let (here, there) = ends.places(pair, MIB);
            ends.case(place, Op::Write, "-", local, remote, &whole(local));
            let owner = if at_target { &mut ends.b } else { &mut ends.a };
            owner.free(if at_target { remote } else { local });
            for op in BOTH {
                let ended = ends.run(op, "-", &list(local, remote, &whole(local)));
                assert_eq!((ended.state.as_str(), ended.bytes), ("Failed", 0), "{library}: {ended:?}");
                assert!(!ended.requests.contains("OK"), "{library}: {ended:?}");
                ends.case(place, op, "-", here, there, &whole(here));
            }
            ends.end();
        }
    }
}

/// The program has taken all of the device's memory: transfers work without scratch memory of ferry's, or registering
/// fails with the reason and works when there is room again.
#[test]
fn a_full_device_is_no_end() {
    for (place, library) in [("cuda0", "cuda"), ("ascend0", "ascend")] {
        let mut ends = Ends::new("transports=auto");
        ends.a.knob(library, "MEMORY_MB", "4");
        let over = ends.a.try_place(place, 8 * MIB).expect_err("more than there is");
        assert!(over.starts_with("NO_MEMORY"), "{library}: {over}");
        let local = match ends.a.try_place(place, 4 * MIB) {
            Ok(local) => local,
            Err(error) => {
                assert!(error.starts_with("NO_MEMORY"), "{library}: {error}");
                ends.a.knob(library, "MEMORY_MB", "0");
                ends.a.place(place, 4 * MIB)
            }
        };
        let remote = ends.b.place("host", 4 * MIB);
        ends.a.ok(&format!("knows {} {}", ends.peer, remote.region));
        let mut random = crate::common::data::Random::new(library);
        for op in BOTH {
            ends.case(library, op, "-", local, remote, &whole(local));
            let spans = crate::ends::scattered(&mut random, 300, 1000);
            ends.case(library, op, "-", local, remote, &spans);
        }
        ends.end();
    }
}
