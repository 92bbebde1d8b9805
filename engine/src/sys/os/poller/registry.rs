//! The state of each descriptor for `uring`: the wanted interest (the wish), and the poll that the ring holds. Any
//! thread writes wishes. The waiting thread turns them into cancels and oneshot polls before it sleeps, and turns
//! completions into `Ready`. No system calls here.
//!
//! ```text
//!  add, set ──► changed ──plan──► armed ──complete──► handed out, and changed again: the next wait
//!                  ▲                │                 polls anew, which makes oneshots level-triggered
//!                  └──set, remove───┘ (plan cancels the poll of the older version)
//! ```
//!
//! Each wish has a version. A poll carries slot and version in its user data, so the completion of a poll for an older
//! wish is recognised and dropped, even if its slot serves another file by now.

use super::epoll::{mask, ready};
use super::{Interest, Ready};
use crate::sys::map::HashMap;
use std::io;
use std::os::fd::RawFd;

const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

#[derive(Default)]
pub(super) struct Registry {
    by_fd: HashMap<RawFd, u32>,
    slots: Vec<PollSlot>,
    free: Vec<u32>,
    /// Slots that `plan` must look at, each once.
    changed: Vec<u32>,
    /// The waiting thread has planned and may be asleep: a thread that changes something must ring the doorbell.
    pub(super) sleeping: bool,
}

struct PollSlot {
    fd: RawFd,
    token: u64,
    interest: Interest,
    /// The version of the wish; never 0, and never reset when the slot is used again.
    version: u32,
    /// The version that the ring polls for, or 0.
    armed: u32,
    /// False from `remove` until the slot is used again.
    live: bool,
    /// True while the slot is in `changed`.
    queued: bool,
    /// Watched by the side epoll instead of the ring (see `Completion::Park`).
    parked: bool,
}

/// A step to submit to the ring; `key` is the poll's user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submission {
    Arm { fd: RawFd, events: u32, key: u64 },
    Cancel { key: u64 },
}

#[derive(Debug)]
pub(super) enum Completion {
    Stale,
    Ready(Ready),
    /// The peer has ended its stream, which a ring's poll always reports, and no wanted event is ready: a new poll
    /// would complete at once, for ever. An epoll must watch `fd` instead.
    Park {
        fd: RawFd,
        interest: Interest,
    },
}

impl Registry {
    pub(super) fn add(&mut self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        if self.by_fd.contains_key(&fd) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(PollSlot::unused());
            (self.slots.len() - 1) as u32
        });
        self.by_fd.insert(fd, index);
        let slot = &mut self.slots[index as usize];
        *slot = PollSlot { fd, token, interest, live: true, ..*slot };
        self.wish_changed(index);
        Ok(())
    }

    /// Returns true if `fd` was parked; the side epoll must then drop it.
    pub(super) fn set(&mut self, fd: RawFd, token: u64, interest: Interest) -> io::Result<bool> {
        let Some(&index) = self.by_fd.get(&fd) else {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        };
        let slot = &mut self.slots[index as usize];
        if (slot.token, slot.interest) == (token, interest) {
            return Ok(false);
        }
        (slot.token, slot.interest) = (token, interest);
        Ok(self.wish_changed(index))
    }

    /// Removes `fd`; returns as `set`. The slot is free only once `plan` has cancelled its poll.
    pub(super) fn remove(&mut self, fd: RawFd, token: u64) -> bool {
        match self.by_fd.get(&fd) {
            Some(&index) if self.slots[index as usize].token == token => {
                self.by_fd.remove(&fd);
                self.slots[index as usize].live = false;
                self.wish_changed(index)
            }
            _ => false,
        }
    }

    /// Submits the steps that bring the ring up to date. A step that can't be submitted now stays for the next call.
    pub(super) fn plan(&mut self, mut submit: impl FnMut(Submission) -> io::Result<()>) -> io::Result<()> {
        while let Some(&index) = self.changed.last() {
            let slot = &mut self.slots[index as usize];
            if slot.armed != 0 && slot.armed != slot.version {
                submit(Submission::Cancel { key: key(index, slot.armed) })?;
                slot.armed = 0;
            }
            if slot.live && slot.armed == 0 && !slot.parked {
                let key = key(index, slot.version);
                submit(Submission::Arm { fd: slot.fd, events: mask(slot.interest), key })?;
                slot.armed = slot.version;
            }
            slot.queued = false;
            self.changed.pop();
            if !slot.live {
                self.free.push(index);
            }
        }
        Ok(())
    }

    /// Notes that the poll `key` has ended, with its events or a negative errno.
    pub(super) fn complete(&mut self, key: u64, result: i32) -> Completion {
        let (index, version) = ((key >> 32) as u32, key as u32);
        let slot = &mut self.slots[index as usize];
        if slot.armed == version {
            slot.armed = 0;
        }
        if !slot.live || slot.version != version {
            return Completion::Stale;
        }
        let token = slot.token;
        if result < 0 {
            // EBADF: closed without `remove`. Reported once, because another poll would report it for ever. ECANCELED,
            // unasked for at this version: poll again.
            if result != -libc::EBADF {
                self.queue(index);
            }
            let hangup = result != -libc::ECANCELED;
            let broken = Ready { token, readable: false, writable: false, hangup };
            return if hangup { Completion::Ready(broken) } else { Completion::Stale };
        }
        let events = result as u32 & (mask(slot.interest) | ALWAYS);
        if events == 0 {
            slot.parked = true;
            return Completion::Park { fd: slot.fd, interest: slot.interest };
        }
        self.queue(index);
        Completion::Ready(ready(token, events))
    }

    /// Returns the token of the wish that `key` stands for, unless a later wish has replaced it.
    pub(super) fn token(&self, key: u64) -> Option<u64> {
        let slot = &self.slots[(key >> 32) as usize];
        (slot.live && slot.version == key as u32).then_some(slot.token)
    }

    /// Returns `key` to the ring because the side epoll refused it. The caller then hears of the half-closed stream
    /// with every wait, but does not miss other events.
    pub(super) fn unpark(&mut self, key: u64) -> Ready {
        let index = (key >> 32) as u32;
        self.slots[index as usize].parked = false;
        self.queue(index);
        let token = self.slots[index as usize].token;
        Ready { token, readable: false, writable: false, hangup: true }
    }

    /// Notes that the ring is gone: a new ring holds no polls yet.
    pub(super) fn forget_ring(&mut self) {
        for index in 0..self.slots.len() as u32 {
            self.slots[index as usize].armed = 0;
            if self.slots[index as usize].live {
                self.queue(index);
            }
        }
    }

    fn wish_changed(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        slot.version = slot.version.wrapping_add(1).max(1);
        let parked = std::mem::take(&mut slot.parked);
        self.queue(index);
        parked
    }

    fn queue(&mut self, index: u32) {
        if !std::mem::replace(&mut self.slots[index as usize].queued, true) {
            self.changed.push(index);
        }
    }
}

