//! The other process: a producer that computes layer by layer, or a consumer that takes, until it is struck.

use ferry_kv::handoff::Mode;

use crate::big::{id, lists, offer_spec, rank, take_spec, LAYERS, PATIENCE, TOKENS};

#[test]
#[ignore = "the other process of the tests"]
fn plays_the_other_process() {
    let Ok(role) = std::env::var("FERRY_TEST_KV_ROLE") else { return };
    let transports = std::env::var("FERRY_TEST_KV_TRANSPORTS").unwrap();
    let own = rank(&transports);
    println!("ADDRESS {}", own.engine.address());
    match role.as_str() {
        "producer" => {
            let blocks = lists(3);
            own.cache.offer(offer_spec(id(0), blocks.clone(), PATIENCE)).unwrap();
            println!("COMPUTING");
            for layer in 0..LAYERS {
                own.compute(0, layer, &blocks);
                // Refused when the other side has given the take up.
                let _ = own.cache.offer_ready(id(0), layer..layer + 1, TOKENS);
            }
            let _ = own.cache.offer_seal(id(0), TOKENS);
        }
        consumer => {
            let target = std::env::var("FERRY_TEST_KV_TARGET").unwrap();
            let producer = own.engine.connect(&target, Some(PATIENCE)).unwrap();
            let mode = if consumer.ends_with("pull") { Mode::Pull } else { Mode::Push };
            own.cache.take(take_spec(id(0), vec![producer], lists(5), mode)).unwrap();
            println!("TAKING");
        }
    }
    // The other side's end kills this process; a test that panics does so too.
    while own.cache.wait(Some(PATIENCE)).is_ok() {}
}
