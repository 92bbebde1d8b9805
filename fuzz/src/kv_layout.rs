//! The bytes of a KV cache's layout: any bytes, fields of any contents with right lengths, and whole layouts.

use arbitrary::{Arbitrary, Unstructured};
use ferry::Status;
use ferry_kv::layout::{
    limits, Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};

#[derive(Arbitrary, Debug)]
enum Input {
    Bytes(Vec<u8>),
    /// Tag, whether a reader must know it, and the contents.
    Fields(Vec<(u8, bool, Vec<u8>)>),
    /// A layout as drawn, often one that makes no sense.
    Made(Made),
    /// A layout that makes sense, and a byte that is changed in its bytes.
    Valid(Valid),
}

#[derive(Arbitrary, Debug)]
struct Made {
    shard: [u8; 8],
    groups: Vec<(u8, u32, u32)>,
    layers: Vec<MadeLayer>,
}

#[derive(Arbitrary, Debug)]
struct MadeLayer {
    name: String,
    numbers: [u32; 6],
    /// The address, the blocks and the strides.
    memory: Option<(u64, u64, [u64; 5])>,
}

#[derive(Arbitrary, Debug)]
struct Valid {
    key: [u8; 4],
    tp: u8,
    dcp: u8,
    pp: u8,
    pcp: u8,
    rank: u16,
    layers: Vec<(u8, u8, u8)>,
    arrangement: u8,
    at: u16,
    change: u8,
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    match input {
        Input::Bytes(bytes) => check(&bytes),
        Input::Fields(fields) => check(&framed(&fields)),
        Input::Made(made) => exports(&made.layout()),
        Input::Valid(valid) => {
            let layout = valid.layout();
            layout.check().unwrap();
            exports(&layout);
            let mut bytes = layout.export().unwrap();
            let at = usize::from(valid.at) % bytes.len();
            bytes[at] ^= valid.change;
            check(&bytes);
        }
    }
}

/// A layout that parses can be queried, and encodes to no more bytes.
fn check(bytes: &[u8]) {
    match Layout::import(bytes) {
        Ok(layout) => {
            let again = layout.export().unwrap();
            assert!(again.len() <= bytes.len());
            assert_eq!(Layout::import(&again).unwrap(), layout);
            ask(&layout);
        }
        Err(error) => {
            let known = [Status::Invalid, Status::Version, Status::Limit, Status::Unsupported];
            assert!(known.contains(&error.status), "{error}");
        }
    }
}

/// A layout is written exactly if it makes sense and is small.
fn exports(layout: &Layout) {
    let checked = layout.check();
    match layout.export() {
        Ok(bytes) => {
            assert!(checked.is_ok() && bytes.len() <= limits::EXPORT_BYTES_MAX);
            assert_eq!(Layout::import(&bytes).as_ref().ok(), Some(layout));
            ask(layout);
        }
        Err(error) => assert!(checked.is_err() || error.status == Status::Limit, "{error}"),
    }
}

/// All ranks find themselves, together they hold every head, and every layer's memory lies
/// within the addresses.
fn ask(layout: &Layout) {
    let shard = layout.shard;
    assert_eq!(shard.at(shard.rank()), shard);
    for layer in &layout.layers {
        let mut next = 0;
        for tp_rank in 0..shard.tp_size {
            let heads = layer.heads_of(&Shard { tp_rank, ..shard });
            assert!(heads.start <= next && heads.end >= next && !heads.is_empty(), "{layout:?}");
            next = heads.end;
        }
        assert_eq!(next, layer.heads);
        let Some(LayerMemory { address, blocks, strides }) = layer.memory else { continue };
        let sizes = [
            (strides.block, blocks),
            (strides.pair, layer.pairs.into()),
            (strides.head, layer.heads_of(&shard).len() as u64),
            (strides.token, layout.groups[layer.group as usize].block_tokens.into()),
            (strides.element, layer.elements.into()),
        ];
        let last: u128 = sizes.iter().map(|(stride, size)| u128::from(*stride) * u128::from(size - 1)).sum();
        let extent = layer.extent(layout).unwrap();
        assert_eq!(extent.start, address);
        assert_eq!(u128::from(extent.end), u128::from(address) + last + u128::from(layer.element_bytes));
    }
}

