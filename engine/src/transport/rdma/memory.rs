//! Registers memory with the devices: every region on every device, all or nothing, by a few threads at a time, in
//! pieces if a device's registrations have a maximum length. Memory of a GPU or NPU that the NICs can't reach is
//! staged instead, and its region keeps the reason (`direct`).

use super::device::Device;
use super::direct::{Direct, Source};
use crate::region::{Region, RegionSpec};
use crate::status::{reason, Error, Result, Status};
use crate::sys::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sys::lock::Mutex;
use crate::sys::memory::{lock_limit, node_of};
use crate::sys::verbs::Mr;
use crate::types::Access;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Threads that register at the same time: pinning pages scales up to that number.
const THREADS_MAX: usize = 4;

/// A region's memory on all devices.
pub struct Pinned {
    pub address: u64,
    pub length: u64,
    /// By device; empty if the NICs don't reach the memory.
    pub devices: Vec<Pieces>,
    /// True for device memory, which the CPU can't read.
    pub is_device: bool,
    /// Why memory of a GPU or NPU is staged.
    pub staged: Option<String>,
    /// Emptied when the region is unpinned.
    registrations: Mutex<Vec<Mr>>,
}

/// One region on one device.
pub struct Pieces {
    pub bytes: u64,
    /// How much farther the device is from the memory than the nearest could be (`locality`).
    pub detour: u8,
    pub keys: Box<[PieceKeys]>,
}

#[derive(Clone, Copy, Default)]
pub struct PieceKeys {
    pub lkey: u32,
    pub rkey: u32,
}

/// One call of `ibv_reg_mr` or `ibv_reg_dmabuf_mr`.
struct Job {
    spec: usize,
    device: usize,
    piece: usize,
    /// The offset of the piece in its region.
    offset: u64,
    address: u64,
    length: u64,
    access: Access,
}

impl Pinned {
    /// Returns the registrations of a region.
    pub fn of(region: &Region) -> Option<&Pinned> {
        region.pin.as_ref()?.downcast_ref()
    }

    /// Returns the local key for `address` on this device, and the number of bytes from there that the key covers.
    pub fn find(&self, device: usize, address: u64) -> Option<(u32, u64)> {
        let pieces = self.devices.get(device)?;
        let offset = address.checked_sub(self.address)?;
        let piece = offset / pieces.bytes;
        let keys = pieces.keys.get(usize::try_from(piece).ok()?)?;
        let end = ((piece + 1) * pieces.bytes).min(self.length);
        Some((keys.lkey, end.checked_sub(offset)?))
    }

    /// Returns how much farther this device is from the memory than the nearest could be (`locality`).
    pub fn detour(&self, device: usize) -> u8 {
        self.devices.get(device).map_or(0, |pieces| pieces.detour)
    }

    /// Deregisters the memory. Nothing may use its keys any more.
    pub fn unpin(&self) {
        let registrations = std::mem::take(&mut *self.registrations.lock());
        drop(registrations);
    }
}

/// Registers all of `specs` with all devices, or none with any. Errors name the spec. Device memory that a NIC refuses
/// is staged, which is no error and concerns only its own region.
pub fn pin(devices: &[Arc<Device>], direct: &Direct, specs: &[RegionSpec]) -> Result<Vec<Arc<Pinned>>> {
    let sources: Vec<Source> = specs.iter().map(|spec| direct.source(spec)).collect();
    let jobs = jobs(devices, specs, &sources);
    let made: Vec<Mutex<Option<Mr>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return };
            let source = &sources[job.spec];
            match register(devices, job, source) {
                Ok(mr) => *made[at].lock() = Some(mr),
                Err(error) if source.refused(devices[job.device].name(), &error) => {}
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    let error = explain(&devices[job.device], job, &error);
                    failure.lock().get_or_insert(error);
                }
            }
        }
    };
    crate::sys::thread::scope(|scope| {
        for _ in 1..THREADS_MAX.min(jobs.len()) {
            // If no thread can be started, this thread does all the work.
            let _ = crate::sys::thread::spawn_scoped(scope, "ferry-register", work);
        }
        work();
    });
    if let Some(error) = failure.into_inner() {
        return Err(error); // dropping `made` deregisters
    }
    Ok(gather(devices, specs, &sources, jobs, made))
}

fn jobs(devices: &[Arc<Device>], specs: &[RegionSpec], sources: &[Source]) -> Vec<Job> {
    let mut jobs = Vec::new();
    let reached = specs.iter().enumerate().filter(|(index, _)| sources[*index].why().is_none());
    for (index, spec) in reached {
        devices.iter().for_each(|device| device.note_length(spec.length));
        for (device, bytes) in devices.iter().map(|device| device.piece_bytes()).enumerate() {
            for piece in 0..spec.length.div_ceil(bytes) {
                let offset = piece * bytes;
                jobs.push(Job {
                    spec: index,
                    device,
                    piece: piece as usize,
                    offset,
                    address: spec.address + offset,
                    length: bytes.min(spec.length - offset),
                    access: spec.access,
                });
            }
        }
    }
    jobs
}

