//! The requester: takes requests from the send queue in their order, sends their packets, sends again what was lost,
//! and retires what was answered.

use super::completion::Finish;
use super::wire::{Body, Due, Landing, Op, Packet, Psn, Read, Refusal, Send};
use super::{status, QpState, State};
use crate::take_where;
use crate::timer::Event;
use crate::world::World;

/// Packets that may be unanswered.
const WINDOW: i32 = 64;
/// The pause before the device takes a request, and between two bursts of packets.
const PAUSE_NS: (u64, u64) = (50, 4_000);
const LONG_PAUSE_NS: (u64, u64) = (4_000, 200_000);
const LONG_PAUSE_PPM: u32 = 20_000;
/// After so many of a million packets the burst ends.
const BURST_ENDS_PPM: u32 = 300_000;
/// The least and most nanoseconds that a receiver which is not ready asks for.
const NOT_READY_NS: (u64, u64) = (640_000, 1_300_000);
/// How many of a million failing queue pairs still send packets.
const LINGERS_PPM: u32 = 500_000;
/// How long a piece takes into memory when nothing delays it.
const LANDING_NS: (u64, u64) = (10, 5_000);

/// The number of tries that never end.
const FOR_EVER: u8 = 7;

impl QpState {
    /// Returns the READs that were sent, since the last step back, and not wholly answered.
    fn reads_out(&self) -> usize {
        let is_out = |send: &&Send| send.end().since(self.next) <= 0 && send.end().since(self.oldest) > 0;
        self.sends.iter().filter(|send| send.request.op == Op::Read).filter(is_out).count()
    }
}

enum Step {
    Sent,
    Rests,
    /// The local memory of the request at this place is not what its key names.
    Denied(usize),
}

impl World {
    /// Plans the next packets.
    pub(super) fn plan_send(&mut self, serial: u64) {
        let (least, most) = if self.nics.rng.chance(LONG_PAUSE_PPM) { LONG_PAUSE_NS } else { PAUSE_NS };
        let ns = self.nics.rng.log_uniform(least, most);
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        if qp.send_at.is_some() || qp.state != State::Rts {
            return;
        }
        let at = qp.paused_until.max(self.now + ns);
        qp.send_at = Some(at);
        self.plan(at, Event::Nic(Due::Send(serial)));
    }

    pub(super) fn nic_sends(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.send_at = None;
        if qp.paused_until > self.now && qp.state == State::Rts {
            // The receiver has asked for the pause since this was planned.
            return self.plan_send(serial);
        }
        loop {
            match self.send_one(serial) {
                Step::Sent => {}
                Step::Rests => break,
                Step::Denied(at) => return self.fail_send(serial, at, status::LOC_PROT_ERR),
            }
            if self.nics.rng.chance(BURST_ENDS_PPM) {
                self.plan_send(serial);
                break;
            }
        }
        if self.nics.qps.get(&serial).is_some_and(|qp| qp.state == State::Error) {
            self.flush_rest(serial);
        }
    }

