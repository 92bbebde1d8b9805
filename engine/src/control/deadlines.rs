//! Timers: deadlines of transfers, progress of lanes, alarms of sessions, and time limits of connections that are not
//! yet authenticated.

use super::conn::ConnState;
use super::{Control, WATCH_NS};
use crate::status::{Error, Status};
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::types::{Monotonic, PeerId};

/// Longest time of a sweep before the loop serves its connections again.
const SWEEP_NS: u64 = 2_000_000;

impl Control {
    pub(super) fn next_timer_ns(&self) -> Option<Monotonic> {
        let watch = (self.watch_at_ns != Monotonic::NEVER).then_some(self.watch_at_ns);
        [self.sessions.next_timer(), self.doors.next_timer(), self.dials.next_timer(), watch]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn timers(&mut self, now_ns: Monotonic) {
        self.doors.timer(now_ns);
        if self.watch_at_ns <= now_ns {
            self.watch_at_ns = Monotonic::NEVER;
            if self.lanes.watch() {
                self.watch_at_ns = now_ns + WATCH_NS;
            }
        }
        for peer in self.sessions.due_checks(now_ns) {
            self.check(peer, now_ns);
        }
        for peer in self.sessions.due_alarms(now_ns) {
            let mut actions = Vec::new();
            if let Some(session) = self.sessions.get_mut(peer) {
                // A frame on a lane is a sign of life, too.
                let silent_ns = session.peer.clock.age_ns(clock::boottime_ns());
                session.machine.heard(now_ns.saturating_sub_ns(silent_ns));
                session.machine.timer(now_ns, &mut actions);
            }
            self.lanes.timer(peer, now_ns);
            self.act(peer, actions);
        }
        self.expire_half_open(now_ns);
    }

    /// Queues the strike of transfers that are past their deadlines, fails stuck lanes, and schedules the next look.
    fn check(&mut self, peer: PeerId, now_ns: Monotonic) {
        let progress_ns = self.context.progress_ns();
        let Some(next_ns) = self.known(peer).map(|peer| peer.begin_check()) else { return };
        let since_ns = clock::boottime_ns().saturating_sub_ns(progress_ns);
        let stuck = self.lanes.stuck(peer, since_ns);
        match next_ns {
            // The sweep runs before the next look.
            Some(at_ns) if at_ns <= now_ns => {
                self.sweeping.push_back(peer);
                self.sessions.check_by(peer, now_ns + progress_ns / 4);
            }
            Some(at_ns) => self.sessions.check_by(peer, at_ns.min(now_ns + progress_ns / 4)),
            None => {}
        }
        stuck.into_iter().for_each(|(lane, loss)| self.lane_lost(peer, lane, loss));
        if next_ns.is_some() && self.lanes.lacks_lane(peer) {
            // Slices that wait for a lane are not posted. Only an unanswered Ping shows that the peer is gone.
            self.ping(peer, None);
        }
    }

    /// Runs the peers' sweeps in turns, for SWEEP_NS at most. The loop continues with the rest in its next round.
    pub(super) fn sweep(&mut self) {
        let until_ns = clock::monotonic_ns() + SWEEP_NS;
        while let Some(handle) = self.sweeping.pop_front() {
            let now_ns = clock::monotonic_ns();
            if self.known(handle).is_some_and(|peer| peer.sweep(now_ns)) {
                self.sweeping.push_back(handle)
            } else {
                self.swept(handle, now_ns)
            }
            if now_ns >= until_ns {
                return;
            }
        }
    }

    fn swept(&mut self, handle: PeerId, now_ns: Monotonic) {
        // The peer's session may have ended meanwhile.
        self.drained(handle);
        let Some(peer) = self.known(handle) else { return };
        if let Some(next_ns) = peer.begin_check() {
            // Due transfers are struck. The next deadline may come before the scheduled look.
            self.sessions.check_by(handle, next_ns.min(now_ns + self.context.progress_ns() / 4));
        }
        self.touch(handle);
    }

    fn expire_half_open(&mut self, now: Monotonic) {
        self.dial_again(now);
        while let Some(token) = self.doors.expired(now) {
            let Some(conn) = self.take(token) else { return };
            match conn.state {
                ConnState::Dialing(dialing) => self.dial_expired(*dialing, now),
                ConnState::Control(mut control) => {
                    let text = format!("{}: no session", control.remote);
                    self.not_begun(&mut control, Error::new(Status::Timeout, text));
                }
                ConnState::Parting(_) | ConnState::Ending { is_refused: false, .. } => {}
                _ => {
                    self.context.stats.handshakes_refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.dials.expire(now);
    }
}
