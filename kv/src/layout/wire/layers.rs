//! The fields shapes and layers of a layout's bytes: what layers have in common is written once, and of a name what the
//! name before has not. Neighbours: `wire`, whose tables give the format; `bytes`.

use super::bytes::{grow, limit, text, Reader, Writer};
use crate::layout::limits::LAYERS_MAX;
use crate::layout::{Layer, LayerMemory, Strides};
use ferry::status::{Error, Result};

/// The properties that many layers share. There are few shapes, so a layer takes some 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    group: u32,
    stage: u32,
    heads: u32,
    pairs: u32,
    elements: u32,
    element_bytes: u32,
    memory: Option<(u64, Strides)>,
}

fn shape_out(out: &mut Writer, shape: &Shape) {
    let Shape { group, stage, heads, pairs, elements, element_bytes, memory } = *shape;
    for value in [group, stage, heads, pairs, elements, element_bytes] {
        out.u32(value);
    }
    out.0.push(u8::from(memory.is_some()));
    if let Some((blocks, Strides { block, pair, head, token, element })) = memory {
        for value in [blocks, block, pair, head, token, element] {
            out.u64(value);
        }
    }
}

pub fn shapes_in(mut input: Reader) -> Result<Vec<Shape>> {
    let mut shapes = Vec::new();
    while !input.is_empty() {
        if shapes.len() == LAYERS_MAX {
            return Err(limit(format!("shapes has more than {LAYERS_MAX}, the number of layers")));
        }
        let mut shape = Shape {
            group: input.u32()?,
            stage: input.u32()?,
            heads: input.u32()?,
            pairs: input.u32()?,
            elements: input.u32()?,
            element_bytes: input.u32()?,
            memory: None,
        };
        let [has_memory] = input.array()?;
        if has_memory > 1 {
            let index = shapes.len();
            return Err(Error::invalid(format!("shapes[{index}].has_memory is {has_memory}, not 0 or 1")));
        }
        if has_memory == 1 {
            let blocks = input.u64()?;
            let (block, pair, head) = (input.u64()?, input.u64()?, input.u64()?);
            let (token, element) = (input.u64()?, input.u64()?);
            shape.memory = Some((blocks, Strides { block, pair, head, token, element }));
        }
        grow(&mut shapes, shape)?;
    }
    Ok(shapes)
}

/// The contents of the fields shapes and layers.
pub fn layers_out(layers: &[Layer]) -> (Vec<u8>, Vec<u8>) {
    let (mut shapes, mut shapes_out, mut out) = (Vec::new(), Writer(Vec::new()), Writer(Vec::new()));
    let (mut name, mut address) = ("", 0);
    for layer in layers {
        let Layer { group, stage, heads, pairs, elements, element_bytes, memory, .. } = *layer;
        let place = memory.map(|memory| (memory.blocks, memory.strides));
        let shape = Shape { group, stage, heads, pairs, elements, element_bytes, memory: place };
        let index = shapes.iter().rposition(|known| *known == shape).unwrap_or_else(|| {
            shape_out(&mut shapes_out, &shape);
            shapes.push(shape);
            shapes.len() - 1
        });
        let shared = name.bytes().zip(layer.name.bytes()).take_while(|(one, two)| one == two).count();
        let rest = &layer.name.as_bytes()[shared..];
        // `check` has bounded the indices and the names.
        out.u16(index as u16);
        out.0.extend([shared as u8, rest.len() as u8]);
        out.0.extend(rest);
        if let Some(memory) = memory {
            out.u64(memory.address.wrapping_sub(address));
            address = memory.address;
        }
        name = &layer.name;
    }
    (shapes_out.0, out.0)
}

pub fn layers_in(mut input: Reader, shapes: &[Shape]) -> Result<Vec<Layer>> {
    let (mut layers, mut address) = (Vec::<Layer>::new(), 0u64);
    while !input.is_empty() {
        let index = layers.len();
        if index == LAYERS_MAX {
            return Err(limit(format!("layers has more than {LAYERS_MAX}")));
        }
        let shape = input.u16()?;
        let [shared, length] = input.array()?;
        let rest = input.take(length.into())?;
        let before = layers.last().map_or("", |layer| &layer.name).as_bytes();
        let Some(shared) = before.get(..shared.into()) else {
            return Err(Error::invalid(format!("layers[{index}] shares {shared} bytes of a shorter name")));
        };
        let Some(&shape) = shapes.get(usize::from(shape)) else {
            let count = shapes.len();
            return Err(Error::invalid(format!("layers[{index}] has shape {shape} of {count} shapes")));
        };
        let Shape { group, stage, heads, pairs, elements, element_bytes, memory } = shape;
        let name = text(&[shared, rest], &format!("layers[{index}]"))?;
        let memory = match memory {
            None => None,
            Some((blocks, strides)) => {
                address = address.wrapping_add(input.u64()?);
                Some(LayerMemory { address, blocks, strides })
            }
        };
        grow(&mut layers, Layer { name, group, stage, heads, pairs, elements, element_bytes, memory })?;
    }
    Ok(layers)
}
