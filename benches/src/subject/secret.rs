//! A secret for one measurement: a file that only its owner may read, in a directory of its own, removed after the
//! measurement.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use ferry::sys::random_bytes;

const SECRET_BYTES: usize = 32;

pub struct SecretFile {
    directory: PathBuf,
    file: PathBuf,
}

impl SecretFile {
    /// Random bytes in a new file of mode 0600.
    pub fn create() -> anyhow::Result<SecretFile> {
        let (name, bytes) = (random_bytes::<8>()?, random_bytes::<SECRET_BYTES>()?);
        let directory = std::env::temp_dir().join(format!("ferry-bench-{}", hexadecimal(&name)));
        DirBuilder::new().mode(0o700).create(&directory).context("a directory for the secret")?;
        let secret = SecretFile { file: directory.join("secret"), directory };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&secret.file)?;
        file.write_all(hexadecimal(&bytes).as_bytes()).context("writing the secret")?;
        Ok(secret)
    }

    pub fn path(&self) -> &Path {
        &self.file
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // A leftover file is harmless: the engines that knew the secret are gone.
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_dir(&self.directory);
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_secret_is_its_owners_alone_and_leaves_nothing_behind() {
        let secret = SecretFile::create().expect("a temporary directory");
        let (file, directory) = (secret.path().to_owned(), secret.directory.clone());
        assert_eq!(fs::metadata(&file).expect("a file").mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&directory).expect("a directory").mode() & 0o777, 0o700);
        assert_eq!(fs::read(&file).expect("readable").len(), 2 * SECRET_BYTES);
        drop(secret);
        assert!(!file.exists() && !directory.exists());
    }
}