fn framed(fields: &[(u8, bool, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"FKVL\x01\0\0\0\0\0\0\0".to_vec();
    for (tag, must_know, content) in fields {
        bytes.extend(u16::from(tag % 16).to_le_bytes());
        bytes.extend(u16::from(*must_know).to_le_bytes());
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend(content);
    }
    let length = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn key(numbers: [u8; 4]) -> ModelKey {
    let [model, revision, cache, rope] = numbers.map(|number| "é".repeat(number.into()));
    ModelKey { model, revision, cache, rope }
}

impl Made {
    fn layout(self) -> Layout {
        let [tp_rank, tp_size, pp_rank, pp_size, pcp_rank, pcp_size, dcp_size, turn_tokens] =
            self.shard.map(u32::from);
        let kind = |kind, tokens| match kind % 4 {
            0 => GroupKind::Full,
            1 => GroupKind::Window { tokens },
            2 => GroupKind::Latent,
            _ => GroupKind::State,
        };
        let groups = self.groups.into_iter();
        let layers =
            self.layers.into_iter().map(|MadeLayer { name, numbers, memory }| {
                let [group, stage, heads, pairs, elements, element_bytes] = numbers;
                let memory = memory.map(|(address, blocks, [block, pair, head, token, element])| {
                    LayerMemory { address, blocks, strides: Strides { block, pair, head, token, element } }
                });
                Layer { name, group, stage, heads, pairs, elements, element_bytes, memory }
            });
        Layout {
            key: key([1, 0, 0, 0]),
            shard: Shard { tp_rank, tp_size, pp_rank, pp_size, pcp_rank, pcp_size, dcp_size, turn_tokens },
            groups: groups
                .map(|(of, block_tokens, window)| Group { kind: kind(of, window), block_tokens })
                .collect(),
            layers: layers.collect(),
        }
    }
}

impl Valid {
    fn layout(&self) -> Layout {
        let (tp_size, pp_size, pcp_size) =
            (1 << (self.tp % 4), 1 + u32::from(self.pp % 4), 1 + u32::from(self.pcp % 3));
        let dcp_size = (1 << (self.dcp % 4)).min(tp_size);
        let ranks = Shard {
            tp_rank: 0,
            tp_size,
            pp_rank: 0,
            pp_size,
            pcp_rank: 0,
            pcp_size,
            dcp_size,
            turn_tokens: 1 + u32::from(self.tp >> 4),
        };
        let shard = ranks.at(u32::from(self.rank) % ranks.ranks());
        let arrangement = [
            Arrangement::PairBlockTokenHead,
            Arrangement::PairBlockHeadToken,
            Arrangement::BlockPairTokenHead,
            Arrangement::BlockPairHeadToken,
            Arrangement::BlockHeadPairToken,
        ][usize::from(self.arrangement % 5)];
        let group = |kind| Group { kind, block_tokens: 2 * shard.turn_tokens };
        let groups =
            vec![group(GroupKind::Full), group(GroupKind::Window { tokens: 3 }), group(GroupKind::Latent)];
        let layers = self.layers.iter().take(100).enumerate().map(|(index, &(group, size, name))| {
            let group = u32::from(group % 3);
            let mut layer = Layer {
                name: format!("{}{index}", "layer.".repeat(usize::from(name % 40))),
                group,
                stage: u32::from(size) % pp_size,
                heads: if group == 2 { 1 } else { tp_size / dcp_size },
                pairs: 1 + u32::from(name % 2),
                elements: 1 + u32::from(size),
                element_bytes: 1 + u32::from(name >> 6),
                memory: None,
            };
            let sizes = Sizes {
                blocks: 1 + u64::from(size),
                pairs: layer.pairs,
                heads: layer.heads_of(&shard).len() as u32,
                tokens: groups[group as usize].block_tokens,
                elements: layer.elements,
                element_bytes: layer.element_bytes,
            };
            let strides = Strides::of(arrangement, sizes);
            let address = (1 << (self.at % 40)) + ((index as u64) << 44);
            let memory = LayerMemory { address, blocks: sizes.blocks, strides };
            layer.memory = (layer.stage == shard.pp_rank).then_some(memory);
            layer
        });
        let mut layers: Vec<Layer> = layers.collect();
        if layers.is_empty() {
            let name = "only".to_string();
            let stage = (shard.pp_rank + 1) % pp_size;
            let mut layer = Layer {
                name,
                group: 2,
                stage,
                heads: 1,
                pairs: 1,
                elements: 1,
                element_bytes: 1,
                memory: None,
            };
            let strides = Strides { block: 1, pair: 1, head: 1, token: 1, element: 1 };
            layer.memory = (pp_size == 1).then_some(LayerMemory { address: 1, blocks: 1, strides });
            layers.push(layer);
        }
        Layout { key: key(self.key.map(|number| number % 128)), shard, groups, layers }
    }
}
