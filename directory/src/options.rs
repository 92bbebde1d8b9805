//! The options of a directory, and where they come from if the program does not give them. `directory` checks them
//! before anything begins.

use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::Status;

use crate::limits::TTL_SECONDS;
use crate::url::Etcd;

/// How to reach etcd. A `static:` directory has no use for them.
#[derive(Clone)]
pub struct DirectoryOptions {
    /// How long etcd keeps the names of an engine that it does not hear from. Whole seconds, 1 to 3,600.
    pub ttl: Duration,
    /// How long `open` waits for the first answer of etcd. None: `open` does not wait, and the directory goes on trying.
    pub open_timeout: Option<Duration>,
    /// The user of etcd and its password. None: `FERRY_ETCD_USER` and `FERRY_ETCD_PASSWORD`, or no user.
    pub user: Option<(String, String)>,
    /// The CA certificates that may sign etcd's certificate, in PEM, for `https:`. None: the file that `FERRY_ETCD_CA`
    /// names.
    pub ca: Option<String>,
    /// This client's certificate and key in PEM. None: the files that `FERRY_ETCD_CERT` and `FERRY_ETCD_KEY` name.
    pub identity: Option<(String, String)>,
}

impl Default for DirectoryOptions {
    fn default() -> DirectoryOptions {
        DirectoryOptions {
            ttl: Duration::from_secs(10),
            open_timeout: Some(Duration::from_secs(5)),
            user: None,
            ca: None,
            identity: None,
        }
    }
}

/// Without what is secret.
impl std::fmt::Debug for DirectoryOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DirectoryOptions { ttl, open_timeout, user, ca, identity } = self;
        let (user, ca) = (user.as_ref().map(|(name, _)| name), ca.is_some());
        write!(f, "ttl {ttl:?}, open_timeout {open_timeout:?}, user {user:?}, ca {ca}, ")?;
        write!(f, "identity {}", identity.is_some())
    }
}

const PEM_BYTES_MAX: u64 = 1 << 20;

