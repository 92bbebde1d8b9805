//! The passive process of the raw reference: prepares its memory, serves the data connections of each run with a
//! thread each, and checks the received data. It ends when its control pipe is closed.

use std::io::{self, BufRead, ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use ferry::sys::socket::poll_readable;
use serde::{Deserialize, Serialize};

use super::passive;
use super::pieces::Pieces;
use super::reference::on_threads;
use super::socket::{Link, SocketOptions, Wait};
use super::wire::{Header, Kind, Listening, Told, HEADER_BYTES};
use crate::child::write_line;
use crate::cpu::Pinned;
use crate::memory::{private, Memory};
use crate::walk::{End, Walk};

/// The parent connects at once; after this time the parent is gone.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// The options with which the parent starts the target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetOptions {
    pub connections: usize,
    pub memory_bytes: usize,
    pub token: u64,
    pub socket: SocketOptions,
}

/// Serves one parent, over the given control pipe, until the parent closes the pipe.
pub fn serve(options: &TargetOptions, from: impl BufRead, mut to: impl Write) -> anyhow::Result<()> {
    let mut memory = private(options.memory_bytes)?;
    let links = accept(options, &mut to)?;
    write_line(&mut to, &links.len())?;
    passive::serve(&mut memory, from, to, |walk, memory, told: Told| {
        let links =
            links.get(..told.connections).context("the run exceeds what this target was started with")?;
        let wait = told.spin.map_or(Wait::Block, Wait::Spin);
        let serve = |index: usize| serve_link(&links[index], walk, memory, wait, told.cpu);
        on_threads(links.len(), serve)?;
        Ok(())
    })
}

fn accept(options: &TargetOptions, to: &mut impl Write) -> anyhow::Result<Vec<Link>> {
    let socket = options.socket.socket().context("socket options")?;
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(16)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    write_line(to, &Listening { port: listener.local_addr()?.port() })?;
    let deadline = Instant::now() + ACCEPT_TIMEOUT;
    let mut links = Vec::new();
    while links.len() < options.connections {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                let link = Link::new(stream)?;
                let hello = link.receive_header(Wait::Block)?.expect(Kind::Hello)?;
                if hello.number == options.token {
                    links.push(link);
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                let left = deadline.saturating_duration_since(Instant::now());
                poll_readable(&[listener.as_raw_fd()], left.as_nanos() as u64);
            }
            Err(e) => return Err(e).context("waiting for the initiator's connections"),
        }
    }
    Ok(links)
}

/// Answers one connection until END. Receives the next header in the same call as the end of a payload: with pipelined
/// transfers the header has usually arrived.
fn serve_link(link: &Link, walk: &Walk, memory: &Memory, wait: Wait, cpu: Option<usize>) -> io::Result<()> {
    let _pinned = cpu.map(Pinned::to).transpose()?;
    let mut pieces = Pieces::default();
    let mut next = [0; HEADER_BYTES];
    let mut header = link.receive_header(wait)?;
    loop {
        pieces.clear();
        let number = header.number;
        match header.kind {
            Kind::Write => {
                push_blocks(&mut pieces, walk, End::Target, memory, number);
                // SAFETY: `next` outlives the receives below, which use these pieces up.
                unsafe { pieces.push(next.as_mut_ptr(), HEADER_BYTES) };
                link.receive(&mut pieces, HEADER_BYTES, wait)?;
                link.send_header(&Header { kind: Kind::Done, number })?;
                link.receive(&mut pieces, 0, wait)?;
                header = Header::decode(&next)?;
            }
            Kind::Read => {
                push_blocks(&mut pieces, walk, End::Target, memory, number);
                link.send(&mut pieces)?;
                header = link.receive_header(wait)?;
            }
            Kind::End => return link.send_header(&header),
            Kind::Hello | Kind::Done => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// Appends the blocks of transfer `number` at `end`, in order.
pub fn push_blocks(pieces: &mut Pieces, walk: &Walk, end: End, memory: &Memory, number: u64) {
    for offset in walk.offsets_at(end, number) {
        // SAFETY: the walk was made for at most the bytes of `memory`, so each block lies inside it; the
        // mapping outlives the scoped threads that use the pieces.
        unsafe { pieces.push(memory.address().add(offset), walk.workload().block_bytes) };
    }
}
