//! Lists as long as a peer says: each of them can fail for want of memory, and then `lower` says so.

use std::alloc::{GlobalAlloc, Layout as Sizes, System};
use std::cell::Cell;
use std::collections::BTreeSet;

use ferry::Status;
use ferry_kv::layout::{Arrangement, GroupKind, Layout};
use ferry_kv::plan::{BlockSlice, GroupBlocks, Plan};

use crate::named::{layers, layout};

/// Allocations from this size on are counted; smaller ones do not grow with what a peer says.
const LARGE: usize = 4_096;

thread_local! {
    /// How many large allocations of this thread succeed before one fails.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn may_allocate(bytes: usize) -> bool {
    let left = LEFT.get();
    if bytes >= LARGE && left != usize::MAX {
        // Only one fails: what follows is the error's way out.
        LEFT.set(left.checked_sub(1).unwrap_or(usize::MAX));
        return left > 0;
    }
    true
}

struct Scarce;

// SAFETY: what is not refused is the system's.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, sizes: Sizes) -> *mut u8 {
        if !may_allocate(sizes.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(sizes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, sizes: Sizes) {
        // SAFETY: the caller's promise; all that is allocated is the system's.
        unsafe { System.dealloc(pointer, sizes) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, sizes: Sizes, bytes: usize) -> *mut u8 {
        if !may_allocate(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(pointer, sizes, bytes) }
    }
}

#[global_allocator]
static SCARCE: Scarce = Scarce;

/// Lowers with each of its large allocations failing in turn. Returns what there was no memory for, without the numbers.
fn lacking(
    source: &Layout,
    target: &Layout,
    ids: impl Iterator<Item = u32> + Clone,
    tokens: u64,
) -> BTreeSet<String> {
    let exchange = Plan::between(source, target).unwrap().exchange(0, 0).unwrap();
    let large = |layout: &Layout| {
        let mut layout = layout.clone();
        layout.layers.iter_mut().for_each(|layer| layer.memory.as_mut().unwrap().blocks = 1 << 30);
        layout
    };
    let (source, target, ids) = (large(source), large(target), ids.collect::<Vec<u32>>());
    let list = BlockSlice { ids: &ids, first_token: 0 };
    let blocks = [GroupBlocks { source: list, target: list }];
    let mut found = BTreeSet::new();
    for succeed in 0..1_000 {
        LEFT.set(succeed);
        let lowered = exchange.lower(&source, &target, &blocks, 0..tokens, 0..u32::MAX);
        LEFT.set(usize::MAX);
        let Err(error) = lowered else { return found };
        assert_eq!(error.status, Status::NoMemory, "{error}");
        let (count, what) = error.message.strip_prefix("no memory for ").unwrap().split_once(' ').unwrap();
        assert!(count.parse::<usize>().unwrap() > 0);
        found.insert(what.to_string());
    }
    panic!("it never succeeds")
}

fn plain(block_tokens: u32, count: u32) -> Layout {
    layout(1, 1, block_tokens, Arrangement::BlockPairTokenHead, &layers(count, 4))
}

const PAIRS: &str = "pairs of blocks to move";
const LAYERS: &str = "layers to move";
const OF_A_MOVE: &str = "layers of a move";
const MOVES: &str = "moves of blocks";
const KINDS: &str = "kinds of runs of tokens";

#[test]
fn many_blocks_of_many_layers() {
    let layout = plain(16, 600);
    let dense = lacking(&layout, &layout, 0..50_000, 800_000);
    let words = "words, to check the target's list of group 0".to_string();
    assert_eq!(dense, [LAYERS, OF_A_MOVE, PAIRS, &words].map(String::from).into());
    let layout = plain(16, 1);
    let sparse = lacking(&layout, &layout, (0..50_000).map(|at| at * 1_000), 16);
    assert_eq!(sparse, ["block ids, to check the target's list of group 0".to_string()].into());
}

#[test]
fn many_blocks_of_a_state() {
    let mut layout = plain(1, 1);
    layout.groups[0].kind = GroupKind::State;
    let words = "words, to check the target's list of group 0".to_string();
    assert_eq!(lacking(&layout, &layout, 0..50_000, 1), [PAIRS.to_string(), words].into());
}

#[test]
fn many_kinds_of_runs() {
    // Every other token is the source's rank's, so each run lies elsewhere in its blocks.
    let (mut source, target) = (plain(4_096, 1), plain(4_096, 1));
    (source.shard.pcp_size, source.shard.turn_tokens) = (2, 1);
    assert_eq!(lacking(&source, &target, 0..2, 8_192), [KINDS, MOVES].map(String::from).into());
}

#[test]
fn many_geometries() {
    let mut layout = plain(16, 1);
    layout.layers = (0..100)
        .map(|number| {
            let mut layer = layout.layers[0].clone();
            (layer.name, layer.elements) = (format!("layers.{number}"), 1 + number);
            layer.memory.as_mut().unwrap().address += u64::from(number) << 48;
            layer
        })
        .collect();
    assert_eq!(lacking(&layout, &layout, 0..1, 16), [LAYERS, MOVES].map(String::from).into());
}
