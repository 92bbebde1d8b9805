//! The work of both workers: open an engine with the shared secret, talk to the other worker, and move
//! layers.

use super::cache::{region_name, Cache, Paging};
use super::geometry::{block_table, LLAMA_3_1_8B};
use super::message::Message;
use super::report::Moved;
use super::story;
use ferry::blocks::BlockIds;
use ferry::notify::{EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, PeerId};
use ferry::{Config, Engine, RemoteRegionInfo, Transfer, TransferOptions};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Layers in flight: one moves while the next is submitted.
const LAYERS_IN_FLIGHT: usize = 2;
/// Longer than any step of the demonstration; a longer wait means that the other worker is lost.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// The parent's orders for both workers.
#[derive(Clone, Debug)]
pub struct Orders {
    pub secret_file: String,
    pub tokens: usize,
    pub passes: u8,
    /// Exchange two blocks on purpose; the check must find the exchange.
    pub corrupt: bool,
}

/// A worker's engine with its cache and queues, before it knows the other worker.
pub struct Bench {
    pub engine: Engine,
    pub cache: Cache,
    /// Notifications, and peer events.
    inbox: Arc<Queue>,
    done: Arc<Queue>,
}

/// A worker that knows the other worker.
pub struct Worker {
    pub bench: Bench,
    pub peer: PeerId,
    /// The other worker's layers, in order.
    layers: Vec<RemoteRegionInfo>,
    /// The ids of the other worker's blocks.
    table: Vec<i32>,
}

impl Bench {
    /// `seed` makes the block tables of the two workers differ.
    pub fn open(orders: &Orders, seed: u64) -> Outcome<Bench> {
        let mut config = Config::new()?;
        config.set("secret_file", &orders.secret_file)?;
        let engine = Engine::open(config)?;
        let used = LLAMA_3_1_8B.blocks(orders.tokens);
        // An eighth of the pool is not the sequence's; the check proves that it stays untouched.
        let pool_blocks = used + used.div_ceil(8);
        let paging = Paging { pool_blocks, table: block_table(pool_blocks, used, seed) };
        Ok(Bench {
            cache: Cache::new(&engine, LLAMA_3_1_8B, paging)?,
            inbox: engine.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, 256)?,
            done: engine.queue(WHAT_TRANSFERS, LAYERS_IN_FLIGHT)?,
            engine,
        })
    }

    /// Waits for the other worker, unless `peer` names it, and learns its block table.
    pub fn meet(self, peer: Option<PeerId>) -> Outcome<Worker> {
        if let Some(peer) = peer {
            self.tell(peer, &Message::Table(self.cache.table().to_vec()))?;
        }
        let (from, message) = self.hear()?;
        let Message::Table(table) = message else {
            return Err(format!("no table first: {message:?}").into());
        };
        if peer.is_none() {
            self.tell(from, &Message::Table(self.cache.table().to_vec()))?;
        }
        let regions = self.engine.peer_regions(from)?;
        let find = |layer| {
            let name = region_name(layer);
            let region = regions.iter().find(|region| region.name == name).cloned();
            region.ok_or(format!("the peer has no region {name}"))
        };
        let layers = (0..self.cache.layers()).map(find).collect::<Result<Vec<_>, _>>()?;
        if table.len() != self.cache.table().len() {
            return Err("the workers do not agree on the length of the sequence".into());
        }
        Ok(Worker { bench: self, peer: from, layers, table })
    }

    fn tell(&self, peer: PeerId, message: &Message) -> Outcome {
        Ok(self.engine.notify(peer, &message.encode(), ferry::Deadline::Default)?)
    }

    /// Waits for the next notification; returns it and its sender.
    fn hear(&self) -> Outcome<(PeerId, Message)> {
        loop {
            let event = self.engine.wait_event(&self.inbox, PATIENCE)?;
            match event.body {
                EventBody::Notification { bytes, .. } => return Ok((event.peer, Message::decode(&bytes)?)),
                EventBody::PeerLost { status, why, .. } => {
                    return Err(format!("the other worker is lost: {status}: {why}").into())
                }
                _ => {}
            }
        }
    }
}

impl Worker {
    pub fn tell(&self, message: &Message) -> Outcome {
        self.bench.tell(self.peer, message)
    }

    /// Waits for exactly this message.
    pub fn expect(&self, expected: &Message) -> Outcome {
        match self.bench.hear()?.1 {
            message if message == *expected => Ok(()),
            message => Err(format!("{message:?} came instead of {expected:?}").into()),
        }
    }

    /// Leaves; the other worker gets an event.
    pub fn leave(&self) -> Outcome {
        Ok(self.bench.engine.close(Some(Duration::from_secs(10)))?)
    }

    /// Waits until the other worker has left, so that none of its work is cut off, and leaves too.
    pub fn leave_second(&self) -> Outcome {
        let Bench { engine, inbox, .. } = &self.bench;
        while !matches!(engine.wait_event(inbox, PATIENCE)?.body, EventBody::PeerLost { .. }) {}
        self.leave()
    }

    /// Moves every layer of the sequence, one transfer per layer. A WRITE carries a notification for each
    /// layer, so that the other side can use the layer at once.
    pub fn move_layers(&self, op: Op, pass: u8, corrupt: bool) -> Outcome<Moved> {
        let mut local = self.bench.cache.table().to_vec();
        if corrupt {
            let last = local.len() - 1;
            local.swap(0, last);
        }
        let mut moved = Moved::default();
        let mut flying: Vec<(usize, Transfer)> = Vec::new();
        let mut layers = 0..self.bench.cache.layers();
        let started = Instant::now();
        loop {
            while flying.len() < LAYERS_IN_FLIGHT {
                let Some(layer) = layers.next() else { break };
                flying.push((layer, self.submit(op, pass, layer, &local)?));
            }
            if flying.is_empty() {
                break;
            }
            let event = self.bench.engine.wait_event(&self.bench.done, PATIENCE)?;
            let EventBody::Transfer { user_data, .. } = event.body else { continue };
            let at =
                flying.iter().position(|(layer, _)| *layer as u64 == user_data).ok_or("unknown transfer")?;
            // The transfer is final, so this does not wait; an error if it did not end as DONE.
            let result = flying.swap_remove(at).1.wait_done()?;
            story::tell(&story::Line::Moved(result.bytes_confirmed));
            moved.add(&result);
        }
        moved.elapsed += started.elapsed();
        Ok(moved)
    }

    fn submit(&self, op: Op, pass: u8, layer: usize, local: &[i32]) -> Outcome<Transfer> {
        let arrived = Message::Layer { pass, layer: layer as u8 }.encode();
        let options = TransferOptions {
            notify: (op == Op::Write).then_some(&arrived[..]),
            queue: Some(self.bench.done.clone()),
            user_data: layer as u64,
            ..TransferOptions::default()
        };
        let sides = self.bench.cache.both_sides(layer, &self.layers[layer]);
        let (local, remote) = (BlockIds::I32(local), BlockIds::I32(&self.table));
        Ok(self.bench.engine.submit_blocks(self.peer, op, &sides, local, remote, &options)?)
    }

    /// Checks every word of the cache.
    pub fn check(&self, pass: u8) -> Outcome {
        let cache = &self.bench.cache;
        let mut wrong = super::pattern::Mismatches::default();
        (0..cache.layers()).for_each(|layer| wrong.add(cache.check(pass, layer)));
        wrong.explain().map_or(Ok(()), |why| Err(why.into()))
    }
}
