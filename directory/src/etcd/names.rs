//! The names of this engine in etcd, and the lease that keeps them. A name is taken by a transaction: only if nobody
//! has it. The lease's number is drawn here, so that it is known even if etcd's answer is lost.
//!
//! ```text
//! free                                        ─▶ put
//! this engine's own (an earlier lease's)      ─▶ put over exactly that entry
//! another's at this address, until published  ─▶ the same: that engine is gone, for this one listens there now
//! another's                                   ─▶ refused; tried again with each sign of life, and when it goes
//! ```

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use ferry::status::{Error, Result};
use ferry::{Descriptor, Status};
use serde_json::{json, Value};

use super::client::{base64, int, Client, Pair};
use super::{Plan, REVOKE};
use crate::entry::{decode, encode, Place};
use crate::shared::{Phase, Registration, Shared};

/// Tries of one name in one turn: others may change it between two transactions.
const TRIES: usize = 4;
/// Names that are published or withdrawn before the session gives the next sign of life, if that is due.
const NAMES_PER_TURN: usize = 16;

#[derive(Default)]
pub struct Lease {
    /// 0: none.
    id: i64,
    /// The name that was looked at last: the next one is behind it.
    last: String,
}

impl Lease {
    pub fn is_alive(&self) -> bool {
        self.id != 0
    }

    /// Gives a sign of life, if there is a lease, and learns whether the lease is over.
    pub fn keep_alive(&mut self, client: &mut Client<'_>) -> Result<()> {
        if self.is_alive() && int(&client.ask("lease/keepalive", &json!({ "ID": self.id }))?["TTL"]) <= 0 {
            self.id = 0;
        }
        Ok(())
    }

    /// Makes a lease, if there is none.
    fn ensure(&mut self, client: &mut Client<'_>) -> Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        let random =
            getrandom::u64().map_err(|_| Error::new(Status::System, "the kernel gives no random bits"))?;
        self.id = (random >> 1).max(1) as i64;
        let ttl = client.plan.options.ttl.as_secs();
        client.ask("lease/grant", &json!({ "ID": self.id, "TTL": ttl })).map(drop)
    }

    /// Ends the lease, and with it all names.
    pub fn revoke(&self, plan: &Plan, server: &str) {
        if self.is_alive() {
            let client = Client::connect(plan, server, None, REVOKE);
            let _ = client.and_then(|mut client| client.ask("lease/revoke", &json!({ "ID": self.id })));
        }
    }
}

/// Publishes and withdraws due names, but stops before a sign of life is late: otherwise a lease could expire before
/// the last of many names is published. If names may be left, the session calls `settle` again at once.
pub fn settle(shared: &Shared, client: &mut Client<'_>, lease: &mut Lease) -> Result<()> {
    let began = Instant::now();
    for _ in 0..NAMES_PER_TURN {
        if began.elapsed() >= client.plan.beat {
            break;
        }
        let due = shared.change(|state| {
            let name = next_due(&state.registrations, &lease.last)?;
            let due = state.registrations.get_mut(&name)?;
            due.is_due = false;
            Some((name, due.phase, due.is_new))
        });
        if let Some((name, ..)) = &due {
            lease.last.clone_from(name);
        }
        match (due, &shared.own) {
            (Some((name, Phase::Leaving, _)), _) => withdraw(shared, client, lease, &name)?,
            (Some((name, Phase::Wanted, is_new)), Some(own)) => {
                let published = publish(client, lease, own, &name, is_new)?;
                shared.change(|state| {
                    let Some(known) = state.registrations.get_mut(&name) else { return };
                    match published {
                        // The call may have given up meanwhile.
                        Ok(()) if known.phase == Phase::Wanted => {
                            (known.phase, known.is_new, known.refused) = (Phase::Published, false, None);
                            state.table.set(&name, Some(Place::of(own)));
                        }
                        Ok(()) => {}
                        Err(error) => known.refused = Some(error),
                    }
                });
            }
            (Some(_), _) => {}
            (None, _) => return Ok(()),
        }
    }
    shared.wake();
    Ok(())
}

/// The first due name after `last`, or else the first due name of all. So names that are refused again and again do not
/// hold up the others.
fn next_due(registrations: &BTreeMap<String, Registration>, last: &str) -> Option<String> {
    let behind = registrations.range::<str, _>((Bound::Excluded(last), Bound::<&str>::Unbounded));
    behind.chain(registrations).find(|(_, known)| known.is_due).map(|(name, _)| name.clone())
}

