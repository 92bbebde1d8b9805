//! Each of ferry's languages has this small program, and any two can talk:
//!
//! ```text
//! exchange serve               prints "ADDRESS host:port", lets a peer read and write its memory, checks it
//! exchange connect HOST:PORT   reads the server's memory, checks it, and writes the answer into it
//! ```

use ferry::notify::{EventBody, WHAT_NOTIFICATIONS};
use ferry::types::Request;
use ferry::{Config, Engine, RegionOptions, TransferOptions};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

const BYTES: usize = 1 << 20;
const NAME: &str = "exchange";
const PATIENCE: Duration = Duration::from_secs(30);

/// The bytes of the server at the start, and the bytes that the client writes.
fn first(place: usize) -> u8 {
    (place * 7 + 3) as u8
}

fn second(place: usize) -> u8 {
    (place * 11 + 5) as u8
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve(),
        ["connect", address] => connect(address),
        _ => Err("usage: exchange serve | exchange connect HOST:PORT".into()),
    };
    match outcome {
        Ok(()) => {
            println!("OK");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("exchange: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The server. It takes no part in the transfers: its engine's threads do.
fn serve() -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(Config::new()?)?;
    let memory = engine.alloc(BYTES, &RegionOptions { name: NAME.into(), ..Default::default() })?;
    memory.write(0, &pattern(first));
    let queue = engine.queue(WHAT_NOTIFICATIONS, 1)?;
    println!("ADDRESS {}", engine.address());
    match engine.wait_event(&queue, Some(PATIENCE))?.body {
        EventBody::Notification { bytes, .. } if *bytes == *b"done" => {}
        other => return Err(format!("the event is {other:?}").into()),
    }
    // The notification comes after its data: every byte is in place.
    let mut here = vec![0; BYTES];
    memory.read(0, &mut here);
    check(&here, second)?;
    engine.close(Some(PATIENCE))?;
    Ok(())
}

fn connect(address: &str) -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(Config::new()?)?;
    let memory = engine.alloc(BYTES, &RegionOptions::default())?;
    let peer = engine.connect(address, Some(PATIENCE))?;
    let there = engine.peer_region(peer, NAME)?;
    if there.length != BYTES as u64 {
        return Err(format!("the region is of {} bytes, not {BYTES}", there.length).into());
    }
    let all = [Request {
        local: memory.address(),
        remote: there.address,
        length: BYTES as u64,
        remote_region: there.region,
    }];
    engine.read(peer, &all, &TransferOptions::default())?;
    let mut here = vec![0; BYTES];
    memory.read(0, &mut here);
    check(&here, first)?;
    memory.write(0, &pattern(second));
    engine.write(peer, &all, &TransferOptions { notify: Some(b"done"), ..Default::default() })?;
    engine.close(Some(PATIENCE))?;
    Ok(())
}

fn pattern(byte: fn(usize) -> u8) -> Vec<u8> {
    (0..BYTES).map(byte).collect()
}

fn check(bytes: &[u8], byte: fn(usize) -> u8) -> Result<(), String> {
    match bytes.iter().enumerate().find(|&(place, &got)| got != byte(place)) {
        Some((place, got)) => Err(format!("byte {place} is {got}, not {}", byte(place))),
        None => Ok(()),
    }
}
