//! Messages between the two ends, carried by ferry's notifications: bounded in size and in time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};
use ferry::limits::NOTIFY_BYTES_MAX;
use ferry::notify::{Event, EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS};
use ferry::sys::socket::poll_readable;
use ferry::types::PeerId;
use ferry::{Deadline, Engine};
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Events taken from the queue at once.
const DRAIN_MAX: usize = 64;
/// A peer that does not take a message in for this long is gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

pub struct Channel {
    engine: Engine,
    queue: Arc<Queue>,
    /// Drained events that were not yet looked at. Bounded by `DRAIN_MAX`.
    events: VecDeque<Event>,
}

impl Channel {
    pub fn new(engine: &Engine) -> anyhow::Result<Channel> {
        let queue = engine.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, DRAIN_MAX)?;
        Ok(Channel { engine: engine.clone(), queue, events: VecDeque::new() })
    }

    pub fn send(&self, peer: PeerId, message: &impl Serialize) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        ensure!(bytes.len() <= NOTIFY_BYTES_MAX, "a message of {} bytes is too long", bytes.len());
        self.send_bytes(peer, &bytes)
    }

    pub fn send_bytes(&self, peer: PeerId, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.engine.notify(peer, bytes, Deadline::After(SEND_TIMEOUT))?)
    }

    /// Returns the next message of `peer`. Fails when the peer is lost or no message comes in time.
    pub fn receive<T: DeserializeOwned>(&mut self, peer: PeerId, timeout: Duration) -> anyhow::Result<T> {
        let bytes = self.receive_bytes(peer, timeout)?;
        serde_json::from_slice(&bytes).context("a message that this version does not understand")
    }

    /// Returns the next message of any peer, with the peer. Waits without a limit.
    pub fn receive_first<T: DeserializeOwned>(&mut self) -> anyhow::Result<(PeerId, T)> {
        loop {
            let event = self.next(None)?;
            if let EventBody::Notification { bytes } = &event.body {
                let message = serde_json::from_slice(bytes)
                    .context("a message that this version does not understand")?;
                return Ok((event.peer, message));
            }
        }
    }

    /// Returns the next notification of `peer`. Sleeps on the queue's eventfd at once, as applications do: the
    /// engine's threads spin already, and one more spinning thread at each end made a notification take 80 instead of
    /// 35 µs on two CPUs.
    pub fn receive_bytes(&mut self, peer: PeerId, timeout: Duration) -> anyhow::Result<Box<[u8]>> {
        let deadline = Instant::now() + timeout;
        loop {
            let event = self.next(Some(deadline))?;
            match event.body {
                _ if event.peer != peer => {}
                EventBody::Notification { bytes } => return Ok(bytes),
                EventBody::PeerLost { status, why } => bail!("the other end is lost: {status}: {why}"),
                _ => {}
            }
        }
    }

    fn next(&mut self, deadline: Option<Instant>) -> anyhow::Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let mut drained = Vec::new();
            self.queue.drain(&mut drained, DRAIN_MAX);
            self.events.extend(drained);
            if !self.events.is_empty() {
                continue;
            }
            let now = Instant::now();
            ensure!(deadline.is_none_or(|deadline| now < deadline), "the other end does not answer");
            // Sleeps until the queue has an event; the drain before has armed the eventfd.
            let longest = deadline.map_or(u64::MAX, |deadline| (deadline - now).as_nanos() as u64);
            poll_readable(&[self.queue.eventfd()], longest);
        }
    }
}
