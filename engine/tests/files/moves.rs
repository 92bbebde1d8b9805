//! Random transfers against a model, with a file at either end or both.

use crate::common::data::{check, contents, fill, pattern, Random};
use crate::common::Pair;
use crate::support::{at_b, check_file, done, holding, moved, open_region, pair, ways};
use ferry::types::{Op, Request};
use ferry::{FileRegion, Memory};
use std::fs::File;

const BYTES: usize = 6 << 20;
/// Where the ranges begin in their files. No multiple of a page, so that not every transfer can go past the page cache.
const OFFSETS: [u64; 2] = [0, 1000];

/// One end of a transfer: memory, or a range of a file.
enum End {
    Memory(Memory),
    File(File, FileRegion, usize),
}

impl End {
    fn address(&self) -> u64 {
        match self {
            End::Memory(memory) => memory.address(),
            End::File(_, region, _) => region.address,
        }
    }

    fn check(&self, what: &str, model: &[u8]) {
        match self {
            End::Memory(memory) => check(what, &contents(memory), model),
            End::File(file, _, offset) => check_file(what, file, *offset, model),
        }
    }
}

/// Requests that touch no byte of the destination twice: sectors and odd pieces, neighbours and distant ones.
fn requests(random: &mut Random) -> Vec<(usize, usize, usize)> {
    let unit = [512, 4096, 16 << 10, 1 << 20, 777][random.below(5)];
    let mut spans = Vec::new();
    let (mut here, mut there) = (random.below(4) * unit, random.below(4) * unit);
    for _ in 0..1 + random.below(40) {
        let length = if random.below(4) == 0 { 1 + random.below(unit) } else { unit };
        if here.max(there) + length > BYTES {
            break;
        }
        spans.push((here, there, length));
        here += length + [0, 0, unit, 3][random.below(4)];
        there += length + [0, 0, unit, 5][random.below(4)];
    }
    spans
}

fn compare(pair: &Pair, what: &str, (a, b): (&End, &End), region: ferry::RegionId) {
    let mut random = Random::new(what);
    let (mut here, mut there) = (pattern(1, BYTES), pattern(2, BYTES));
    for round in 0..12 {
        let spans = requests(&mut random);
        let op = [Op::Write, Op::Read][random.below(2)];
        let list: Vec<Request> = spans
            .iter()
            .map(|(local, remote, length)| Request {
                local: a.address() + *local as u64,
                remote: b.address() + *remote as u64,
                length: *length as u64,
                remote_region: region,
            })
            .collect();
        if list.is_empty() {
            continue;
        }
        let what = format!("{what} round {round} {op:?} {} requests", list.len());
        done(&what, &moved(pair, op, &list));
        for (local, remote, length) in spans {
            match op {
                Op::Write => there[remote..remote + length].copy_from_slice(&here[local..local + length]),
                Op::Read => here[local..local + length].copy_from_slice(&there[remote..remote + length]),
            }
        }
        a.check(&what, &here);
        b.check(&what, &there);
    }
}

/// A file of a pattern, behind other bytes that no transfer may touch.
fn backed(tag: u32, offset: u64) -> File {
    let file = holding(&vec![0xee; offset as usize]);
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(tag, BYTES), offset).unwrap();
    file
}

#[test]
fn random_transfers_match_a_model_with_a_file_at_either_end() {
    for way in ways("random_transfers_match_a_model") {
        for transports in ["tcp", "local"] {
            for (offset, ends) in OFFSETS
                .into_iter()
                .flat_map(|offset| [(false, true), (true, false), (true, true)].map(|ends| (offset, ends)))
            {
                let pair = pair(way, transports);
                let what = format!("{way} {transports} from {offset}, files {ends:?}");
                let file = |tag| backed(tag, offset);
                let a = if ends.0 {
                    let file = file(1);
                    let region = pair.a.register_file(&file, offset, BYTES as u64, &open_region()).unwrap();
                    End::File(file, region, offset as usize)
                } else {
                    let memory = pair.a.alloc(BYTES, &open_region()).unwrap();
                    fill(&memory, 1);
                    End::Memory(memory)
                };
                let (b, region) = if ends.1 {
                    let file = file(2);
                    let region = at_b(&pair, &file, offset, BYTES as u64);
                    (End::File(file, region, offset as usize), region.region)
                } else {
                    let memory = pair.b.alloc(BYTES, &open_region()).unwrap();
                    crate::common::wait_for_region(&pair.a, pair.b_at_a, memory.region());
                    fill(&memory, 2);
                    let region = memory.region();
                    (End::Memory(memory), region)
                };
                compare(&pair, &what, (&a, &b), region);
                for end in [&a, &b] {
                    if let End::File(file, _, offset) = end {
                        check_file(&what, file, 0, &vec![0xee; *offset]);
                        assert_eq!(file.metadata().unwrap().len(), (offset + BYTES) as u64, "{what}");
                    }
                }
            }
        }
    }
}

/// Peers learn that the region is a file, as they learn it of a device's memory.
#[test]
fn a_peer_knows_that_a_region_is_a_file() {
    let pair = pair("auto", "tcp");
    let region = at_b(&pair, &holding(&[1; 100]), 10, 50);
    let known = pair.a.peer_regions(pair.b_at_a).unwrap();
    let known = known.iter().find(|known| known.region == region.region).unwrap();
    assert_eq!((known.address, known.length), (region.address, 50));
    assert_eq!(known.location.kind, ferry::MemoryKind::File);
    assert!(region.address >= 1 << 62, "no memory is there");
}
