//! Two processes in pid namespaces of their own, as in two containers of one pod: each is process 1, so a number of a
//! process or a descriptor that one sends means something else at the other, or the other's own memory.

use crate::common::data::{check, pattern};
use crate::ends::{list, whole, Ends, BOTH, MIB};
use ferry::types::Op;

const ROUNDS: u32 = 12;

/// A descriptor's number names memory of cuMemCreate. Both sides share theirs, so the same number is open in both.
#[test]
fn memory_of_the_other_namespace_is_never_taken_for_one_s_own() {
    let what = "memory_of_the_other_namespace_is_never_taken_for_one_s_own";
    let Some(mut ends) = Ends::in_namespaces(what, "transports=auto") else { return };
    let back = ends.b.number(&format!("connect {}", ends.a.address));
    let mut transports = Vec::new();
    for round in 0..ROUNDS {
        let (local, remote) = ends.places(("cuda-mapped0", "cuda-mapped0"), 2 * MIB);
        ends.b.ok(&format!("knows {back} {}", local.region));
        ends.a.fill(local, 2 * round);
        ends.b.fill(remote, 2 * round + 1);
        // Half of the memory in each direction: each first quarter goes into the other side's second quarter.
        let request = |here: u64, there: u64, region| format!("{here}:{}:{MIB}:{region}", there + MIB as u64);
        let written = ends.run(Op::Write, "-", &request(local.address, remote.address, remote.region));
        assert_eq!(written.state, "Done", "{written:?}");
        let transfer = ends.b.number(&format!(
            "submit Write {back} - {}",
            request(remote.address, local.address, local.region)
        ));
        assert!(ends.b.ask(&format!("wait {transfer}")).starts_with("Done"));
        let (ours, theirs) = (pattern(2 * round, 2 * MIB), pattern(2 * round + 1, 2 * MIB));
        let expected = |own: &[u8], other: &[u8]| [&own[..MIB], &other[..MIB]].concat();
        let what = format!("round {round}, {}", written.transport);
        check(&format!("{what}, here"), &ends.a.contents(local), &expected(&ours, &theirs));
        check(&format!("{what}, there"), &ends.b.contents(remote), &expected(&theirs, &ours));
        transports.push(written.transport);
    }
    println!("carried by {transports:?}");
    ends.end();
}

/// A handle does not tell in which namespace it names its process: it is not opened, and the reason is reported.
#[test]
fn a_handle_of_another_namespace_is_not_opened() {
    let what = "a_handle_of_another_namespace_is_not_opened";
    let Some(mut ends) = Ends::in_namespaces(what, "transports=auto") else { return };
    let (local, remote) = ends.places(("cuda0", "cuda0"), 2 * MIB);
    for op in BOTH {
        ends.case(what, op, "-", local, remote, &whole(local));
        let ended = ends.run(op, "-", &list(local, remote, &whole(local)));
        assert_ne!(ended.transport, "cuda", "{op:?}");
    }
    let way = ends.a.ask(&format!("way {} cuda", ends.peer));
    assert!(way.contains("another pid namespace"), "{way}");
    assert_eq!(ends.a.calls("cuda", "cuIpcOpenMemHandle_v2"), 0);
    ends.end();
}
