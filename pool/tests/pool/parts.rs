//! Engines that are sharded differently share one pool: an engine of two ranks puts, an engine of one rank gets.

use ferry::Memory;
use ferry_kv::layout::Sizes;
use ferry_kv::plan::BlockSlice;
use ferry_kv::{Arrangement, Group, Layer, LayerMemory, Layout, ModelKey, Shard, Strides};
use ferry_pool::{parts, Chain, Cut, Identity, Keyspace, Outcome, Parts, PutOptions, Value};

use super::{cluster, Node, PATIENCE};

const LAYERS: usize = 3;
const HEADS: u32 = 4;
const ELEMENTS: u32 = 16;
const BLOCKS: u64 = 40;
const CHUNKS: usize = 2;
const CUT: Cut =
    Cut { chunk_tokens: 64, head_parts: 2, layer_parts: 1, arrangement: Arrangement::BlockPairTokenHead };

/// One rank: its cache, and the blocks of the prompt.
struct Rank<'a> {
    node: &'a Node,
    memory: Memory,
    layout: Layout,
    ids: Vec<u32>,
}

impl<'a> Rank<'a> {
    fn new(
        node: &'a Node,
        (tp_rank, tp_size): (u32, u32),
        block_tokens: u32,
        order: Arrangement,
    ) -> Rank<'a> {
        let heads = HEADS / tp_size;
        let sizes = Sizes {
            blocks: BLOCKS,
            pairs: 2,
            heads,
            tokens: block_tokens,
            elements: ELEMENTS,
            element_bytes: 2,
        };
        let bytes = BLOCKS * u64::from(2 * heads * block_tokens * ELEMENTS * 2);
        let memory = node.buffer(LAYERS * bytes as usize);
        let layer = |at: usize| {
            let address = memory.address() + at as u64 * bytes;
            let strides = Strides::of(order, sizes);
            Layer {
                name: format!("layers.{at}"),
                group: 0,
                stage: 0,
                heads: HEADS,
                pairs: 2,
                elements: ELEMENTS,
                element_bytes: 2,
                memory: Some(LayerMemory { address, blocks: BLOCKS, strides }),
            }
        };
        let layout = Layout {
            key: ModelKey::new("llama", "", "bf16", ""),
            shard: Shard { tp_rank, tp_size, ..Shard::default() },
            groups: vec![Group::full(block_tokens)],
            layers: (0..LAYERS).map(layer).collect(),
        };
        let count = CHUNKS as u32 * CUT.chunk_tokens / block_tokens;
        Rank { node, memory, layout, ids: (0..count).map(|at| BLOCKS as u32 - 1 - 2 * at).collect() }
    }

    fn values(&self, keys: &[ferry_pool::Digest]) -> Vec<Value> {
        let blocks = [BlockSlice { ids: &self.ids, first_token: 0 }];
        Parts::new(&self.layout, &CUT).unwrap().values(keys, 0, &blocks).unwrap()
    }

    /// Calls `each` with the offset in the memory of each row, and what its elements are.
    fn walk(&self, mut each: impl FnMut(usize, [u16; ELEMENTS as usize])) {
        let (shard, size) = (self.layout.shard, self.layout.groups[0].block_tokens);
        let heads = HEADS / shard.tp_size;
        for (number, layer) in self.layout.layers.iter().enumerate() {
            let LayerMemory { address, strides, .. } = layer.memory.unwrap();
            for token in 0..CHUNKS as u32 * CUT.chunk_tokens {
                let id = self.ids[(token / size) as usize];
                for (pair, head) in
                    [0, 1].into_iter().flat_map(|pair| (0..heads).map(move |head| (pair, head)))
                {
                    let row = [
                        (id, strides.block),
                        (pair, strides.pair),
                        (head, strides.head),
                        (token % size, strides.token),
                    ]
                    .into_iter()
                    .fold(address, |at, (step, stride)| at + u64::from(step) * stride);
                    let first = (number as u32 * 2 + pair) * HEADS + shard.tp_rank * heads + head;
                    let first = (first * CHUNKS as u32 * CUT.chunk_tokens + token) * ELEMENTS;
                    let elements = std::array::from_fn(|at| (first + at as u32) as u16);
                    each((row - self.memory.address()) as usize, elements);
                }
            }
        }
    }

    fn put(&self, keys: &[ferry_pool::Digest]) -> Vec<Outcome> {
        let ends = self.node.pool.put(&self.values(keys), &PutOptions::default(), PATIENCE).unwrap();
        parts::fold(&ends, keys.len()).unwrap().into_iter().map(|end| end.outcome).collect()
    }
}

#[test]
fn what_two_ranks_put_one_rank_gets() {
    let nodes = cluster(&[64 << 20, 64 << 20]);
    let space = Keyspace::new("tests", &Identity { model: "llama".into(), ..Identity::default() }).unwrap();
    let tokens: Vec<u32> = (0..CHUNKS as u32 * CUT.chunk_tokens).collect();
    let hashes = Chain::new(CUT.chunk_tokens).unwrap().hashes(None, &tokens, &[]).unwrap();
    let keys: Vec<_> = hashes.iter().map(|hash| space.chained(hash)).collect();

    let source = [0, 1].map(|rank| Rank::new(&nodes[0], (rank, 2), 16, Arrangement::PairBlockTokenHead));
    let target = Rank::new(&nodes[1], (0, 1), 64, Arrangement::BlockPairHeadToken);
    let parts = Parts::new(&target.layout, &CUT).unwrap();
    assert_eq!((parts.count(), parts.held()), (2, 2));
    let found = || {
        let ends = nodes[1].pool.exists(&parts.keys(&keys).unwrap(), true, PATIENCE).unwrap();
        let chunks = parts::fold(&ends, keys.len()).unwrap();
        chunks.iter().take_while(|chunk| chunk.outcome == Outcome::Ok).count()
    };
    let row = |elements: [u16; ELEMENTS as usize]| elements.map(u16::to_le_bytes).concat();
    for rank in &source {
        assert_eq!(found(), 0);
        rank.walk(|at, elements| rank.memory.write(at, &row(elements)));
        assert_eq!(rank.put(&keys), [Outcome::Ok; CHUNKS]);
        assert_eq!(rank.put(&keys), [Outcome::Here; CHUNKS]);
    }
    assert_eq!(found(), CHUNKS);

    let mut expected = vec![0xa5; LAYERS * (BLOCKS as usize) * (2 * HEADS * 64 * ELEMENTS * 2) as usize];
    target.memory.write(0, &expected);
    let ends = nodes[1].pool.get(&target.values(&keys), PATIENCE).unwrap();
    let chunks = parts::fold(&ends, keys.len()).unwrap();
    let bytes = u64::from(LAYERS as u32 * 2 * HEADS * CUT.chunk_tokens * ELEMENTS * 2);
    chunks.iter().for_each(|chunk| assert_eq!((chunk.outcome, chunk.bytes), (Outcome::Ok, bytes)));
    target.walk(|at, elements| expected[at..at + 2 * ELEMENTS as usize].copy_from_slice(&row(elements)));
    let mut memory = vec![0; expected.len()];
    target.memory.read(0, &mut memory);
    assert_eq!((0..memory.len()).find(|&at| memory[at] != expected[at]), None);
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}
