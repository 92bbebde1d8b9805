//! The simulated side of `sys::landmark`: memory of the process in the kernel's arena, which no other process has.

use crate::sys::mapping::Mapping;
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: u64,
    pub secret: u64,
}

pub const BYTES: usize = size_of::<u64>();

#[derive(Debug)]
pub struct Landmark(Mapping);

impl Landmark {
    pub fn new() -> io::Result<Landmark> {
        let memory = Mapping::private(2 * BYTES)?;
        let landmark = Landmark(memory);
        landmark.0.write(0, &landmark.place().secret.to_ne_bytes());
        Ok(landmark)
    }

    /// The secret follows from the address, so that it draws no random number.
    pub fn place(&self) -> Place {
        let address = self.0.address() as u64;
        Place { address, secret: !address }
    }
}
