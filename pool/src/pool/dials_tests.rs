use super::*;
use ferry::types::EngineId;
use ferry_directory::Identity;

const PAUSE: u64 = 1_000;

fn entry(name: &str, address: &str, incarnation: u64) -> Entry {
    let identity = Some(Identity { engine_id: EngineId([1; 16]), incarnation });
    Entry { name: name.into(), address: address.into(), identity }
}

fn dials(addresses: &[&str]) -> Dials {
    let addresses: Vec<String> = addresses.iter().map(|address| address.to_string()).collect();
    Dials::new(&addresses, "me:1", Duration::from_nanos(PAUSE))
}

fn addresses(dials: &Dials) -> Vec<&str> {
    dials.iter().map(|dial| dial.address.as_str()).collect()
}

fn peer(number: u64) -> PeerId {
    PeerId::from_raw(number)
}

#[test]
fn what_the_directory_lists_is_dialed_and_dropped() {
    let mut dials = dials(&["me:1"]);
    dials.follow(vec![entry("a", "a:1", 1), entry("b", "b:1", 1)]);
    assert_eq!(dials.due(0), [(0, "a:1".into()), (1, "b:1".into())]);
    dials.connected(0, peer(7));
    dials.failed(1, "refused", false, 0);
    // An entry that is listed as before stays as it is.
    dials.follow(vec![entry("b", "b:1", 1), entry("a", "a:1", 1)]);
    assert_eq!((dials.due(PAUSE - 1), dials.next_ns()), (vec![], Some(PAUSE)));
    dials.follow(vec![entry("a", "a:1", 1)]);
    assert_eq!((addresses(&dials), dials.next_ns()), (vec!["a:1"], None));
    dials.lost(peer(7), "lost", 5);
    assert_eq!(dials.due(5), [(0, "a:1".into())]);
    dials.follow(vec![]);
    dials.connected(0, peer(8));
    assert_eq!((addresses(&dials), dials.next_ns()), (vec![], None));
}

#[test]
fn another_address_or_incarnation_is_dialed_anew() {
    let mut dials = dials(&[]);
    dials.follow(vec![entry("a", "a:1", 1)]);
    assert_eq!(dials.due(0).len(), 1);
    // The first dial has not ended: its end is not taken for that of the next one.
    dials.follow(vec![entry("a", "a:1", 2)]);
    assert_eq!(dials.due(0), [(1, "a:1".into())]);
    dials.connected(0, peer(1));
    assert!(dials.iter().all(|dial| dial.peer.is_none()));
    dials.connected(1, peer(2));
    dials.follow(vec![entry("a", "a:2", 2)]);
    // The first place is free again.
    assert_eq!(dials.due(0), [(0, "a:2".into())]);
    assert_eq!(addresses(&dials), ["a:2"]);
    assert!(dials.iter().all(|dial| dial.peer.is_none()));
}

#[test]
fn an_address_is_dialed_once_whoever_names_it() {
    let mut dials = dials(&["a:1"]);
    dials.call_back("b:1", peer(3));
    dials.follow(vec![entry("a", "a:1", 1), entry("b", "b:1", 1), entry("c", "b:1", 2)]);
    assert_eq!(dials.due(0), [(0, "a:1".into()), (1, "b:1".into())]);
    // The node that was called back is dialed for as long as it is listed, and the program's for ever.
    for _ in 0..=CALLS_BACK_MAX {
        (0..2).for_each(|at| dials.failed(at, "refused", false, 0));
        assert_eq!(dials.due(PAUSE).len(), 2);
    }
    (0..2).for_each(|at| dials.failed(at, "refused", false, 0));
    dials.follow(vec![]);
    assert_eq!(dials.due(PAUSE), [(0, "a:1".into())]);
    assert_eq!(addresses(&dials), ["a:1"]);
}

#[test]
fn an_entry_that_leads_back_is_not_dialed_again() {
    let mut dials = dials(&[]);
    dials.follow(vec![entry("me", "alias:1", 1)]);
    assert_eq!(dials.due(0).len(), 1);
    dials.failed(0, "leads back", true, 0);
    dials.follow(vec![entry("me", "alias:1", 1)]);
    assert!(dials.due(PAUSE).is_empty() && addresses(&dials).is_empty());
}
