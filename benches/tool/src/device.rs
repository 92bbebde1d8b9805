//! Memory of a CUDA or Ascend device for one end of a test: allocated by the device library's own calls, filled and
//! read back by its copies from and to host memory, so that the same check serves all memory.
//!
//! Each memory has a thread that alone calls the library for it: contexts belong to threads, and a check copies from
//! several threads.

mod ascend;
mod cuda;

use std::ffi::CString;
use std::sync::mpsc::{channel, sync_channel, Sender};
use std::thread::{self, JoinHandle};

use anyhow::{bail, Context};
use clap::Args;
use ferry::types::{Location, MemoryKind};
use ferry::Config;
use serde::{Deserialize, Serialize};

use crate::memory::Store;
use crate::workload::Described;

/// The options of this end; without either, the memory is the host's.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOptions {
    /// The memory of this end is that of the CUDA device with this number
    #[arg(long = "use_cuda", alias = "use-cuda", value_name = "N", conflicts_with = "ascend", value_parser = clap::value_parser!(i32).range(0..))]
    pub cuda: Option<i32>,
    /// The memory of this end is that of the Ascend device with this number
    #[arg(long = "use_ascend", alias = "use-ascend", value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub ascend: Option<i32>,
}

impl DeviceOptions {
    pub fn location(self) -> Option<Location> {
        let at = |kind| move |device| Location { kind, device };
        self.cuda.map(at(MemoryKind::Cuda)).or(self.ascend.map(at(MemoryKind::Ascend)))
    }

    /// Returns the option as a word of a command line: none or one.
    pub fn argument(self) -> Option<String> {
        let cuda = self.cuda.map(|device| format!("--use_cuda={device}"));
        cuda.or(self.ascend.map(|device| format!("--use_ascend={device}")))
    }
}

/// Opens the library that the configuration names and finds the device. Returns UNAVAILABLE, with the reason, if one
/// of them is missing.
pub fn find(at: Location, config: &Config) -> anyhow::Result<Described> {
    match at.kind {
        MemoryKind::Cuda => cuda::describe(at.device, &config.cuda_library),
        MemoryKind::Ascend => ascend::describe(at.device, &config.ascend_library),
        other => bail!("{} memory is of no device", other.name()),
    }
}

/// Refuses numbers that no device has.
fn check_number(device: i32, count: i32, library: &str) -> anyhow::Result<()> {
    if device < count {
        return Ok(());
    }
    match count {
        0 => bail!("UNAVAILABLE: {library} finds no device"),
        1 => bail!("UNAVAILABLE: there is no device {device}: {library} has device 0 alone"),
        _ => bail!("UNAVAILABLE: there is no device {device}: {library} has devices 0 to {}", count - 1),
    }
}

/// Returns whether the open library is a stand-in: stand-ins export a function that turns their knobs.
fn is_standin(library: &str) -> bool {
    let Ok(name) = CString::new(library) else { return false };
    // SAFETY: a C string. With RTLD_NOLOAD nothing is loaded; the library is never closed, so the reference that
    // this takes need not be given back.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        !handle.is_null() && !libc::dlsym(handle, c"standin_set".as_ptr()).is_null()
    }
}

/// One allocation, on the thread that made it.
trait Held {
    fn address(&self) -> u64;
    /// `offset` and the length lie within the allocation.
    fn copy_in(&self, offset: usize, from: &[u8]) -> anyhow::Result<()>;
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()>;
}

/// Work on the allocation's thread.
type Order = Box<dyn FnOnce(&dyn Held) + Send>;

pub struct DeviceMemory {
    address: u64,
    bytes: usize,
    /// Both fields are taken by drop.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceMemory {
    pub fn new(at: Location, config: &Config, bytes: usize) -> anyhow::Result<DeviceMemory> {
        find(at, config)?;
        let libraries = (config.cuda_library.clone(), config.ascend_library.clone());
        let allocate = move || match at.kind {
            MemoryKind::Cuda => cuda::allocate(at.device, &libraries.0, bytes),
            _ => ascend::allocate(at.device, &libraries.1, bytes),
        };
        let (orders, taken) = channel::<Order>();
        let (tell, told) = sync_channel(1);
        let body = move || match allocate() {
            Err(error) => drop(tell.send(Err(error))),
            Ok(held) => {
                let _ = tell.send(Ok(held.address()));
                taken.into_iter().for_each(|order| order(&*held));
            }
        };
        let thread = thread::Builder::new().name("device-memory".to_owned()).spawn(body)?;
        let address = told.recv().context("the thread for the device's memory has ended")?;
        let address = address.with_context(|| format!("{bytes} bytes of the device's memory"))?;
        Ok(DeviceMemory { address, bytes, orders: Some(orders), thread: Some(thread) })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Makes the thread copy `length` bytes at `offset`, and waits for the result.
    fn copy<T: Send + 'static>(
        &self,
        (offset, length): (usize, usize),
        copy: impl FnOnce(&dyn Held) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.bytes), "within the memory");
        let (done, ended) = sync_channel(1);
        let orders = self.orders.as_ref().context("the memory is being freed")?;
        // The caller waits for the answer.
        let order: Order = Box::new(move |held| drop(done.send(copy(held))));
        orders.send(order).ok().context("the thread for the device's memory has ended")?;
        let copied = ended.recv().context("the thread for the device's memory has ended")?;
        copied.context("copying between the device and the host")
    }
}

impl Store for DeviceMemory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
        let from = from.to_vec();
        self.copy((offset, from.len()), move |held| held.copy_in(offset, &from))
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        let mut copy = vec![0; into.len()];
        let copied = self.copy((offset, into.len()), move |held| {
            held.copy_out(offset, &mut copy)?;
            Ok(copy)
        });
        into.copy_from_slice(&copied?);
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // The thread has freed the memory; a caller has already seen its panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        device: DeviceOptions,
    }

    fn parse(words: &[&str]) -> Result<DeviceOptions, String> {
        let line = Line::try_parse_from(std::iter::once(&"x").chain(words));
        line.map(|line| line.device).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_child_is_told_is_what_was_said() {
        for (word, kind, device) in [
            ("--use_cuda=0", MemoryKind::Cuda, 0),
            ("--use-cuda=3", MemoryKind::Cuda, 3),
            ("--use_ascend=7", MemoryKind::Ascend, 7),
            ("--use-ascend=0", MemoryKind::Ascend, 0),
        ] {
            let options = parse(&[word]).expect(word);
            assert_eq!(options.location(), Some(Location { kind, device }));
            let told = options.argument().expect("a device was named");
            assert_eq!(parse(&[&told]), Ok(options));
        }
        let none = parse(&[]).expect("nothing is a valid line");
        assert_eq!((none.location(), none.argument()), (None, None));
    }

    #[test]
    fn wrong_words_name_the_option() {
        for (words, named) in [
            (&["--use_cuda=0", "--use_ascend=0"][..], "--use_ascend"),
            (&["--use_cuda=0", "--use_ascend=0"], "--use_cuda"),
            (&["--use_cuda=-1"], "--use_cuda"),
            (&["--use_ascend=2147483648"], "--use_ascend"),
            (&["--use_ascend=first"], "--use_ascend"),
        ] {
            let text = parse(words).expect_err(named);
            assert!(text.contains(named), "{words:?}: {text}");
        }
    }
}
