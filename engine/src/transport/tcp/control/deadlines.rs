//! Time: deadlines of transfers, progress of lanes, alarms of sessions, and the patience with
//! connections that are not yet authenticated.

use super::conn::State;
use super::Control;
use crate::complete::transfer::Strike;
use crate::status::{Error, Status};
use crate::sys::clock;
use crate::transport::tcp::lane::Lane;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

/// Lost peers whose handles still answer PEER_LOST; older ones become STALE.
const LOST_PEERS_KEPT: usize = 1024;

impl Control {
    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        let look = self.context.next_look_ns.load(Ordering::Acquire);
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let rest = (self.accept_rests_until_ns > 0).then_some(self.accept_rests_until_ns);
        let now = Instant::now();
        let half_open = self.half_open.first().map(|(at, _)| *at).into_iter();
        let half_open = half_open.chain(self.callers.next());
        let half_open = half_open.chain(self.crowded.iter().map(|later| later.at)).min();
        let half_open = half_open.map(|at| {
            clock::monotonic_ns()
                + at.saturating_duration_since(now).as_nanos().min(u64::MAX as u128 / 2) as u64
        });
        [Some(look).filter(|at| *at != u64::MAX), alarm, rest, half_open].into_iter().flatten().min()
    }

    pub(super) fn timers(&mut self) {
        let now_ns = clock::monotonic_ns();
        if self.accept_rests_until_ns > 0 && self.accept_rests_until_ns <= now_ns {
            self.accept_rests_until_ns = 0;
            self.watch_listener(true);
        }
        if self.context.next_look_ns.load(Ordering::Acquire) <= now_ns {
            self.look(now_ns);
        }
        // Those due now, once: an alarm that is set for the past waits for the next turn of the loop.
        let later = self.alarms.split_off(&(now_ns + 1, 0));
        for (_, peer) in std::mem::replace(&mut self.alarms, later) {
            let mut actions = Vec::new();
            if let Some(session) = self.sessions.get_mut(&peer) {
                session.forget_alarm();
                session.machine.timer(now_ns, &mut actions);
            }
            self.act(peer, actions);
        }
        self.expire_half_open();
    }

    /// Strikes what is past its deadline, fails lanes that do not move, and plans the next look.
    fn look(&mut self, now_ns: u64) {
        // Reset first: a submit from here on lowers it again.
        self.context.next_look_ns.store(u64::MAX, Ordering::Release);
        let mut next_ns = u64::MAX;
        for transfer in self.context.transfers.list() {
            if !transfer.is_pending() {
                continue;
            }
            if transfer.spec.deadline_ns > now_ns {
                next_ns = next_ns.min(transfer.spec.deadline_ns).min(now_ns + self.context.progress_ns() / 4);
                continue;
            }
            if let Ok(peer) = self.context.peers.get(transfer.spec.peer) {
                peer.strike(&transfer, Strike { status: Status::Timeout, os_error: libc::ETIMEDOUT });
            }
        }
        let since_ns = clock::boottime_ns().saturating_sub(self.context.progress_ns());
        let lanes = self.sessions.values().flat_map(|session| session.lanes());
        let stuck: Vec<Arc<Lane>> = lanes.filter(|lane| lane.is_stuck(since_ns)).cloned().collect();
        for lane in stuck {
            let peer = lane.peer.handle;
            self.lane_lost(peer, &lane);
        }
        if next_ns != u64::MAX {
            self.context.look_at(next_ns);
        }
    }

    fn expire_half_open(&mut self) {
        let now = Instant::now();
        self.dial_again(now);
        while let Some(&(_, token)) = self.half_open.first().filter(|(at, _)| *at <= now) {
            let Some(conn) = self.take(token) else { return };
            match conn.state {
                State::Dialing(dialing) => self.dial_expired(token, dialing, now),
                State::Greeting { peer, greeting, .. } => self.lane_not_opened(peer, &greeting),
                State::Control(mut control) => {
                    if let Some(target) = control.target.take() {
                        let text = format!("{}: no session in time", control.remote);
                        self.dial_failed(target, Error::new(Status::Unreachable, text), None);
                    }
                }
                _ => {
                    self.context.stats.handshakes_refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.callers.expire(now);
    }

    /// A session is over: its peer's handle goes on answering PEER_LOST for a while.
    pub(super) fn retire(&mut self, peer: u64) {
        self.lost.push_back(peer);
        if self.lost.len() > LOST_PEERS_KEPT {
            if let Some(oldest) = self.lost.pop_front() {
                let _ = self.context.peers.remove(oldest);
            }
        }
    }
}
