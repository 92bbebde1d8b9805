//! For every bound: the last value that `check` takes and the first that it refuses, with the words that say why.

use super::*;
use crate::layout::tests::{key, layer, layout};
use crate::layout::{Group, Strides};

/// The layout by hand, changed.
fn with(change: impl FnOnce(&mut Layout)) -> Layout {
    let mut layout = layout();
    change(&mut layout);
    layout
}

#[track_caller]
fn takes(change: impl FnOnce(&mut Layout)) {
    if let Err(error) = with(change).check() {
        panic!("{error}");
    }
}

#[track_caller]
fn refuses(status: Status, words: &str, change: impl FnOnce(&mut Layout)) {
    match with(change).check() {
        Ok(()) => panic!("taken, but expected {words:?}"),
        Err(error) => {
            assert!(error.message.contains(words), "{error}, but expected {words:?}");
            assert_eq!(error.status, status, "{error}");
        }
    }
}

#[track_caller]
fn invalid(words: &str, change: impl FnOnce(&mut Layout)) {
    refuses(Status::Invalid, words, change);
}

#[track_caller]
fn limit(words: &str, change: impl FnOnce(&mut Layout)) {
    refuses(Status::Limit, words, change);
}

fn strides(layout: &mut Layout) -> &mut Strides {
    &mut layout.layers[0].memory.as_mut().unwrap().strides
}

/// One rank, and one layer of one head without pairs, of one block of one token: no stride counts but the element's.
fn smallest(layout: &mut Layout) {
    layout.shard.tp_size = 1;
    layout.shard.tp_rank = 0;
    layout.shard.pp_size = 1;
    layout.groups[0].block_tokens = 1;
    layout.layers.truncate(1);
    let layer = &mut layout.layers[0];
    (layer.heads, layer.pairs) = (1, 1);
    layer.memory.as_mut().unwrap().blocks = 1;
}

#[test]
fn strings() {
    let long = |bytes| "x".repeat(bytes);
    takes(|it| {
        it.key = ModelKey { model: long(255), revision: long(255), cache: long(255), rope: long(255) }
    });
    takes(|it| it.key = ModelKey { model: long(0), revision: long(0), cache: long(0), rope: long(0) });
    limit("key.model: bytes are 256; at most 255", |it| it.key.model = long(256));
    limit("key.revision: bytes", |it| it.key.revision = long(256));
    limit("key.cache: bytes", |it| it.key.cache = long(256));
    limit("key.rope: bytes", |it| it.key.rope = long(256));
    takes(|it| it.layers[1].name = long(255));
    takes(|it| it.layers[1].name = long(1));
    limit("layers[1].name: bytes are 256", |it| it.layers[1].name = long(256));
    invalid("layers[1].name: bytes are 0; at least 1", |it| it.layers[1].name = long(0));
    invalid("layers[2] \"model.layers.0\": another layer has this name", |it| {
        it.layers[2].name = it.layers[0].name.clone();
    });
}

#[test]
fn counts() {
    let group = layout().groups[0];
    takes(|it| it.groups = vec![group; 64]);
    limit("groups has 65; at most 64", |it| it.groups = vec![group; 65]);
    invalid("groups has 0; at least 1", |it| it.groups.clear());
    let layers = |count: u32| -> Vec<Layer> {
        (0..count).map(|number| Layer { stage: 1, ..layer(&number.to_string(), 4) }).collect()
    };
    takes(|it| it.layers = layers(1024));
    limit("layers has 1025; at most 1024", |it| it.layers = layers(1025));
    invalid("layers has 0; at least 1", |it| it.layers.clear());
}

#[test]
fn ranks() {
    takes(|it| it.shard.pp_size = 512);
    limit("tp_size * pp_size * pcp_size is 1026; at most 1024", |it| it.shard.pp_size = 513);
    limit("tp_size * pp_size * pcp_size is 1073741824", |it| {
        (it.shard.tp_size, it.shard.pp_size, it.shard.pcp_size) = (1024, 1024, 1024);
    });
    limit("shard.tp_size is 1025; at most 1024", |it| it.shard.tp_size = 1025);
    limit("shard.pp_size is 4294967295", |it| it.shard.pp_size = u32::MAX);
    limit("shard.pcp_size is 1025", |it| it.shard.pcp_size = 1025);
    invalid("shard.tp_size is 0; at least 1", |it| it.shard.tp_size = 0);
    invalid("shard.pp_size is 0", |it| it.shard.pp_size = 0);
    invalid("shard.pcp_size is 0", |it| it.shard.pcp_size = 0);
    invalid("shard.dcp_size 0 does not divide shard.tp_size 2", |it| it.shard.dcp_size = 0);
    invalid("shard.tp_rank 2 of 2 ranks", |it| it.shard.tp_rank = 2);
    invalid("shard.pp_rank 2 of 2 ranks", |it| it.shard.pp_rank = 2);
    invalid("shard.pcp_rank 1 of 1 ranks", |it| it.shard.pcp_rank = 1);
    takes(|it| (it.shard.pcp_rank, it.shard.pcp_size) = (511 / 2, 512 / 2));
}

