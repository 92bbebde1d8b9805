//! Against the places of all bytes, for small layouts; and by name, at the edges.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;
use crate::layout::tests::{layer, layout};
use crate::layout::{Group, GroupKind, Layer, LayerMemory, Strides};
use ferry::Status;
use proptest::prelude::*;

/// One rank, and groups of blocks of two tokens. A layer is its group, address, blocks, pairs, heads, bytes of a row and
/// strides.
fn with(layers: &[(u32, u64, u64, u32, u32, u32, Strides)]) -> Layout {
    let mut layout = layout();
    (layout.shard.tp_rank, layout.shard.tp_size, layout.shard.pp_size) = (0, 1, 1);
    layout.groups = vec![Group { kind: GroupKind::Full, block_tokens: 2 }; 2];
    let layers =
        layers.iter().zip(0..).map(|(&(group, address, blocks, pairs, heads, elements, strides), at)| {
            let memory = Some(LayerMemory { address, blocks, strides });
            Layer {
                group,
                pairs,
                elements,
                element_bytes: 1,
                memory,
                ..layer(&format!("layers.{at}"), heads)
            }
        });
    layout.layers = layers.collect();
    layout
}

/// The places of a layer's bytes.
fn places(layout: &Layout, layer: &Layer) -> Vec<u64> {
    let memory = layer.memory.unwrap();
    let Strides { block, pair, head, token, element } = memory.strides;
    let tokens = layout.groups[layer.group as usize].block_tokens.into();
    let mut places = vec![memory.address];
    let sizes = [memory.blocks, layer.pairs.into(), layer.heads.into(), tokens, layer.elements.into()];
    for (stride, size) in [block, pair, head, token, element].into_iter().zip(sizes) {
        places = places.iter().flat_map(|place| (0..size).map(move |at| place + at * stride)).collect();
    }
    places
}

/// The places that two layers of a group have in common, with both.
fn shared_places(layout: &Layout) -> BTreeMap<u64, [usize; 2]> {
    let (mut owners, mut shared) = (BTreeMap::new(), BTreeMap::new());
    for (index, layer) in layout.layers.iter().enumerate() {
        for place in places(layout, layer) {
            if let Some(other) = owners.insert((layer.group, place), index) {
                shared.insert(place, [other, index]);
            }
        }
    }
    shared
}

/// Strides that nest, in any order of the dimensions, with gaps or without. The element's is 1.
fn strides(sizes: [u64; 4], elements: u64, order: usize, gaps: [u64; 4]) -> Strides {
    let mut left = vec![0, 1, 2, 3];
    let (mut order, mut found, mut inside) = (order, [0; 4], elements);
    for gap in gaps {
        let at = left.remove(order % left.len());
        order /= 4;
        // Multiples of what is inside leave whole gaps; others shift.
        found[at] = if gap < 3 { inside * (gap + 1) } else { inside + gap - 3 };
        inside = if sizes[at] == 1 { inside } else { found[at] * (sizes[at] - 1) + inside };
    }
    let [block, pair, head, token] = found;
    Strides { block, pair, head, token, element: 1 }
}

