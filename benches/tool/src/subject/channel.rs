//! Messages between the two ends, carried by ferry's notifications: bounded in size and in time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};
use ferry::internals::sys::socket::poll_readable;
use ferry::limits::NOTIFY_BYTES_MAX;
use ferry::notify::{Event, EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS};
use ferry::types::PeerId;
use ferry::{Deadline, Engine, Status};
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Events taken from the queue at once.
const DRAIN_MAX: usize = 64;
/// A peer that does not take a message in for this long is gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// A peer that is only turned away must not delay the others.
const ANSWER_DEADLINE: Deadline = Deadline::After(Duration::from_secs(1));

const LOST: &str = "the other end is lost";

pub struct Channel {
    engine: Engine,
    queue: Arc<Queue>,
    /// Drained events that were not yet looked at. Bounded by `DRAIN_MAX`.
    events: VecDeque<Event>,
    /// The answer to peers that send a message while another peer is listened to.
    answer_to_others: Option<Vec<u8>>,
}

impl Channel {
    pub fn new(engine: &Engine) -> anyhow::Result<Channel> {
        let queue = engine.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, DRAIN_MAX)?;
        Ok(Channel { engine: engine.clone(), queue, events: VecDeque::new(), answer_to_others: None })
    }

    /// Answers every peer but the one that is listened to with this message, from now on.
    pub fn answer_others(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        self.answer_to_others = Some(serde_json::to_vec(message)?);
        Ok(())
    }

    pub fn send(&self, peer: PeerId, message: &impl Serialize) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        ensure!(bytes.len() <= NOTIFY_BYTES_MAX, "a message of {} bytes is too long", bytes.len());
        self.send_bytes(peer, &bytes)
    }

    pub fn send_bytes(&self, peer: PeerId, bytes: &[u8]) -> anyhow::Result<()> {
        self.engine.notify(peer, bytes, Deadline::After(SEND_TIMEOUT)).or_else(|error| match error.status {
            // The loss may be known before its event is looked at.
            Status::PeerLost => bail!("{LOST}: {error}"),
            _ => Err(error.into()),
        })
    }

    /// Returns the next message of `peer`. Fails when the peer is lost or no message comes in time.
    pub fn receive<T: DeserializeOwned>(&mut self, peer: PeerId, timeout: Duration) -> anyhow::Result<T> {
        understand(&self.receive_bytes(peer, timeout)?)
    }

    /// Returns the next message of any peer, with the peer, for `understand`. Waits without a limit.
    pub fn receive_first(&mut self) -> anyhow::Result<(PeerId, Box<[u8]>)> {
        self.next(None, None)
    }

    /// Returns the next notification of `peer`. Sleeps on the queue's eventfd at once, as applications do: the
    /// engine's threads spin already, and one more spinning thread at each end made a notification take 80 instead of
    /// 35 µs on two CPUs.
    pub fn receive_bytes(&mut self, peer: PeerId, timeout: Duration) -> anyhow::Result<Box<[u8]>> {
        Ok(self.next(Some(peer), Some(Instant::now() + timeout))?.1)
    }

    fn next(
        &mut self,
        from: Option<PeerId>,
        deadline: Option<Instant>,
    ) -> anyhow::Result<(PeerId, Box<[u8]>)> {
        loop {
            let Some(event) = self.events.pop_front() else {
                self.drain(deadline)?;
                continue;
            };
            match event.body {
                EventBody::Notification { .. } if from.is_some_and(|from| from != event.peer) => {
                    // The other peer may be gone again.
                    let answer = self.answer_to_others.iter();
                    answer.for_each(|answer| drop(self.engine.notify(event.peer, answer, ANSWER_DEADLINE)));
                }
                _ if from.is_some_and(|from| from != event.peer) => {}
                EventBody::Notification { bytes, .. } => return Ok((event.peer, bytes)),
                EventBody::PeerLost { status, why, .. } if from.is_some() => {
                    bail!("{LOST}: {status}: {why}")
                }
                _ => {}
            }
        }
    }

    /// Takes events from the queue, or sleeps until there is one.
    fn drain(&mut self, deadline: Option<Instant>) -> anyhow::Result<()> {
        let mut drained = Vec::new();
        if self.queue.drain(&mut drained, DRAIN_MAX) == 0 {
            let now = Instant::now();
            ensure!(deadline.is_none_or(|deadline| now < deadline), "the other end does not answer");
            // The drain has armed the eventfd.
            let longest = deadline.map_or(u64::MAX, |deadline| (deadline - now).as_nanos() as u64);
            poll_readable(&[self.queue.eventfd()], longest);
        }
        self.events.extend(drained);
        Ok(())
    }
}

pub fn understand<T: DeserializeOwned>(bytes: &[u8]) -> anyhow::Result<T> {
    let what = "the ends do not understand each other: install the same version of ferry-bench at both";
    serde_json::from_slice(bytes).context(what)
}
