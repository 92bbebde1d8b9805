//! The structs of directories: options, what is known of a name, how a directory stands. `directory` has the calls.

use crate::pointers::{copy_text, text};
use crate::versioned::Versioned;
use ::ferry_directory::{read_pem, DirectoryInfo, DirectoryOptions, Entry};
use engine::status::Result;
use engine::Error;
use std::ffi::c_char;
use std::mem::size_of;
use std::time::Duration;

/// ferry_directory_open does not wait for etcd: the directory goes on trying.
pub const FERRY_DIRECTORY_NO_WAIT: u32 = 1;

/// Options of a directory in etcd; a `static:` directory has no use for them. Texts are copied; NULL means the
/// variable of the environment that is named. FERRY_DIRECTORY_OPTIONS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_directory_options {
    /// sizeof(ferry_directory_options).
    pub struct_size: u32,
    /// How long etcd keeps the names of an engine that it does not hear from: 1 to 3,600 seconds; 0 means 10.
    pub ttl_s: u32,
    /// How long ferry_directory_open waits for etcd's first answer: milliseconds; 0 means 5,000.
    pub open_timeout_ms: u32,
    /// FERRY_DIRECTORY_* bits.
    pub flags: u32,
    /// etcd's user; NULL: FERRY_ETCD_USER.
    pub user: *const c_char,
    /// The user's password, which goes with user; NULL: FERRY_ETCD_PASSWORD.
    pub password: *const c_char,
    /// PEM file with the CA certificates that may sign etcd's certificate, for https; NULL: FERRY_ETCD_CA.
    pub ca_file: *const c_char,
    /// File with this client's certificate, in PEM; NULL: FERRY_ETCD_CERT.
    pub cert_file: *const c_char,
    /// File with the certificate's key, in PEM, which goes with cert_file; NULL: FERRY_ETCD_KEY.
    pub key_file: *const c_char,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_directory_options {
    const SIZE_MIN: usize = 56;
}

/// A directory's entry for a name. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_directory_entry {
    /// In: sizeof(ferry_directory_entry). Out: how many bytes were written.
    pub struct_size: u32,
    /// 1 if engine_id and incarnation are known, which they are in etcd, else 0.
    pub has_identity: u32,
    /// Identity of the engine.
    pub engine_id: [u8; 16],
    /// Number of the engine's start.
    pub incarnation: u64,
    /// The name, terminated.
    pub name: [c_char; 264],
    /// "host:port", terminated.
    pub address: [c_char; 264],
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_directory_entry {
    const SIZE_MIN: usize = 560;
}

/// How a directory stands. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_directory_info {
    /// In: sizeof(ferry_directory_info). Out: how many bytes were written.
    pub struct_size: u32,
    /// 1 while the table is kept up to date, as always in a `static:` directory; else 0.
    pub is_connected: u32,
    /// For how long etcd has not answered, in milliseconds. 0 while it does, and before its first answer.
    pub cut_off_ms: u64,
    /// Entries that the directory knows.
    pub entries: u64,
    /// How many values of etcd the directory has ignored since it opened: they are no entries, or exceed the bound of
    /// 65,536.
    pub ignored: u64,
    /// Names that this directory registers.
    pub names: u32,
    /// Names among them that etcd has, as far as this side knows.
    pub names_published: u32,
    /// How often etcd was reached anew.
    pub sessions: u64,
    /// Why etcd is not reached, or a name is not published; terminated, cut if it is too long.
    pub why: [c_char; 240],
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_directory_info {
    const SIZE_MIN: usize = 288;
}

impl ferry_directory_options {
    /// # Safety
    /// The texts are NULL, or terminated and stay for the length of the call.
    pub(super) unsafe fn options(&self) -> Result<DirectoryOptions> {
        if self.flags & !FERRY_DIRECTORY_NO_WAIT != 0 {
            return Err(Error::invalid(format!("options.flags is {}, which has unknown bits", self.flags)));
        }
        let mut options = DirectoryOptions::default();
        if self.ttl_s != 0 {
            options.ttl = Duration::from_secs(self.ttl_s.into());
        }
        if self.open_timeout_ms != 0 {
            options.open_timeout = Some(Duration::from_millis(self.open_timeout_ms.into()));
        }
        if self.flags & FERRY_DIRECTORY_NO_WAIT != 0 {
            options.open_timeout = None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            options.user = pair(self.user, self.password, "options.user and options.password")?;
            let files = pair(self.cert_file, self.key_file, "options.cert_file and options.key_file")?;
            if let Some((cert, key)) = files {
                let both = (read_pem(&cert, "options.cert_file")?, read_pem(&key, "options.key_file")?);
                options.identity = Some(both);
            }
            if !self.ca_file.is_null() {
                let file = text(self.ca_file, "options.ca_file")?;
                options.ca = Some(read_pem(file, "options.ca_file")?);
            }
        }
        Ok(options)
    }
}

