//! The two sides of grants in one process: who enters, who waits, and what is left of a process.

use super::*;
use crate::handle::{make, Kind, Parts, Tag};

fn region(index: u32, generation: u32) -> RegionId {
    RegionId::from_raw(make(Kind::Region, Tag::from_random(9), Parts { index, generation }))
}

fn open(grants: &Grants, region: RegionId) {
    grants.open(region, 1 << 30, 4096, Access::REMOTE_READ);
}

fn soon(milliseconds: u64) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(milliseconds))
}

fn granted() -> (Grants, Arc<Tally>, Grant) {
    let grants = Grants::new().unwrap();
    let (tally, fd) = grants.admit(7).unwrap();
    let grant = Grant::new(grants.board(), &fd).unwrap();
    (grants, tally, grant)
}

#[test]
fn a_generation_is_entered_and_no_other() {
    let (grants, _tally, grant) = granted();
    let (old, new) = (region(3, 1), region(3, 2));
    assert_eq!(grant.enter(old).err().unwrap().status, Status::Stale);
    open(&grants, old);
    drop(grant.enter(old).unwrap());
    assert!(grant.enter(new).is_err());
    grants.shut(old);
    open(&grants, new);
    assert!(grant.enter(old).is_err());
    assert_eq!(grant.enter(new).unwrap().region(), (1 << 30, 4096, Access::REMOTE_READ));
}

#[test]
fn in_use_it_is_not_shut_and_waits() {
    let (grants, tally, grant) = granted();
    let region = region(0, 1);
    open(&grants, region);
    let inside = grant.enter(region).unwrap();
    assert!(!grants.shut_if_idle(region, || true));
    drop(grant.enter(region).expect("nothing has changed"));
    grants.shut(region);
    assert!(grant.enter(region).is_err());
    assert!(!grants.wait_idle(region, soon(2), || false));
    drop(inside);
    assert!(grants.wait_idle(region, soon(0), || false));
    open(&grants, region);
    assert!(!grants.shut_if_idle(region, || false));
    drop(grant.enter(region).expect("nothing has changed"));
    assert!(grants.shut_if_idle(region, || true) && grants.shut_if_idle(region, || true));
    assert!(grant.enter(region).is_err());
    open(&grants, region);
    let inside = grant.enter(region).unwrap();
    grants.close(&tally);
    assert!(grant.is_closed() && grant.enter(region).is_err());
    assert!(!grants.is_quiet(&tally));
    drop(inside);
    assert!(grants.is_quiet(&tally));
}

#[test]
fn a_trial_that_stands_still_is_no_unregister() {
    let (grants, _tally, grant) = granted();
    let region = region(1, 1);
    open(&grants, region);
    let word = entry(&grants.board, region, WORD);
    assert!(shared_gate::begin_trial(word, open_word(region)));
    assert_eq!(grant.enter(region).err().unwrap().status, Status::Timeout);
    shared_gate::end_trial(word, open_word(region), false);
    drop(grant.enter(region).expect("nothing has changed"));
}

#[test]
fn a_stay_holds_the_region_until_it_is_dropped() {
    for (use_, left) in [(Use::Copy, Left::Copies), (Use::Map, Left::Mappings)] {
        let (grants, tally, grant) = granted();
        let (grant, region) = (Arc::new(grant), region(5, 1));
        open(&grants, region);
        let stay = grant.stay(region, use_).unwrap();
        assert!(!grants.shut_if_idle(region, || true));
        grants.shut(region);
        assert_eq!(grant.stay(region, use_).unwrap_err().status, Status::Stale);
        assert!(!grants.wait_idle(region, soon(0), || false));
        grants.close(&tally);
        assert_eq!(grants.is_quiet(&tally), use_ == Use::Map, "a mapping alone copies nothing");
        assert_eq!(grants.forget(&tally), left);
        assert!(!grants.wait_idle(region, soon(0), || false), "it is not forgotten");
        drop((grant, stay));
        assert!(grants.wait_idle(region, soon(0), || false));
        assert_eq!(grants.forget(&tally), Left::Nothing);
    }
}

#[test]
fn the_dead_hold_nothing() {
    let (grants, tally, grant) = granted();
    let region = region(70_000, 1);
    open(&grants, region);
    std::mem::forget(grant.enter(region).unwrap());
    grants.shut(region);
    assert!(!grants.wait_idle(region, soon(0), || false));
    grants.bury(&tally);
    assert!(grants.wait_idle(region, soon(0), || false) && grants.is_quiet(&tally));
}

#[test]
fn a_peer_cannot_write_the_board() {
    let (grants, _tally, _grant) = granted();
    assert!(SharedWords::of(grants.board(), BOARD_WORDS, true).is_err());
    assert!(SharedWords::of(grants.board(), BOARD_WORDS + 1, false).is_err());
}
