//! Memory of a CUDA device, through the driver's library.

use std::sync::Arc;

use ferry::internals::sys::cuda::{load, Api, Context, DeviceMemory, Failure};
use ferry::Error;

use super::{check_number, is_standin, Held};
use crate::workload::Described;

/// As long as any device's name, with its NUL.
const NAME_BYTES: usize = 256;
/// The default stream, which waits for all others.
const DEFAULT_STREAM: usize = 0;

pub fn describe(device: i32, library: &str) -> anyhow::Result<Described> {
    let api = load(library)?;
    let (mut count, mut handle, mut name) = (0, 0, [0; NAME_BYTES]);
    // SAFETY: the results live on this stack.
    unsafe { api.device_get_count(&mut count) }.map_err(Error::from)?;
    check_number(device, count, &api.name)?;
    // SAFETY: as above; the name is cut to the length given, and ends in NUL.
    unsafe {
        api.device_get(&mut handle, device)
            .and_then(|()| api.device_get_name(name.as_mut_ptr(), NAME_BYTES as i32, handle))
    }
    .map_err(Error::from)?;
    let name: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    let (name, version) = (String::from_utf8_lossy(&name), api.version);
    let text = format!(
        "CUDA device {device}, {name}; {} of CUDA {}.{}",
        api.name,
        version / 1_000,
        version % 1_000 / 10
    );
    Ok(Described { text, is_standin: is_standin(&api.name) })
}

pub fn allocate(device: i32, library: &str, bytes: usize) -> anyhow::Result<Box<dyn Held>> {
    let api = load(library)?;
    let context = Context::retain(api, device).map_err(Error::from)?;
    let memory = DeviceMemory::new(&context, bytes).map_err(Error::from)?;
    Ok(Box::new(Allocation { api, context, memory }))
}

struct Allocation {
    api: &'static Api,
    context: Arc<Context>,
    memory: DeviceMemory,
}

impl Allocation {
    /// Adds a copy to the default stream, and waits until the stream has passed it.
    fn copied(&self, add: impl FnOnce(u64) -> Result<(), Failure>) -> anyhow::Result<()> {
        let _entered = self.context.enter().map_err(Error::from)?;
        add(self.memory.address).map_err(Error::from)?;
        // SAFETY: the context is current, and every context has this stream.
        unsafe { self.api.stream_synchronize(DEFAULT_STREAM) }.map_err(Error::from)?;
        Ok(())
    }
}

impl Held for Allocation {
    fn address(&self) -> u64 {
        self.memory.address
    }

    fn copy_in(&self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
        // SAFETY: both ranges live, the device's as the caller promises, until the stream has passed the copy, for
        // which `copied` waits.
        self.copied(|base| unsafe {
            let to = base + offset as u64;
            self.api.memcpy_host_to_device(to, from.as_ptr().cast(), from.len(), DEFAULT_STREAM)
        })
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        // SAFETY: as in `copy_in`.
        self.copied(|base| unsafe {
            let from = base + offset as u64;
            self.api.memcpy_device_to_host(into.as_mut_ptr().cast(), from, into.len(), DEFAULT_STREAM)
        })
    }
}