/// Two texts that go together.
///
/// # Safety
/// As for `text`.
unsafe fn pair(first: *const c_char, second: *const c_char, what: &str) -> Result<Option<(String, String)>> {
    match (first.is_null(), second.is_null()) {
        (true, true) => Ok(None),
        // SAFETY: the caller's promise.
        (false, false) => unsafe {
            Ok(Some((text(first, what)?.to_owned(), text(second, what)?.to_owned())))
        },
        _ => Err(Error::invalid(format!("of {what} one is NULL, and the other is not"))),
    }
}

impl From<&Entry> for ferry_directory_entry {
    fn from(entry: &Entry) -> ferry_directory_entry {
        let mut out = ferry_directory_entry {
            struct_size: size_of::<ferry_directory_entry>() as u32,
            has_identity: entry.identity.is_some().into(),
            engine_id: entry.identity.map_or([0; 16], |identity| identity.engine_id.0),
            incarnation: entry.identity.map_or(0, |identity| identity.incarnation),
            name: [0; 264],
            address: [0; 264],
        };
        copy_text(&entry.name, &mut out.name);
        copy_text(&entry.address, &mut out.address);
        out
    }
}

impl From<&DirectoryInfo> for ferry_directory_info {
    fn from(status: &DirectoryInfo) -> ferry_directory_info {
        let mut out = ferry_directory_info {
            struct_size: size_of::<ferry_directory_info>() as u32,
            is_connected: status.is_connected.into(),
            cut_off_ms: status.cut_off.map_or(0, |time| time.as_millis().min(u64::MAX.into()) as u64),
            entries: status.entries as u64,
            ignored: status.ignored,
            names: status.names as u32,
            names_published: status.names_published as u32,
            sessions: status.sessions,
            why: [0; 240],
        };
        copy_text(&status.why, &mut out.why);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::ferry_directory::Identity;
    use std::ffi::CStr;

    fn words(field: &[c_char]) -> &str {
        // SAFETY: `copy_text` has terminated it.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_str().unwrap()
    }

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let identity = Some(Identity { engine_id: engine::types::EngineId([7; 16]), incarnation: 9 });
        let entry = Entry { name: "a".into(), address: "h:1".into(), identity };
        let out = ferry_directory_entry::from(&entry);
        assert_eq!((out.has_identity, out.engine_id, out.incarnation), (1, [7; 16], 9));
        assert_eq!((words(&out.name), words(&out.address)), ("a", "h:1"));
        let out = ferry_directory_entry::from(&Entry { identity: None, ..entry });
        assert_eq!((out.has_identity, out.engine_id, out.incarnation), (0, [0; 16], 0));

        let status = DirectoryInfo {
            is_connected: true,
            cut_off: Some(Duration::from_micros(2_999)),
            why: "because".into(),
            entries: 3,
            ignored: 4,
            names: 5,
            names_published: 6,
            sessions: 7,
        };
        let out = ferry_directory_info::from(&status);
        assert_eq!((out.is_connected, out.cut_off_ms, out.entries, out.ignored), (1, 2, 3, 4));
        assert_eq!((out.names, out.names_published, out.sessions, words(&out.why)), (5, 6, 7, "because"));
    }

    #[test]
    fn options_say_what_is_set() {
        let empty = ferry_directory_options {
            struct_size: 56,
            ttl_s: 0,
            open_timeout_ms: 0,
            flags: 0,
            user: std::ptr::null(),
            password: std::ptr::null(),
            ca_file: std::ptr::null(),
            cert_file: std::ptr::null(),
            key_file: std::ptr::null(),
        };
        // SAFETY: the texts are constants or NULL.
        let options = |options: ferry_directory_options| unsafe { options.options() };
        let defaults = options(empty).unwrap();
        assert_eq!((defaults.ttl.as_secs(), defaults.open_timeout), (10, Some(Duration::from_secs(5))));
        let set = ferry_directory_options { ttl_s: 7, open_timeout_ms: 8, ..empty };
        let set = options(set).unwrap();
        assert_eq!((set.ttl.as_secs(), set.open_timeout), (7, Some(Duration::from_millis(8))));
        let flags = |flags| options(ferry_directory_options { flags, open_timeout_ms: 8, ..empty });
        assert_eq!(flags(FERRY_DIRECTORY_NO_WAIT).unwrap().open_timeout, None);
        assert!(flags(2).unwrap_err().message.starts_with("options.flags is 2"));
        let user = ferry_directory_options { user: c"a".as_ptr(), ..empty };
        assert!(options(user).unwrap_err().message.contains("options.password"));
        let both = options(ferry_directory_options { password: c"b".as_ptr(), ..user }).unwrap();
        assert_eq!(both.user, Some(("a".into(), "b".into())));
        let ca = ferry_directory_options { ca_file: c"/nonexistent".as_ptr(), ..empty };
        assert!(options(ca).unwrap_err().message.starts_with("options.ca_file names"));
    }
}
