//! Memory of Ascend NPUs: copies in every direction and shape, memory of other processes, versions of the
//! library, and everything that can fail.
//!
//! There is no NPU here: the tests run against a stand-in for AscendCL (`tests/standin`) that refuses what the
//! real one leaves undefined, counts calls, injects faults, and must be given back all that was taken. Each test
//! has a process of its own, because there is one AscendCL in a process; see `npu::alone`.

mod copies;
mod faults;
mod npu;
mod places;
mod shared;
#[path = "../common/standin.rs"]
mod standin;
