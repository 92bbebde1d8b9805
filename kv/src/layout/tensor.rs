//! A layer's memory from a tensor, as frameworks describe one: an address, a shape, strides, and what each dimension
//! counts. Neighbours: `memory`, which has the strides; `check`, which judges the layer afterwards.

use super::{Group, GroupKind, Layer, LayerMemory, Shard, Strides};
use ferry::status::{Error, Result};

/// The words of `Tensor::order`.
const DIMENSIONS: [&str; 5] = ["block", "pair", "token", "head", "element"];
const EXAMPLE: &str = "\"block pair token head element\"";

/// A tensor that holds one layer's blocks on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Address of the first element, in this process.
    pub address: u64,
    pub element_bytes: u32,
    /// Names of the dimensions, from the outermost: the words block, pair, token, head and element, each at most
    /// once. A dimension without its word has size 1; block and element are needed.
    pub order: &'a str,
    pub shape: &'a [u64],
    /// Bytes from one element of a dimension to the next; `None` for a contiguous tensor.
    pub strides: Option<&'a [u64]>,
}

impl Layer {
    /// A layer of the shard's own stage that lies in a tensor; its heads are taken to be divided among the ranks.
    /// INVALID if the tensor does not fit its group or its order; `Layout::check` judges the rest.
    pub fn of(
        name: impl Into<String>,
        tensor: &Tensor<'_>,
        group: u32,
        groups: &[Group],
        shard: &Shard,
    ) -> Result<Layer> {
        let (name, stage, element_bytes) = (name.into(), shard.pp_rank, tensor.element_bytes);
        let mut layer =
            Layer { name, group, stage, heads: 0, pairs: 1, elements: 1, element_bytes, memory: None };
        layer.set_tensor(tensor, groups, shard)?;
        Ok(layer)
    }

    /// Places the layer in a tensor: sets `pairs`, `elements`, `element_bytes` and `memory`. `heads` stays as it is if
    /// it is not 0; otherwise each of the shard's ranks is taken to hold heads of its own. `groups` and `shard` are those
    /// of the layout.
    pub fn set_tensor(&mut self, tensor: &Tensor<'_>, groups: &[Group], shard: &Shard) -> Result<()> {
        let Some(group) = groups.get(self.group as usize) else {
            let text = format!("layer.group is {}, and desc has {} groups", self.group, groups.len());
            return Err(Error::invalid(text));
        };
        let order = tensor.words()?;
        let strides = tensor.strides_of(&order)?;
        let at = |word: &str| order.iter().position(|known| *known == word);
        let size = |word: &str| at(word).and_then(|at| tensor.shape.get(at)).copied().unwrap_or(1);
        let stride = |word: &str| at(word).and_then(|at| strides.get(at)).copied().unwrap_or(0);
        let narrow = |word: &str| u32::try_from(size(word)).unwrap_or(u32::MAX);
        if size("token") != group.block_tokens.into() {
            let (tokens, number) = (size("token"), self.group);
            return Err(Error::invalid(format!(
                "tensor has {tokens} tokens in a block, but block_tokens of group {number} is {}",
                group.block_tokens
            )));
        }
        let Shard { tp_rank, tp_size, .. } = *shard;
        if tp_rank >= tp_size {
            let text = format!(
                "tp_rank is {tp_rank}, and tp_size {tp_size}: ranks count from 0, and tp_size is at least 1"
            );
            return Err(Error::invalid(text));
        }
        let heads = narrow("head");
        if self.heads == 0 {
            self.heads = match group.kind {
                GroupKind::Latent => 1,
                _ => heads.saturating_mul(tp_size),
            };
        }
        let own = self.heads_of(shard).len();
        if own != heads as usize {
            return Err(Error::invalid(format!(
                "tensor has {heads} heads, but rank {tp_rank} of {tp_size} holds {own} if the whole model has {}: layer.heads \
                 counts those of the whole model",
                self.heads
            )));
        }
        (self.pairs, self.elements, self.element_bytes) =
            (narrow("pair"), narrow("element"), tensor.element_bytes);
        let strides = Strides {
            block: stride("block"),
            pair: stride("pair"),
            head: stride("head"),
            token: stride("token"),
            element: stride("element"),
        };
        self.memory = Some(LayerMemory { address: tensor.address, blocks: size("block"), strides });
        Ok(())
    }
}

