//! The thread of a directory in etcd. The thread has one session at a time, and tries the next server when a session
//! ends. A session lists all entries, then watches them and keeps this engine's names. The application and the engine
//! wait for the thread only in calls that say so.
//!
//! ```text
//! server ─▶ session: list ─▶ watch ─▶ Shared.table             (session)
//!                    names to publish or to withdraw ─▶ lease  (names)
//!           ends: cut off, the table stays as it was, the next server after a pause
//! ```

mod client;
mod names;
mod session;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry::status::{Error, Result};
use ferry::thread::{self, JoinHandle};
use ferry::Status;
use rustls::ClientConfig;

use crate::options::DirectoryOptions;
use crate::shared::{Link, Shared};
use crate::url::Etcd;
use names::Lease;

const THREAD: &str = "ferry-directory";
/// The pause before the next session: doubled while none succeeds.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a directory that is closed tries to end its lease.
const REVOKE: Duration = Duration::from_secs(1);

/// The settings common to all sessions of a directory.
struct Plan {
    etcd: Etcd,
    options: DirectoryOptions,
    tls: Option<Arc<ClientConfig>>,
    /// Between two signs of life. Three fit into a lease.
    beat: Duration,
    /// How long etcd may take to answer.
    patience: Duration,
}

pub fn start(shared: &Arc<Shared>, etcd: Etcd, options: DirectoryOptions) -> Result<JoinHandle<()>> {
    let tls = if etcd.has_tls { Some(client::tls(&options)?) } else { None };
    let beat = options.ttl / 3;
    let patience = beat.min(Duration::from_secs(3));
    let plan = Plan { etcd, options, tls, beat, patience };
    let over = Over(shared.clone());
    let run = move || {
        let over = over;
        run(&over.0, &plan);
    };
    let started = thread::spawn(THREAD, run);
    started.map_err(|error| Error::system(format!("starting the thread {THREAD}"), &error))
}

/// Says that the thread has ended, also by a panic.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.is_over = true;
            if matches!(state.link, Link::Up) {
                let why = Error::new(Status::Closed, "the directory's thread has ended");
                state.link = Link::Down { since: Instant::now(), why };
            }
        });
    }
}

fn run(shared: &Shared, plan: &Plan) {
    let mut lease = Lease::default();
    let mut pause = PAUSE_MIN;
    for server in plan.etcd.servers.iter().cycle() {
        let sessions = shared.lock().sessions;
        let ended = session::run(shared, plan, server, &mut lease);
        let is_closed = ended.status == Status::Closed;
        if !is_closed {
            shared.change(|state| cut_off(&mut state.link, ended));
        }
        if shared.lock().sessions != sessions {
            pause = PAUSE_MIN;
        }
        // The directory or the engine was closed, or the engine is broken. A call ends the pause early.
        if is_closed || shared.pause(None, pause).is_err() {
            return lease.revoke(plan, server);
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn cut_off(link: &mut Link, error: Error) {
    match link {
        Link::Never(why) => *why = Some(error),
        Link::Down { why, .. } => *why = error,
        Link::Up | Link::None => *link = Link::Down { since: Instant::now(), why: error },
    }
}
