//! The observer of registered memory: each access lies in a claim of a transfer that may make it at that moment.

use crate::kv;
use crate::ledger::{Book, Kind, Late, Ledger, LifeId, Phase, Suspect, TransferId};
use crate::memory::UNREGISTERED;
use crate::pool;
use ferry::types::Op;
use ferry::{Fence, State};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::memory::{Access, Observer};
use ferry_sim_kernel::{device, nic, take_where};

/// Returns the observer of a run. It runs where nothing switches, so it may ask transfers for their states.
pub fn observer(book: &Book) -> Observer {
    let book = book.clone();
    Box::new(move |access| book.with(|ledger| ledger.saw(access)))
}

/// A claim that an access touches.
struct Touched {
    transfer: TransferId,
    is_remote: bool,
    cut: Option<&'static str>,
}

impl Ledger {
    fn saw(&mut self, access: &Access) {
        if access.label >= pool::LABEL {
            return self.saw_call(access);
        }
        if access.label >= kv::LABEL {
            return self.saw_cache(access);
        }
        let memory = &self.memories[access.label as usize];
        let owner = memory.life;
        if !self.lives[owner].is_alive {
            return;
        }
        if access.by == nic::READ_AGAIN {
            return self.saw_read_again(access);
        }
        let (mut at, end) = (access.offset, access.offset + access.length);
        let mut touched = Vec::new();
        let first = memory.claims.range(..=at).next_back().map_or(at, |(offset, _)| *offset);
        for (offset, claim) in memory.claims.range(first..end) {
            let behind = offset + claim.length;
            if behind <= at {
                continue;
            }
            if *offset > at {
                break;
            }
            touched.push(Touched { transfer: claim.transfer, is_remote: claim.is_remote, cut: claim.cut });
            at = behind;
        }
        if at < end {
            self.fail(format!("{} where no transfer has a range ({at})", self.told_access(access)));
        }
        for claim in touched {
            self.transfers[claim.transfer].accesses += 1;
            if let Some(wrong) = self.forbids(access, owner, &claim) {
                let (access, transfer) = (self.told_access(access), self.told(claim.transfer));
                let side = if claim.is_remote { "remote" } else { "local" };
                self.fail(format!("{access} in the {side} range of {transfer}: {wrong}"));
            }
        }
    }

    /// A NIC answers a READ whose packet came twice, perhaps after the READ's end: nobody takes the answer then. Only
    /// the registration's end stops that.
    fn saw_read_again(&mut self, access: &Access) {
        let memory = &self.memories[access.label as usize];
        if access.write || !memory.may_be_registered() || memory.access & 1 == 0 {
            self.fail(format!("{}: it is not registered for that", self.told_access(access)));
        }
    }

    fn told_access(&self, access: &Access) -> String {
        let owner = self.named(self.memories[access.label as usize].life);
        let verb = if access.write { "writes" } else { "reads" };
        let Access { length, offset, label, by, .. } = access;
        format!("the kernel {verb} {length} bytes at {offset} of memory {label} of {owner} ({by})")
    }

    /// Returns why the access is forbidden.
    fn forbids(&mut self, access: &Access, owner: LifeId, claim: &Touched) -> Option<String> {
        let id = claim.transfer;
        let transfer = &self.transfers[id];
        let (from, to) = (transfer.wish.from, transfer.wish.to);
        let is_destination = claim.is_remote == (transfer.wish.op == Op::Write);
        if access.write && !is_destination {
            return Some("it is the source".into());
        }
        if ![from, to].map(|life| self.lives[life].process).contains(&access.actor) {
            return Some("a third process does it".into());
        }
        let is_registered = self.memories[access.label as usize].may_be_registered();
        let may_be_another = transfer.wish.names_none && claim.is_remote && is_registered;
        // A fence or a loss ends only a peer's writes: the peer's reads change nothing here.
        let lands = access.write || claim.cut == Some(UNREGISTERED) || transfer.wish.kind != Kind::Good;
        // Bytes from a lost peer are the initiator's: its device may copy them until the transfer is final.
        let is_own = !claim.is_remote && access.by == device::COPIES && claim.cut != Some(UNREGISTERED);
        let lands = lands && !is_own;
        if let Some(why) = claim.cut.filter(|why| lands && (*why != UNREGISTERED || !may_be_another)) {
            return Some(why.into());
        }
        if transfer.wish.kind != Kind::Good && claim.is_remote {
            return Some("the request must be refused".into());
        }
        if claim.is_remote && access.write && self.lives[owner].fenced.contains(&from) {
            return Some("its initiator is fenced".into());
        }
        let state = transfer.core.as_ref().map(|core| core.state());
        match transfer.phase {
            Phase::Refused => return Some("it was refused".into()),
            Phase::Submitting => {}
            Phase::Orphan if claim.is_remote => {}
            Phase::Orphan => return Some("its process is dead".into()),
            Phase::Live if state.is_some_and(|state| !state.is_final()) => {}
            Phase::Live | Phase::Seen => return self.late(access, claim),
        }
        // A local source may be read early, for a checksum or to post it.
        if claim.is_remote || access.write {
            return self.out_of_order(id, access);
        }
        None
    }

