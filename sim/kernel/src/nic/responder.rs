//! The responder: takes the packets of the other end in their order, checks keys, lets WRITEs land, reads memory for
//! READs, takes receives for SENDs. Also the way between two devices.

use super::completion::{Finish, Wc};
use super::wire::{Body, Due, Packet, Psn, Read, Refusal, Reply};
use super::{status, verbs, Registered, State};
use crate::memory;
use crate::process::ProcessId;
use crate::take_where;
use crate::timer::Event;
use crate::world::World;

/// The pause before an answer of a READ is read and sent.
const ANSWER_NS: (u64, u64) = (50, 5_000);
const LATE_ANSWER_NS: (u64, u64) = (5_000, 1_000_000);
const LATE_ANSWER_PPM: u32 = 20_000;
/// The access of a READ whose packet came twice. The requester may have the first answer since long: it then drops this
/// one.
pub const READ_AGAIN: &str = "RDMA READ again";
/// The bound of the jitter on a packet's way, in nanoseconds.
const JITTER_NS: u64 = 2_000;

impl World {
    /// Draws how long a packet of this device travels.
    pub(super) fn nic_travel_ns(&mut self, device: u32) -> u64 {
        let (ppm, (least, most)) = (self.net.faults.delay_ppm, self.net.faults.delay_ns);
        let late = self.nics.rng.chance(ppm);
        let delay_ns = if late { self.nics.rng.log_uniform(least.max(1), most) } else { 0 };
        self.nics.devices[device as usize].latency_ns + self.nics.rng.below(JITTER_NS) + delay_ns
    }

    /// True if a packet from one device to another does not arrive now.
    pub(super) fn draw_loss(&mut self, from: u32, to: u32) -> bool {
        let ppm = self.nics.faults.loss_ppm;
        let unlucky = self.nics.rng.chance(ppm);
        let Some(there) = self.nics.devices.get(to as usize) else { return true };
        let here = &self.nics.devices[from as usize];
        let way = (here.host, there.host);
        let is_down = !here.is_up || !there.is_up;
        unlucky || is_down || self.nics.cuts.contains(&way) || self.is_held(way.0, way.1)
    }

    /// Writes memory in a NIC's place.
    pub(super) fn nic_writes(
        &mut self,
        actor: ProcessId,
        of: ProcessId,
        address: u64,
        bytes: &[u8],
        by: &'static str,
    ) {
        self.touch(actor, of, address, bytes.len() as u64, true, by);
        memory::write(address, bytes);
    }

    pub(super) fn nic_arrives(&mut self, packet: &Packet) {
        let Packet { from, to, actor, psn, body } = packet;
        if self.draw_loss(from.0, to.0) {
            return;
        }
        let Some(serial) = self.nics.numbers.get(to).copied() else { return };
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        // The number may be another queue pair's by now.
        if qp.to != *from || !matches!(qp.state, State::Rtr | State::Rts) {
            return;
        }
        if matches!(body, Body::Ack | Body::Answer(_) | Body::Refusal(_)) {
            return self.take_answer(serial, *psn, body);
        }
        if qp.refuses {
            return;
        }
        match psn.since(qp.expected) {
            0 => self.admit(serial, *actor, *psn, body),
            1.. => self.complain(serial),
            _ => self.admit_again(serial, *actor, *psn, body),
        }
    }

    /// A packet is missing before one that has come. The other end hears so once.
    fn complain(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let expected = qp.expected;
        if !std::mem::replace(&mut qp.has_complained, true) {
            self.reply(serial, Reply::Refusal(expected, Refusal::Sequence));
        }
    }

