//! A page of ferry: register, connect, write, notify, read, wait on the eventfd. In two terminals:
//!
//! ```text
//! cargo run --bin transfer -- serve             prints an address
//! cargo run --bin transfer -- 127.0.0.1:PORT    does the work
//! ```

use ferry::notify::{Event, EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, Request};
use ferry::{Config, Deadline, Engine, RegionOptions, TransferOptions};
use rustix::event::{poll, PollFd, PollFlags};
use std::error::Error;
use std::time::Duration;

const BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("serve") => serve(),
        Some(address) => work(address),
        None => Err("usage: transfer serve | transfer HOST:PORT".into()),
    }
}

/// The target registers memory and listens. It takes part in no transfer: its engine's threads do.
fn serve() -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(Config::new()?)?;
    let inbox = engine.alloc(BYTES, &RegionOptions { name: "inbox".into(), ..Default::default() })?;
    let news = engine.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, 16)?;
    println!("{}", engine.address());

    loop {
        match next(&news)?.body {
            EventBody::Notification { bytes, .. } => {
                // The data of a notification's transfer is in place by now.
                let mut word = [0; 5];
                inbox.read(0, &mut word);
                println!("{}: {}", String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&word));
            }
            EventBody::PeerLost { .. } => break,
            _ => {}
        }
    }
    engine.close(Some(Duration::from_secs(5)))?;
    Ok(())
}

fn work(address: &str) -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(Config::new()?)?;
    let memory = engine.alloc(2 * BYTES, &RegionOptions::default())?; // or `register` memory of yours
    memory.write(0, b"hello");

    let peer = engine.connect(address, Some(Duration::from_secs(5)))?;
    let regions = engine.peer_regions(peer)?;
    let inbox = regions.iter().find(|region| region.name == "inbox").ok_or("the peer has no inbox")?;

    // WRITE 1 MiB. When this returns, the bytes are in the peer's memory; then "written" reaches its queue.
    let there = Request {
        local: memory.address(),
        remote: inbox.address,
        length: BYTES as u64,
        remote_region: inbox.region,
    };
    let result =
        engine.write(peer, &[there], &TransferOptions { notify: Some(b"written"), ..Default::default() })?;
    println!("wrote {} bytes over {}", result.bytes_confirmed, result.transport.name());

    // READ the bytes back into the second half without blocking: the queue's eventfd is readable at the end.
    let done = engine.queue(WHAT_TRANSFERS, 16)?;
    let back = Request { local: memory.address() + BYTES as u64, ..there };
    let options = TransferOptions { queue: Some(done.clone()), ..Default::default() };
    let transfer = engine.submit(peer, Op::Read, &[back], &options)?;
    next(&done)?; // poll(2) on the eventfd, then drain
    let result = transfer.wait_done()?;
    let mut word = [0; 5];
    memory.read(BYTES, &mut word);
    assert_eq!(&word, b"hello");
    println!("read {} bytes back, first {:?}", result.bytes_confirmed, String::from_utf8_lossy(&word));

    engine.notify(peer, b"goodbye", Deadline::Default)?;
    engine.close(Some(Duration::from_secs(5)))?;
    Ok(())
}

/// Waits for the next event of a queue. The eventfd is readable when `drain` has events; any event loop can
/// watch it.
fn next(queue: &Queue) -> Result<Event, Box<dyn Error>> {
    let mut events = Vec::new();
    while queue.drain(&mut events, 1) == 0 {
        poll(&mut [PollFd::new(queue, PollFlags::IN)], None)?;
    }
    events.pop().ok_or_else(|| "drain said there was one".into())
}