    /// Judges an access after the final state. The only lawful one is at the target, whose application is told of it.
    fn late(&mut self, access: &Access, claim: &Touched) -> Option<String> {
        let id = claim.transfer;
        let transfer = &self.transfers[id];
        if !claim.is_remote {
            return Some("it is final".into());
        }
        match (&transfer.result, transfer.is_over) {
            (Some(result), _) if self.proves_end(id, result.fence, result.state) => {
                return Some(format!("it is final, {:?}", result.fence));
            }
            // A call without a handle does not tell its fence.
            (Some(_), _) | (None, true) => self.landed_late(id, access.write, virtual_ns()),
            // The result is behind a lock: it is looked at when the application has it.
            (None, false) => self.suspect(id, id, true, access),
        }
        None
    }

    /// True if nothing of a transfer with this end can land any more.
    fn proves_end(&self, id: TransferId, fence: Fence, state: State) -> bool {
        fence != Fence::Lease && (state != State::Done || !self.may_land_untold(id))
    }

    fn suspect(&mut self, until: TransferId, transfer: TransferId, is_late: bool, access: &Access) {
        let told = self.told_access(access);
        let (write, at_ns) = (access.write, virtual_ns());
        self.suspects.push(Suspect { until, transfer, is_late, write, at_ns, told });
    }

    /// Notes a late write: the target's application must hear of it, unless it has heard of one since `at_ns`.
    fn landed_late(&mut self, transfer: TransferId, write: bool, at_ns: u64) {
        if write {
            let wish = &self.transfers[transfer].wish;
            let (from, to) = (wish.from, wish.to);
            let is_told = self.told_ns.get(&(to, from)).is_some_and(|told_ns| *told_ns >= at_ns);
            self.lates.push(Late { from, to, transfer, is_told });
        }
    }

    /// Judges what waited for the end of a transfer.
    pub fn judge_suspects(&mut self, ended: TransferId) {
        let (fence, state, finished_ns) = match &self.transfers[ended].result {
            Some(result) => (result.fence, result.state, result.finished_ns.ns()),
            None => return,
        };
        for suspect in take_where(&mut self.suspects, |it| it.until == ended).collect::<Vec<_>>() {
            let Suspect { transfer, told, at_ns, .. } = suspect;
            if suspect.is_late {
                if self.proves_end(ended, fence, state) {
                    self.fail(format!("{told} after the end of {}: {fence:?}", self.told(ended)))
                } else {
                    self.landed_late(transfer, suspect.write, at_ns)
                }
            } else if state != State::Done && finished_ns > self.transfers[transfer].returned_own_ns {
                // A failure before the other transfer was submitted does not count.
                let (one, other) = (self.told(transfer), self.told(ended));
                self.fail(format!("{told} for {one}, and {other} was before and failed"));
            }
        }
    }

    /// Returns the ORDERED transfer that should have been done before.
    fn out_of_order(&mut self, id: TransferId, access: &Access) -> Option<String> {
        for earlier in self.transfers[id].needs.clone() {
            let it = &self.transfers[earlier];
            let state = match (&it.result, &it.core) {
                (Some(result), _) => result.state,
                (None, Some(core)) => core.state(),
                (None, None) => continue,
            };
            let finished_ns = it.result.as_ref().map(|result| result.finished_ns.ns());
            // The last byte may have arrived a moment before the state says so.
            let is_whole = it.core.as_ref().map(|core| core.progress());
            let is_whole = is_whole.is_some_and(|it| it.bytes_confirmed == it.bytes_total);
            match (state, finished_ns) {
                (State::Done, _) => {}
                (State::Pending | State::Draining, _) if is_whole => self.suspect(earlier, id, false, access),
                (State::Pending | State::Draining, _) => {
                    return Some(format!("ORDERED, and {} was before", self.told(earlier)));
                }
                (_, None) => self.suspect(earlier, id, false, access),
                (_, Some(ns)) if ns > self.transfers[id].returned_own_ns => {
                    return Some(format!("ORDERED, and {} failed before", self.told(earlier)));
                }
                _ => {}
            }
        }
        None
    }
}
