//! The messages of two caches: little-endian, in the notifications of channel 1. `messages` cuts a long one.
//!
//! | kind | message | from | fields behind the kind |
//! |---|---|---|---|
//! | 1 | HELLO | both | version u16, incarnation u64, regions (address u64, bytes u64, handle u64), layout |
//! | 2 | TAKE | consumer | key, incarnation of the producer, group, rank, mode, skip, tokens, wanted groups, blocks (push) |
//! | 3 | UPDATE | producer | key, epoch, ready tokens by layer as runs, blocks that were added (pull) |
//! | 4 | DATA | producer | key, epoch, layers, tokens: the WRITE that moved them is DONE |
//! | 5 | FINAL | consumer | key, epoch, status, sentence: the take has ended. OK: it has everything, from all ranks |
//! | 6 | CANCEL | consumer | key, status, sentence: the producer shall write nothing any more |
//! | 7 | ENDED | producer | key, status, sentence: it writes nothing any more, and grants nothing any more |
//! | 8 | PING | both | number u64 |
//! | 9 | PONG | both | number u64 of the PING that it answers |
//! | 10 | RETRACT | producer | key, epoch that begins, token: what it told from that token on holds no more |
//! | 11 | RETRACTED | consumer | key, epoch: it has dropped them, and reads none of them any more |
//! | 12 | GOODBYE | both | the cache is closed: all its handoffs have ended, and nothing of them is under way |
//! | 13 | READ | consumer | key, epoch: it has all of this rank, and reads nothing more unless tokens are taken back |
//!
//! A key is the handoff's id (16 bytes) and the number of the take. Lists of blocks are runs of consecutive ids; those
//! of an UPDATE begin at the token that their `first_token` says. The lists of an epoch begin empty: RETRACT ends all
//! that was granted before.

use ferry::status::{Error, Result};
use ferry::Status;

use crate::layout::Layout;
use crate::messages::{malformed, Reader, Writer};

use super::id::HandoffId;
use super::limits::BLOCKS_MAX;
use super::progress::Work;
use super::types::BlockList;

pub const VERSION: u16 = 5;

/// A take: the handoff, and the number that the consumer drew for the take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub id: HandoffId,
    pub take: u64,
}

/// A range of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    pub address: u64,
    pub bytes: u64,
    /// The engine's handle of the region.
    pub region: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub key: Key,
    pub incarnation: u64,
    pub group: u64,
    pub rank: u32,
    pub is_push: bool,
    pub skip: u64,
    pub tokens: u64,
    /// The consumer's groups of which it wants blocks, a bit for each.
    pub wanted: u64,
    /// The consumer's, for a push.
    pub blocks: Vec<BlockList>,
}

impl Take {
    /// Whether the consumer wants blocks of this group of its own.
    pub fn wants(&self, group: u32) -> bool {
        self.wanted.checked_shr(group).is_some_and(|bits| bits & 1 == 1)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Hello { incarnation: u64, regions: Vec<MemoryRange>, layout: Box<Layout> },
    Take(Take),
    Update { key: Key, epoch: u64, ready: Vec<u64>, added: Vec<BlockList> },
    Data { key: Key, epoch: u64, work: Work },
    Final { key: Key, epoch: u64, status: Status, why: String },
    Cancel { key: Key, status: Status, why: String },
    Ended { key: Key, status: Status, why: String },
    Ping(u64),
    Pong(u64),
    Retract { key: Key, epoch: u64, from: u64 },
    Retracted { key: Key, epoch: u64 },
    Read { key: Key, epoch: u64 },
    Goodbye,
}

/// Regions of one cache.
const REGIONS_MAX: usize = 1_024;
const LAYERS_MAX: usize = 1_024;
const GROUPS_MAX: usize = 64;

impl Message {
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Writer::default();
        match self {
            Message::Hello { incarnation, regions, layout } => {
                out.byte(1).u16(VERSION).u64(*incarnation).u32(regions.len() as u32);
                for range in regions {
                    out.u64(range.address).u64(range.bytes).u64(range.region);
                }
                out.0.extend(layout.export()?);
            }
            Message::Take(take) => {
                out.byte(2).key(take.key).u64(take.incarnation).u64(take.group).u32(take.rank);
                out.byte(take.is_push.into())
                    .u64(take.skip)
                    .u64(take.tokens)
                    .u64(take.wanted)
                    .blocks(&take.blocks);
            }
            Message::Update { key, epoch, ready, added } => {
                out.byte(3).key(*key).u64(*epoch).ready(ready).blocks(added);
            }
            Message::Data { key, epoch, work } => {
                out.byte(4).key(*key).u64(*epoch).u32(work.layers.start).u32(work.layers.end);
                out.u64(work.tokens.start).u64(work.tokens.end);
            }
            Message::Final { key, epoch, status, why } => {
                out.byte(5).key(*key).u64(*epoch).u32(*status as i32 as u32).text(why);
            }
            Message::Cancel { key, status, why } => {
                out.byte(6).key(*key).u32(*status as i32 as u32).text(why);
            }
            Message::Ended { key, status, why } => {
                out.byte(7).key(*key).u32(*status as i32 as u32).text(why);
            }
            Message::Ping(number) => {
                out.byte(8).u64(*number);
            }
            Message::Pong(number) => {
                out.byte(9).u64(*number);
            }
            Message::Retract { key, epoch, from } => {
                out.byte(10).key(*key).u64(*epoch).u64(*from);
            }
            Message::Retracted { key, epoch } => {
                out.byte(11).key(*key).u64(*epoch);
            }
            Message::Goodbye => {
                out.byte(12);
            }
            Message::Read { key, epoch } => {
                out.byte(13).key(*key).u64(*epoch);
            }
        }
        Ok(out.0)
    }

