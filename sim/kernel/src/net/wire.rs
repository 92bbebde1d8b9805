//! Packets on their way: sending them, and what each does where it arrives. Packets of one direction keep their order.

use super::{Acknowledgement, Arrival, Chunk, Content, Packet, Phase, StreamEnd};
use crate::timer::Event;
use crate::world::World;

/// The pause before the first repetition of a dial's first packet; each next one is twice as long.
const SYN_RETRY_NS: u64 = 1_000_000_000;
const SYN_TRIES: u32 = 6;

impl World {
    pub(super) fn push(&mut self, from: StreamEnd, content: Content) {
        let (a, b) = self.hosts_of(from);
        let at = self.now + self.travel_ns(a, b);
        self.push_at(from, at, content);
    }

    fn push_at(&mut self, from: StreamEnd, at: u64, content: Content) {
        let pipe = self.pipe(from);
        pipe.last_at = pipe.last_at.max(at);
        let at = pipe.last_at;
        pipe.packets.push_back(Packet { at, content });
        self.plan(at, Event::Net(Arrival { from, acknowledgements: false }));
    }

    /// Sends the first packet of a dial again, after a pause, or gives up.
    fn push_syn_again(&mut self, from: StreamEnd, tries: u32) {
        if tries < SYN_TRIES {
            self.push_at(from, self.now + (SYN_RETRY_NS << tries), Content::Syn(tries + 1));
        } else {
            self.end_dies(from, libc::ETIMEDOUT);
        }
    }

    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        if arrival.acknowledgements {
            self.arrive_acknowledgements(arrival.from)
        } else {
            self.arrive_packets(arrival.from)
        }
    }

    fn arrive_packets(&mut self, from: StreamEnd) {
        let (a, b) = self.hosts_of(from);
        while !self.is_held(a, b) {
            let now = self.now;
            let pipe = self.pipe(from);
            if pipe.stuck || pipe.packets.front().is_none_or(|packet| packet.at > now) {
                return;
            }
            match pipe.packets.pop_front().map(|packet| packet.content) {
                Some(Content::Syn(tries)) => self.arrive_syn(from, tries),
                Some(Content::SynAck) => self.arrive_syn_ack(from.other()),
                Some(Content::Data(chunk)) => self.arrive_data(from, chunk),
                Some(Content::Fin) => {
                    let to = from.other();
                    self.end(to).ended = true;
                    self.note_end("end", to, 0, |_| "the end of the stream arrives on".into());
                    self.end_changed(to);
                }
                Some(Content::Reset(error)) => self.end_dies(from.other(), error),
                None => return,
            }
        }
    }

    fn arrive_syn(&mut self, from: StreamEnd, tries: u32) {
        let (a, b) = self.hosts_of(from);
        if self.end(from).phase != Phase::Connecting {
            return;
        }
        let faults = &self.net.faults;
        let (hang_ppm, refuse_ppm) = (faults.hang_ppm, faults.refuse_ppm);
        if self.link(a, b).hangs_dials || self.fate.chance(hang_ppm) {
            self.note_end("lost", from, tries.into(), |_| "a dial's packet is lost on".into());
            return self.push_syn_again(from, tries);
        }
        let listener = self.find_listener(b, self.net.connections[from.connection as usize].ends[1].address);
        match listener.filter(|_| !self.fate.chance(refuse_ppm)) {
            None => self.push(from.other(), Content::Reset(libc::ECONNREFUSED)),
            Some(listener) if self.enqueue(listener, from.connection) => {
                self.push(from.other(), Content::SynAck)
            }
            Some(_) => self.push_syn_again(from, tries),
        }
    }

    fn arrive_syn_ack(&mut self, dialer: StreamEnd) {
        match self.end(dialer).phase {
            Phase::Connecting => {
                self.end(dialer).phase = Phase::Up;
                self.note_end("connected", dialer, 0, |_| "is connected by".into());
                self.end_changed(dialer);
            }
            Phase::Gone => self.push(dialer, Content::Reset(libc::ECONNRESET)),
            Phase::Up | Phase::Dead => (),
        }
    }

    fn arrive_data(&mut self, from: StreamEnd, chunk: Chunk) {
        let to = from.other();
        let reset_ppm = self.net.faults.reset_ppm;
        if self.end(to).phase == Phase::Up && self.fate.chance(reset_ppm) {
            self.give_back(from, &chunk);
            return self.break_connection(from.connection);
        }
        let end = self.end(to);
        let room = end.inbox_max.saturating_sub(end.inbox.len());
        match (end.phase, end.shut_read) {
            (Phase::Up, false) if room == 0 => {
                self.pipe(from).packets.push_front(Packet { at: 0, content: Content::Data(chunk) });
                self.pipe(from).stuck = true;
            }
            (Phase::Up, false) => self.take_in(from, chunk, room),
            (Phase::Dead, _) => self.give_back(from, &chunk),
            // Nobody will read it: the sender hears so.
            _ => {
                self.give_back(from, &chunk);
                self.clear(from);
                if self.end(to).phase == Phase::Up {
                    self.end_dies(to, libc::ECONNRESET);
                }
                self.push(to, Content::Reset(libc::ECONNRESET));
            }
        }
    }

    /// Moves what fits of a chunk to the inbox at the other end, and acknowledges it.
    fn take_in(&mut self, from: StreamEnd, chunk: Chunk, room: usize) {
        let to = from.other();
        let (mut bytes, rest, late) = match chunk {
            Chunk::Now(mut bytes) => {
                let rest = bytes.split_off(room.min(bytes.len()));
                (bytes, (!rest.is_empty()).then_some(Chunk::Now(rest)), false)
            }
            Chunk::Late { process, address, length } => {
                let taken = room.min(length);
                let bytes = self.read_memory(process, address, taken, "late send");
                let rest = Chunk::Late { process, address: address + taken as u64, length: length - taken };
                (bytes, (taken < length).then_some(rest), true)
            }
        };
        let count = bytes.len();
        let (flip_ppm, replay_ppm) = (self.net.faults.flip_ppm, self.net.faults.replay_ppm);
        if std::mem::take(&mut self.pipe(from).flip) || self.fate.chance(flip_ppm) {
            let at = self.fate.index(count);
            bytes[at] ^= 1 << self.fate.below(8);
            self.note_end("flip", to, at as u64, |_| "a bit is flipped on".into());
        }
        if std::mem::take(&mut self.pipe(from).replay) || self.fate.chance(replay_ppm) {
            bytes.extend_from_within(..);
            self.note_end("replay", to, count as u64, |_| format!("{count} bytes are repeated on"));
        }
        self.end(to).inbox.extend(bytes);
        if let Some(rest) = rest {
            self.pipe(from).packets.push_front(Packet { at: 0, content: Content::Data(rest) });
        }
        let (a, b) = self.hosts_of(from);
        let at = self.now + self.travel_ns(b, a);
        self.pipe(from).acknowledgements.push_back(Acknowledgement { at, bytes: count, late });
        self.plan(at, Event::Net(Arrival { from, acknowledgements: true }));
        self.note_end("arrive", to, count as u64, |_| format!("{count} bytes arrive on"));
        self.end_changed(to);
    }

    fn arrive_acknowledgements(&mut self, from: StreamEnd) {
        let (a, b) = self.hosts_of(from);
        if self.is_held(b, a) {
            return;
        }
        let now = self.now;
        let mut any = false;
        while let Some(first) =
            self.pipe(from).acknowledgements.front().copied().filter(|first| first.at <= now)
        {
            self.pipe(from).acknowledgements.pop_front();
            let end = self.end(from);
            end.unacked = end.unacked.saturating_sub(first.bytes);
            end.released += if first.late { first.bytes as u64 } else { 0 };
            any = true;
        }
        if any {
            self.end_changed(from);
        }
    }

    /// Room has come into an inbox: what waits for it goes on.
    pub(super) fn unstick(&mut self, from: StreamEnd) {
        if std::mem::take(&mut self.pipe(from).stuck) {
            let (a, b) = self.hosts_of(from);
            let at = self.now + self.travel_ns(a, b);
            self.plan(at, Event::Net(Arrival { from, acknowledgements: false }));
        }
    }

    /// The kernel will not read the memory of this chunk.
    fn give_back(&mut self, from: StreamEnd, chunk: &Chunk) {
        self.end(from).released += chunk.late_bytes() as u64;
    }

    /// Takes all that is on its way from this end.
    pub(super) fn clear(&mut self, from: StreamEnd) {
        for packet in std::mem::take(&mut self.pipe(from).packets) {
            if let Content::Data(chunk) = packet.content {
                self.give_back(from, &chunk);
            }
        }
        self.pipe(from).stuck = false;
    }

    /// An end learns that its connection is over.
    pub(super) fn end_dies(&mut self, end: StreamEnd, error: i32) {
        self.clear(end);
        if matches!(self.end(end).phase, Phase::Connecting | Phase::Up) {
            self.end(end).phase = Phase::Dead;
            self.end(end).error = Some(error);
            self.note_end("die", end, error as u64, |_| {
                format!("hears \"{}\" on", std::io::Error::from_raw_os_error(error))
            });
            self.end_changed(end);
        }
    }

    /// Both ends learn at once that their connection was reset.
    pub(super) fn break_connection(&mut self, connection: u32) {
        for side in 0..2 {
            self.end_dies(StreamEnd { connection, side }, libc::ECONNRESET);
        }
    }

    /// Reads what zero-copy sends have left in memory that will not be the program's any more.
    pub(super) fn read_late_chunks(&mut self, from: StreamEnd) {
        let mut packets = std::mem::take(&mut self.pipe(from).packets);
        for packet in &mut packets {
            if let Content::Data(Chunk::Late { process, address, length }) = packet.content {
                let bytes = self.read_memory(process, address, length, "late send");
                packet.content = Content::Data(Chunk::Now(bytes));
                self.end(from).released += length as u64;
            }
        }
        self.pipe(from).packets = packets;
    }
}
