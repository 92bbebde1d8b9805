//! Memory of Ascend NPUs: copies in every direction and shape, memory of other processes, versions of the
//! library, and everything that can fail.
//!
//! There is no NPU here: the tests run against a stand-in for AscendCL (`tests/standin`) that refuses calls whose
//! effect is undefined in the real one, counts calls, injects faults, and reports everything that was not given back.
//! Each test has a process of its own, because a process has only one AscendCL; see `npu::alone`.

mod copies;
mod faults;
mod npu;
mod places;
mod shared;
#[path = "../common/standin.rs"]
mod standin;
