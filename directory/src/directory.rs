//! `Directory`: the calls of an application. A call reads the table, or gives work to the directory's thread and waits
//! for that thread. Only `connect` waits for the network directly: it dials through the engine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferry::config::check_address;
use ferry::status::{Error, Result};
use ferry::thread::JoinHandle;
use ferry::types::PeerId;
use ferry::{Descriptor, Engine, Status};

use crate::entry::{check_name, check_path, Entry, Identity, Place};
use crate::limits::{LIST_BYTES_MAX, REGISTRATIONS_MAX};
use crate::options::{read_bounded, DirectoryOptions};
use crate::shared::{Deadline, Link, Phase, Registration, Shared};
use crate::table::{Change, Table};
use crate::url::{self, Url};

/// The pause before `connect` dials again at an address that the directory still names.
const REDIAL: Duration = Duration::from_millis(100);

/// How long `close` waits for the thread. The look-up of a server's name cannot be interrupted: the thread then ends by
/// itself.
const CLOSE: Duration = Duration::from_secs(3);

/// Peers by name. All calls may come from any thread.
pub struct Directory {
    shared: Arc<Shared>,
    kind: Kind,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `static:` alone: a name is an address.
    Addresses,
    List,
    Etcd,
}

/// How a directory stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryInfo {
    /// The table is up to date. Always true of a `static:` directory.
    pub is_connected: bool,
    /// For how long etcd has not answered. None while it does, and before its first answer.
    pub cut_off: Option<Duration>,
    /// Why etcd is not reached, or a name is not published. Empty if there is nothing to say.
    pub why: String,
    /// Entries in the table.
    pub entries: usize,
    /// How many values of etcd were left out since open: they are no entries, or beyond the table's bound.
    pub ignored: u64,
    /// Names that this directory registers.
    pub names: usize,
    /// Names among them that etcd has, as far as this side knows.
    pub names_published: usize,
    /// How often etcd was reached anew.
    pub sessions: u64,
}

impl Directory {
    /// Opens the directory of a URL: `static:`, `static:name=host:port,...`, `static:/file`, or
    /// `etcd:http://host:port,.../prefix`.
    ///
    /// INVALID names what is wrong in `url` or `options`. UNREACHABLE: etcd did not answer within
    /// `options.open_timeout`. REFUSED: etcd refuses the user.
    pub fn open(engine: &Engine, url: &str, options: DirectoryOptions) -> Result<Directory> {
        engine.check_not_closed()?;
        let (kind, list) = match url::parse(url)? {
            Url::Addresses => (Kind::Addresses, Default::default()),
            Url::List(list) => (Kind::List, list),
            Url::File(file) => {
                (Kind::List, url::parse_file(&read_bounded(&file, "url", LIST_BYTES_MAX as u64)?)?)
            }
            Url::Etcd(etcd) => return Directory::open_etcd(engine, etcd, options),
        };
        let shared = Arc::new(Shared::new(engine, Table::new(list), Link::None)?);
        Ok(Directory { shared, kind, thread: Mutex::new(None) })
    }

    fn open_etcd(engine: &Engine, etcd: url::Etcd, options: DirectoryOptions) -> Result<Directory> {
        let options = options.complete(&etcd, &|name| std::env::var(name).ok())?;
        let shared = Arc::new(Shared::new(engine, Table::default(), Link::Never(None))?);
        let open_timeout = options.open_timeout;
        let thread = crate::etcd::start(&shared, etcd, options)?;
        let directory = Directory { shared, kind: Kind::Etcd, thread: Mutex::new(Some(thread)) };
        if open_timeout.is_none() {
            return Ok(directory);
        }
        let answered = directory.shared.wait_for(Deadline::after(open_timeout), |state| match &state.link {
            Link::Never(Some(error)) if error.status == Status::Refused => Some(Err(error.clone())),
            Link::Never(_) => state.check_thread().err().map(Err),
            _ => Some(Ok(())),
        });
        match answered {
            Some(answered) => answered.map(|()| directory),
            None => Err(directory.unreachable("url: etcd does not answer")),
        }
    }

