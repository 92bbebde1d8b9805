//! Layers that become ready when the producer's device has computed them: `offer_ready` with an event. The readies of an
//! offer apply in the order of their calls, so one without an event waits for those before it.
//!
//! ```text
//! offer_ready_after ─▶ pending: [layers 0, event 7] [layers 1, event 8] [layers 2]     checked as if all had applied
//! event 8 is reached    nothing: 7 is before it
//! event 7 is reached    layers 0, 1 and 2 are ready
//! event 7 has failed    the offer fails
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use ferry::status::{Error, Result};
use ferry::Status;

use crate::handoff::id::HandoffId;
use crate::handoff::limits::DEVICE_EVENTS_MAX;
use crate::handoff::machine::Machine;

/// The readies of one offer that have not applied, in their order.
#[derive(Clone, Debug, Default)]
pub(in crate::handoff) struct Pending(VecDeque<Ready>);

#[derive(Clone, Debug)]
struct Ready {
    layers: Range<u32>,
    tokens: u64,
    /// None: it waits only for those before it.
    event: Option<u64>,
}

impl Machine {
    /// As `offer_ready`, when the device's event of this number is reached (`event_reached`). Errors as of `offer_ready`,
    /// checked now, as if all earlier ones had applied; LIMIT if too many wait.
    pub fn offer_ready_after(
        &mut self,
        id: HandoffId,
        layers: Range<u32>,
        tokens: u64,
        event: u64,
        now: u64,
    ) -> Result<()> {
        self.now = self.now.max(now);
        self.check_ready(id, &layers, tokens)?;
        self.wait_behind(id, layers, tokens, Some(event))
    }

    /// Puts a ready behind those that wait.
    pub(super) fn wait_behind(
        &mut self,
        id: HandoffId,
        layers: Range<u32>,
        tokens: u64,
        event: Option<u64>,
    ) -> Result<()> {
        if self.pending.values().map(|pending| pending.0.len()).sum::<usize>() >= DEVICE_EVENTS_MAX {
            let text = format!("{DEVICE_EVENTS_MAX} calls of offer_ready wait for events of devices");
            return Err(Error::new(Status::Limit, text));
        }
        self.pending.entry(id).or_default().0.push_back(Ready { layers, tokens, event });
        Ok(())
    }

    /// Whether an offer has readies that wait.
    pub(super) fn has_pending(&self, id: HandoffId) -> bool {
        self.pending.contains_key(&id)
    }

    /// The tokens of a layer that are ready, or will be when all that waits has applied.
    pub(super) fn ready_at_last(&self, id: HandoffId, layer: u32, ready: u64) -> u64 {
        let waiting = self.pending.get(&id).into_iter().flat_map(|pending| &pending.0);
        waiting.filter(|ready| ready.layers.contains(&layer)).map(|ready| ready.tokens).max().unwrap_or(ready)
    }

    /// The most tokens of any layer that wait.
    pub(super) fn most_pending(&self, id: HandoffId) -> u64 {
        let waiting = self.pending.get(&id).into_iter().flat_map(|pending| &pending.0);
        waiting.map(|ready| ready.tokens).max().unwrap_or(0)
    }

    /// The events for which offers wait. The caller need not look at others any more.
    pub fn awaited_events(&self) -> BTreeSet<u64> {
        self.pending.values().flat_map(|pending| &pending.0).filter_map(|ready| ready.event).collect()
    }

    /// An event of a device is reached, or the work before it has failed: then its offer fails.
    pub fn event_reached(&mut self, event: u64, result: Result<()>, now: u64) {
        self.now = self.now.max(now);
        let has = |pending: &Pending| pending.0.iter().position(|ready| ready.event == Some(event));
        let found = self.pending.iter().find_map(|(id, pending)| Some((*id, has(pending)?)));
        let Some((id, at)) = found else { return };
        if self.open_offer(id).is_err() {
            self.pending.remove(&id);
            return;
        }
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if let Some(ready) = pending.0.get_mut(at) {
            ready.event = None;
        }
        if let Err(error) = result {
            let why = format!("the work before an event of the producer's device failed: {}", error.message);
            return self.fail_offer(id, error.status, &why);
        }
        self.apply_pending(id);
        self.pump_offer(id);
    }

    /// The tokens from `from` on are taken back: what waits with any of them is to be said again.
    pub(super) fn take_back_pending(&mut self, id: HandoffId, from: u64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.0.retain(|ready| ready.tokens <= from);
            self.apply_pending(id);
        }
    }

    /// Applies what waits for no event any more.
    fn apply_pending(&mut self, id: HandoffId) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let waits = pending.0.iter().position(|ready| ready.event.is_some()).unwrap_or(pending.0.len());
        let due: Vec<Ready> = pending.0.drain(..waits).collect();
        if pending.0.is_empty() {
            self.pending.remove(&id);
        }
        for Ready { layers, tokens, .. } in due {
            self.apply_ready(id, layers, tokens);
        }
    }
}
