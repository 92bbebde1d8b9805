//! The kernel that copies many pieces at once, as PTX text, which the driver compiles when it is loaded. PTX ISA 6.0
//! for sm_70 is the oldest version that any supported driver needs, and every later device takes it. `ptxas` of CUDA
//! 12.9 and 13.5 assembles it for sm_75 to sm_120 (`engine/tests/cuda/ptx.rs`, which also interprets it, instruction
//! by instruction).

use super::shape;
use crate::sys::cuda::{Context, Failure, Handle};
use std::ffi::c_void;
use std::sync::Arc;

const TEXT: &str = concat!(include_str!("copy.ptx"), "\0");
const NAME: &std::ffi::CStr = c"ferry_copy_pieces";
const THREADS: u32 = 256;

/// The kernel's entry for each piece.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entry {
    pub source: u64,
    pub target: u64,
    pub length: u64,
}

pub struct Kernel {
    function: Handle,
    module: Handle,
    multiprocessors: u32,
    context: Arc<Context>,
}

impl Kernel {
    /// Compiles and loads the kernel, and runs it once over no pieces: drivers load code at its first start, and may
    /// wait for all work of the device then.
    pub fn load(context: &Arc<Context>, stream: Handle) -> Result<Kernel, Failure> {
        let _entered = context.enter()?;
        let multiprocessors = context.attribute(crate::sys::cuda::ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut module = 0;
        // SAFETY: the text ends in NUL and is constant; the result lives on this stack.
        unsafe { context.api.module_load_data(&mut module, TEXT.as_ptr().cast()) }?;
        let mut kernel =
            Kernel { function: 0, module, multiprocessors: multiprocessors as u32, context: context.clone() };
        // SAFETY: the module is loaded, the name ends in NUL; the result is ours alone.
        unsafe { context.api.module_get_function(&mut kernel.function, module, NAME.as_ptr()) }?;
        // SAFETY: over no pieces the table is not read; the stream is the caller's own.
        unsafe { kernel.launch(0, 0, 0, stream) }?;
        // SAFETY: as above.
        unsafe { context.api.stream_synchronize(stream) }?;
        Ok(kernel)
    }

    /// # Safety
    /// `table` has `count` entries in memory that the device reaches, as is all memory that they name, until the
    /// stream has run the kernel.
    pub unsafe fn launch(&self, table: u64, count: usize, bytes: u64, stream: Handle) -> Result<(), Failure> {
        let (x, y) = shape::grid(count, bytes, self.multiprocessors);
        let (mut table, mut number) = (table, count as u32);
        let mut parameters = [(&raw mut table).cast::<c_void>(), (&raw mut number).cast()];
        // SAFETY: parameters are copied before the call returns; the rest is the caller's promise.
        unsafe {
            self.context.api.launch_kernel(
                self.function,
                x.max(1),
                y,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: loaded by `load`, unloaded once; its owner drops it only when it does not run.
            let _ = unsafe { self.context.api.module_unload(self.module) };
        }
    }
}
