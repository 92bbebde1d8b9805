//! Messages of the pool: any bytes, and a node that hears any messages of a peer that has greeted it.

use arbitrary::{Arbitrary, Unstructured};
use ferry::types::PeerId;
use ferry_pool::node::{Action, Machine};
use ferry_pool::store::Store;
use ferry_pool::wire::{Hello, Load, Message};

/// Bytes that the node lends, and its unit.
const LENT: u64 = 1 << 20;
const UNIT: u64 = 4096;

#[derive(Arbitrary, Debug)]
enum Input {
    Bytes(Vec<u8>),
    /// Messages, each with what becomes of the transfers that follow.
    Heard(Vec<(Vec<u8>, bool)>),
}

pub fn run(data: &[u8]) {
    match Input::arbitrary(&mut Unstructured::new(data)) {
        Ok(Input::Bytes(bytes)) => decode(&bytes),
        Ok(Input::Heard(steps)) => hear(&steps),
        Err(_) => {}
    }
}

/// What is a message has these bytes, and no other message has them.
fn decode(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let again = message.encode();
        assert!(Message::decode(&again).is_ok_and(|read| read == message));
        assert_eq!(again, bytes);
    }
}

fn me(name: &str, incarnation: u64) -> Hello {
    let load = Load { capacity: LENT, free: LENT, is_draining: false };
    Hello { scheme: 1, incarnation, is_member: true, load, cluster: String::new(), name: name.into() }
}

fn hear(steps: &[(Vec<u8>, bool)]) {
    let Ok(mut machine) = Machine::new(me("here", 1), Store::new(LENT, UNIT), 0) else { return };
    let peer = PeerId::from_raw(1);
    machine.heard(peer, Message::Hello(me("there", 2)), 0);
    for (now, (bytes, fails)) in steps.iter().enumerate() {
        if let Ok(message) = Message::decode(bytes) {
            machine.heard(peer, message, now as u64);
        }
        // What the machine wants done is done at once; each action leads to a bounded number of further ones.
        for _ in 0..4 {
            for action in machine.take_actions() {
                match action {
                    Action::Move { number, requests, .. } => {
                        let failed: Vec<usize> =
                            if *fails { (0..requests.len()).collect() } else { Vec::new() };
                        let within = requests.iter().all(|request| request.local + request.length <= LENT);
                        assert!(within, "a request leaves the node's memory");
                        machine.moved(number, &failed, now as u64);
                    }
                    Action::Sum { of, values } => {
                        let sums: Vec<Option<u64>> = values.iter().map(|_| Some(7)).collect();
                        machine.summed(of, &sums, now as u64);
                    }
                    Action::Send { message, .. } => assert!(Message::decode(&message).is_ok()),
                    Action::Fence(_) | Action::Refused { .. } | Action::Write { .. } => {}
                }
            }
        }
        machine.tick(now as u64);
    }
    assert!(machine.stats().free <= LENT);
}