fn layers() -> impl Strategy<Value = Layout> {
    let sizes = (1u64..7, 1u64..3, 1u64..4, 1u64..4);
    let shape = (sizes, 0usize..256, proptest::array::uniform4(0u64..8));
    // Equal layers a distance apart, as engines have them, or any two.
    let layer = (shape.clone(), 0u32..4, 1u64..80);
    (shape, any::<bool>(), proptest::collection::vec(layer, 1..5)).prop_map(|(first, alike, all)| {
        let layers = all.into_iter().map(|(own, group, address)| {
            let ((blocks, pairs, heads, elements), order, gaps) = if alike { first } else { own };
            let strides = strides([blocks, pairs, heads, 2], elements, order, gaps);
            (group / 3, address, blocks, pairs as u32, heads as u32, elements as u32, strides)
        });
        with(&layers.collect::<Vec<_>>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    #[test]
    fn layers_of_a_group_are_refused_if_they_share_a_byte(layout in layers()) {
        let shared = shared_places(&layout);
        match layout.shared() {
            None => prop_assert!(shared.is_empty(), "{shared:?}"),
            Some(Shared { layers: [one, other], address }) => {
                let has = |index: usize| places(&layout, &layout.layers[index]).contains(&address);
                prop_assert!(one < other && has(one) && has(other), "{address} of {one} and {other}: {shared:?}");
                prop_assert_eq!(layout.layers[one].group, layout.layers[other].group);
            }
        }
    }
}

/// Two heads of rows of four bytes: a block of two tokens, in each of two pairs, has 16 bytes.
const BLOCK: Strides = Strides { block: 32, pair: 16, head: 4, token: 8, element: 1 };

fn two(first: Strides, second: Strides, apart: u64) -> Layout {
    with(&[(0, 100, 10, 2, 2, 4, first), (0, 100 + apart, 10, 2, 2, 4, second)])
}

#[track_caller]
fn refused(layout: &Layout, place: u64) {
    let error = layout.check().unwrap_err();
    let words = format!(
        "layers[1] \"layers.1\": memory: the byte at {place:#x} is also that of layers[0] \"layers.0\" of the same group; \
         each has memory of its own"
    );
    assert_eq!((error.status, error.message), (Status::Invalid, words));
}

#[test]
fn one_behind_the_other() {
    two(BLOCK, BLOCK, 320).check().unwrap();
    refused(&two(BLOCK, BLOCK, 319), 419);
    refused(&two(BLOCK, BLOCK, 0), 100);
    // The same place, and the later address first.
    let layers = [(0, 419, 10, 2, 2, 4, BLOCK), (0, 100, 10, 2, 2, 4, BLOCK)];
    refused(&with(&layers), 419);
}

#[test]
fn one_in_the_gaps_of_the_other() {
    // [blocks][layers][2][tokens][heads][row]
    let wide = Strides { block: 64, ..BLOCK };
    two(wide, wide, 32).check().unwrap();
    for apart in [31, 33] {
        assert!(two(wide, wide, apart).check().is_err(), "{apart}");
    }
    refused(&two(wide, wide, 31), 131);
    // In a page of both: all keys of a page, then all values.
    let paired = Strides { block: 64, pair: 32, ..BLOCK };
    two(paired, paired, 16).check().unwrap();
    refused(&two(paired, paired, 15), 115);
    // A row of each in turn.
    let rows = Strides { block: 64, pair: 32, token: 16, head: 8, element: 1 };
    two(rows, rows, 4).check().unwrap();
    refused(&two(rows, rows, 5), 108);
    // The second one's blocks are as far apart as two of the first.
    two(wide, Strides { block: 128, ..BLOCK }, 32).check().unwrap();
    refused(&two(wide, Strides { block: 128, ..BLOCK }, 30), 130);
    // Strides that do not divide each other meet, though the first blocks do not.
    refused(&two(wide, Strides { block: 96, ..BLOCK }, 32), 228);
}

#[test]
fn layers_of_other_groups_may_share_a_tensor() {
    let mut layout = two(BLOCK, BLOCK, 0);
    layout.layers[1].group = 1;
    layout.check().unwrap();
}

#[test]
fn imported_layers_are_compared_too_unless_they_are_a_peers() {
    let mut bytes = two(BLOCK, BLOCK, 320).export().unwrap();
    assert!(Layout::import(&bytes).is_ok());
    // The last field ends with the second layer's address, less that of the first.
    let at = bytes.len() - 8;
    bytes[at..].copy_from_slice(&319u64.to_le_bytes());
    let error = Layout::import(&bytes).unwrap_err();
    assert!(error.message.contains("the byte at 0x1a3 is also that of layers[0]"), "{error}");
    assert!(Layout::import_of_peer(&bytes).is_ok(), "every HELLO would cost a million steps");
}

#[test]
fn layers_at_the_end_of_all_addresses_are_compared() {
    let one = Strides { block: 4, pair: 0, head: 0, token: 0, element: 1 };
    let layers =
        [(0, u64::MAX - 13, 4, 1, 1, 1, one), (0, u64::MAX - 12, 2, 1, 1, 1, Strides { block: 8, ..one })];
    let mut layout = with(&layers);
    layout.groups[0].block_tokens = 1;
    layout.check().unwrap();
}

/// 1,024 layers side by side in each block of a tensor, and then one byte too near: all pairs are compared.
#[test]
fn the_most_layers_are_compared_in_time() {
    let wide = Strides { block: 32 << 10, ..BLOCK };
    let layers = (0..1024).map(|at| (0, 100 + at * 32, 1 << 30, 2, 2, 4, wide));
    let mut layout = with(&layers.collect::<Vec<_>>());
    let started = Instant::now();
    assert!(layout.shared().is_none());
    layout.layers[1023].memory.as_mut().unwrap().address -= 1;
    assert_eq!(layout.shared().map(|shared| shared.layers), Some([1022, 1023]));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// Any layers are compared in bounded time: blocks without end, and strides that share no divisor. What is not compared in
/// that time passes.
#[test]
fn the_steps_are_bounded() {
    let layers = (0..64).map(|at| {
        (0, 100 + at, 1 << 31, 1, 1, 1, Strides { block: 1_000_003 + at, token: 501_001, ..BLOCK })
    });
    let layout = with(&layers.collect::<Vec<_>>());
    let started = Instant::now();
    let _ = layout.shared();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