/// Takes a name. The inner error says why it is refused; the outer one ends the session.
fn publish(
    client: &mut Client<'_>,
    lease: &mut Lease,
    own: &Descriptor,
    name: &str,
    is_new: bool,
) -> Result<Result<()>> {
    let key = base64(format!("{}{name}", client.plan.etcd.prefix));
    // The revision of the entry that is to be replaced; 0 if there is none.
    let mut over = 0;
    for _ in 0..TRIES {
        lease.ensure(client)?;
        let unchanged = json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": over });
        let put = json!({ "key": key, "value": base64(encode(own)), "lease": lease.id });
        let done = client.try_ask(
            "kv/txn",
            &json!({
                "compare": [unchanged],
                "success": [{ "request_put": put }],
                "failure": [{ "request_range": { "key": key } }],
            }),
        );
        let done = match done {
            Ok(Some(done)) => done,
            Ok(None) => {
                // The lease has ended since its last sign of life.
                lease.id = 0;
                continue;
            }
            Err(error) if error.status == Status::Refused => return Ok(Err(error)),
            Err(error) => return Err(error),
        };
        if done["succeeded"] == true {
            return Ok(Ok(()));
        }
        let holder = match &done["responses"][0]["response_range"]["kvs"][0] {
            Value::Null => {
                over = 0;
                continue;
            }
            holder => Pair::of(holder),
        };
        match judge(&holder, lease.id, own, name, is_new) {
            Judgement::Ours => return Ok(Ok(())),
            Judgement::GivesWay => over = holder.mod_revision,
            Judgement::Refused(error) => return Ok(Err(error)),
        }
    }
    Ok(Err(Error::new(Status::Busy, format!("name: {name} changes hands all the time"))))
}

enum Judgement {
    Ours,
    GivesWay,
    Refused(Error),
}

/// Judges a name that is in etcd already.
fn judge(holder: &Pair, lease: i64, own: &Descriptor, name: &str, is_new: bool) -> Judgement {
    let Some(place) = decode(&holder.value) else {
        let text = format!("name: {name} has a value in etcd that is no entry of ferry");
        return Judgement::Refused(Error::new(Status::Busy, text));
    };
    if place == Place::of(own) {
        return if holder.lease == lease { Judgement::Ours } else { Judgement::GivesWay };
    }
    if is_new && place.address == own.address {
        return Judgement::GivesWay;
    }
    let text = format!("name: {name} is held by the engine at {}", place.words());
    Judgement::Refused(Error::new(Status::Busy, text))
}

/// Gives a name up, if this directory's lease keeps it.
fn withdraw(shared: &Shared, client: &mut Client<'_>, lease: &Lease, name: &str) -> Result<()> {
    if lease.is_alive() {
        let key = base64(format!("{}{name}", client.plan.etcd.prefix));
        let own = json!({ "key": key, "target": "LEASE", "result": "EQUAL", "lease": lease.id });
        let delete = json!({ "request_delete_range": { "key": key } });
        client.ask("kv/txn", &json!({ "compare": [own], "success": [delete] }))?;
    }
    shared.change(|state| {
        // The name may have been registered again meanwhile.
        if state.registrations.get(name).is_some_and(|known| known.phase == Phase::Leaving) {
            state.registrations.remove(name);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_that_is_due_has_its_turn() {
        let mut known = BTreeMap::new();
        assert_eq!(next_due(&known, ""), None);
        for name in ["a", "b", "c", "d"] {
            let is_due = name != "c";
            known.insert(name.to_string(), Registration { is_due, ..Registration::new() });
        }
        let mut last = String::new();
        let turns = std::iter::from_fn(|| {
            last = next_due(&known, &last)?;
            Some(last.clone())
        });
        assert_eq!(turns.take(5).collect::<Vec<_>>(), ["a", "b", "d", "a", "b"]);
        // A name that is gone meanwhile keeps its place.
        assert_eq!(next_due(&known, "bb").unwrap(), "d");
        known.values_mut().for_each(|name| name.is_due = false);
        assert_eq!(next_due(&known, "a"), None);
    }
}
