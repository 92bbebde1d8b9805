//! Memory of CUDA devices: copies in every direction and shape, the program's streams, memory of other
//! processes, and everything that can fail.
//!
//! Without a GPU the tests run against a stand-in for the driver's library (`tests/standin`), which refuses
//! what the real one leaves undefined, counts calls, injects faults, and at the end of each test must have
//! been given back all that was taken. FERRY_TEST_CUDA=real runs those that need none of that on the real one.

mod copies;
mod faults;
mod gpu;
mod loading;
mod ptx;
mod shared;
#[path = "../common/standin.rs"]
mod standin;
mod streams;