impl<'a> Tensor<'a> {
    fn words(&self) -> Result<Vec<&'a str>> {
        let Tensor { order, shape, .. } = self;
        let words: Vec<&str> = order.split_whitespace().collect();
        for (at, word) in words.iter().enumerate() {
            if !DIMENSIONS.contains(word) {
                return Err(Error::invalid(format!(
                    "order: \"{word}\" is none of block, pair, token, head and element; name the dimensions from the \
                     outermost, for example {EXAMPLE}"
                )));
            }
            if words.iter().take(at).any(|earlier| earlier == word) {
                return Err(Error::invalid(format!("order \"{order}\" names {word} twice")));
            }
        }
        if let Some(missing) = ["block", "element"].iter().find(|needed| !words.contains(needed)) {
            return Err(Error::invalid(format!(
                "order \"{order}\" lacks {missing}; name the dimensions from the outermost, for example {EXAMPLE}"
            )));
        }
        if words.len() != shape.len() {
            let (named, found) = (words.len(), shape.len());
            return Err(Error::invalid(format!(
                "order \"{order}\" names {named} dimensions, but the tensor has {found}: {shape:?}"
            )));
        }
        Ok(words)
    }

    /// The strides of the dimensions, in bytes. Products above a u64 become `u64::MAX`, which `Layout::check` refuses.
    fn strides_of(&self, order: &[&str]) -> Result<Vec<u64>> {
        match self.strides {
            Some(strides) if strides.len() != order.len() => Err(Error::invalid(format!(
                "tensor has {} strides and {} dimensions",
                strides.len(),
                order.len()
            ))),
            Some(strides) => Ok(strides.to_vec()),
            None => {
                let mut inside = u64::from(self.element_bytes);
                let mut strides: Vec<u64> = Vec::new();
                for size in self.shape.iter().rev() {
                    strides.push(inside);
                    inside = inside.saturating_mul(*size);
                }
                strides.reverse();
                Ok(strides)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layout;
    use crate::layout::{Arrangement, Sizes};

    const SHAPE: [u64; 5] = [10, 2, 16, 2, 64];

    /// Places layer 0 of four heads, of which this rank has two; blocks of 16 tokens.
    fn placed(order: &str, shape: &[u64], strides: Option<&[u64]>, heads: u32) -> Result<Layer> {
        let layout = layout();
        let mut layer = Layer { heads, memory: None, ..layout.layers[0].clone() };
        let tensor = Tensor { address: 4096, element_bytes: 2, order, shape, strides };
        layer.set_tensor(&tensor, &layout.groups, &layout.shard)?;
        Ok(layer)
    }

    #[test]
    fn a_contiguous_tensor_has_the_strides_of_its_arrangement() {
        let sizes = Sizes { blocks: 10, pairs: 2, heads: 2, tokens: 16, elements: 64, element_bytes: 2 };
        for (order, shape, arrangement) in [
            ("block pair token head element", SHAPE, Arrangement::BlockPairTokenHead),
            ("pair block head token element", [2, 10, 2, 16, 64], Arrangement::PairBlockHeadToken),
            ("block head pair token element", [10, 2, 2, 16, 64], Arrangement::BlockHeadPairToken),
        ] {
            let layer = placed(order, &shape, None, 4).unwrap();
            let memory = LayerMemory { address: 4096, blocks: 10, strides: Strides::of(arrangement, sizes) };
            assert_eq!((layer.memory, layer.pairs, layer.heads), (Some(memory), 2, 4), "{order}");
            assert_eq!((layer.elements, layer.element_bytes), (64, 2));
        }
    }

    #[test]
    fn strides_go_to_their_dimensions() {
        let strides = [1, 2, 3, 4, 5];
        let layer = placed("head token pair block element", &[2, 16, 2, 7, 64], Some(&strides), 4).unwrap();
        let expected = Strides { head: 1, token: 2, pair: 3, block: 4, element: 5 };
        assert_eq!(layer.memory, Some(LayerMemory { address: 4096, blocks: 7, strides: expected }));
    }

    #[test]
    fn heads_are_those_of_the_model() {
        assert_eq!(placed("block pair token head element", &SHAPE, None, 0).unwrap().heads, 4);
        let error = placed("block pair token head element", &SHAPE, None, 2).unwrap_err();
        assert!(error.message.contains("holds 1 if the whole model has 2"), "{}", error.message);
    }

    #[test]
    fn mistakes_are_named() {
        let all = "block pair token head element";
        for (order, shape, strides, expected) in [
            ("", &SHAPE[..], None, "order \"\" lacks block"),
            ("block token head", &SHAPE[..3], None, "lacks element"),
            ("blocks pair token head element", &SHAPE, None, "\"blocks\" is none of block"),
            ("block pair pair head element", &SHAPE, None, "names pair twice"),
            (all, &SHAPE[1..], None, "names 5 dimensions, but the tensor has 4: [2, 16, 2, 64]"),
            (all, &[10, 2, 32, 2, 64], None, "has 32 tokens in a block, but block_tokens of group 0 is 16"),
            ("block pair head element", &[10, 2, 2, 64], None, "has 1 tokens in a block"),
            (all, &SHAPE, Some(&SHAPE[1..]), "has 4 strides and 5 dimensions"),
        ] {
            let error = placed(order, shape, strides, 4).unwrap_err();
            assert!(error.message.contains(expected), "{order}: {}", error.message);
        }
    }
}
