//! Expands block lists into requests. A cache has a table of equal blocks for each layer, and a pair of id lists says
//! which blocks go where in every layer. `api` calls this for submit_blocks and plans the result like any other list,
//! where consecutive ids are merged.
//!
//! ```text
//! local ids  5 6 7 12 13      request[layer * pairs + pair]
//! remote ids 2 3 4  8  9      local = local_base[layer] + local_ids[pair] * local_stride[layer]
//! ```

use crate::limits::REQUESTS_MAX;
use crate::status::{Error, Result, Status};
use crate::try_reserve::reserve;
use crate::types::{RegionId, Request};
use std::ops::Range;

/// Block ids in the caller's format, borrowed for the call only.
#[derive(Clone, Copy, Debug)]
pub enum BlockIds<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
    /// The first ids, this many: 0, 1, 2 and so on.
    First(usize),
}

/// The place of one layer's blocks on both sides, in bytes. `remote_region` is as in `Request`.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub local_base: u64,
    pub remote_base: u64,
    pub local_stride: u64,
    pub remote_stride: u64,
    pub block_bytes: u64,
    pub remote_region: RegionId,
}

/// Layers of equal shape, one after the other at equal distances, as in a cache that is one tensor.
#[derive(Clone, Copy, Debug)]
pub struct EqualLayers {
    /// Address of block 0 of layer 0.
    pub local_base: u64,
    pub remote_base: u64,
    /// Bytes from one layer to the next.
    pub local_layer_stride: u64,
    pub remote_layer_stride: u64,
    /// Bytes from one block to the next. 0 means `block_bytes`: without gaps.
    pub local_stride: u64,
    pub remote_stride: u64,
    pub block_bytes: u64,
    /// As in `Request`.
    pub remote_region: RegionId,
}

impl EqualLayers {
    /// Returns the layers of two caches without gaps, which begin at these addresses.
    pub fn dense(
        local_base: u64,
        remote_base: u64,
        remote_region: RegionId,
        layer_bytes: u64,
        block_bytes: u64,
    ) -> EqualLayers {
        EqualLayers {
            local_base,
            remote_base,
            local_layer_stride: layer_bytes,
            remote_layer_stride: layer_bytes,
            local_stride: 0,
            remote_stride: 0,
            block_bytes,
            remote_region,
        }
    }

    /// Returns the layers with these numbers. INVALID if an address overflows or the range is empty, LIMIT for more
    /// layers than a transfer may have requests.
    pub fn layers(&self, numbers: Range<usize>) -> Result<Vec<Layer>> {
        if numbers.is_empty() {
            return Err(Error::invalid("layers is empty"));
        }
        if numbers.len() > REQUESTS_MAX {
            let message = format!("{} layers are more than {REQUESTS_MAX} requests", numbers.len());
            return Err(Error::new(Status::Limit, message));
        }
        let stride = |stride: u64| if stride == 0 { self.block_bytes } else { stride };
        let base = |side: &str, base: u64, stride: u64, number: usize| {
            let offset = stride.checked_mul(number as u64);
            offset.and_then(|offset| base.checked_add(offset)).ok_or_else(|| {
                let sum = format!("{side}_base {base:#x} + {number} * {side}_layer_stride {stride}");
                Error::invalid(format!("layer {number}: {sum} overflows"))
            })
        };
        let mut layers = Vec::new();
        reserve(&mut layers, numbers.len())?;
        for number in numbers {
            layers.push(Layer {
                local_base: base("local", self.local_base, self.local_layer_stride, number)?,
                remote_base: base("remote", self.remote_base, self.remote_layer_stride, number)?,
                local_stride: stride(self.local_stride),
                remote_stride: stride(self.remote_stride),
                block_bytes: self.block_bytes,
                remote_region: self.remote_region,
            });
        }
        Ok(layers)
    }
}

