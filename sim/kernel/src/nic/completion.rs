//! Completion queues, their channels, and the events of devices. A queue pair's completions keep their order and come
//! late.

use super::wire::{Due, Psn};
use super::{verbs, State};
use crate::fd::{FileId, Kind};
use crate::process::ProcessId;
use crate::timer::Event;
use crate::world::World;
use std::collections::VecDeque;

/// How long a completion takes when nothing delays it.
const LATE_NS: (u64, u64) = (100, 20_000);
/// How many of a million arms of a queue that holds completions announce them at once.
const EAGER_PPM: u32 = 200_000;

/// A completion.
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub id: u64,
    pub status: u32,
    pub bytes: u32,
    pub qp: u32,
}

pub(super) struct Entry {
    pub wc: Wc,
    /// The queue pair, and the places of its send queue that are free when this was polled.
    pub serial: u64,
    pub places: usize,
}

pub(super) struct CqState {
    pub process: ProcessId,
    pub capacity: usize,
    pub entries: VecDeque<Entry>,
    pub channel: Option<FileId>,
    pub cookie: u64,
    pub is_armed: bool,
    /// It was full when a completion came.
    pub is_broken: bool,
}

/// A request that is over: its completion is due at `at`.
pub(super) struct Finish {
    pub at: u64,
    pub is_receive: bool,
    pub wc: Wc,
    pub places: usize,
    /// The READ whose pieces land before the completion comes, or never.
    pub of: Option<Psn>,
    /// The contents of a receive: the address, its key, the bytes, and who sent them.
    pub received: Option<(u64, u32, Vec<u8>, ProcessId)>,
}

/// The file of a completion channel: queues, by number, that have something to say, with their cookies.
#[derive(Default)]
pub(crate) struct ChannelState(pub(super) VecDeque<(u32, u64)>);

/// The file of a device's events.
#[derive(Default)]
pub(crate) struct EventQueue(pub(super) VecDeque<verbs::Event>);

impl ChannelState {
    pub fn is_waited_for(&self) -> bool {
        !self.0.is_empty()
    }
}

impl EventQueue {
    pub fn is_waited_for(&self) -> bool {
        !self.0.is_empty()
    }
}

impl World {
    /// Adds a completion behind those that the queue pair has.
    pub(super) fn finish(&mut self, serial: u64, mut finish: Finish) {
        let faults = &self.nics.faults;
        let (least, most) = if self.nics.rng.chance(faults.late_ppm) { faults.late_ns } else { LATE_NS };
        let at = self.now + self.nics.rng.log_uniform(least, most);
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let before = qp.finished.back().map_or(0, |last| last.at);
        finish.at = finish.at.max(before).max(at);
        let at = finish.at;
        qp.finished.push_back(finish);
        self.plan(at, Event::Nic(Due::Complete(serial)));
    }

    pub(super) fn nic_completes(&mut self, serial: u64) {
        while let Some(qp) = self.nics.qps.get_mut(&serial) {
            if qp.finished.front().is_none_or(|first| first.at > self.now) {
                return;
            }
            let Some(finish) = qp.finished.pop_front() else { return };
            if let Some(of) = finish.of {
                self.end_landings(serial, of);
            }
            self.complete(serial, finish);
        }
    }

    /// Puts a completion into its queue.
    pub(super) fn complete(&mut self, serial: u64, finish: Finish) {
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        let (number, opened, is_receive) = (qp.number, qp.opened, finish.is_receive);
        if let Some((address, lkey, bytes, actor)) = finish.received {
            let (device, pd) = (qp.device, qp.pd);
            if let Some(memory) = self.nics.find(device, pd, lkey, address, bytes.len() as u64) {
                self.nic_writes(actor, memory.process, address, &bytes, "RDMA receive");
            }
        }
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        let id = if is_receive { qp.receive_cq } else { qp.send_cq };
        let Some(cq) = self.nics.cqs.get_mut(&id) else { return };
        let overflows = cq.entries.len() >= cq.capacity;
        if overflows && !std::mem::replace(&mut cq.is_broken, true) {
            self.device_event(opened, verbs::Event::CqError);
            let all = self.nics.qps.iter().filter(|(_, qp)| [qp.send_cq, qp.receive_cq].contains(&id));
            let all: Vec<u64> = all.map(|(serial, _)| *serial).collect();
            all.into_iter().for_each(|serial| self.break_qp(serial));
            return;
        }
        cq.entries.push_back(Entry { wc: finish.wc, serial, places: finish.places });
        self.announce(id);
        let numbers = [number.into(), finish.wc.status.into(), u64::from(is_receive)];
        self.note("complete", &numbers, |_| {
            let what = if is_receive { "a receive" } else { "a request" };
            format!("{what} of queue pair {number} completes with status {}", finish.wc.status)
        });
    }

    /// An armed queue that holds completions tells its channel, once.
    fn announce(&mut self, id: u32) {
        let Some(cq) = self.nics.cqs.get_mut(&id) else { return };
        let Some(file) = cq.channel.filter(|_| cq.is_armed) else { return };
        cq.is_armed = false;
        let cookie = cq.cookie;
        if !self.is_open(file) {
            return;
        }
        if let Kind::Completions(channel) = &mut self.file(file).kind {
            channel.0.push_back((id, cookie));
        }
        self.changed(file);
    }

    /// Arms a queue. Completions that it holds already are announced or not.
    pub(super) fn arm(&mut self, id: u32) {
        let eager = self.nics.rng.chance(EAGER_PPM);
        let Some(cq) = self.nics.cqs.get_mut(&id) else { return };
        cq.is_armed = true;
        if eager && !cq.entries.is_empty() {
            self.announce(id);
        }
    }

    pub(super) fn device_event(&mut self, opened: u32, event: verbs::Event) {
        let Some(file) = self.nics.opened[opened as usize].as_ref().map(|it| it.events) else { return };
        if !self.is_open(file) {
            return;
        }
        if let Kind::DeviceEvents(events) = &mut self.file(file).kind {
            events.0.push_back(event);
        }
        self.changed(file);
    }

    /// Lets a queue pair fail: what is posted completes as flushed, and its process may hear of it.
    pub(super) fn break_qp(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        let (opened, number, state) = (qp.opened, qp.number, qp.state);
        if state != State::Error {
            self.device_event(opened, verbs::Event::QpError(number));
            self.flush(serial);
        }
    }
}
