//! The number of random cases for this crate's property tests; below all modules, and no part of the library.

use proptest::prelude::ProptestConfig;

/// Returns a configuration with this number of cases. Under Miri, which is some thousand times slower, PROPTEST_CASES
/// sets the number.
pub(crate) fn most(cases: u32) -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig::default()
    } else {
        ProptestConfig::with_cases(cases)
    }
}
