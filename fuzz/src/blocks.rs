//! Block lists: each request lies where arithmetic without overflow puts it, or the lists are refused.

use arbitrary::{Arbitrary, Unstructured};
use ferry::blocks::{expand, BlockIds, Layer};
use ferry::types::RegionId;

#[derive(Arbitrary, Debug)]
struct Input {
    layers: Vec<LayerDraft>,
    local: Vec<Id>,
    remote: Vec<Id>,
    is_wide: bool,
    /// Make the lists equally long.
    even: bool,
}

#[derive(Arbitrary, Debug)]
enum LayerDraft {
    Any([u64; 5]),
    Small {
        local: u16,
        remote: u16,
        local_stride: u8,
        remote_stride: u8,
        bytes: u8,
    },
    /// Near the end of the address space.
    High {
        below: u16,
        stride: u8,
        bytes: u8,
    },
}

#[derive(Arbitrary, Clone, Debug)]
enum Id {
    Small(u8),
    Any(i64),
}

impl LayerDraft {
    fn layer(&self) -> Layer {
        let [local_base, remote_base, local_stride, remote_stride, block_bytes] = match *self {
            LayerDraft::Any(numbers) => numbers,
            LayerDraft::Small { local, remote, local_stride, remote_stride, bytes } => {
                [local.into(), remote.into(), local_stride.into(), remote_stride.into(), bytes.into()]
            }
            LayerDraft::High { below, stride, bytes } => {
                let base = u64::MAX - u64::from(below);
                [base, base, stride.into(), stride.into(), bytes.into()]
            }
        };
        let remote_region = RegionId::from_raw(block_bytes ^ 5);
        Layer { local_base, remote_base, local_stride, remote_stride, block_bytes, remote_region }
    }
}

pub fn run(data: &[u8]) {
    let Ok(mut input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    if input.even {
        let pairs = input.local.len().min(input.remote.len());
        input.local.truncate(pairs);
        input.remote.truncate(pairs);
    }
    let layers: Vec<Layer> = input.layers.iter().map(LayerDraft::layer).collect();
    let wide = |ids: &[Id]| -> Vec<i64> {
        let number = |id: &Id| match *id {
            Id::Small(id) => id.into(),
            Id::Any(id) => id,
        };
        ids.iter().map(number).collect()
    };
    let (mut local, mut remote) = (wide(&input.local), wide(&input.remote));
    let result = if input.is_wide {
        expand(&layers, BlockIds::I64(&local), BlockIds::I64(&remote))
    } else {
        let narrow = |ids: &[i64]| -> Vec<i32> { ids.iter().map(|id| *id as i32).collect() };
        let (few, more) = (narrow(&local), narrow(&remote));
        local = few.iter().map(|id| i64::from(*id)).collect();
        remote = more.iter().map(|id| i64::from(*id)).collect();
        expand(&layers, BlockIds::I32(&few), BlockIds::I32(&more))
    };
    let place = |base: u64, id: i64, stride: u64| u128::from(base) + id as u128 * u128::from(stride);
    let mut expected = Vec::new();
    let mut is_valid = !layers.is_empty() && !local.is_empty() && local.len() == remote.len();
    is_valid &= local.iter().chain(&remote).all(|id| *id >= 0);
    let judged = if is_valid { &layers[..] } else { &[] };
    for layer in judged {
        let bytes = layer.block_bytes;
        is_valid &= bytes > 0 && bytes <= layer.local_stride && bytes <= layer.remote_stride;
        for (&from, &to) in local.iter().zip(&remote) {
            let from = place(layer.local_base, from, layer.local_stride);
            let to = place(layer.remote_base, to, layer.remote_stride);
            is_valid &= from.max(to) + u128::from(bytes) <= u128::from(u64::MAX);
            expected.push((from, to, bytes, layer.remote_region));
        }
    }
    match result {
        Err(error) => assert!(!is_valid, "{error}"),
        Ok(requests) => {
            assert!(is_valid);
            let found =
                requests.iter().map(|it| (it.local.into(), it.remote.into(), it.length, it.remote_region));
            assert!(found.eq(expected));
        }
    }
}