#[test]
fn context_parallel_ranks() {
    // 8 ranks with one head each of two.
    let divided = |it: &mut Layout, dcp_size| {
        (it.shard.tp_size, it.shard.dcp_size) = (8, dcp_size);
        for layer in &mut it.layers {
            layer.heads = 2;
        }
    };
    takes(|it| divided(it, 4));
    invalid("shard.dcp_size 8 does not divide the replicas of each of 2 heads among 8 ranks", |it| {
        divided(it, 8)
    });
    invalid("shard.dcp_size 3 does not divide shard.tp_size 8", |it| divided(it, 3));
    invalid("shard.dcp_size 2 does not divide the replicas of each of 4 heads among 2 ranks", |it| {
        it.shard.dcp_size = 2;
    });
    invalid("layers[1]", |it| {
        divided(it, 4);
        it.layers[1].heads = 4;
    });
    invalid("of 2 heads among 8", |it| {
        it.groups[0].kind = GroupKind::Window { tokens: 1 };
        divided(it, 8);
    });
    takes(|it| {
        divided(it, 8);
        it.groups[0].kind = GroupKind::Latent;
        it.layers.iter_mut().for_each(|layer| layer.heads = 1);
    });

    invalid("shard.turn_tokens is 0; at least 1", |it| it.shard.turn_tokens = 0);
    takes(|it| it.shard.turn_tokens = 1 << 20);
    limit("shard.turn_tokens is 1048577", |it| it.shard.turn_tokens = (1 << 20) + 1);
    takes(|it| (it.shard.pcp_size, it.shard.turn_tokens) = (2, 16));
    invalid("groups[0].block_tokens 16 is not a multiple of shard.turn_tokens 32", |it| {
        (it.shard.pcp_size, it.shard.turn_tokens) = (2, 32);
    });
    invalid("groups[0].block_tokens 16 is not a multiple of shard.turn_tokens 3", |it| {
        divided(it, 2);
        it.shard.turn_tokens = 3;
    });
    let state = Group { kind: GroupKind::State, block_tokens: 1 };
    takes(|it| it.groups.push(state));
    refuses(Status::Unsupported, "groups[1] is State", |it| {
        it.shard.pcp_size = 2;
        it.groups.push(state);
    });
}

#[test]
fn groups() {
    let tokens = |it: &mut Layout, kind, tokens| it.groups.push(Group { kind, block_tokens: tokens });
    for kind in [GroupKind::Full, GroupKind::Window { tokens: 1 }, GroupKind::Latent] {
        takes(|it| tokens(it, kind, 1 << 20));
        takes(|it| tokens(it, kind, 1));
        limit("groups[1].block_tokens is 1048577", |it| tokens(it, kind, (1 << 20) + 1));
        invalid("groups[1].block_tokens is 0", |it| tokens(it, kind, 0));
    }
    takes(|it| tokens(it, GroupKind::State, 1));
    limit("groups[1].block_tokens is 2; at most 1", |it| tokens(it, GroupKind::State, 2));
    invalid("groups[1].block_tokens is 0", |it| tokens(it, GroupKind::State, 0));
    takes(|it| tokens(it, GroupKind::Window { tokens: u32::MAX }, 1));
    invalid("groups[1]: the window's tokens are 0", |it| tokens(it, GroupKind::Window { tokens: 0 }, 1));
}

#[test]
fn layers() {
    invalid("layers[1] \"model.layers.1\": group 1 of 1 groups", |it| it.layers[1].group = 1);
    invalid("layers[1] \"model.layers.1\": stage 2 of 2 stages", |it| it.layers[1].stage = 2);
    invalid("layers[0] \"model.layers.0\": heads is 0", |it| it.layers[0].heads = 0);
    takes(|it| it.layers[2].heads = 1 << 16);
    limit("heads is 65537", |it| it.layers[2].heads = (1 << 16) + 1);
    // Two ranks for each head, and three ranks for two heads.
    takes(|it| it.layers[2].heads = 1);
    invalid("heads 2 does not divide shard.tp_size 3", |it| (it.shard.tp_size, it.layers[2].heads) = (3, 2));
    takes(|it| it.layers[2].heads = 5);
    takes(|it| it.layers[2].pairs = 1);
    invalid("pairs is 0", |it| it.layers[2].pairs = 0);
    limit("pairs is 3", |it| it.layers[2].pairs = 3);
    takes(|it| (it.layers[2].elements, it.layers[2].element_bytes) = (1 << 30, 256));
    takes(|it| (it.layers[2].elements, it.layers[2].element_bytes) = (1, 1));
    invalid("elements is 0", |it| it.layers[2].elements = 0);
    limit("elements is 1073741825", |it| it.layers[2].elements = (1 << 30) + 1);
    invalid("element_bytes is 0", |it| it.layers[2].element_bytes = 0);
    limit("element_bytes is 257", |it| it.layers[2].element_bytes = 257);
    invalid("heads is 4, not 1, in a Latent group", |it| it.groups[0].kind = GroupKind::Latent);
}

