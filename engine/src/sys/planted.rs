//! Two mistakes, compiled for Miri alone. `scripts/miri.sh` makes each before it runs the tests: if Miri does not
//! report them, then those tests prove nothing.

use std::cell::UnsafeCell;
use std::thread;

#[test]
#[ignore = "scripts/miri.sh runs it, and it fails"]
fn use_after_free() {
    let memory = Box::into_raw(Box::new(7u8));
    // SAFETY: `memory` came from a Box, and nobody has freed it.
    drop(unsafe { Box::from_raw(memory) });
    // SAFETY: none. The memory is gone: this is the mistake.
    assert_eq!(unsafe { memory.read() }, 7);
}

struct Shared(UnsafeCell<u64>);
// SAFETY: none. Nothing orders the writes of two threads: this is the mistake.
unsafe impl Sync for Shared {}

impl Shared {
    fn write(&self, value: u64) {
        // SAFETY: none, as above. Only the order of the writes is wrong.
        unsafe { self.0.get().write(value) };
    }
}

#[test]
#[ignore = "scripts/miri.sh runs it, and it fails"]
fn data_race() {
    let shared = Shared(UnsafeCell::new(0));
    thread::scope(|scope| {
        scope.spawn(|| shared.write(1));
        shared.write(2);
    });
}