    /// VERSION for a HELLO of another version, INVALID for anything else that is no message.
    pub fn decode(bytes: &[u8]) -> Result<Message> {
        let mut input = Reader(bytes);
        let message = match input.byte()? {
            1 => {
                let version = input.u16()?;
                if version != VERSION {
                    let text =
                        format!("the peer's cache speaks version {version} of handoffs, this one {VERSION}");
                    return Err(Error::new(Status::Version, text));
                }
                let incarnation = input.u64()?;
                let count = input.count(REGIONS_MAX, 24)?;
                let range = |input: &mut Reader| {
                    Ok(MemoryRange { address: input.u64()?, bytes: input.u64()?, region: input.u64()? })
                };
                let regions = (0..count).map(|_| range(&mut input)).collect::<Result<_>>()?;
                let layout = Box::new(Layout::import_of_peer(std::mem::take(&mut input.0))?);
                Message::Hello { incarnation, regions, layout }
            }
            2 => Message::Take(Take {
                key: input.key()?,
                incarnation: input.u64()?,
                group: input.u64()?,
                rank: input.u32()?,
                is_push: input.flag()?,
                skip: input.u64()?,
                tokens: input.u64()?,
                wanted: input.u64()?,
                blocks: input.blocks()?,
            }),
            3 => Message::Update {
                key: input.key()?,
                epoch: input.u64()?,
                ready: input.ready()?,
                added: input.blocks()?,
            },
            4 => Message::Data {
                key: input.key()?,
                epoch: input.u64()?,
                work: Work { layers: input.u32()?..input.u32()?, tokens: input.u64()?..input.u64()? },
            },
            5 => Message::Final {
                key: input.key()?,
                epoch: input.u64()?,
                status: input.status()?,
                why: input.text()?,
            },
            6 => Message::Cancel { key: input.key()?, status: input.status()?, why: input.text()? },
            7 => Message::Ended { key: input.key()?, status: input.status()?, why: input.text()? },
            8 => Message::Ping(input.u64()?),
            9 => Message::Pong(input.u64()?),
            10 => Message::Retract { key: input.key()?, epoch: input.u64()?, from: input.u64()? },
            11 => Message::Retracted { key: input.key()?, epoch: input.u64()? },
            12 => Message::Goodbye,
            13 => Message::Read { key: input.key()?, epoch: input.u64()? },
            kind => return Err(malformed(&format!("kind {kind} is unknown"))),
        };
        input.end()?;
        Ok(message)
    }
}

impl Writer {
    fn key(&mut self, key: Key) -> &mut Writer {
        self.0.extend(key.id.bytes());
        self.u64(key.take)
    }

    /// Tokens by layer, as runs of equal numbers.
    fn ready(&mut self, ready: &[u64]) -> &mut Writer {
        let runs: Vec<&[u64]> = ready.chunk_by(|a, b| a == b).collect();
        self.u32(runs.len() as u32);
        for run in runs {
            self.u32(run.len() as u32).u64(run.first().copied().unwrap_or(0));
        }
        self
    }

    fn blocks(&mut self, lists: &[BlockList]) -> &mut Writer {
        self.u32(lists.len() as u32);
        for list in lists {
            let runs: Vec<&[u32]> = list.ids.chunk_by(|a, b| a.checked_add(1) == Some(*b)).collect();
            self.u64(list.first_token).u32(runs.len() as u32);
            for run in runs {
                self.u32(run.first().copied().unwrap_or(0)).u32(run.len() as u32);
            }
        }
        self
    }
}

impl Reader<'_> {
    fn key(&mut self) -> Result<Key> {
        Ok(Key { id: HandoffId::from_bytes(self.take()?), take: self.u64()? })
    }

    fn status(&mut self) -> Result<Status> {
        let number = self.u32()? as i32;
        Status::from_number(number).ok_or_else(|| malformed(&format!("status {number} is unknown")))
    }

    fn ready(&mut self) -> Result<Vec<u64>> {
        let mut ready = Vec::new();
        for _ in 0..self.count(LAYERS_MAX, 12)? {
            let (count, tokens) = (self.u32()? as usize, self.u64()?);
            if count > LAYERS_MAX - ready.len() {
                return Err(malformed("it has more layers than the limit"));
            }
            ready.resize(ready.len() + count, tokens);
        }
        Ok(ready)
    }

    fn blocks(&mut self) -> Result<Vec<BlockList>> {
        let (mut lists, mut total) = (Vec::new(), 0);
        for _ in 0..self.count(GROUPS_MAX, 12)? {
            let mut list = BlockList { first_token: self.u64()?, ids: Vec::new() };
            for _ in 0..self.count(BLOCKS_MAX, 8)? {
                let (first, count) = (self.u32()?, self.u32()?);
                total += count as usize;
                if total > BLOCKS_MAX || first.checked_add(count).is_none() {
                    return Err(malformed("it has more blocks than the limit"));
                }
                let room = list.ids.try_reserve(count as usize);
                room.map_err(|_| Error::new(Status::NoMemory, "a peer's list of blocks"))?;
                list.ids.extend(first..first + count);
            }
            lists.push(list);
        }
        Ok(lists)
    }
}
