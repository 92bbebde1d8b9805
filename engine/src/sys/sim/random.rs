//! The simulated side of `sys::random`: the seed's numbers, also for the handshake's keys.

use ferry_sim_kernel::random_u64 as draw;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};

pub fn fill(bytes: &mut [u8]) -> std::io::Result<()> {
    for part in bytes.chunks_mut(size_of::<u64>()) {
        part.copy_from_slice(&draw().to_le_bytes()[..part.len()]);
    }
    Ok(())
}

/// Draws from the seed: a process runs many seeds, and none may affect another.
pub fn next_u64() -> u64 {
    draw()
}

pub fn resolver() -> BoxedCryptoResolver {
    Box::new(Resolver)
}

struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Seeded))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Seeded;

impl Random for Seeded {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        fill(out).map_err(|_| snow::Error::Rng)
    }
}