/// Returns a request for each layer and pair of ids, layer by layer: index = layer * pairs + pair.
///
/// INVALID, with the name of the argument: a list is empty, the id lists differ in length, an id is negative, a block
/// has no bytes or is longer than a stride, an address overflows. LIMIT: too many requests. NO_MEMORY.
pub fn expand(layers: &[Layer], local_ids: BlockIds, remote_ids: BlockIds) -> Result<Vec<Request>> {
    let pairs = local_ids.len();
    if layers.is_empty() {
        return Err(Error::invalid("layers is empty"));
    }
    if pairs == 0 {
        return Err(Error::invalid("local_ids is empty"));
    }
    if remote_ids.len() != pairs {
        let remote_pairs = remote_ids.len();
        return Err(Error::invalid(format!("local_ids has {pairs} entries but remote_ids {remote_pairs}")));
    }
    let count = layers.len().checked_mul(pairs).filter(|&count| count <= REQUESTS_MAX);
    let Some(count) = count else {
        let message =
            format!("{} layers of {pairs} blocks are more than {REQUESTS_MAX} requests", layers.len());
        return Err(Error::new(Status::Limit, message));
    };
    let local_top = local_ids.check("local_ids")?;
    let remote_top = remote_ids.check("remote_ids")?;

    let mut requests = Vec::new();
    reserve(&mut requests, count)?;
    for (number, layer) in layers.iter().enumerate() {
        layer.check(number, local_top, remote_top)?;
        // No sum below overflows: `check` has computed the sum for the highest id.
        requests.extend((0..pairs).map(|pair| Request {
            local: layer.local_base + local_ids.at(pair) * layer.local_stride,
            remote: layer.remote_base + remote_ids.at(pair) * layer.remote_stride,
            length: layer.block_bytes,
            remote_region: layer.remote_region,
        }));
    }
    Ok(requests)
}

impl BlockIds<'_> {
    fn len(&self) -> usize {
        match self {
            BlockIds::I32(ids) => ids.len(),
            BlockIds::I64(ids) => ids.len(),
            BlockIds::First(count) => *count,
        }
    }

    /// Returns the id of this pair, which `check` has found not to be negative.
    fn at(&self, pair: usize) -> u64 {
        match self {
            BlockIds::I32(ids) => ids[pair] as u64,
            BlockIds::I64(ids) => ids[pair] as u64,
            BlockIds::First(_) => pair as u64,
        }
    }

    /// Returns the highest id and its pair; INVALID if an id is negative.
    fn check(&self, name: &str) -> Result<Top> {
        let negative = match self {
            BlockIds::I32(ids) => ids.iter().position(|&id| id < 0),
            BlockIds::I64(ids) => ids.iter().position(|&id| id < 0),
            BlockIds::First(_) => None,
        };
        if let Some(pair) = negative {
            return Err(Error::invalid(format!("{name}[{pair}] is negative")).at_request(pair as u64));
        }
        let pair = (0..self.len()).max_by_key(|&pair| self.at(pair)).unwrap_or(0);
        Ok(Top { pair, id: self.at(pair) })
    }
}

#[derive(Clone, Copy)]
struct Top {
    pair: usize,
    id: u64,
}