impl DirectoryOptions {
    /// Fills missing options from the environment, which `variable` reads, and checks the options for these servers.
    pub(crate) fn complete(
        mut self,
        etcd: &Etcd,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<DirectoryOptions> {
        if self.ttl.subsec_nanos() != 0 || !TTL_SECONDS.contains(&self.ttl.as_secs()) {
            let text = format!("ttl is {:?}, but must be 1 to 3,600 whole seconds", self.ttl);
            return Err(Error::invalid(text));
        }
        let pair = |first: &str, second: &str| -> Result<Option<(String, String)>> {
            match (variable(first), variable(second)) {
                (Some(a), Some(b)) => Ok(Some((a, b))),
                (None, None) => Ok(None),
                _ => Err(Error::invalid(format!("{first} and {second} must be set together"))),
            }
        };
        if self.user.is_none() {
            self.user = pair("FERRY_ETCD_USER", "FERRY_ETCD_PASSWORD")?;
        }
        if self.ca.is_none() {
            self.ca = variable("FERRY_ETCD_CA").map(|file| read(&file, "FERRY_ETCD_CA")).transpose()?;
        }
        if self.identity.is_none() {
            let files = pair("FERRY_ETCD_CERT", "FERRY_ETCD_KEY")?;
            if let Some((cert, key)) = files {
                self.identity = Some((read(&cert, "FERRY_ETCD_CERT")?, read(&key, "FERRY_ETCD_KEY")?));
            }
        }
        match (etcd.has_tls, &self.ca, &self.identity) {
            (true, None, _) => Err(Error::invalid(
                "ca: https needs the CA certificates that sign etcd's certificate; there is no default",
            )),
            (false, None, Some(_)) | (false, Some(_), _) => {
                Err(Error::invalid("url has http:, but ca or identity is given, which are for https:"))
            }
            _ => Ok(self),
        }
    }
}

/// Reads a file of text; `what` names it in the error.
pub fn read(file: &str, what: &str) -> Result<String> {
    read_bounded(file, what, PEM_BYTES_MAX)
}

// Flags of open(2) are an int there.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

pub(crate) fn read_bounded(file: &str, what: &str, bytes_max: u64) -> Result<String> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::invalid(format!("{what} names {file:?}, which is not there")),
        std::io::ErrorKind::InvalidData => {
            Error::invalid(format!("{what} names {file:?}, which is not UTF-8"))
        }
        _ => Error::system(format!("{what}: reading {file:?}"), &error),
    };
    let mut text = String::new();
    // O_NONBLOCK: opening a FIFO by mistake must not hang.
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(file);
    let opened = opened.map_err(failed)?;
    if !opened.metadata().map_err(failed)?.is_file() {
        return Err(Error::invalid(format!("{what} names {file:?}, which is no regular file")));
    }
    opened.take(bytes_max + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > bytes_max {
        let text = format!("{what} names {file:?}, which has more than {bytes_max} bytes");
        return Err(Error::new(Status::Limit, text));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(options: DirectoryOptions, has_tls: bool, set: &[(&str, &str)]) -> Result<DirectoryOptions> {
        let etcd = Etcd { servers: Vec::new(), has_tls, prefix: String::new() };
        let set: Vec<(String, String)> =
            set.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        options.complete(&etcd, &|name| {
            set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        })
    }

    /// A FIFO that nobody writes to would hang the call.
    #[test]
    fn a_file_that_is_no_regular_one_is_refused() {
        let fifo = std::env::temp_dir().join(format!("ferry-fifo-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let refused = read(fifo.to_str().unwrap(), "url").unwrap_err();
        std::fs::remove_file(&fifo).unwrap();
        assert!(refused.status == ferry::Status::Invalid && refused.message.contains("regular"), "{refused}");
    }

    #[test]
    fn leases_have_whole_seconds() {
        for (ms, is_right) in
            [(0, false), (999, false), (1_000, true), (1_500, false), (3_600_000, true), (3_601_000, false)]
        {
            let options = DirectoryOptions { ttl: Duration::from_millis(ms), ..DirectoryOptions::default() };
            assert_eq!(complete(options, false, &[]).is_ok(), is_right, "{ms}");
        }
    }

    #[test]
    fn the_program_comes_before_the_environment() {
        let set = [("FERRY_ETCD_USER", "a"), ("FERRY_ETCD_PASSWORD", "b")];
        let options = complete(DirectoryOptions::default(), false, &set).unwrap();
        assert_eq!(options.user, Some(("a".into(), "b".into())));
        assert!(!format!("{options:?}").contains("\"b\""));
        let given = DirectoryOptions { user: Some(("c".into(), "d".into())), ..DirectoryOptions::default() };
        assert_eq!(complete(given, false, &set).unwrap().user, Some(("c".into(), "d".into())));
        for alone in [&set[..1], &set[1..]] {
            let error = complete(DirectoryOptions::default(), false, alone).unwrap_err();
            assert!(error.message.contains("FERRY_ETCD_PASSWORD"), "{error}");
        }
    }

    #[test]
    fn certificates_are_for_https_and_https_needs_them() {
        let error = complete(DirectoryOptions::default(), true, &[]).unwrap_err();
        assert!(error.message.starts_with("ca: "), "{error}");
        let given = DirectoryOptions { ca: Some(String::new()), ..DirectoryOptions::default() };
        assert!(complete(given.clone(), true, &[]).is_ok());
        assert!(complete(given, false, &[]).is_err());
        let error =
            complete(DirectoryOptions::default(), true, &[("FERRY_ETCD_CA", "/nonexistent")]).unwrap_err();
        assert!(error.status == Status::Invalid && error.message.contains("FERRY_ETCD_CA"), "{error}");
    }

    #[test]
    fn files_are_bounded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "12345").unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(read_bounded(path, "x", 5).unwrap(), "12345");
        assert_eq!(read_bounded(path, "x", 4).unwrap_err().status, Status::Limit);
        std::fs::write(file.path(), b"\xff").unwrap();
        assert_eq!(read_bounded(path, "x", 5).unwrap_err().status, Status::Invalid);
    }
}
