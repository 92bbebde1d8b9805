//! Memory of CUDA devices: copies in every direction and shape, the program's streams, memory of other
//! processes, and everything that can fail.
//!
//! Without a GPU the tests run against a stand-in for the driver's library (`tests/standin`), which refuses calls
//! whose effect is undefined in the real one, counts calls, injects faults, and reports at the end of each test
//! everything that was not given back. FERRY_TEST_CUDA=real runs the tests that need no stand-in on the real library.

mod copies;
mod faults;
mod gpu;
mod loading;
#[path = "../common/mapped.rs"]
mod mapped;
mod ptx;
mod shared;
#[path = "../common/standin.rs"]
mod standin;
mod streams;
