//! Receives messages: joins their parts, decodes them under no lock, and has HELLOs planned on a thread of their own.
//! `inbox` picks the peer; all of this but the planning runs on the thread `ferry-kv`.

use std::sync::Arc;

use ferry::notify::EventBody;
use ferry::status::Result;
use ferry::types::PeerId;

use super::moving::NO_ROOM_NS;
use super::state::Inner;
use super::thread::EVENTS_PER_TURN;
use super::Shared;
use crate::handoff::wire::Message;
use crate::handoff::Hello;
use crate::os::Instant;

impl Shared {
    /// Handles one turn's worth of the messages that have arrived. Returns whether more are left.
    pub(super) fn hear_some(&self) -> bool {
        for _ in 0..EVENTS_PER_TURN {
            let mut inner = self.lock();
            let Some(event) = inner.inbox.next() else { return false };
            let peer = event.peer;
            match event.body {
                EventBody::PeerLost { why, .. } => {
                    let by_us = match self.engine.check_not_closed() {
                        Err(_) => "the engine was closed",
                        Ok(()) => "the peer was fenced",
                    };
                    self.peer_lost(&mut inner, peer, if why.is_empty() { by_us } else { &why });
                    inner.inbox.forget(peer);
                    self.act(&mut inner);
                }
                EventBody::Notification { bytes, .. } => {
                    let joined = inner.machine.join(peer, &bytes, self.now());
                    drop(inner);
                    if let Some(bytes) = joined.transpose() {
                        self.hear(peer, bytes.and_then(|bytes| Message::decode(&bytes)));
                    }
                }
                _ => {}
            }
        }
        self.lock().inbox.has_turns()
    }

    fn hear(&self, peer: PeerId, heard: Result<Message>) {
        let name = matches!(heard, Ok(Message::Hello { .. })).then(|| self.engine.peer_info(peer));
        let mut inner = self.lock();
        if let Some(Ok(info)) = name {
            inner.machine.set_name(peer, info.address);
        }
        match heard {
            Ok(hello @ Message::Hello { .. }) if !has_plans(&inner, peer, &hello) => {
                inner.inbox.hold(peer, hello);
                self.plan_next(&mut inner);
            }
            heard => {
                inner.machine.hear(peer, heard, self.now());
                self.act(&mut inner);
            }
        }
    }

    /// Plans for the next HELLO that waits for it. Returns when the next one may be planned for.
    pub(super) fn plan_next(&self, inner: &mut Inner) -> Option<u64> {
        let Some((peer, hello)) = inner.inbox.next_plan(self.now()) else {
            return inner.inbox.next_plan_at();
        };
        let (shared, ours) = (inner.me.upgrade()?, Arc::clone(inner.machine.layout()));
        let plan = move || {
            let began = Instant::now();
            let Message::Hello { incarnation, regions, layout } = &hello else { return };
            let plans = Hello::new(*incarnation, (**layout).clone(), regions.clone(), &ours);
            let took = began.elapsed().as_nanos() as u64;
            let mut inner = shared.lock();
            if !inner.is_over {
                inner.machine.set_plans(peer, plans);
                inner.machine.hear(peer, Ok(hello), shared.now());
                inner.inbox.planned(took, shared.now());
                shared.act(&mut inner);
            }
            drop(inner);
            shared.wake();
        };
        let Ok(planner) = ferry::thread::spawn("ferry-kv-plan", plan) else {
            // The process has no room for a thread now.
            inner.inbox.plan_later(self.now().saturating_add(NO_ROOM_NS));
            return inner.inbox.next_plan_at();
        };
        // The previous planner has delivered its plans, and may be about to end.
        inner.planner = Some(planner);
        None
    }
}

fn has_plans(inner: &Inner, peer: PeerId, hello: &Message) -> bool {
    matches!(hello, Message::Hello { layout, .. } if inner.machine.has_plans(peer, layout))
}
