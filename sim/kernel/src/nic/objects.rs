//! Makes and takes away libibverbs' registrations, receive queues, queue pairs with their states, and posted requests.

use super::completion::{ChannelState, CqState, EventQueue};
use super::verbs::{LocalSide, QpSpec, Remote};
use super::wire::{pieces, Op, Psn, Request, Send};
use super::{Opened, QpState, Receive, Registered, SrqState, State, MTU};
use crate::fd::{errno, Kind, OwnedFd};
use crate::memory;
use crate::process::ProcessId;
use crate::take_where;
use crate::world::World;
use std::collections::VecDeque;
use std::io;

/// The most pieces of one request.
const PIECES_MAX: u64 = 4;
/// How many of a million freed keys and numbers are given again at once.
const REUSE_PPM: u32 = 500_000;
/// How many of a million queue pairs that end lose their completions that nobody has polled.
const CLEANED_PPM: u32 = 500_000;

impl World {
    /// Opens a device of the running task's host by its name: its number, and the descriptor of its events.
    pub(super) fn open_nic(&mut self, name: &str) -> io::Result<(u32, OwnedFd)> {
        let process = self.here();
        let host = self.process(process).host;
        let found = self.nics.devices.iter().position(|it| it.host == host && it.name == name);
        let Some(device) = found else { return errno(libc::ENODEV) };
        let fd = self.open(process, Kind::DeviceEvents(EventQueue::default()))?;
        let events = self.find(process, std::os::fd::AsRawFd::as_raw_fd(&fd))?;
        self.nics.opened.push(Some(Opened { device: device as u32, process, events }));
        Ok((self.nics.opened.len() as u32 - 1, fd))
    }

    pub(super) fn device_of(&self, opened: u32) -> io::Result<u32> {
        match self.nics.opened.get(opened as usize) {
            Some(Some(opened)) => Ok(opened.device),
            _ => errno(libc::EIO),
        }
    }

    pub(super) fn register_memory(&mut self, opened: u32, memory: Registered) -> io::Result<u32> {
        let device = self.device_of(opened)?;
        self.may_map(memory.process)?;
        let reuses = self.nics.rng.chance(REUSE_PPM);
        let device_state = &mut self.nics.devices[device as usize];
        if memory.length > device_state.abilities.mr_bytes_max || memory.length == 0 {
            return errno(libc::EINVAL);
        }
        let key = device_state.free_keys.pop().filter(|_| reuses).unwrap_or_else(|| {
            device_state.next_key += 1;
            device_state.next_key - 1
        });
        self.nics.keys.insert((device, key), memory);
        self.note("pin", &[device.into(), key.into(), memory.length], |_| {
            format!("registers {} bytes with a NIC under key {key}", memory.length)
        });
        Ok(key)
    }

    /// Ends a registration. Pieces that have arrived land before.
    pub(super) fn deregister(&mut self, device: u32, key: u32) {
        let own = self.nics.qps.iter().filter(|(_, qp)| qp.device == device);
        let own: Vec<u64> = own.map(|(serial, _)| *serial).collect();
        for serial in own {
            let Some(qp) = self.nics.qps.get_mut(&serial) else { continue };
            for landing in take_where(&mut qp.landing, |landing| landing.key == key).collect::<Vec<_>>() {
                self.lands(serial, landing);
            }
        }
        self.nics.keys.remove(&(device, key));
        self.nics.devices[device as usize].free_keys.push(key);
        self.note("unpin", &[device.into(), key.into()], |_| {
            format!("ends the registration under key {key}")
        });
    }

    pub(super) fn make_cq(&mut self, opened: u32, cq: CqState) -> io::Result<u32> {
        let device = self.device_of(opened)?;
        if cq.capacity == 0 || cq.capacity > self.nics.devices[device as usize].abilities.cqe_max as usize {
            return errno(libc::EINVAL);
        }
        self.nics.made += 1;
        let id = self.nics.made as u32;
        self.nics.cqs.insert(id, cq);
        Ok(id)
    }

    /// Takes a completion queue away, with what its channel would say of it.
    pub(super) fn destroy_cq(&mut self, id: u32) {
        let Some(file) = self.nics.cqs.remove(&id).and_then(|cq| cq.channel) else { return };
        if self.is_open(file) {
            if let Kind::Completions(ChannelState(events)) = &mut self.file(file).kind {
                events.retain(|(of, _)| *of != id);
            }
        }
    }