    /// A repeated packet: its WRITE or SEND is done and not done again, its READ is answered again.
    fn admit_again(&mut self, serial: u64, actor: ProcessId, psn: Psn, body: &Body) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let before = qp.expected.plus(u32::MAX);
        match body {
            Body::Read(read) => {
                qp.replies.retain(|reply| !matches!(reply, Reply::Read { psn: of, .. } if *of == psn));
                if qp.replies.len() < qp.reads_max {
                    self.reply(serial, Reply::Read { psn, read: *read, actor, is_again: true });
                }
            }
            _ => self.reply(serial, Reply::Ack(before)),
        }
    }

    fn admit(&mut self, serial: u64, actor: ProcessId, psn: Psn, body: &Body) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.has_complained = false;
        match body {
            Body::Write { address, rkey, offset, length, bytes, is_last } => {
                let found = self.reached(serial, *rkey, *address, *length).filter(|it| it.remote_write);
                if found.is_none() && *length > 0 {
                    return self.refuse(serial, psn, Refusal::Access);
                }
                self.expects(serial, psn.plus(1));
                if !bytes.is_empty() {
                    self.land(serial, (*rkey, address + offset), bytes.clone(), actor, None);
                }
                if *is_last {
                    self.reply(serial, Reply::Ack(psn));
                }
            }
            Body::Read(read) => {
                // Earlier writes are in memory first.
                self.land_all(serial);
                let found = self.reached(serial, read.rkey, read.address, read.length);
                let found = found.filter(|it| it.remote_read).is_some() || read.length == 0;
                let Some(qp) = self.nics.qps.get(&serial) else { return };
                // A repeated READ gives its place up to a new one: the other end may have its answer since long.
                let is_new = |reply: &&Reply| matches!(reply, Reply::Read { is_again: false, .. });
                let reads = qp.replies.iter().filter(is_new).count();
                match () {
                    () if reads >= qp.reads_max => self.refuse(serial, psn, Refusal::Invalid),
                    () if !found => self.refuse(serial, psn, Refusal::Access),
                    () => {
                        self.expects(serial, psn.plus(read.pieces()));
                        self.reply(serial, Reply::Read { psn, read: *read, actor, is_again: false });
                    }
                }
            }
            Body::Send(bytes) => self.receive(serial, actor, psn, bytes),
            Body::Ack | Body::Answer(_) | Body::Refusal(_) => {}
        }
    }

    fn expects(&mut self, serial: u64, psn: Psn) {
        if let Some(qp) = self.nics.qps.get_mut(&serial) {
            qp.expected = psn;
        }
    }

    /// Returns the memory that a key of the other end's request names here.
    fn reached(&self, serial: u64, rkey: u32, address: u64, length: u64) -> Option<Registered> {
        let qp = self.nics.qps.get(&serial)?;
        self.nics.find(qp.device, qp.pd, rkey, address, length)
    }

    /// All that peers have written over this queue pair is in memory now.
    pub(super) fn land_all(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        for landing in take_where(&mut qp.landing, |landing| landing.of.is_none()).collect::<Vec<_>>() {
            self.lands(serial, landing);
        }
    }

    fn receive(&mut self, serial: u64, actor: ProcessId, psn: Psn, bytes: &[u8]) {
        self.land_all(serial);
        let Some(qp) = self.nics.qps.get(&serial) else { return };
        let (number, srq) = (qp.number, qp.srq);
        let receive = self.nics.srqs.get_mut(&srq).and_then(|srq| srq.receives.pop_front());
        let Some(receive) = receive else {
            return self.reply(serial, Reply::Refusal(psn, Refusal::NotReady));
        };
        let length = bytes.len() as u64;
        let found = self.reached(serial, receive.lkey, receive.address, length).is_some();
        let with = match () {
            () if bytes.len() > receive.length as usize => status::LOC_LEN_ERR,
            () if !found && length > 0 => status::LOC_PROT_ERR,
            () => status::SUCCESS,
        };
        let wc = Wc { id: receive.id, status: with, bytes: length as u32, qp: number };
        let is_good = with == status::SUCCESS;
        let received = is_good.then(|| (receive.address, receive.lkey, bytes.to_vec(), actor));
        self.finish(serial, Finish { at: 0, is_receive: true, wc, places: 0, of: None, received });
        if is_good {
            self.expects(serial, psn.plus(1));
            self.reply(serial, Reply::Ack(psn));
        } else {
            self.refuse(serial, psn, Refusal::Invalid)
        }
    }

    /// Refuses a request for good: the queue pair fails when the other end has been told.
    fn refuse(&mut self, serial: u64, psn: Psn, why: Refusal) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.refuses = true;
        let number = qp.number;
        self.nics.refusals += 1;
        self.note("refuse", &[number.into()], |_| format!("queue pair {number} refuses a request: {why:?}"));
        self.reply(serial, Reply::Refusal(psn, why));
    }

    /// Answers behind what is to be answered before.
    fn reply(&mut self, serial: u64, reply: Reply) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        qp.replies.push_back(reply);
        if !qp.reply_planned {
            self.nic_replies(serial);
        }
    }

    /// Sends answers until one takes time.
    pub(super) fn nic_replies(&mut self, serial: u64) {
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return };
        let mut may_read = std::mem::take(&mut qp.reply_planned);
        while let Some(qp) = self.nics.qps.get_mut(&serial) {
            if !matches!(qp.state, State::Rtr | State::Rts) {
                return;
            }
            match qp.replies.pop_front() {
                None => return,
                Some(Reply::Ack(psn)) => self.emit(serial, psn, Body::Ack),
                Some(Reply::Refusal(psn, why)) => {
                    self.emit(serial, psn, Body::Refusal(why));
                    if matches!(why, Refusal::Access | Refusal::Invalid) {
                        self.break_qp(serial);
                    }
                }
                Some(Reply::Read { psn, read, actor, is_again }) if may_read => {
                    may_read = false;
                    self.answer(serial, psn, read, (actor, is_again));
                }
                Some(read) => {
                    qp.replies.push_front(read);
                    qp.reply_planned = true;
                    let (least, most) =
                        if self.nics.rng.chance(LATE_ANSWER_PPM) { LATE_ANSWER_NS } else { ANSWER_NS };
                    let at = self.now + self.nics.rng.log_uniform(least, most);
                    return self.plan(at, Event::Nic(Due::Reply(serial)));
                }
            }
        }
    }

    /// Reads a piece for a READ and sends it. The key is looked up for each piece. If the key is gone, a repeated READ
    /// is dropped instead of refused: the requester may have its answer already, and the memory may be another owner's.
    fn answer(&mut self, serial: u64, psn: Psn, read: Read, (actor, is_again): (ProcessId, bool)) {
        let length = read.piece_bytes.min(read.length);
        let found = self.reached(serial, read.rkey, read.address, length).filter(|it| it.remote_read);
        let bytes = match found {
            Some(found) => {
                let by = if is_again { READ_AGAIN } else { "RDMA READ" };
                self.touch(actor, found.process, read.address, length, false, by);
                memory::read(read.address, length as usize)
            }
            None if length == 0 => Vec::new(),
            None if is_again => return,
            None => return self.refuse(serial, psn, Refusal::Access),
        };
        self.emit(serial, psn, Body::Answer(bytes));
        let rest = Read { address: read.address + length, length: read.length - length, ..read };
        let Some(qp) = self.nics.qps.get_mut(&serial).filter(|_| rest.length > 0) else { return };
        qp.replies.push_front(Reply::Read { psn: psn.plus(1), read: rest, actor, is_again });
    }

    /// Tells all who have opened a device.
    pub(super) fn tell_device(&mut self, device: u32, event: verbs::Event) {
        let all = self.nics.opened.iter().enumerate();
        let own = all.filter(|(_, it)| it.as_ref().is_some_and(|it| it.device == device));
        let own: Vec<u32> = own.map(|(at, _)| at as u32).collect();
        own.into_iter().for_each(|opened| self.device_event(opened, event));
    }
}
