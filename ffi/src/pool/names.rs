//! Names of the numbers of ferry_pool.h.

use super::results::*;
use crate::names::{name_in, Names};
use std::ffi::c_char;

const OUTCOMES: Names = &[
    (FERRY_POOL_OUTCOME_OK, c"OK"),
    (FERRY_POOL_OUTCOME_HERE, c"HERE"),
    (FERRY_POOL_OUTCOME_ABSENT, c"ABSENT"),
    (FERRY_POOL_OUTCOME_UNKNOWN, c"UNKNOWN"),
    (FERRY_POOL_OUTCOME_EVICTED, c"EVICTED"),
    (FERRY_POOL_OUTCOME_OWNER_LOST, c"OWNER_LOST"),
    (FERRY_POOL_OUTCOME_CORRUPT, c"CORRUPT"),
    (FERRY_POOL_OUTCOME_FULL, c"FULL"),
    (FERRY_POOL_OUTCOME_TOO_LONG, c"TOO_LONG"),
    (FERRY_POOL_OUTCOME_LENGTH, c"LENGTH"),
    (FERRY_POOL_OUTCOME_FAILED, c"FAILED"),
    (FERRY_POOL_OUTCOME_CLOSED, c"CLOSED"),
];

/// Returns the name of an outcome: its constant without FERRY_POOL_OUTCOME_, for example "EVICTED". Returns "UNKNOWN"
/// for any other number, which a newer library may have added. The text is static. Never fails; any thread.
#[no_mangle]
pub extern "C" fn ferry_pool_outcome_name(outcome: u32) -> *const c_char {
    name_in(OUTCOMES, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tests::check;
    use ::ferry_pool::Outcome;

    #[test]
    fn every_constant_has_the_name_and_the_number_of_the_crate() {
        check(OUTCOMES, include_str!("results.rs"), "FERRY_POOL_OUTCOME_");
        let crate_s: Vec<_> = Outcome::ALL.map(|it| (it as u32, it.name())).into();
        let listed: Vec<_> =
            OUTCOMES.iter().map(|(number, name)| (*number, name.to_str().unwrap())).collect();
        assert_eq!(listed, crate_s);
    }
}
