//! The passive process of the raw reference: prepares its memory, serves the data connections of each
//! run with a thread each, and checks what arrived. It ends when its control pipe does.

use std::io::{self, BufRead, ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context};
use socket2::{Domain, Socket, Type};

use super::pieces::Pieces;
use super::socket::{Link, SocketOptions, Wait};
use super::wire::{Command, Header, Kind, Reply, HEADER_BYTES};
use crate::child::{read_line, write_line};
use crate::cpu::Pinned;
use crate::memory::Memory;
use crate::walk::{End, Walk};

/// The parent connects at once; one that does not is gone.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the parent passes on the command line.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    pub connections: usize,
    pub memory_bytes: usize,
    pub token: u64,
    pub socket: SocketOptions,
}

/// Serves one parent, over the given control pipe, until it closes the pipe.
pub fn serve(options: &TargetOptions, mut from: impl BufRead, mut to: impl Write) -> anyhow::Result<()> {
    let mut memory = Memory::new(options.memory_bytes)?;
    let links = accept(options, &mut to)?;
    write_line(&mut to, &Reply::Ready)?;
    while let Some(command) = read_line(&mut from)? {
        let Command::Run { workload, connections, spin_us, cpu, seed } = command else {
            bail!("a check without a run");
        };
        let workload = workload.validated()?;
        if connections > links.len() || workload.walk_bytes > memory.bytes() {
            bail!("the run exceeds what this target was started with");
        }
        let walk = Walk::new(workload);
        walk.fill(End::Target, &mut memory, seed);
        write_line(&mut to, &Reply::Ready)?;
        let wait = spin_us.map_or(Wait::Block, |us| Wait::Spin(Duration::from_micros(us)));
        let served = serve_run(&links[..connections], &walk, &memory, wait, cpu);
        let Some(Command::Check { transfers }) = read_line(&mut from)? else {
            return Ok(());
        };
        let checked = served
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(walk.check(End::Target, &memory, seed, transfers)?));
        let reply = match checked {
            Ok(()) => Reply::Right,
            Err(e) => Reply::Failed { reason: format!("{e:#}") },
        };
        write_line(&mut to, &reply)?;
    }
    Ok(())
}

fn accept(options: &TargetOptions, to: &mut impl Write) -> anyhow::Result<Vec<Link>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    options.socket.apply(socket.as_raw_fd()).context("socket options")?;
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(16)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    write_line(to, &Reply::Listening { port: listener.local_addr()?.port() })?;
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
                wait_readable(&listener, deadline)?;
            }
            Err(e) => return Err(e).context("waiting for the initiator's connections"),
        }
    }
    Ok(links)
}

fn wait_readable(listener: &TcpListener, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, ours, for the length of the call.
    match unsafe { libc::poll(&mut poll, 1, left.as_millis() as i32 + 1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn serve_run(links: &[Link], walk: &Walk, memory: &Memory, wait: Wait, cpu: Option<usize>) -> io::Result<()> {
    thread::scope(|scope| {
        let serve = |link| move || serve_link(link, walk, memory, wait, cpu);
        let workers: Vec<_> = links.iter().map(|link| scope.spawn(serve(link))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a server does not panic"))
    })
}

/// Answers one connection until END. The next header is received in the same call as the end of a
/// payload: with pipelined transfers it is usually there already.
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

/// The blocks of transfer `number` at `end`, in order.
pub fn push_blocks(pieces: &mut Pieces, walk: &Walk, end: End, memory: &Memory, number: u64) {
    for offset in walk.offsets_at(end, number) {
        // SAFETY: the walk was made for at most the bytes of `memory`, so each block lies inside it; the
        // mapping outlives the scoped threads that use the pieces.
        unsafe { pieces.push(memory.address().add(offset), walk.workload().block_bytes) };
    }
}
