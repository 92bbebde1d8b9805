//! Secret bytes of the handshake: the key derived from the shared secret, one-time keys, lane keys. All random bytes
//! of the handshake are drawn here, except those of Noise.

use crate::status::{Error, Result};

/// Minimum length of the shared secret. An eavesdropper could guess a shorter secret offline, like a password.
pub const SECRET_BYTES_MIN: usize = 32;

/// 32 secret bytes. Debug does not print them. Drop overwrites them, but not the copies that the compiler or the
/// cipher library made.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    pub fn random() -> Result<Key> {
        Ok(Key(random()?))
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives a key for one purpose from secret material. `context` is a constant, never input. If `material` has
    /// several parts, each must have a fixed length.
    pub(super) fn derive(context: &str, material: &[&[u8]]) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        for part in material {
            hasher.update(part);
        }
        Key(*hasher.finalize().as_bytes())
    }
}

impl From<[u8; 32]> for Key {
    fn from(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the optimiser from dropping a store that nothing reads.
        std::hint::black_box(&self.0);
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Derives the handshake's key from the shared secret, as configured or read from a file. Every byte counts, also a
/// trailing newline. INVALID for less than `SECRET_BYTES_MIN` bytes.
pub fn derive_secret(bytes: &[u8]) -> Result<Key> {
    if bytes.len() < SECRET_BYTES_MIN {
        let length = bytes.len();
        return Err(Error::invalid(format!(
            "the shared secret has {length} bytes; at least {SECRET_BYTES_MIN} random ones are needed"
        )));
    }
    Ok(Key::derive("ferry 2026 session handshake: shared secret", &[bytes]))
}

/// Returns 32 bytes from the operating system's generator.
pub(super) fn random() -> Result<[u8; 32]> {
    crate::sys::random_bytes().map_err(|error| Error::system("drawing random bytes", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn a_secret_has_at_least_32_bytes() {
        assert_eq!(derive_secret(&[1; 31]).unwrap_err().status, Status::Invalid);
        let (a, b) = (derive_secret(&[1; 32]).unwrap(), derive_secret(&[1; 33]).unwrap());
        assert_ne!(a.bytes(), b.bytes());
        assert_eq!(a.bytes(), derive_secret(&[1; 32]).unwrap().bytes());
        assert_ne!(a.bytes(), &[1; 32], "the configured bytes themselves are not used as a key");
    }

    #[test]
    fn keys_do_not_print_themselves() {
        assert_eq!(format!("{:?}", Key::from([0x41; 32])), "Key(..)");
    }
}
