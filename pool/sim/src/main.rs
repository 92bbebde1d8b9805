//! The pool on paper: the pool's own placement, index and eviction over virtual time, for clusters and loads that no
//! machine here holds. No engine runs and no byte of a value moves.
//!
//! | | |
//! |---|---|
//! | `matrix` | when loading a prefix is worth it, for links of 10, 100 and 400 Gbit/s: arithmetic alone |
//! | `cluster` | 1,000 nodes with 10^8 keys: memory a key, balance, a node lost, a node joined |
//! | `traces` | two published traces: hits of usable prefix at five capacities |
//!
//! usage: `pool-paper FOLDER [matrix] [cluster] [traces] [CONVERSATION.jsonl SYNTHETIC.jsonl]`; all parts without a
//! name. Text and plots go into FOLDER. The traces are fetched unless their files are given.

mod cluster;
mod matrix;
mod report;
mod traces;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The finaliser of splitmix64 with its step: the n-th of a row of numbers that look random.
fn random(nth: u64) -> u64 {
    let mut bits = nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The key of a chunk that a number names.
fn digest(number: u64) -> ferry_pool::Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&random(number).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    ferry_pool::Digest(bytes)
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("usage: pool-paper FOLDER [matrix] [cluster] [traces] [TRACE TRACE]")?;
    let (files, parts): (Vec<String>, Vec<String>) = words.partition(|word| word.ends_with(".jsonl"));
    if let Some(wrong) = parts.iter().find(|part| !["matrix", "cluster", "traces"].contains(&part.as_str())) {
        return Err(format!("{wrong:?} is no part: matrix, cluster, traces").into());
    }
    let has = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    if has("matrix") {
        matrix::write(&folder)?;
    }
    if has("cluster") {
        cluster::write(&folder)?;
    }
    if has("traces") {
        traces::write(&folder, &files)?;
    }
    Ok(())
}
