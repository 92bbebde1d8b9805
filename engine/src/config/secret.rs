//! The secret that peers share: set directly or read from a file, never shown by `Debug` or `Config::get`. The
//! handshake in `session` derives its keys from these bytes.

use super::value::{Valid, Value};
use crate::status::{reason, Error, Result};
use crate::sys::host;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

/// A shorter secret could be found by exhaustive search.
const SECRET_BYTES_MIN: usize = 32;
/// A bound, so that a path that names a huge file by mistake is not read to its end.
const SECRET_BYTES_MAX: usize = 4096;
/// The text shown for a secret that is set.
const HIDDEN: &str = "(hidden)";

/// The bytes of a secret, or none. Clones share the bytes. Not comparable, because the time of `==` would reveal how
/// many bytes agree.
#[derive(Clone, Default)]
pub struct Secret(Option<Arc<[u8]>>);

impl Secret {
    pub fn from_bytes(bytes: &[u8]) -> Secret {
        Secret(Some(bytes.into()))
    }

    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { HIDDEN } else { "(none)" })
    }
}

impl Value for Secret {
    fn parse(text: &str) -> Result<Secret> {
        if text.is_empty() {
            return Ok(Secret::default());
        }
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let digits = digits.ok_or_else(|| Error::invalid("not hexadecimal"))?;
        if digits.len() % 2 != 0 {
            return Err(Error::invalid("an odd number of digits"));
        }
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        Ok(Secret::from_bytes(&bytes))
    }

    fn show(&self) -> String {
        if self.is_set() {
            HIDDEN.into()
        } else {
            String::new()
        }
    }

    fn is_valid(&self, _: &Valid) -> bool {
        self.bytes().is_none_or(|bytes| (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()))
    }
}

/// A secret with the path of its file. The file is read once, when the setting is set, so replacing the file later
/// cannot give one engine's peers different secrets.
#[derive(Clone, Debug, Default)]
pub struct SecretFile {
    path: String,
    secret: Secret,
}

impl SecretFile {
    /// Reads the secret. INVALID (with errno if there is one) if the file cannot be read, is not owned by this
    /// process's effective user or root, gives other users any right, or has a wrong size.
    pub fn read(path: &str) -> Result<SecretFile> {
        let refuse = |what: &str, error: std::io::Error| Error {
            os_error: error.raw_os_error().unwrap_or(0),
            ..Error::invalid(format!("{what}: {}", reason(&error)))
        };
        // O_NONBLOCK: opening a FIFO by mistake must not hang.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = opened.map_err(|error| refuse("cannot open the file", error))?;
        // The check uses the descriptor and not the path, so that the checked file is the file that is read.
        let metadata = file.metadata().map_err(|error| refuse("cannot examine the file", error))?;
        if !metadata.is_file() {
            return Err(Error::invalid("not a regular file"));
        }
        if let Some(why) = objection(metadata.uid(), metadata.mode(), host::effective_user()) {
            return Err(Error::invalid(why));
        }
        let bytes = read_bounded(&file).map_err(|error| refuse("cannot read the file", error))?;
        let secret = Secret::from_bytes(without_line_end(&bytes));
        if !secret.is_valid(&Valid::Secret) {
            let message = format!("it must hold {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes");
            return Err(Error::invalid(message));
        }
        Ok(SecretFile { path: path.into(), secret })
    }

    pub fn is_set(&self) -> bool {
        self.secret.is_set()
    }

    pub fn bytes(&self) -> Option<&[u8]> {
        self.secret.bytes()
    }
}

impl Value for SecretFile {
    fn parse(text: &str) -> Result<SecretFile> {
        if text.is_empty() {
            return Ok(SecretFile::default());
        }
        SecretFile::read(text)
    }

    fn show(&self) -> String {
        self.path.clone()
    }

    fn is_valid(&self, valid: &Valid) -> bool {
        self.secret.is_valid(valid)
    }
}

/// Returns why a file of this owner and mode is not safe for a secret of this process's user: another user may read it,
/// or may have written it. None if the file is safe.
fn objection(owner: u32, mode: u32, user: u32) -> Option<String> {
    if owner != user && owner != 0 {
        return Some(format!(
            "its owner is user {owner}; the owner must be user {user}, who runs this process, or root"
        ));
    }
    let mode = mode & 0o777;
    (mode & 0o077 != 0).then(|| format!("its mode {mode:03o} lets others in; use chmod 600"))
}

/// Reads up to three bytes more than the longest secret: two for a line end, and one that shows an oversized file.
fn read_bounded(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX as u64 + 3).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the bytes without the line end that an editor or `echo` appends to a text. A binary secret may end in any
/// byte and is taken whole.
fn without_line_end(bytes: &[u8]) -> &[u8] {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let is_text = text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    if is_text {
        text
    } else {
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secrets_file_is_its_users_or_roots_and_nobody_elses() {
        for (owner, mode, user) in [(7, 0o100_600, 7), (7, 0o400, 7), (0, 0o600, 7), (0, 0o600, 0)] {
            assert_eq!(objection(owner, mode, user), None);
        }
        for (owner, mode, user, word) in
            [(8, 0o600, 7, "user 8"), (7, 0o600, 0, "user 7"), (7, 0o640, 7, "640"), (0, 0o601, 0, "601")]
        {
            assert!(objection(owner, mode, user).unwrap().contains(word));
        }
    }
}