    pub(super) fn make_srq(&mut self, opened: u32, process: ProcessId, entries: u32) -> io::Result<u32> {
        let device = self.device_of(opened)?;
        if entries == 0 || entries > self.nics.devices[device as usize].abilities.srq_wr_max {
            return errno(libc::EINVAL);
        }
        self.nics.made += 1;
        let id = self.nics.made as u32;
        self.nics
            .srqs
            .insert(id, SrqState { process, capacity: entries as usize, receives: VecDeque::new() });
        Ok(id)
    }

    pub(super) fn post_receive(&mut self, srq: u32, id: u64, memory: (u64, u32, u32)) -> io::Result<()> {
        let (address, length, lkey) = memory;
        match self.nics.srqs.get_mut(&srq) {
            None => errno(libc::EINVAL),
            Some(srq) if srq.receives.len() >= srq.capacity => errno(libc::ENOMEM),
            Some(srq) => {
                srq.receives.push_back(Receive { id, address, length, lkey });
                Ok(())
            }
        }
    }

    /// Makes a queue pair. Returns its serial number and its number.
    pub(super) fn make_qp(
        &mut self,
        (opened, pd): (u32, u32),
        (send_cq, receive_cq, srq): (u32, u32, u32),
        spec: &QpSpec,
    ) -> io::Result<(u64, u32)> {
        let index = self.device_of(opened)?;
        let process = self.here();
        let reuses = self.nics.rng.chance(REUSE_PPM);
        let device = &mut self.nics.devices[index as usize];
        if spec.send_wr == 0 || spec.send_wr > device.abilities.qp_wr_max {
            return errno(libc::EINVAL);
        }
        let number = device.free_numbers.pop().filter(|_| reuses).unwrap_or_else(|| {
            device.next_number += 1;
            device.next_number - 1
        });
        let inline_bytes_max = device.abilities.inline_bytes_max.min(spec.inline_bytes);
        self.nics.made += 1;
        let serial = self.nics.made;
        let qp = QpState {
            device: index,
            number,
            opened,
            process,
            pd,
            send_cq,
            receive_cq,
            srq,
            send_wr_max: spec.send_wr as usize,
            inline_bytes_max,
            state: State::Reset,
            to: (u32::MAX, 0),
            mtu: MTU,
            sends: VecDeque::new(),
            taken: 0,
            silent: 0,
            psn: Psn::default(),
            next: Psn::default(),
            oldest: Psn::default(),
            send_at: None,
            paused_until: 0,
            lingers: false,
            reads_out_max: 0,
            timeout_ns: None,
            deadline: None,
            timer_planned: false,
            tries: 0,
            tries_max: 0,
            receiver_tries: 0,
            receiver_tries_max: 0,
            expected: Psn::default(),
            reads_max: 0,
            has_complained: false,
            refuses: false,
            replies: VecDeque::new(),
            reply_planned: false,
            landing: Vec::new(),
            landings: 0,
            last_at: 0,
            finished: VecDeque::new(),
        };
        self.nics.qps.insert(serial, qp);
        self.nics.numbers.insert((index, number), serial);
        Ok((serial, number))
    }

    fn qp(&mut self, serial: u64, from: State) -> io::Result<&mut QpState> {
        match self.nics.qps.get_mut(&serial).filter(|qp| qp.state == from) {
            Some(qp) => Ok(qp),
            None => errno(libc::EINVAL),
        }
    }

    pub(super) fn qp_to_init(&mut self, serial: u64, port: u8) -> io::Result<()> {
        if port != 1 {
            return errno(libc::EINVAL);
        }
        self.qp(serial, State::Reset)?.state = State::Init;
        Ok(())
    }

    pub(super) fn qp_to_rtr(&mut self, serial: u64, to: &Remote) -> io::Result<()> {
        let found = self.nics.devices.iter().position(|device| device.gid == to.gid);
        let rd_atom_max =
            self.nics.qps.get(&serial).map(|qp| self.nics.devices[qp.device as usize].abilities.rd_atom_max);
        let qp = self.qp(serial, State::Init)?;
        if rd_atom_max.is_none_or(|most| to.rd_atom > most) || !to.is_ethernet || to.port != 1 {
            return errno(libc::EINVAL);
        }
        // An address that nobody has is no error here: packets to it are lost.
        qp.to = (found.map_or(u32::MAX, |at| at as u32), to.qp_number);
        (qp.expected, qp.reads_max, qp.mtu) = (Psn::new(to.psn), to.rd_atom.into(), to.mtu_bytes);
        qp.state = State::Rtr;
        Ok(())
    }

