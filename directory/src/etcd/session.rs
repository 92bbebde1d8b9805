//! One session with one server of etcd: lists the entries, watches them, gives signs of life. Ends with the error that
//! cut it off.

use std::collections::BTreeMap;

use etcd_client::{Client, EventType, GetOptions, KeyValue, WatchOptions, WatchResponse};
use ferry::status::{Error, Result};
use ferry::Status;
use tokio::time::{interval_at, Instant, MissedTickBehavior};

use super::client::{connect, is_too_large, named, within};
use super::names::{settle, Lease};
use super::Plan;
use crate::entry::{check_name, decode, Place};
use crate::limits::ENTRIES_MAX;
use crate::shared::{DirectoryState, Link, Phase, Shared};

/// Entries of one page of the list. A page that is too large for a message is asked for again in smaller ones.
const PAGE: i64 = 512;

/// A server, and the client that speaks with it.
pub struct Server<'a> {
    pub plan: &'a Plan,
    pub name: &'a str,
    pub client: Client,
}

/// The contents of etcd at one revision.
struct Listed {
    entries: BTreeMap<String, Place>,
    /// No entries, or beyond the table's bound.
    left_out: u64,
    revision: i64,
}

/// Returns why the session has ended: CLOSED if the engine was closed, or is broken.
pub async fn run(shared: &Shared, plan: &Plan, server: &str, lease: &mut Lease) -> Error {
    match session(shared, plan, server, lease).await {
        Ok(never) => never,
        Err(error) => error,
    }
}

async fn session(shared: &Shared, plan: &Plan, name: &str, lease: &mut Lease) -> Result<Error> {
    let client = connect(plan, name).await?;
    let mut server = Server { plan, name, client };
    let listed = list(&mut server).await?;
    let from = WatchOptions::new().with_prefix().with_start_revision(listed.revision + 1).with_fragment();
    let prefix = plan.etcd.prefix.as_str();
    let watch = within(plan, name, server.client.watch(prefix, Some(from))).await?;
    let mut watch = watch.map_err(|error| named(name, &error))?;
    lease.resume(&mut server).await?;
    shared.change(|state| begin(state, listed));
    let mut beat = interval_at(Instant::now() + plan.beat, plan.beat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        check_engine(shared)?;
        settle(shared, &mut server, lease).await?;
        // Signs of life come first: names, and what the watch tells, may come without an end.
        tokio::select! {
            biased;
            _ = beat.tick() => {
                check_engine(shared)?;
                sign_of_life(shared, &mut server, lease).await?;
            }
            told = watch.message() => match told.map_err(|error| named(name, &error))? {
                Some(told) => take(shared, prefix, &told)?,
                None => return Ok(Error::new(Status::Unreachable, format!("{name} has ended the watch"))),
            },
            () = shared.work.notified() => {}
        }
    }
}

/// CLOSED if the engine is closed, or broken: then nobody can connect to it, and its names go.
fn check_engine(shared: &Shared) -> Result<()> {
    let checked = shared.engine.check_not_closed().and_then(|()| shared.engine.check_health());
    checked.map_err(|_| Error::new(Status::Closed, ""))
}

/// Lists the entries, page by page, as of the first page's revision.
async fn list(server: &mut Server<'_>) -> Result<Listed> {
    let prefix = server.plan.etcd.prefix.clone();
    let mut listed = Listed { entries: BTreeMap::new(), left_out: 0, revision: 0 };
    let mut from = prefix.clone().into_bytes();
    // The end of all keys with the prefix, which ends in '/'.
    let mut end = prefix.clone().into_bytes();
    end.pop();
    end.push(b'/' + 1);
    let mut page = PAGE;
    loop {
        let options =
            GetOptions::new().with_range(end.clone()).with_limit(page).with_revision(listed.revision);
        let got = within(server.plan, server.name, server.client.get(from.clone(), Some(options))).await?;
        let got = match got {
            Err(error) if is_too_large(&error) && page > 1 => {
                page = (page / 8).max(1);
                continue;
            }
            got => got.map_err(|error| named(server.name, &error))?,
        };
        if listed.revision == 0 {
            listed.revision = got.header().map_or(0, |header| header.revision());
        }
        for pair in got.kvs() {
            match read(&prefix, pair) {
                (Some(name), Some(place)) if listed.entries.len() < ENTRIES_MAX => {
                    listed.entries.insert(name.to_owned(), place);
                }
                _ => listed.left_out += 1,
            }
        }
        match got.kvs().last() {
            Some(last) if got.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok(listed),
        }
    }
}

/// The name and the place of an entry, each None if it is none.
fn read<'a>(prefix: &str, pair: &'a KeyValue) -> (Option<&'a str>, Option<Place>) {
    let name = pair.key_str().ok().and_then(|key| key.strip_prefix(prefix));
    (name.filter(|name| check_name(name, "").is_ok()), decode(pair.value()))
}

/// A session begins: the table is what etcd has, and each name of this engine's is looked at anew.
fn begin(state: &mut DirectoryState, listed: Listed) {
    state.table.replace(listed.entries);
    state.malformed += listed.left_out;
    state.sessions += 1;
    state.link = Link::Up;
    for registration in state.registrations.values_mut() {
        registration.is_due = true;
        if registration.phase == Phase::Published {
            registration.phase = Phase::Wanted;
        }
    }
}

/// Takes what the watch tells.
fn take(shared: &Shared, prefix: &str, told: &WatchResponse) -> Result<()> {
    if told.canceled() {
        let text = format!("etcd has ended the watch: {}", told.cancel_reason());
        return Err(Error::new(Status::Unreachable, text));
    }
    let own = shared.own.as_ref().map(Place::of);
    shared.change(|state| {
        for event in told.events() {
            let Some(pair) = event.kv() else { continue };
            let place = match (event.event_type(), read(prefix, pair)) {
                (EventType::Put, (Some(name), Some(place))) => Some((name, Some(place))),
                (EventType::Put, (name, _)) => {
                    state.malformed += 1;
                    name.map(|name| (name, None))
                }
                (EventType::Delete, (name, _)) => name.map(|name| (name, None)),
            };
            let Some((name, place)) = place else { continue };
            if let Some(registration) = state.registrations.get_mut(name) {
                // The name is free or has a new value, so this engine's entry may be gone. Only a query of etcd tells.
                let is_own = place.is_some() && place == own;
                if registration.phase == Phase::Published && !is_own {
                    registration.phase = Phase::Wanted;
                }
                registration.is_due |= registration.phase == Phase::Wanted;
            }
            state.table.set(name, place);
        }
    });
    Ok(())
}

/// Keeps the lease alive, or asks etcd something, so that silence is noticed. Names that were refused are tried again.
async fn sign_of_life(shared: &Shared, server: &mut Server<'_>, lease: &mut Lease) -> Result<()> {
    if lease.is_alive() {
        // If the lease is over, its names are gone too, which the watch tells.
        lease.keep_alive(server).await?;
    } else {
        let options = GetOptions::new().with_count_only();
        let prefix = server.plan.etcd.prefix.clone();
        let got = within(server.plan, server.name, server.client.get(prefix, Some(options))).await?;
        got.map_err(|error| named(server.name, &error))?;
    }
    shared.change(|state| {
        let registrations = state.registrations.values_mut();
        registrations.for_each(|known| known.is_due |= known.phase == Phase::Wanted);
    });
    Ok(())
}
