//! A secret in a file of mode 0600 in its own directory; dropping the value removes both.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub struct SecretFile {
    directory: PathBuf,
    file: PathBuf,
}

impl SecretFile {
    /// Writes 32 random bytes of the kernel, readable by this user only.
    pub fn create() -> io::Result<SecretFile> {
        let mut secret = [0; 32];
        fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let mut unique = [0; 8];
        fs::File::open("/dev/urandom")?.read_exact(&mut unique)?;
        let directory = std::env::temp_dir().join(format!("ferry-demo-{:016x}", u64::from_ne_bytes(unique)));
        // Fails if another process made it before; the mode is right from the first moment.
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = SecretFile { file: directory.join("secret"), directory };
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&made.file)?.write_all(&secret)?;
        Ok(made)
    }

    pub fn path(&self) -> &Path {
        &self.file
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_engine_takes_it_and_nothing_is_left_behind() {
        let secret = SecretFile::create().unwrap();
        let path = secret.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut config = ferry::Config::default();
        config.set("secret_file", path.to_str().unwrap()).unwrap();
        assert_eq!(config.shared_secret().unwrap().len(), 32);
        drop(secret);
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }
}