    /// Makes this engine known under a name, until `unregister`, `close`, or the end of the process.
    ///
    /// Returns when etcd has the name. If another engine has it, the call waits until that engine has withdrawn it or
    /// its lease is over. An engine that was registered at this engine's address is gone, and gives way at once.
    /// BUSY: the timeout has passed and somebody else has the name, as the message says. UNREACHABLE: the timeout has
    /// passed and etcd does not answer. A call that fails registers nothing.
    ///
    /// Later the directory keeps the name by itself: after etcd was restarted, lost its data or was cut off.
    ///
    /// In a `static:` directory nothing is made known. INVALID if its list lacks the name. UNAVAILABLE: the engine does
    /// not listen.
    pub fn register(&self, name: &str, timeout: Option<Duration>) -> Result<()> {
        check_name(name, "name")?;
        let deadline = Deadline::after(timeout);
        let state = self.shared.lock_open()?;
        if self.shared.own.is_none() {
            let text =
                "the engine does not listen and has no advertise_address, so nobody could connect to it";
            return Err(Error::new(Status::Unavailable, text));
        }
        if self.kind != Kind::Etcd {
            let has_it = self.kind == Kind::Addresses || state.table.get(name).is_some();
            let lacks = || Error::invalid(format!("name: the list of the static: directory has no {name}"));
            return if has_it { Ok(()) } else { Err(lacks()) };
        }
        drop(state);
        self.shared.change(|state| {
            let count = state.registrations.len();
            match state.registrations.get(name).map(|known| known.phase) {
                Some(Phase::Wanted | Phase::Published) => {
                    Err(Error::invalid(format!("name: this directory has registered {name} already")))
                }
                _ if count >= REGISTRATIONS_MAX => {
                    let text = format!("name: this directory has registered {REGISTRATIONS_MAX} names");
                    Err(Error::new(Status::Limit, text))
                }
                // A name that is being withdrawn is wanted again.
                _ => {
                    state.registrations.insert(name.to_owned(), Registration::new());
                    Ok(())
                }
            }
        })?;
        self.shared.wake();
        let published = self.shared.wait_for(deadline, |state| {
            let registration = state.registrations.get(name)?;
            match &registration.refused {
                _ if registration.phase == Phase::Published => Some(Ok(())),
                Some(error) if error.status == Status::Refused => Some(Err(error.clone())),
                _ => state.check_thread().err().map(Err),
            }
        });
        let published = published.unwrap_or_else(|| Err(self.not_published(name)));
        published.inspect_err(|_| self.withdraw(name))
    }

    /// Withdraws a name. Returns when etcd has it no longer. TIMEOUT: etcd has not answered; the name is withdrawn when
    /// it does, or when its lease is over. INVALID: this directory of etcd has not registered the name.
    pub fn unregister(&self, name: &str, timeout: Option<Duration>) -> Result<()> {
        let deadline = Deadline::after(timeout);
        let is_known = self.shared.lock_open()?.registrations.contains_key(name);
        if self.kind != Kind::Etcd {
            return check_name(name, "name");
        }
        if !is_known {
            return Err(Error::invalid(format!("name: this directory has not registered {name:?}")));
        }
        self.withdraw(name);
        let gone = self.shared.wait_for(deadline, |state| {
            let is_leaving = state.registrations.get(name).is_some_and(|known| known.phase == Phase::Leaving);
            (!is_leaving).then_some(Ok(())).or_else(|| state.check_thread().err().map(Err))
        });
        gone.unwrap_or_else(|| {
            let text = format!("{name} is withdrawn when etcd answers, or when its lease is over");
            Err(Error::new(Status::Timeout, text))
        })
    }

    /// Returns what the directory knows of a name, without asking etcd. UNREACHABLE: nobody has the name.
    pub fn lookup(&self, name: &str) -> Result<Entry> {
        let state = self.shared.lock_open()?;
        if self.kind == Kind::Addresses {
            check_address(name, "name")?;
            return Ok(Place { address: name.to_owned(), identity: None }.named(name));
        }
        check_name(name, "name")?;
        let place = state.table.get(name).cloned();
        place.map(|place| place.named(name)).ok_or_else(|| {
            let as_of = match &state.link {
                Link::None | Link::Up => String::new(),
                Link::Never(_) => ": etcd has not answered yet".to_owned(),
                Link::Down { since, .. } => {
                    format!(", as of {} s ago, when etcd last answered", since.elapsed().as_secs())
                }
            };
            Error::new(Status::Unreachable, format!("the directory has no {name}{as_of}"))
        })
    }