impl Layer {
    fn check(&self, number: usize, local_top: Top, remote_top: Top) -> Result<()> {
        let bytes = self.block_bytes;
        if bytes == 0 {
            return Err(Error::invalid(format!("layers[{number}].block_bytes is 0")));
        }
        let sides = [
            ("local", self.local_base, self.local_stride, local_top),
            ("remote", self.remote_base, self.remote_stride, remote_top),
        ];
        for (side, base, stride, top) in sides {
            if stride < bytes {
                return Err(Error::invalid(format!(
                    "layers[{number}].{side}_stride {stride} is less than block_bytes {bytes}"
                )));
            }
            let start = top.id.checked_mul(stride).and_then(|offset| base.checked_add(offset));
            if start.and_then(|start| start.checked_add(bytes)).is_none() {
                let Top { pair, id } = top;
                return Err(Error::invalid(format!(
                    "layers[{number}]: {side}_base {base:#x} + {side}_ids[{pair}] {id} \
                     * {side}_stride {stride} + block_bytes {bytes} overflows"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: Layer = Layer {
        local_base: 1000,
        remote_base: 2000,
        local_stride: 10,
        remote_stride: 20,
        block_bytes: 10,
        remote_region: RegionId::from_raw(7),
    };

    fn fails(layer: Layer, local: &[i64], remote: &[i64]) -> String {
        let error = expand(&[LAYER, layer], BlockIds::I64(local), BlockIds::I64(remote)).unwrap_err();
        assert_eq!(error.status, Status::Invalid);
        error.message
    }

    #[test]
    fn requests_come_layer_by_layer() {
        let second = Layer { local_base: 5000, ..LAYER };
        let requests = expand(&[LAYER, second], BlockIds::I32(&[3, 0]), BlockIds::I64(&[1, 2])).unwrap();
        let spans: Vec<_> = requests.iter().map(|request| (request.local, request.remote)).collect();
        assert_eq!(spans, [(1030, 2020), (1000, 2040), (5030, 2020), (5000, 2040)]);
        assert!(requests
            .iter()
            .all(|request| (request.length, request.remote_region) == (10, RegionId::from_raw(7))));
    }

    #[test]
    fn wrong_lists_are_named() {
        assert_eq!(fails(LAYER, &[], &[]), "local_ids is empty");
        assert_eq!(fails(LAYER, &[1], &[1, 2]), "local_ids has 1 entries but remote_ids 2");
        assert_eq!(fails(LAYER, &[0, -1], &[0, 0]), "local_ids[1] is negative");
        assert_eq!(fails(LAYER, &[0, 1], &[i64::MIN, 0]), "remote_ids[0] is negative");
        let error = expand(&[], BlockIds::I32(&[1]), BlockIds::I32(&[1])).unwrap_err();
        assert_eq!((error.status, error.message.as_str()), (Status::Invalid, "layers is empty"));
    }

    #[test]
    fn wrong_layers_are_named() {
        assert_eq!(fails(Layer { block_bytes: 0, ..LAYER }, &[0], &[0]), "layers[1].block_bytes is 0");
        let narrow = Layer { local_stride: 9, ..LAYER };
        assert_eq!(fails(narrow, &[0], &[0]), "layers[1].local_stride 9 is less than block_bytes 10");
        let narrow = Layer { remote_stride: 9, ..LAYER };
        assert_eq!(fails(narrow, &[0], &[0]), "layers[1].remote_stride 9 is less than block_bytes 10");
    }

    #[test]
    fn the_last_address_that_fits_is_accepted() {
        let ids = [3, 1];
        let last = Layer { remote_base: u64::MAX - 3 * 20 - 10, ..LAYER };
        assert!(expand(&[last], BlockIds::I64(&ids), BlockIds::I64(&ids)).is_ok());
        let beyond = Layer { remote_base: last.remote_base + 1, ..LAYER };
        assert!(fails(beyond, &ids, &ids).contains("remote_ids[0] 3 * remote_stride 20"));
        let wide = Layer { local_stride: u64::MAX, ..LAYER };
        assert!(fails(wide, &[i64::MAX], &[0]).contains("overflows"));
    }

    #[test]
    fn equal_layers_lie_at_equal_distances() {
        let cache = EqualLayers {
            local_base: 1000,
            remote_base: 2000,
            local_layer_stride: 100,
            remote_layer_stride: 300,
            local_stride: 0,
            remote_stride: 20,
            block_bytes: 10,
            remote_region: RegionId::from_raw(7),
        };
        let spans = |numbers: Range<usize>, ids: BlockIds| {
            let requests = expand(&cache.layers(numbers)?, ids, ids)?;
            Ok(requests.iter().map(|request| (request.local, request.remote)).collect::<Vec<_>>())
        };
        let expected = [(1200, 2600), (1210, 2620), (1300, 2900), (1310, 2920)];
        assert_eq!(spans(2..4, BlockIds::First(2)).unwrap(), expected);
        assert_eq!(spans(0..1, BlockIds::I32(&[4])).unwrap(), [(1040, 2080)]);
        let status = |result: Result<Vec<_>>| result.unwrap_err().status;
        assert_eq!(status(spans(3..3, BlockIds::First(1))), Status::Invalid);
        assert_eq!(status(spans(0..REQUESTS_MAX + 1, BlockIds::First(1))), Status::Limit);
        assert_eq!(status(spans(0..2, BlockIds::First(REQUESTS_MAX))), Status::Limit);
        let far = EqualLayers { remote_layer_stride: u64::MAX / 2, ..cache };
        let error = far.layers(2..4).unwrap_err();
        assert!(error.message.starts_with("layer 2: remote_base 0x7d0 + 2 * remote_layer_stride"), "{error}");
    }

    #[test]
    fn the_number_of_requests_is_bounded() {
        let ids = vec![0; REQUESTS_MAX / 2 + 1];
        let error = expand(&[LAYER, LAYER], BlockIds::I32(&ids), BlockIds::I32(&ids)).unwrap_err();
        assert_eq!(error.status, Status::Limit);
    }
}
