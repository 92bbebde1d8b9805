//! A secret for one measurement: a file that only its owner may read, removed after the measurement.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use ferry::internals::sys::random_bytes;
use tempfile::NamedTempFile;

const SECRET_BYTES: usize = 32;

pub struct SecretFile(NamedTempFile);

impl SecretFile {
    /// Random bytes in a new file of mode 0600.
    pub fn create() -> anyhow::Result<SecretFile> {
        let mut file = NamedTempFile::with_prefix("ferry-bench-").context("a file for the secret")?;
        let text: String = random_bytes::<SECRET_BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        file.write_all(text.as_bytes()).context("writing the secret")?;
        Ok(SecretFile(file))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_secret_is_its_owners_alone_and_leaves_nothing_behind() {
        let secret = SecretFile::create().expect("a temporary directory");
        let file = secret.path().to_owned();
        assert_eq!(fs::metadata(&file).expect("a file").mode() & 0o777, 0o600);
        assert_eq!(fs::read(&file).expect("readable").len(), 2 * SECRET_BYTES);
        drop(secret);
        assert!(!file.exists());
    }
}