fn register(devices: &[Arc<Device>], job: &Job, source: &Source) -> io::Result<Mr> {
    let has = |right: Access| job.access.0 & right.0 != 0;
    let (read, write) = (has(Access::REMOTE_READ), has(Access::REMOTE_WRITE));
    let pd = &devices[job.device].pd;
    // SAFETY, of both calls: the caller who registers a region promises that its memory stays until unregister has
    // returned OK, and unregister ends the registration first.
    match source.buffer() {
        None => {
            // A READ proves a WRITE visible, and no promise says that it pushes relaxed writes before it. What this end
            // READs is proven by its own completion.
            let relaxed = !write;
            // SAFETY: as above.
            unsafe { pd.register(job.address, job.length, read, write, relaxed) }
        }
        Some(buffer) => {
            let (fd, offset) = (buffer.fd.as_raw_fd(), buffer.offset + job.offset);
            // SAFETY: as above; the descriptor is open.
            unsafe { pd.register_dmabuf(fd, offset, job.length, job.address, read, write) }
        }
    }
}

/// Adds advice to the error of a failed registration.
fn explain(device: &Device, job: &Job, error: &io::Error) -> Error {
    let what = format!("registering {} bytes at {:#x} with {}", job.length, job.address, device.name());
    let no_room = matches!(error.raw_os_error(), Some(libc::ENOMEM) | Some(libc::EAGAIN));
    let mut explained = match lock_limit() {
        Ok(Some(limit)) if no_room => {
            let text = format!(
                "{what}: {}; ulimit -l (RLIMIT_MEMLOCK) lets this process lock {limit} bytes: raise it, or \
                 set rdma to false",
                reason(error)
            );
            Error { os_error: libc::ENOMEM, ..Error::new(Status::NoMemory, text) }
        }
        _ => Error::system(what, error),
    };
    explained.transport = crate::types::Transport::Rdma;
    explained.at_request(job.spec as u64)
}

fn gather(
    devices: &[Arc<Device>],
    specs: &[RegionSpec],
    sources: &[Source],
    jobs: Vec<Job>,
    made: Vec<Mutex<Option<Mr>>>,
) -> Vec<Arc<Pinned>> {
    let all = specs.iter().zip(sources);
    let mut pinned: Vec<Pinned> = all
        .map(|(spec, source)| Pinned {
            address: spec.address,
            length: spec.length,
            devices: match source.why() {
                None => pieces(devices, spec, source),
                Some(_) => Vec::new(),
            },
            is_device: spec.location.kind.is_device(),
            staged: source.why(),
            registrations: Mutex::default(),
        })
        .collect();
    for (job, mr) in jobs.into_iter().zip(made) {
        let Some(mr) = mr.into_inner() else { continue };
        let region = &mut pinned[job.spec];
        if region.staged.is_some() {
            continue; // refused by one device: deregister it from the others
        }
        region.devices[job.device].keys[job.piece] = PieceKeys { lkey: mr.lkey(), rkey: mr.rkey() };
        region.registrations.get_mut().push(mr);
    }
    pinned.into_iter().map(Arc::new).collect()
}

/// Prepares a region's pieces on each device. Their keys are filled in later.
fn pieces(devices: &[Arc<Device>], spec: &RegionSpec, source: &Source) -> Vec<Pieces> {
    // The NUMA node of the first page.
    let node = (!spec.location.kind.is_device()).then(|| node_of(spec.address)).flatten();
    let detour = |device: &Device| match source.place() {
        Some(place) => device.place.detour_to(place),
        None => device.place.detour_to_node(node),
    };
    devices.iter().map(|it| Pieces::new(spec.length, it.piece_bytes(), detour(it))).collect()
}

impl Pieces {
    fn new(length: u64, bytes: u64, detour: u8) -> Pieces {
        let count = length.div_ceil(bytes) as usize;
        Pieces { bytes, detour, keys: vec![PieceKeys::default(); count].into_boxed_slice() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_the_key_of_its_piece() {
        let mut pieces = Pieces::new(250, 100, 0);
        (0..3).for_each(|at| pieces.keys[at] = PieceKeys { lkey: at as u32 + 7, rkey: 0 });
        let pinned = Pinned {
            address: 1000,
            length: 250,
            devices: vec![pieces],
            is_device: false,
            staged: None,
            registrations: Mutex::default(),
        };
        assert_eq!(pinned.find(0, 1000), Some((7, 100)));
        assert_eq!(pinned.find(0, 1199), Some((8, 1)));
        assert_eq!(pinned.find(0, 1249), Some((9, 1)));
        assert_eq!(pinned.find(0, 1300), None);
        assert_eq!(pinned.find(0, 999), None);
        assert_eq!(pinned.find(1, 1000), None);
    }
}