impl PollSlot {
    fn unused() -> PollSlot {
        let interest = Interest::default();
        PollSlot {
            fd: -1,
            token: 0,
            interest,
            version: 0,
            armed: 0,
            live: false,
            queued: false,
            parked: false,
        }
    }
}

fn key(index: u32, version: u32) -> u64 {
    u64::from(index) << 32 | u64::from(version)
}

#[cfg(test)]
mod unit {
    use super::*;

    const READ: Interest = Interest { read: true, write: false };
    const NONE: Interest = Interest { read: false, write: false };

    fn planned(registry: &mut Registry) -> Vec<Submission> {
        let mut steps = Vec::new();
        registry
            .plan(|step| {
                steps.push(step);
                Ok(())
            })
            .unwrap();
        steps
    }

    fn only_arm(steps: &[Submission]) -> u64 {
        match steps {
            [Submission::Arm { key, .. }] => *key,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_handed_out_poll_is_armed_again_by_the_next_plan_only() {
        let mut registry = Registry::default();
        registry.add(5, 50, READ).unwrap();
        let key = only_arm(&planned(&mut registry));
        assert!(planned(&mut registry).is_empty());
        assert!(matches!(registry.complete(key, libc::EPOLLIN), Completion::Ready(r) if r.token == 50));
        assert_eq!(only_arm(&planned(&mut registry)), key);
        assert!(matches!(registry.complete(key, -libc::ECANCELED), Completion::Stale));
        assert_eq!(only_arm(&planned(&mut registry)), key);
        assert!(matches!(registry.complete(key, -libc::EBADF), Completion::Ready(r) if r.hangup));
        assert!(planned(&mut registry).is_empty());
    }

    #[test]
    fn a_reused_slot_does_not_believe_the_old_poll() {
        let mut registry = Registry::default();
        registry.add(5, 50, READ).unwrap();
        let old = only_arm(&planned(&mut registry));
        assert!(!registry.remove(5, 51));
        registry.remove(5, 50);
        assert_eq!(planned(&mut registry), [Submission::Cancel { key: old }]);
        registry.add(5, 51, READ).unwrap();
        let new = only_arm(&planned(&mut registry));
        assert_eq!(old >> 32, new >> 32);
        assert!(matches!(registry.complete(old, libc::EPOLLIN), Completion::Stale));
        assert!(matches!(registry.complete(new, libc::EPOLLIN), Completion::Ready(r) if r.token == 51));
    }

    #[test]
    fn a_refused_step_is_not_lost() {
        let mut registry = Registry::default();
        registry.add(5, 50, READ).unwrap();
        let refusal = || io::Error::from_raw_os_error(libc::EBUSY);
        registry.plan(|_| Err(refusal())).unwrap_err();
        let old = only_arm(&planned(&mut registry));
        registry.set(5, 50, NONE).unwrap();
        let cancel = Submission::Cancel { key: old };
        registry.plan(|step| if step == cancel { Ok(()) } else { Err(refusal()) }).unwrap_err();
        assert_ne!(only_arm(&planned(&mut registry)), old);
    }

    #[test]
    fn a_half_closed_stream_is_parked_until_its_wish_changes() {
        let mut registry = Registry::default();
        registry.add(5, 50, NONE).unwrap();
        let key = only_arm(&planned(&mut registry));
        assert!(matches!(registry.complete(key, libc::EPOLLRDHUP), Completion::Park { fd: 5, .. }));
        assert!(planned(&mut registry).is_empty());
        assert_eq!(registry.token(key), Some(50));
        assert!(registry.set(5, 50, READ).unwrap());
        assert_eq!(registry.token(key), None);
        only_arm(&planned(&mut registry));
    }
}
