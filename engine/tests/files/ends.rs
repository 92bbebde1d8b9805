//! The ends of regions and engines while files are read and written.

use crate::common::data::fill;
use crate::common::{eventually, PATIENCE};
use crate::support::{at_b, done, moved, open_region, pair, results, temporary, to_b, ways};
use ferry::types::Op;
use ferry::{State, Status, TransferOptions};
use std::time::Duration;

/// Unregister waits for what is in flight, and nothing lands afterwards; then the region is stale.
#[test]
fn after_unregister_no_byte_of_the_file_changes() {
    for way in ways("after_unregister") {
        let pair = pair(way, "local");
        let file = temporary();
        let region = at_b(&pair, &file, 0, 32 << 20);
        let memory = pair.a.alloc(32 << 20, &open_region()).unwrap();
        fill(&memory, 1);
        let all = [to_b(memory.address(), &region, 0, 32 << 20)];
        let transfer = pair.a.submit(pair.b_at_a, Op::Write, &all, &TransferOptions::default()).unwrap();
        eventually("the transfer has begun", || {
            transfer.progress().bytes_confirmed > 0 || transfer.state() != State::Pending
        });
        pair.b.unregister(region.region, Some(PATIENCE)).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(0).unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0, "{way}: {result:?}, {length} before");
        assert_eq!(results(&pair, Op::Write, &all), [(Status::Stale, 0)], "{way}");
    }
}

#[test]
fn an_engine_closes_with_files_in_use_on_either_side() {
    for way in ways("an_engine_closes") {
        for closes_target in [false, true] {
            let pair = pair(way, "tcp");
            let (here, there) = (temporary(), temporary());
            here.set_len(16 << 20).unwrap();
            let local = pair.a.register_file(&here, 0, 16 << 20, &open_region()).unwrap();
            let region = at_b(&pair, &there, 0, 16 << 20);
            let all = [to_b(local.address, &region, 0, 16 << 20)];
            let submit = || pair.a.submit(pair.b_at_a, Op::Write, &all, &TransferOptions::default()).unwrap();
            let transfers: Vec<_> = (0..4).map(|_| submit()).collect();
            let closed = if closes_target { &pair.b } else { &pair.a };
            closed.close(Some(PATIENCE)).unwrap();
            pair.a.close(Some(PATIENCE)).unwrap();
            for transfer in transfers {
                let state = transfer.wait(Some(PATIENCE)).unwrap().state;
                assert!(state != State::Pending && state != State::Draining, "{state:?}");
            }
        }
    }
}

#[test]
fn a_region_registered_anew_is_another_one() {
    let pair = pair("auto", "tcp");
    let file = temporary();
    let old = at_b(&pair, &file, 0, 4096);
    let memory = pair.a.alloc(4096, &open_region()).unwrap();
    pair.b.unregister(old.region, Some(Duration::ZERO)).unwrap();
    let new = at_b(&pair, &file, 0, 4096);
    assert_ne!((old.region, old.address), (new.region, new.address));
    assert_eq!(results(&pair, Op::Write, &[to_b(memory.address(), &old, 0, 4096)]), [(Status::Stale, 0)]);
    done("the new one", &moved(&pair, Op::Write, &[to_b(memory.address(), &new, 0, 4096)]));
}
