//! Random numbers of the operating system. A simulation draws its own.

use snow::resolvers::{BoxedCryptoResolver, DefaultResolver};

/// Fills the bytes from the operating system's generator.
pub fn fill(bytes: &mut [u8]) -> std::io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// Returns the primitives of the Noise handshake; the keys are drawn from the operating system's generator.
pub fn resolver() -> BoxedCryptoResolver {
    Box::new(DefaultResolver)
}
