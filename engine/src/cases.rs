//! How many random cases the properties of this crate's own tests get; below all modules, and no part of the library.

use proptest::prelude::ProptestConfig;

/// `cases`, or as many as PROPTEST_CASES says under Miri, which is some thousand times slower.
pub(crate) fn most(cases: u32) -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig::default()
    } else {
        ProptestConfig::with_cases(cases)
    }
}