#[test]
fn memory() {
    invalid("layers[1] \"model.layers.1\": memory is missing, in its own stage", |it| {
        it.layers[1].memory = None
    });
    invalid("memory of stage 1, not 0", |it| it.layers[2].memory = it.layers[0].memory);
    fn memory(it: &mut Layout) -> &mut crate::layout::LayerMemory {
        it.layers[0].memory.as_mut().unwrap()
    }
    takes(|it| {
        memory(it).blocks = 1 << 31;
        it.layers[1].memory.as_mut().unwrap().address = 1 << 60;
    });
    limit("memory.blocks is 2147483649", |it| memory(it).blocks = (1 << 31) + 1);
    invalid("memory.blocks is 0", |it| memory(it).blocks = 0);
    takes(|it| memory(it).address = 1);
    invalid("memory.address is 0", |it| memory(it).address = 0);
    let bytes = 10 * 2 * 16 * 2 * 128u64;
    takes(|it| memory(it).address = u64::MAX - bytes);
    invalid("end above a u64", |it| memory(it).address = u64::MAX - bytes + 1);
}

#[test]
fn nested_strides() {
    // [block][pair][token][head][element]: two heads of rows of 128 bytes.
    takes(|it| strides(it).element = 2);
    invalid("memory: strides.element 1 is less than the 2 bytes of one element", |it| {
        strides(it).element = 1
    });
    invalid("strides.element 0 is", |it| strides(it).element = 0);
    invalid("strides.head 127 is less than the 128 bytes of one head's elements", |it| {
        strides(it).head = 127
    });
    invalid("strides.token 255 is less than the 256 bytes of one token's heads, elements", |it| {
        strides(it).token = 255;
    });
    invalid("strides.pair 4095 is less than the 4096 bytes of one pair's tokens, heads, elements", |it| {
        strides(it).pair = 4095;
    });
    invalid("strides.block 8191 is less than the 8192 bytes of one block's", |it| strides(it).block = 8191);
    invalid("strides.block 0 is", |it| strides(it).block = 0);
    // Padding counts in the extent only where something follows.
    takes(|it| strides(it).block = 1 << 50);
    invalid("strides.block 9223372036854775807 times 10 blocks is more", |it| {
        strides(it).block = u64::MAX / 2
    });
    takes(|it| {
        (strides(it).head, strides(it).token, strides(it).pair, strides(it).block) = (200, 328, 5248, 10496);
    });
    invalid("strides.pair 4096 is less than the 5248 bytes", |it| {
        (strides(it).head, strides(it).token) = (200, 328);
    });
}

#[test]
fn a_dimension_of_size_1_may_have_any_stride() {
    for stride in [0, 1, u64::MAX] {
        let any = Strides { block: stride, pair: stride, head: stride, token: stride, element: 2 };
        takes(|it| {
            smallest(it);
            *strides(it) = any;
        });
        takes(|it| {
            smallest(it);
            *strides(it) = Strides { element: stride, ..any };
            it.layers[0].elements = 1;
        });
        // Sizes 2.
        invalid("strides.", |it| {
            smallest(it);
            *strides(it) = any;
            it.layers[0].pairs = 2;
        });
    }
}

#[test]
fn the_first_difference_of_two_keys() {
    let one = key();
    assert_eq!(one.difference(&one.clone()), None);
    let change = |change: fn(&mut ModelKey)| {
        let mut two = key();
        change(&mut two);
        one.difference(&two).unwrap()
    };
    let text = change(|it| it.model = "qwen".into());
    assert_eq!(text, "the model is \"llama\" on one side and \"qwen\" on the other");
    assert!(change(|it| it.revision.clear()).starts_with("the revision is \"main\""));
    assert!(change(|it| it.cache.clear()).starts_with("the cache is \"bf16\""));
    assert!(change(|it| it.rope.clear()).starts_with("the rope is \"default\""));
    assert!(change(|it| (it.cache, it.rope) = (String::new(), String::new())).starts_with("the cache"));
}