    pub(super) fn qp_to_rts(&mut self, serial: u64, from: &LocalSide) -> io::Result<()> {
        // A device may wait for up to four times what it was told.
        let longer = self.nics.rng.between(1, 4);
        let qp = self.qp(serial, State::Rtr)?;
        (qp.psn, qp.next, qp.oldest) = (Psn::new(from.psn), Psn::new(from.psn), Psn::new(from.psn));
        qp.timeout_ns = (from.timeout > 0).then(|| (4096 << from.timeout) * longer);
        (qp.tries_max, qp.receiver_tries_max) = (from.retries, from.rnr_retries);
        qp.reads_out_max = from.rd_atom.into();
        qp.state = State::Rts;
        Ok(())
    }

    /// Posts a request. Its inline bytes are copied now, all other memory is read later.
    pub(super) fn post(&mut self, serial: u64, request: Request) -> io::Result<()> {
        let most = self.nics.rng.between(1, PIECES_MAX);
        let Some(qp) = self.nics.qps.get_mut(&serial) else { return errno(libc::EINVAL) };
        if !matches!(qp.state, State::Rts | State::Error) {
            return errno(libc::EINVAL);
        }
        let inline = request.is_inline && request.op != Op::Read;
        if request.is_inline && (!inline || request.length > qp.inline_bytes_max) {
            return errno(libc::EINVAL);
        }
        if qp.taken >= qp.send_wr_max {
            return errno(libc::ENOMEM);
        }
        qp.taken += 1;
        let (length, mtu) = (u64::from(request.length), u64::from(qp.mtu));
        let piece_bytes = match request.op {
            Op::Send => length,
            _ => length.div_ceil(most.min(length.div_ceil(mtu)).max(1)).next_multiple_of(mtu),
        };
        let piece_bytes = piece_bytes.max(1);
        let pieces = pieces(length, piece_bytes);
        let inline = inline.then(|| memory::read(request.local, request.length as usize));
        let psn = qp.psn;
        qp.psn = psn.plus(pieces);
        let send = Send { request, inline, psn, piece_bytes, pieces, landed: 0 };
        qp.sends.push_back(send);
        let (number, is_error) = (qp.number, qp.state == State::Error);
        self.note("post", &[number.into(), length, request.op as u64], |_| {
            format!("posts a {:?} of {length} bytes to queue pair {number}", request.op)
        });
        if is_error {
            self.flush(serial)
        } else {
            self.plan_send(serial)
        }
        Ok(())
    }

    /// Takes a queue pair away. Peers' writes over it are in memory; its own reads never land.
    pub(super) fn destroy_qp(&mut self, serial: u64) {
        self.land_all(serial);
        let is_cleaned = self.nics.rng.chance(CLEANED_PPM);
        let finished = match self.nics.qps.get_mut(&serial) {
            Some(qp) => std::mem::take(&mut qp.finished),
            None => return,
        };
        // A receive that was taken completes: its memory would be lost otherwise.
        for finish in finished.into_iter().filter(|finish| finish.is_receive || !is_cleaned) {
            let of = finish.of;
            self.complete(serial, finish);
            if let (Some(of), Some(qp)) = (of, self.nics.qps.get_mut(&serial)) {
                qp.landing.retain(|landing| landing.of != Some(of));
            }
        }
        let Some(qp) = self.nics.qps.remove(&serial) else { return };
        if is_cleaned {
            if let Some(cq) = self.nics.cqs.get_mut(&qp.send_cq) {
                cq.entries.retain(|entry| entry.serial != serial);
            }
        }
        self.nics.numbers.remove(&(qp.device, qp.number));
        self.nics.devices[qp.device as usize].free_numbers.push(qp.number);
        let number = qp.number;
        self.note("destroy", &[number.into()], |_| format!("queue pair {number} is destroyed"));
    }
}
