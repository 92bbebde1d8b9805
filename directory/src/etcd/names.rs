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

use etcd_client::{
    Client, Compare, CompareOp, KeyValue, LeaseGrantOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    Txn, TxnOp, TxnOpResponse,
};
use ferry::status::{Error, Result};
use ferry::{Descriptor, Status};

use super::client::{code, named, within, NOT_FOUND};
use super::session::Server;
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
    keeper: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
    /// To revoke the lease when the session is gone.
    client: Option<Client>,
    /// The name that was looked at last: the next one is behind it.
    last: String,
}

impl Lease {
    pub fn id(&self) -> i64 {
        self.id
    }

    pub fn is_alive(&self) -> bool {
        self.keeper.is_some()
    }

    /// Takes the lease into a new session, if etcd still has it.
    pub async fn resume(&mut self, server: &mut Server<'_>) -> Result<()> {
        (self.keeper, self.client) = (None, Some(server.client.clone()));
        if self.id == 0 {
            return Ok(());
        }
        let keeper = within(server.plan, server.name, server.client.lease_keep_alive(self.id)).await?;
        match keeper {
            Ok(keeper) => self.keeper = Some(keeper),
            // The answer of etcd-client for a lease that etcd does not know.
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => self.id = 0,
            Err(error) => return Err(named(server.name, &error)),
        }
        Ok(())
    }

    /// Makes a lease, if there is none.
    async fn ensure(&mut self, server: &mut Server<'_>) -> Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        let random =
            getrandom::u64().map_err(|_| Error::new(Status::System, "the kernel gives no random bits"))?;
        self.id = (random >> 1).max(1) as i64;
        let options = LeaseGrantOptions::new().with_id(self.id);
        let ttl = server.plan.options.ttl.as_secs() as i64;
        let granted = within(server.plan, server.name, server.client.lease_grant(ttl, Some(options))).await?;
        granted.map_err(|error| named(server.name, &error))?;
        self.resume(server).await?;
        if self.is_alive() {
            Ok(())
        } else {
            Err(Error::new(Status::Unreachable, format!("{}: the lease is gone at once", server.name)))
        }
    }

    /// Gives a sign of life, and learns whether the lease is over.
    pub async fn keep_alive(&mut self, server: &Server<'_>) -> Result<()> {
        let Some((keeper, answers)) = &mut self.keeper else { return Ok(()) };
        let answer = within(server.plan, server.name, async {
            keeper.keep_alive().await?;
            answers.message().await
        });
        let answer = answer.await?.map_err(|error| named(server.name, &error))?;
        let Some(answer) = answer else {
            return Err(Error::new(
                Status::Unreachable,
                format!("{} has ended the lease's stream", server.name),
            ));
        };
        if answer.ttl() <= 0 {
            self.forget();
        }
        Ok(())
    }

    fn forget(&mut self) {
        (self.id, self.keeper) = (0, None);
    }

    /// Ends the lease, and with it all names.
    pub async fn revoke(&mut self) {
        if let (Some(client), true) = (&mut self.client, self.id != 0) {
            let _ = client.lease_revoke(self.id).await;
        }
    }
}

/// Publishes and withdraws due names, but stops before a sign of life is late: otherwise a lease could expire before
/// the last of many names is published. If names may be left, the session calls `settle` again at once.
pub async fn settle(shared: &Shared, server: &mut Server<'_>, lease: &mut Lease) -> Result<()> {
    let began = Instant::now();
    for _ in 0..NAMES_PER_TURN {
        if began.elapsed() >= server.plan.beat {
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
            (Some((name, Phase::Leaving, _)), _) => withdraw(shared, server, lease, &name).await?,
            (Some((name, Phase::Wanted, is_new)), Some(own)) => {
                let published = publish(server, lease, own, &name, is_new).await?;
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
    shared.work.notify_one();
    Ok(())
}

/// The first due name after `last`, or else the first due name of all. So names that are refused again and again do not
/// hold up the others.
fn next_due(registrations: &BTreeMap<String, Registration>, last: &str) -> Option<String> {
    let behind = registrations.range::<str, _>((Bound::Excluded(last), Bound::<&str>::Unbounded));
    behind.chain(registrations).find(|(_, known)| known.is_due).map(|(name, _)| name.clone())
}

/// Takes a name. The inner error says why it is refused; the outer one ends the session.
async fn publish(
    server: &mut Server<'_>,
    lease: &mut Lease,
    own: &Descriptor,
    name: &str,
    is_new: bool,
) -> Result<Result<()>> {
    let key = format!("{}{name}", server.plan.etcd.prefix);
    // The revision of the entry that is to be replaced; 0 if there is none.
    let mut over = 0;
    for _ in 0..TRIES {
        lease.ensure(server).await?;
        let put = TxnOp::put(key.clone(), encode(own), Some(PutOptions::new().with_lease(lease.id())));
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, over);
        let txn = Txn::new().when([unchanged]).and_then([put]).or_else([TxnOp::get(key.clone(), None)]);
        let done = match within(server.plan, server.name, server.client.txn(txn)).await? {
            Ok(done) => done,
            Err(error) if code(&error) == Some(NOT_FOUND) => {
                // The lease has ended since its last sign of life.
                lease.forget();
                continue;
            }
            Err(error) => {
                let error = named(server.name, &error);
                let is_refused = error.status == Status::Refused;
                return if is_refused { Ok(Err(error)) } else { Err(error) };
            }
        };
        if done.succeeded() {
            return Ok(Ok(()));
        }
        let holder = done.op_responses().into_iter().find_map(|answer| match answer {
            TxnOpResponse::Get(got) => got.kvs().first().cloned(),
            _ => None,
        });
        let Some(holder) = holder else {
            over = 0;
            continue;
        };
        match judge(&holder, lease.id(), own, name, is_new) {
            Judgement::Ours => return Ok(Ok(())),
            Judgement::GivesWay => over = holder.mod_revision(),
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
fn judge(holder: &KeyValue, lease: i64, own: &Descriptor, name: &str, is_new: bool) -> Judgement {
    let Some(place) = decode(holder.value()) else {
        let text = format!("name: {name} has a value in etcd that is no entry of ferry");
        return Judgement::Refused(Error::new(Status::Busy, text));
    };
    if place == Place::of(own) {
        return if holder.lease() == lease { Judgement::Ours } else { Judgement::GivesWay };
    }
    if is_new && place.address == own.address {
        return Judgement::GivesWay;
    }
    let text = format!("name: {name} is held by the engine at {}", place.words());
    Judgement::Refused(Error::new(Status::Busy, text))
}

/// Gives a name up, if this directory's lease keeps it.
async fn withdraw(shared: &Shared, server: &mut Server<'_>, lease: &Lease, name: &str) -> Result<()> {
    if lease.id() != 0 {
        let key = format!("{}{name}", server.plan.etcd.prefix);
        let own = Compare::lease(key.clone(), CompareOp::Equal, lease.id());
        let txn = Txn::new().when([own]).and_then([TxnOp::delete(key, None)]);
        let done = within(server.plan, server.name, server.client.txn(txn)).await?;
        done.map_err(|error| named(server.name, &error))?;
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