    /// Sends the next packet, if one may leave.
    fn send_one(&mut self, serial: u64) -> Step {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return Step::Rests };
        let may = qp.state == State::Rts || qp.lingers;
        if !may || qp.next.since(qp.oldest) >= WINDOW {
            return Step::Rests;
        }
        let at = qp.sends.partition_point(|send| send.end().since(qp.next) <= 0);
        let Some(send) = qp.sends.get(at) else { return Step::Rests };
        let (request, psn, nth) = (send.request, qp.next, qp.next.since(send.psn) as u32);
        let (offset, length) = send.piece(nth);
        let (device, pd, process) = (qp.device, qp.pd, qp.process);
        let is_last = nth + 1 == send.pieces;
        let body = if request.op == Op::Read {
            if qp.reads_out() >= qp.reads_out_max {
                return Step::Rests;
            }
            qp.next = send.end();
            let (address, length) = (request.remote + offset, u64::from(request.length) - offset);
            Body::Read(Read { address, rkey: request.rkey, length, piece_bytes: send.piece_bytes })
        } else {
            qp.next = psn.plus(1);
            let bytes = match &send.inline {
                Some(bytes) => bytes[offset as usize..][..length].to_vec(),
                None if length == 0 => Vec::new(),
                None => {
                    let local = request.local + offset;
                    if self.nics.find(device, pd, request.lkey, local, length as u64).is_none() {
                        return Step::Denied(at);
                    }
                    self.touch(process, process, local, length as u64, false, "RDMA send");
                    crate::memory::read(local, length)
                }
            };
            match request.op {
                Op::Send => Body::Send(bytes),
                _ => {
                    let (address, rkey, length) = (request.remote, request.rkey, u64::from(request.length));
                    Body::Write { address, rkey, offset, length, bytes, is_last }
                }
            }
        };
        self.start_timer(serial);
        self.emit(serial, psn, body);
        Step::Sent
    }

    /// Sends a packet of a queue pair on its way. Packets of one direction keep their order, except those that a fault
    /// delays.
    pub(super) fn emit(&mut self, serial: u64, psn: Psn, body: Body) {
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        let (from, to, actor) = ((qp.device, qp.number), qp.to, qp.process);
        let ns = self.nic_travel_ns(from.0);
        if self.draw_loss(from.0, to.0) {
            return;
        }
        let (ppm, (least, most)) = (self.nics.faults.overtaken_ppm, self.nics.faults.overtaken_ns);
        let behind_ns = if self.nics.rng.chance(ppm) { self.nics.rng.log_uniform(least, most) } else { 0 };
        let now = self.now;
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.last_at = qp.last_at.max(now + ns);
        let at = qp.last_at + behind_ns;
        self.plan(at, Event::Nic(Due::Arrive(Box::new(Packet { from, to, actor, psn, body }))));
    }

    fn start_timer(&mut self, serial: u64) {
        let early = self.nics.rng.chance(self.nics.faults.early_ppm);
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let Some(ns) = qp.timeout_ns else { return };
        // The last try is never early.
        let ns = if early && qp.tries < qp.tries_max { ns / 64 } else { ns };
        let at = *qp.deadline.get_or_insert(self.now + ns);
        if !std::mem::replace(&mut qp.timer_planned, true) {
            self.plan(at, Event::Nic(Due::Timeout(serial)));
        }
    }

    pub(super) fn nic_looks_at_timer(&mut self, serial: u64) {
        let now = self.now;
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.timer_planned = false;
        let Some(deadline) = qp.deadline.filter(|_| qp.state == State::Rts) else { return };
        if deadline > now {
            qp.timer_planned = true;
            return self.plan(deadline, Event::Nic(Due::Timeout(serial)));
        }
        qp.tries += 1;
        if qp.tries > qp.tries_max {
            return self.fail_send(serial, 0, status::RETRY_EXC_ERR);
        }
        self.go_back(serial);
    }

    /// Sends again from the oldest packet that is unanswered.
    fn go_back(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        (qp.next, qp.deadline) = (qp.oldest, None);
        let number = qp.number;
        self.note("again", &[number.into()], |_| format!("queue pair {number} sends again"));
        self.plan_send(serial);
    }

    /// All before this packet is answered.
    fn answered(&mut self, serial: u64, before: Psn) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        if before.since(qp.oldest) <= 0 {
            return;
        }
        // A READ whose answer is missing keeps what is behind it unanswered.
        let missing =
            qp.sends.iter().find(|send| send.request.op == Op::Read && send.end().since(qp.oldest) > 0);
        let missing = missing.map(|send| if send.psn.since(qp.oldest) > 0 { send.psn } else { qp.oldest });
        let is_missing = missing.is_some_and(|first| first.since(before) < 0);
        let before = missing.filter(|_| is_missing).unwrap_or(before);
        self.advance(serial, before);
        if is_missing {
            self.go_back(serial);
        }
    }

    /// Moves the oldest unanswered packet on, and retires requests.
    fn advance(&mut self, serial: u64, to: Psn) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        if to.since(qp.oldest) > 0 {
            qp.oldest = to;
            (qp.tries, qp.receiver_tries, qp.deadline) = (0, 0, None);
            if qp.next.since(qp.oldest) < 0 {
                qp.next = qp.oldest;
            }
            if qp.next.since(qp.oldest) > 0 {
                self.start_timer(serial);
            }
        }
        self.retire(serial);
        self.plan_send(serial);
    }

    fn retire(&mut self, serial: u64) {
        while let Some(qp) = self.nics.qps.get_mut(&serial).filter(|qp| qp.state == State::Rts) {
            let Some(first) = qp.sends.front() else { return };
            let is_over = first.end().since(qp.oldest) <= 0;
            if !is_over || first.request.op == Op::Read && first.landed < first.pieces {
                return;
            }
            let Some(send) = qp.sends.pop_front() else { return };
            self.retired(serial, &send, status::SUCCESS);
        }
    }

    /// A request is over. Signalled and failed ones complete.
    fn retired(&mut self, serial: u64, send: &Send, with: u32) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.silent += 1;
        if with == status::SUCCESS && !send.request.is_signaled {
            return;
        }
        let places = std::mem::take(&mut qp.silent);
        let wc = send.completion(qp.number, with);
        let of = (send.request.op == Op::Read).then_some(send.psn);
        self.finish(serial, Finish { at: 0, is_receive: false, wc, places, of, received: None });
    }

    /// The request at this place fails, and the queue pair with it. Earlier ones that were answered are good.
    pub(super) fn fail_send(&mut self, serial: u64, at: usize, with: u32) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let (number, opened) = (qp.number, qp.opened);
        self.note("fail", &[number.into(), with.into()], |_| {
            format!("a request of queue pair {number} fails with status {with}")
        });
        for nth in 0..=at {
            let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
            let Some(send) = qp.sends.pop_front() else { break };
            let is_good = send.end().since(qp.oldest) <= 0;
            let with = match () {
                () if nth == at => with,
                () if is_good => status::SUCCESS,
                () => status::WR_FLUSH_ERR,
            };
            self.retired(serial, &send, with);
        }
        self.flush(serial);
        self.device_event(opened, super::Event::QpError(number));
    }

    /// The queue pair's end: what is posted completes as flushed. Before that, the device may send a little more.
    pub(super) fn flush(&mut self, serial: u64) {
        let lingers = self.nics.rng.chance(LINGERS_PPM);
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let is_new = std::mem::replace(&mut qp.state, State::Error) != State::Error;
        qp.lingers |= is_new && lingers && qp.send_at.is_some();
        qp.deadline = None;
        qp.replies.clear();
        let (number, lingers) = (qp.number, qp.lingers);
        if is_new {
            self.note("error", &[number.into()], |_| format!("queue pair {number} is in error"));
        }
        if !lingers {
            self.flush_rest(serial);
        }
    }

    fn flush_rest(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.lingers = false;
        let all = std::mem::take(&mut qp.sends);
        all.iter().for_each(|send| self.retired(serial, send, status::WR_FLUSH_ERR));
    }

    pub(super) fn take_answer(&mut self, serial: u64, psn: Psn, body: &Body) {
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        if qp.state != State::Rts {
            return;
        }
        // A packet that was not sent since the last step back is answered, too: an earlier try was.
        match body {
            Body::Ack => self.answered(serial, psn.plus(1)),
            Body::Answer(bytes) => self.read_answered(serial, psn, bytes),
            Body::Refusal(refusal) => self.refused(serial, psn, *refusal),
            Body::Write { .. } | Body::Read(_) | Body::Send(_) => {}
        }
    }

    /// A piece of a READ has come. Only the oldest one that is missing counts.
    fn read_answered(&mut self, serial: u64, psn: Psn, bytes: &[u8]) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let at = qp.sends.partition_point(|send| send.end().since(psn) <= 0);
        let Some(send) = qp.sends.get(at).filter(|send| send.request.op == Op::Read) else { return };
        let (nth, first) = (psn.since(send.psn), send.psn);
        if nth < 0 || psn.since(qp.oldest) < 0 {
            return;
        }
        let (offset, length) = send.piece(nth as u32);
        if length != bytes.len() {
            return;
        }
        let request = send.request;
        // Whatever is before the READ has been answered before it.
        self.answered(serial, psn);
        let Some(qp) = self.nics.qps.get_mut(&serial).filter(|qp| qp.oldest == psn) else { return };
        let actor = qp.process;
        self.land(serial, (request.lkey, request.local + offset), bytes.to_vec(), actor, Some(first));
        self.advance(serial, psn.plus(1));
    }

    fn refused(&mut self, serial: u64, psn: Psn, refusal: Refusal) {
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        if psn.since(qp.oldest) < 0 {
            return;
        }
        self.answered(serial, psn);
        let Some(qp) = self.nics.qps.get_mut(&serial).filter(|qp| qp.oldest == psn) else { return };
        let at = qp.sends.partition_point(|send| send.end().since(psn) <= 0);
        match refusal {
            Refusal::Sequence => self.go_back(serial),
            Refusal::NotReady => {
                qp.receiver_tries += 1;
                if qp.receiver_tries_max != FOR_EVER && qp.receiver_tries > qp.receiver_tries_max {
                    return self.fail_send(serial, at, status::RNR_RETRY_EXC_ERR);
                }
                let (least, most) = NOT_READY_NS;
                let ns = self.nics.rng.between(least, most);
                if let Some(qp) = self.nics.qps.get_mut(&serial) {
                    qp.paused_until = self.now + ns;
                }
                self.go_back(serial);
            }
            Refusal::Access => self.fail_send(serial, at, status::REM_ACCESS_ERR),
            Refusal::Invalid => self.fail_send(serial, at, status::REM_INV_REQ_ERR),
        }
    }

    /// Begins to put a piece into memory.
    pub(super) fn land(
        &mut self,
        serial: u64,
        (key, address): (u32, u64),
        bytes: Vec<u8>,
        actor: crate::process::ProcessId,
        of: Option<Psn>,
    ) {
        let late_ns = self.nics.faults.late_landing_ns;
        let (least, most) =
            if self.nics.rng.chance(self.nics.faults.late_landing_ppm) { late_ns } else { LANDING_NS };
        let at = self.now + self.nics.rng.log_uniform(least, most);
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.landings += 1;
        let number = qp.landings;
        qp.landing.push(Landing { number, key, address, bytes, actor, of });
        self.plan(at, Event::Nic(Due::Land(serial, number)));
    }

    pub(super) fn nic_lands(&mut self, serial: u64, number: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let Some(at) = qp.landing.iter().position(|landing| landing.number == number) else { return };
        let landing = qp.landing.swap_remove(at);
        self.lands(serial, landing);
    }

    /// Puts a piece into memory, if its key is still good there.
    pub(super) fn lands(&mut self, serial: u64, landing: Landing) {
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        let (device, pd) = (qp.device, qp.pd);
        let Landing { key, address, bytes, actor, of, .. } = landing;
        let memory = self.nics.find(device, pd, key, address, bytes.len() as u64);
        if let Some(memory) = memory {
            let by = if of.is_some() { "RDMA answer" } else { "RDMA WRITE" };
            self.nic_writes(actor, memory.process, address, &bytes, by);
        }
        let Some(first) = of else { return };
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let Some(at) = qp.sends.iter().position(|send| send.psn == first) else { return };
        if memory.is_none() && !bytes.is_empty() {
            return self.fail_send(serial, at, status::LOC_PROT_ERR);
        }
        qp.sends[at].landed += 1;
        self.retire(serial);
    }

    /// The READ's completion comes now: its pieces land, or never will.
    pub(super) fn end_landings(&mut self, serial: u64, of: Psn) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        for landing in take_where(&mut qp.landing, |landing| landing.of == Some(of)).collect::<Vec<_>>() {
            if self.nics.rng.chance(500_000) {
                self.lands(serial, landing);
            }
        }
    }
}
