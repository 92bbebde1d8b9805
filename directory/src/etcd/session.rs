//! One session with one server of etcd: lists the entries, watches them, gives signs of life. Ends with the error that
//! cut it off.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::time::Instant;

use ferry::status::{Error, Result};
use ferry::Status;
use rustix::event::PollFlags;
use serde_json::{json, Value};

use super::client::{base64, int, Client, Pair};
use super::names::{settle, Lease};
use super::Plan;
use crate::entry::{check_name, decode, Place};
use crate::limits::ENTRIES_MAX;
use crate::shared::{DirectoryState, Link, Phase, Shared};

/// Entries of one page of the list. A page that is too large for an answer is asked for again in smaller ones.
const PAGE: i64 = 512;

/// The contents of etcd at one revision.
struct Listed {
    entries: BTreeMap<String, Place>,
    /// No entries, or beyond the table's bound.
    left_out: u64,
    revision: i64,
}

/// Returns why the session has ended: CLOSED if the engine was closed, or is broken.
pub fn run(shared: &Shared, plan: &Plan, server: &str, lease: &mut Lease) -> Error {
    let Err(error) = session(shared, plan, server, lease);
    error
}

fn session(shared: &Shared, plan: &Plan, server: &str, lease: &mut Lease) -> Result<Infallible> {
    // An engine that is closed wakes nobody here, and etcd may never answer.
    check_open(shared)?;
    let mut client = Client::connect(plan, server, Some(shared), plan.patience)?;
    // First of all: the list may take longer than the lease has left.
    lease.keep_alive(&mut client)?;
    let listed = list(&mut client)?;
    let prefix = plan.etcd.prefix.as_str();
    let (key, range_end) = keys(prefix);
    let create = json!({
        "key": base64(key), "range_end": base64(range_end), "start_revision": listed.revision + 1, "fragment": true,
    });
    let mut watch = client.watch(&json!({ "create_request": create }))?;
    shared.change(|state| begin(state, listed));
    let mut beat = Instant::now() + plan.beat;
    loop {
        check_open(shared)?;
        settle(shared, &mut client, lease)?;
        // Signs of life come first: names, and what the watch tells, may come without an end.
        let left = beat.saturating_duration_since(Instant::now());
        if left.is_zero() {
            check_open(shared)?;
            sign_of_life(shared, &mut client, lease)?;
            beat = Instant::now() + plan.beat;
        } else if let Some(told) = watch.message()? {
            take(shared, prefix, &told)?;
        } else {
            shared.pause(Some((watch.socket().as_fd(), PollFlags::IN)), left)?;
        }
    }
}

/// CLOSED if the directory or its engine is closed, or the engine is broken: nobody can connect to it, and its names go.
fn check_open(shared: &Shared) -> Result<()> {
    let checked = shared.lock_open().map(drop).and_then(|()| shared.engine.check_health());
    checked.map_err(|_| Error::new(Status::Closed, ""))
}

/// The first key with the prefix, which ends in '/', and the end of all keys with it.
fn keys(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let end = prefix.strip_suffix('/').unwrap_or(prefix).bytes().chain([b'/' + 1]).collect();
    (prefix.into(), end)
}

/// Lists the entries, page by page, as of the first page's revision.
fn list(client: &mut Client<'_>) -> Result<Listed> {
    let prefix = client.plan.etcd.prefix.as_str();
    let mut listed = Listed { entries: BTreeMap::new(), left_out: 0, revision: 0 };
    let (mut from, end) = keys(prefix);
    let mut page = PAGE;
    loop {
        let got = client.ask(
            "kv/range",
            &json!({
                "key": base64(&from), "range_end": base64(&end), "limit": page, "revision": listed.revision,
            }),
        );
        let got = match got {
            Err(error) if error.status == Status::Limit && page > 1 => {
                page = (page / 8).max(1);
                continue;
            }
            got => got?,
        };
        if listed.revision == 0 {
            listed.revision = int(&got["header"]["revision"]);
        }
        let pairs = got["kvs"].as_array().map_or(0, Vec::len);
        if got["more"] == true && pairs == 0 {
            let text = "etcd has more entries than its answer has, and the answer has none";
            return Err(Error::new(Status::Unreachable, text));
        }
        for pair in got["kvs"].as_array().into_iter().flatten().map(Pair::of) {
            match read(prefix, &pair) {
                (Some(name), Some(place)) if listed.entries.len() < ENTRIES_MAX => {
                    listed.entries.insert(name.to_owned(), place);
                }
                _ => listed.left_out += 1,
            }
            from = pair.key;
            from.push(0);
        }
        if got["more"] != true {
            return Ok(listed);
        }
    }
}

/// The name and the place of an entry, each None if it is none.
fn read<'a>(prefix: &str, pair: &'a Pair) -> (Option<&'a str>, Option<Place>) {
    let name = std::str::from_utf8(&pair.key).ok().and_then(|key| key.strip_prefix(prefix));
    (name.filter(|name| check_name(name, "").is_ok()), decode(&pair.value))
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
fn take(shared: &Shared, prefix: &str, told: &Value) -> Result<()> {
    if told["canceled"] == true {
        let text = format!("etcd has ended the watch: {}", told["cancel_reason"]);
        return Err(Error::new(Status::Unreachable, text));
    }
    let own = shared.own.as_ref().map(Place::of);
    shared.change(|state| {
        for event in told["events"].as_array().into_iter().flatten() {
            let pair = Pair::of(&event["kv"]);
            let (name, place) = read(prefix, &pair);
            let place = place.filter(|_| name.is_some() && event["type"] != "DELETE");
            state.malformed += u64::from(place.is_none() && event["type"] != "DELETE");
            let Some(name) = name else { continue };
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
fn sign_of_life(shared: &Shared, client: &mut Client<'_>, lease: &mut Lease) -> Result<()> {
    if lease.is_alive() {
        // If the lease is over, its names are gone too, which the watch tells.
        lease.keep_alive(client)?;
    } else {
        let key = base64(&client.plan.etcd.prefix);
        client.ask("kv/range", &json!({ "key": key, "count_only": true }))?;
    }
    shared.change(|state| {
        let registrations = state.registrations.values_mut();
        registrations.for_each(|known| known.is_due |= known.phase == Phase::Wanted);
    });
    Ok(())
}