    /// Returns the entries whose names begin with `prefix`, sorted by name. INVALID if no name can begin with `prefix`.
    pub fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        // "/" alone begins no name, and is not the empty prefix.
        check_path(prefix.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(prefix), "prefix")?;
        Ok(self.shared.lock_open()?.table.list(prefix))
    }

    /// Connects to the engine that has the name, and waits until transfers can be submitted.
    ///
    /// The peer is the incarnation that the directory names. The call retries with the directory's latest entry while
    /// the name is missing, nothing answers at its address, another engine answers there, or the peer is lost. When the
    /// timeout has passed: UNREACHABLE, TIMEOUT, STALE for another engine, or PEER_LOST. Other errors of
    /// `Engine::connect` end the call at once, and so does a name that a `static:` directory lacks.
    pub fn connect(&self, name: &str, timeout: Option<Duration>) -> Result<PeerId> {
        let deadline = Deadline::after(timeout);
        let mut earlier: Option<Error> = None;
        loop {
            let entry = self.lookup(name);
            let failed = match &entry {
                Ok(entry) => match self.dial(entry, deadline.timeout()) {
                    Ok(peer) => return Ok(peer),
                    Err(error) => Error { message: format!("{name}: {}", error.message), ..error },
                },
                Err(error) => error.clone(),
            };
            let is_passing = matches!(
                failed.status,
                Status::Unreachable | Status::Timeout | Status::Stale | Status::PeerLost
            );
            let can_appear = entry.is_ok() || self.kind == Kind::Etcd;
            if !is_passing || !can_appear {
                return Err(failed);
            }
            // A last attempt without time says less than the one before it.
            let failed = match (failed.status, earlier.take()) {
                (Status::Timeout, Some(before)) => before,
                _ => failed,
            };
            if deadline.left().is_zero() {
                return Err(failed);
            }
            earlier = Some(failed);
            // Another entry ends the pause.
            let known = entry.ok().map(|entry| (entry.address, entry.identity));
            let pause = Deadline::after(Some(REDIAL.min(deadline.left())));
            let other = self.shared.wait_for(pause, |state| {
                let place = state.table.get(name).map(|place| (place.address.clone(), place.identity));
                (self.kind == Kind::Etcd && place != known).then_some(Ok(()))
            });
            other.unwrap_or(Ok(()))?;
        }
    }

    fn dial(&self, entry: &Entry, timeout: Option<Duration>) -> Result<PeerId> {
        let engine = &self.shared.engine;
        match entry.identity {
            Some(Identity { engine_id, incarnation }) => {
                let address = entry.address.clone();
                engine.import(&Descriptor { engine_id, incarnation, address }, timeout)
            }
            None => engine.connect(&entry.address, timeout),
        }
    }

    /// Takes the next change of the table. The first ones tell the entries that were there at the beginning, except in
    /// a `static:` directory, which has no changes. The descriptor (`AsFd`) is readable while there are changes.
    pub fn poll(&self) -> Result<Option<Change>> {
        self.shared.next_change()
    }

    /// How the directory stands.
    pub fn status(&self) -> Result<DirectoryInfo> {
        let state = self.shared.lock_open()?;
        let registrations = state.registrations.values();
        let refused = registrations.clone().find_map(|known| known.refused.as_ref());
        let (is_connected, cut_off, why) = match &state.link {
            Link::None | Link::Up => (true, None, refused),
            Link::Never(why) => (false, None, why.as_ref()),
            Link::Down { since, why } => (false, Some(since.elapsed()), Some(why)),
        };
        Ok(DirectoryInfo {
            is_connected,
            cut_off,
            why: why.map(|error| error.message.clone()).unwrap_or_default(),
            entries: state.table.count(),
            ignored: state.malformed + state.table.left_out(),
            names: registrations.len(),
            names_published: registrations.filter(|known| known.phase == Phase::Published).count(),
            sessions: state.sessions,
        })
    }

    /// Closes the directory: withdraws its names, by the end of its lease, and ends its thread. If etcd does not answer
    /// within a second, the names stay until their lease is over. Peers stay connected. Later calls return CLOSED.
    pub fn close(&self) {
        if self.shared.engine.is_forked() {
            return;
        }
        self.shared.change(|state| state.is_closed = true);
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let deadline = Deadline::after(Some(CLOSE));
        let mut state = self.shared.lock();
        while !state.is_over && !deadline.left().is_zero() {
            state = self.shared.wait(state, deadline.left());
        }
        if state.is_over {
            drop(state);
            // A panic of the thread has ended the directory already.
            let _ = thread.join();
        }
    }

    /// Tells the thread to withdraw a name, if it is registered.
    fn withdraw(&self, name: &str) {
        self.shared.change(|state| {
            if let Some(registration) = state.registrations.get_mut(name) {
                (registration.phase, registration.is_due) = (Phase::Leaving, true);
            }
        });
        self.shared.wake();
    }

    /// Why a name is not published after the time that the caller gave.
    fn not_published(&self, name: &str) -> Error {
        let refused = self.shared.lock().registrations.get(name).and_then(|known| known.refused.clone());
        refused.unwrap_or_else(|| self.unreachable(&format!("name: {name} is not published")))
    }

    fn unreachable(&self, what: &str) -> Error {
        match &self.shared.lock().link {
            Link::Never(Some(error)) | Link::Down { why: error, .. } => Error {
                status: Status::Unreachable,
                message: format!("{what}: {}", error.message),
                ..error.clone()
            },
            _ => Error::new(Status::Unreachable, format!("{what}: no answer in time")),
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.news.as_fd()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.close();
    }
}
