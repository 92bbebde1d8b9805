//! The simulated side of `transport::cuda`: the devices of the simulated kernel, under the kind of CUDA's. A process
//! has the library open if its host has a device. `device::worker` holds the queues, and `stage` plans their copies.
//! Nothing maps memory of another process, so the stage carries all of it through slots.

use crate::device::{
    Allocation, Batch, Direction, Driver, Hold, Library, Piece, Point, Queue as DeviceQueue, Start,
};
use crate::status::{Error, Result, Status};
use crate::types::{Location, MemoryKind};
use ferry_sim_kernel::device::{self, Failure, Queue};
use std::sync::Arc;

pub fn library(_path: &str) -> Library {
    Library {
        kind: MemoryKind::Cuda,
        is_loaded: Box::new(|| device::count_here() > 0),
        open: Box::new(|| match device::count_here() {
            0 => Err(Error::new(Status::Unavailable, "this host has no device")),
            _ => Ok(Arc::new(Devices)),
        }),
    }
}

struct Devices;

impl Driver for Devices {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cuda
    }

    fn locate(&self, address: u64) -> Result<Option<Allocation>> {
        Ok(device::locate(address).map(|found| Allocation {
            location: Location { kind: MemoryKind::Cuda, device: found.ordinal },
            base: found.base,
            length: found.length,
        }))
    }

    fn pin(&self, address: u64, length: usize) -> Result<()> {
        device::pin(address, length as u64);
        Ok(())
    }

    fn unpin(&self, address: u64) {
        device::unpin(address);
    }

    fn open(&self, device: i32, batch_bytes: usize, depth: usize) -> Result<Box<dyn DeviceQueue>> {
        match Queue::open(device, batch_bytes as u64, depth) {
            Some(queue) => Ok(Box::new(Copies(queue))),
            None => Err(Error::new(Status::Unavailable, format!("there is no device {device}"))),
        }
    }

    fn point(&self, _at: Start) -> Result<Box<dyn Point>> {
        Err(Error::new(Status::Unsupported, "a simulated program has no work on devices"))
    }

    fn hold(&self, _stream: u64) -> Result<Box<dyn Hold>> {
        Err(Error::new(Status::Unsupported, "a simulated program has no streams"))
    }
}

struct Copies(Queue);

fn error_of(failure: Failure) -> Error {
    let (status, text) = match failure {
        Failure::Copy => (Status::System, "a copy failed"),
        Failure::Broken => (Status::Unavailable, "the device is broken"),
    };
    Error { vendor_error: failure.code(), ..Error::new(status, text) }
}

impl DeviceQueue for Copies {
    fn copy(&mut self, direction: Direction, pieces: &[Piece]) -> Result<Batch> {
        let pieces: Vec<device::Piece> =
            pieces.iter().map(|it| device::Piece { to: it.to, from: it.from, length: it.length }).collect();
        let direction = match direction {
            Direction::HostToDevice => device::Direction::HostToDevice,
            Direction::DeviceToHost => device::Direction::DeviceToHost,
            Direction::DeviceToDevice => device::Direction::DeviceToDevice,
        };
        // SAFETY: memory of the arena, which stays until the run is over; whoever asks for a copy has entered the
        // region and holds the slot until the batch has ended.
        unsafe { self.0.copy(direction, &pieces) }.map(Batch).map_err(error_of)
    }

    fn poll_done(&mut self, batch: Batch) -> Result<bool> {
        self.0.poll_done(batch.0).map_err(error_of)
    }

    fn abort(&mut self) -> bool {
        self.0.abort()
    }
}
