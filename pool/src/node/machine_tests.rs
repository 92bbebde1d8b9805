//! What the world of `tests/world` does not do: peers that answer what they were not asked, and fences that fail.

use super::*;
use crate::key::Digest;
use crate::outcome::Outcome;
use crate::wire::{Load, Segment, Wanted, FOUND_NO};

fn hello(name: &str, incarnation: u64) -> Hello {
    let load = Load { capacity: 1 << 20, free: 1 << 20, is_draining: false };
    Hello { scheme: 1, incarnation, is_member: true, load, cluster: String::new(), name: name.into() }
}

/// The program's memory is in use while an owner may read it, whatever another node answers.
#[test]
fn an_index_members_answer_does_not_end_a_put() {
    let mut machine = Machine::new(hello("me", 1), Store::new(1 << 20, 512), 0).unwrap();
    let peer = PeerId::from_raw(1);
    machine.heard(peer, Message::Hello(hello("other", 2)), 0);
    let segments = vec![Segment { address: 4096, bytes: 8, region: 1 }];
    let keys = vec![Wanted { digest: Digest([7; 32]), checksum: None, segments }];
    let preferred = Some(crate::index::NodeId::of("other"));
    machine.take_actions();
    machine.call(Ask::Put { keys, replicas: 1, preferred }, 0);
    let asked = machine.take_actions().into_iter().find_map(|action| match action {
        Action::Send { message, .. } => match Message::decode(&message) {
            Ok(Message::Put { request, .. }) => Some(request),
            _ => None,
        },
        _ => None,
    });
    let request = asked.expect("the other node is asked");
    machine.heard(peer, Message::Found { request, owners: Vec::new(), found: vec![1] }, 0);
    assert_eq!(machine.take_end(), None);
    assert!(machine.take_actions().iter().any(|action| matches!(action, Action::Fence(_))));
}

/// A value that a prefetch has brought is for this node alone.
#[test]
fn an_own_put_does_not_go_elsewhere_when_this_node_is_full() {
    let mut machine = Machine::new(hello("me", 1), Store::new(512, 512), 0).unwrap();
    machine.heard(PeerId::from_raw(1), Message::Hello(hello("other", 2)), 0);
    machine.take_actions();
    let mut put = |number: u8| {
        let segments = vec![Segment { address: 4096, bytes: 8, region: 1 }];
        let keys = vec![Wanted { digest: Digest([number; 32]), checksum: None, segments }];
        machine.call_own(Ask::Put { keys, replicas: 1, preferred: Some(machine.my_id()) }, 0);
        let sent = machine.take_actions().iter().filter(|it| matches!(it, Action::Send { .. })).count();
        (machine.take_end().map(|end| end.keys[0].outcome), sent)
    };
    // The first one is being written, and cannot go.
    assert_eq!(put(1), (None, 0));
    assert_eq!(put(2), (Some(Outcome::Full), 0));
    assert_eq!(machine.stats().calls, Counts::default());
}

/// An index member says "no" of the nodes that it sees. One that came since may have the key.
#[test]
fn no_key_is_absent_while_a_node_is_missing_that_comes_before_the_answer() {
    let exists = |missing_before: usize, missing_after: usize| {
        let client = Hello { is_member: false, ..hello("me", 1) };
        let mut machine = Machine::new(client, Store::new(0, 512), 0).unwrap();
        let peer = PeerId::from_raw(1);
        machine.heard(peer, Message::Hello(hello("other", 2)), 0);
        machine.set_missing(missing_before);
        machine.take_actions();
        machine.call(Ask::Exists { digests: vec![Digest([7; 32])], prefix: false }, 0);
        let asked = machine.take_actions().into_iter().find_map(|action| match action {
            Action::Send { message, .. } => match Message::decode(&message) {
                Ok(Message::Find { request, .. }) => Some(request),
                _ => None,
            },
            _ => None,
        });
        machine.set_missing(missing_after);
        let request = asked.expect("the index is asked");
        machine.heard(peer, Message::Found { request, owners: Vec::new(), found: vec![FOUND_NO] }, 0);
        machine.take_end().map(|end| end.keys[0].outcome)
    };
    assert_eq!(exists(0, 0), Some(Outcome::Absent));
    assert_eq!(exists(1, 0), Some(Outcome::Unknown));
    assert_eq!(exists(0, 1), Some(Outcome::Unknown));
}

/// The member that answers knows itself that its value is used.
#[test]
fn what_a_member_is_asked_for_stays_longest_and_costs_no_message_more() {
    let peer = PeerId::from_raw(1);
    let client = Hello { is_member: false, ..hello("me", 1) };
    let mut client = Machine::new(client, Store::new(0, 512), 0).unwrap();
    let mut member = Machine::new(hello("other", 2), Store::new(1 << 10, 512), 0).unwrap();
    client.heard(peer, Message::Hello(hello("other", 2)), 0);
    member.heard(peer, Message::Hello(Hello { is_member: false, ..hello("me", 1) }), 0);
    let sent = |machine: &mut Machine| {
        let actions = machine.take_actions().into_iter();
        let messages = actions.filter_map(|action| match action {
            Action::Send { message, .. } => Message::decode(&message).ok(),
            _ => None,
        });
        messages.collect::<Vec<_>>()
    };
    let put = |member: &mut Machine, number: u8| {
        let segments = vec![Segment { address: 4096, bytes: 8, region: 1 }];
        let keys = vec![Wanted { digest: Digest([number; 32]), checksum: Some(1), segments }];
        member.take_actions();
        member.call_own(Ask::Put { keys, replicas: 1, preferred: Some(member.my_id()) }, 0);
        let moved = member.take_actions().into_iter().find_map(|action| match action {
            Action::Move { number, .. } => Some(number),
            _ => None,
        });
        member.moved(moved.expect("the value is copied"), &[], 0);
    };
    put(&mut member, 1);
    put(&mut member, 2);
    sent(&mut client);
    client.call(Ask::Exists { digests: vec![Digest([1; 32])], prefix: false }, 0);
    sent(&mut member);
    sent(&mut client).into_iter().for_each(|message| member.heard(peer, message, 0));
    sent(&mut member).into_iter().for_each(|message| client.heard(peer, message, 0));
    assert_eq!(client.take_end().map(|end| end.keys[0].outcome), Some(Outcome::Ok));
    assert_eq!(sent(&mut client), []);
    put(&mut member, 3);
    let held = [1, 2, 3].map(|number| member.store().find(&Digest([number; 32])).is_some());
    assert_eq!(held, [true, false, true]);
}

#[test]
fn a_fence_that_fails_is_tried_again_after_a_pause() {
    let mut machine = Machine::new(hello("me", 1), Store::new(1 << 20, 512), 0).unwrap();
    let peer = PeerId::from_raw(1);
    machine.not_fenced(peer, 5);
    assert!(!machine.has_actions());
    // The first turns tidy the table of the index.
    let due = std::iter::repeat_with(|| machine.tick(5)).take(100).find(|due| *due != Some(0));
    assert_eq!(due, Some(Some(5 + AGAIN_NS)));
    machine.tick(5 + AGAIN_NS);
    assert!(matches!(machine.take_actions()[..], [Action::Fence(fenced)] if fenced == peer));
}
