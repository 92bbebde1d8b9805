//! A prefill worker hands a KV cache to a decode worker, layer by layer. Each of ferry's languages has this program;
//! any two can talk.
//!
//! ```text
//! handoff decode                        prints "ADDRESS host:port", and OK when it has a whole cache
//! handoff prefill HOST:PORT [DIES_IN]   pushes a cache; with DIES_IN it kills itself while that layer moves
//! ```

use ferry::blocks::{BlockIds, EqualLayers};
use ferry::notify::{EventBody, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_PEER_STATES};
use ferry::types::{Op, PeerId};
use ferry::{Config, Deadline, Engine, Memory, RegionOptions, Transfer, TransferOptions};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LAYERS: usize = 64;
const BLOCKS: usize = 16;
const BLOCK_BYTES: usize = 16384;
const LAYER_BYTES: usize = BLOCKS * BLOCK_BYTES;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn content(layer: usize) -> Vec<u8> {
    (0..LAYER_BYTES).map(|i| (layer * 37 + i * 11) as u8).collect()
}

fn check(cache: &Memory, layer: usize, whose: &str) -> Outcome {
    let found = cache.view(layer * LAYER_BYTES..(layer + 1) * LAYER_BYTES)?.to_vec()?;
    if found != content(layer) {
        return Err(format!("layer {layer} is wrong in the {whose} cache").into());
    }
    Ok(())
}

fn allocate(engine: &Engine) -> ferry::status::Result<Memory> {
    engine.alloc(LAYERS * LAYER_BYTES, &RegionOptions { name: "kv".into(), ..Default::default() })
}

/// Returns the places of the layers, here and in the peer's cache.
fn both(engine: &Engine, peer: PeerId, cache: &Memory) -> ferry::status::Result<EqualLayers> {
    let remote = engine.peer_region(peer, "kv")?;
    let (bytes, block_bytes) = (LAYER_BYTES as u64, BLOCK_BYTES as u64);
    Ok(EqualLayers::dense(cache.address(), remote.address, remote.region, bytes, block_bytes))
}

fn decode() -> Outcome {
    let engine = Engine::open(Config::new()?)?;
    let cache = allocate(&engine)?;
    let queue = engine.queue(WHAT_NOTIFICATIONS | WHAT_PEERS | WHAT_PEER_STATES, 8)?;
    println!("ADDRESS {}", engine.address());
    let (mut prefill, mut layers) = (PeerId::NONE, 0);
    loop {
        let event = engine.wait_event(&queue, PATIENCE)?;
        match event.body {
            EventBody::PeerUp { .. } => (prefill, layers) = (event.peer, 0),
            EventBody::Notification { bytes, .. } if *bytes == *b"pull" => break,
            EventBody::Notification { bytes, .. } => {
                // Every byte of the layer is here: the notification comes behind the data.
                let text = std::str::from_utf8(&bytes)?;
                check(&cache, text.trim_start_matches("layer ").parse()?, "pushed")?;
                layers += 1;
            }
            EventBody::PeerDown { why, .. } | EventBody::PeerLost { why, .. } if event.peer == prefill => {
                // After the fence nothing of the dead worker lands in the cache: the next one may have it.
                engine.fence(prefill, PATIENCE)?;
                println!("LOST after {layers} layers: {why}");
                prefill = PeerId::NONE;
            }
            _ => {}
        }
    }
    if layers != LAYERS {
        return Err(format!("{layers} layers of {LAYERS} have come").into());
    }
    let copy = engine.alloc(LAYERS * LAYER_BYTES, &RegionOptions::default())?;
    let all = both(&engine, prefill, &copy)?.layers(0..LAYERS)?;
    let blocks = BlockIds::First(BLOCKS);
    engine
        .submit_blocks(prefill, Op::Read, &all, blocks, blocks, &TransferOptions::default())?
        .wait_done()?;
    (0..LAYERS).try_for_each(|layer| check(&copy, layer, "pulled"))?;
    Ok(engine.notify(prefill, b"done", Deadline::Default)?)
}

fn prefill(address: &str, dies_in: usize) -> Outcome {
    let engine = Engine::open(Config::new()?)?;
    let cache = allocate(&engine)?;
    let queue = engine.queue(WHAT_NOTIFICATIONS, 8)?;
    let peer = engine.connect(address, PATIENCE)?;
    let (both, blocks) = (both(&engine, peer, &cache)?, BlockIds::First(BLOCKS));
    let mut pushes = Vec::new();
    for layer in 0..LAYERS {
        cache.view(layer * LAYER_BYTES..(layer + 1) * LAYER_BYTES)?.write(&content(layer))?; // the model's work
        let told = format!("layer {layer}");
        let options = TransferOptions { notify: Some(told.as_bytes()), ..Default::default() };
        let one = both.layers(layer..layer + 1)?;
        pushes.push(engine.submit_blocks(peer, Op::Write, &one, blocks, blocks, &options)?);
        if layer == dies_in {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        }
    }
    Transfer::wait_all(&pushes, None)?;
    engine.notify(peer, b"pull", Deadline::Default)?;
    match engine.wait_event(&queue, PATIENCE)?.body {
        EventBody::Notification { bytes, .. } if *bytes == *b"done" => Ok(()),
        other => Err(format!("the decoder is not done: {other:?}").into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["decode"] => decode(),
        ["prefill", address] => prefill(address, LAYERS),
        ["prefill", address, dies_in] => {
            dies_in.parse().map_err(Into::into).and_then(|at| prefill(address, at))
        }
        _ => Err("usage: handoff decode | prefill HOST:PORT [DIES_IN]".into()),
    };
    if let Err(error) = outcome {
        eprintln!("handoff: {error}");
        return ExitCode::FAILURE;
    }
    println!("OK");
    ExitCode::SUCCESS
}
