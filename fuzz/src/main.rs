//! libFuzzer over one target: the environment variable FERRY_FUZZ_TARGET names the target. `scripts/fuzz.sh` builds and
//! runs this program.
#![no_main]

use ferry_fuzz::Target;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<Target> = OnceLock::new();

fn target() -> Target {
    let name = std::env::var("FERRY_FUZZ_TARGET").unwrap_or_default();
    let found = ferry_fuzz::TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("FERRY_FUZZ_TARGET: no target has the name {name:?}"))
}

fuzz_target!(|data: &[u8]| (TARGET.get_or_init(target).run)(data));
