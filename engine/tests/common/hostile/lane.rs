//! A lane of the hostile peer: frames sealed with the right key, with any content.

use ferry::internals::session::greeting::Greeting;
use ferry::internals::sys::clock;
use ferry::internals::transport::tcp::wire::{
    lane_key, Descriptor, Header, Kind, Sealer, DESCRIPTOR_BYTES, HEADER_BYTES,
};
use ferry::types::LaneId;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// A received frame.
#[derive(Debug)]
pub struct Received {
    pub header: Header,
    pub descriptors: Vec<Descriptor>,
    pub extra: Vec<u8>,
    pub payload: Vec<u8>,
}

/// A lane of a session.
pub struct HostileLane {
    pub id: LaneId,
    pub slot: u32,
    pub socket: TcpStream,
    sealer: Sealer,
    opener: Sealer,
}

impl HostileLane {
    pub(super) fn new(socket: TcpStream, greeting: &Greeting, key: &[u8; 32], dialed: bool) -> HostileLane {
        HostileLane {
            id: greeting.lane,
            slot: greeting.slot,
            socket,
            sealer: Sealer::new(lane_key(key, greeting.lane, dialed)),
            opener: Sealer::new(lane_key(key, greeting.lane, !dialed)),
        }
    }

    /// Wraps a lane that the engine dialed and whose greeting the test has read.
    pub fn over(socket: TcpStream, greeting: &Greeting, key: &[u8; 32]) -> HostileLane {
        HostileLane::new(socket, greeting, key, false)
    }

    /// Returns a header that acknowledges nothing and has a lease of a minute, for the test to change and send.
    pub fn header(&self) -> Header {
        let now_ns = clock::boottime_ns();
        Header {
            kind: Kind::Ack,
            flags: 0,
            descriptors: 0,
            payload_bytes: 0,
            extra_bytes: 0,
            sequence: 0,
            not_after_ns: now_ns + 60_000_000_000,
            clock_ns: now_ns,
            checksum: 0,
        }
    }

    /// Builds a sealed frame; puts the sizes of its parts into the header.
    pub fn frame(
        &mut self,
        header: Header,
        descriptors: &[Descriptor],
        extra: &[u8],
        payload: &[u8],
    ) -> Vec<u8> {
        let header = Header {
            descriptors: descriptors.len() as u16,
            extra_bytes: extra.len() as u32,
            payload_bytes: payload.len() as u32,
            ..header
        };
        let mut out = Vec::new();
        self.sealer.seal(&header, &mut out, |out| {
            descriptors.iter().for_each(|descriptor| descriptor.encode(out));
            out.extend_from_slice(extra);
        });
        out.extend_from_slice(payload);
        out
    }

    /// Sends such a frame. Returns false when the engine has closed the lane.
    pub fn send(&mut self, header: Header, descriptors: &[Descriptor], extra: &[u8], payload: &[u8]) -> bool {
        let bytes = self.frame(header, descriptors, extra, payload);
        self.socket.write_all(&bytes).is_ok()
    }

    /// Answers the READ with this sequence. Returns false when the engine has closed the lane.
    pub fn answer(&mut self, sequence: u64, payload: &[u8]) -> bool {
        let header = Header { sequence, ..self.header() };
        self.send(Header { kind: Kind::Data, ..header }, &[], b"", payload)
            && self.send(Header { kind: Kind::DataEnd, ..header }, &[], b"", b"")
    }

    /// Returns the next frame, an answer together with its end, or None when the engine has closed the lane.
    pub fn receive(&mut self) -> Option<Received> {
        let mut frame = self.take(HEADER_BYTES)?;
        let header = Header::decode(frame[..].try_into().unwrap()).unwrap();
        frame.extend_from_slice(&self.take(header.meta_bytes())?);
        self.opener.open(&frame).unwrap();
        let meta = &frame[HEADER_BYTES..];
        let descriptors: Vec<Descriptor> =
            Descriptor::decode_all(meta, header.descriptors as usize).collect();
        let extra_at = descriptors.len() * DESCRIPTOR_BYTES;
        let extra = meta[extra_at..][..header.extra_bytes as usize].to_vec();
        let payload = self.take(header.payload_bytes as usize)?;
        if header.kind == Kind::Data {
            let end = self.receive()?.header;
            assert_eq!((end.kind, end.sequence), (Kind::DataEnd, header.sequence));
        }
        Some(Received { header, descriptors, extra, payload })
    }

    /// Reads until the engine closes the lane.
    pub fn receive_end(&mut self) {
        while self.receive().is_some() {}
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the engine sent nothing"),
            Err(_) => None,
        }
    }
}
