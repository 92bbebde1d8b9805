//! Compares two layouts: can the target use the source's bytes, and which layer of the source is which of the target?
//! `routes` then chooses who sends.

use std::collections::BTreeMap;
use std::fmt::Debug;

use ferry::status::{Error, Result};
use ferry::Status;

use crate::layout::{Group, GroupKind, Layer, Layout, ModelKey};

/// Returns, for each layer of the target, the index of the source's layer of that name. `Invalid` if the two caches are
/// of different models, `Unsupported` if the target cannot be filled from the source.
pub(super) fn compare(source: &Layout, target: &Layout) -> Result<Vec<u32>> {
    compare_keys(&source.key, &target.key)?;
    let by_name: BTreeMap<&str, (u32, &Layer)> =
        (0u32..).zip(&source.layers).map(|(index, layer)| (layer.name.as_str(), (index, layer))).collect();
    let mut matched = Vec::with_capacity(target.layers.len());
    let mut groups: BTreeMap<u32, (u32, &str)> = BTreeMap::new();
    for layer in &target.layers {
        let name = layer.name.as_str();
        let &(index, from) =
            by_name.get(name).ok_or_else(|| unsupported(format!("the source has no layer {name}")))?;
        compare_layers(from, layer)?;
        compare_groups(name, group_of(source, from)?, group_of(target, layer)?)?;
        // One list of the source's blocks serves all layers of a target's group.
        let &mut (group, other) = groups.entry(layer.group).or_insert((from.group, name));
        if group != from.group {
            return Err(unsupported(format!(
                "layers {other} and {name} share group {} of the target, but are in groups {group} and {} \
                 of the source",
                layer.group, from.group
            )));
        }
        matched.push(index);
    }
    Ok(matched)
}

/// Returns the group of a layer.
pub(super) fn group_of<'a>(layout: &'a Layout, layer: &Layer) -> Result<&'a Group> {
    layout.groups.get(layer.group as usize).ok_or_else(|| {
        Error::invalid(format!(
            "layer {} is in group {} of {} groups",
            layer.name,
            layer.group,
            layout.groups.len()
        ))
    })
}

/// Refuses layers whose rows differ.
pub(super) fn compare_layers(source: &Layer, target: &Layer) -> Result<()> {
    let name = target.name.as_str();
    equal(name, "heads", source.heads, target.heads)?;
    equal(name, "pairs", source.pairs, target.pairs)?;
    equal(name, "elements", source.elements, target.elements)?;
    equal(name, "element_bytes", source.element_bytes, target.element_bytes)
}

fn compare_keys(source: &ModelKey, target: &ModelKey) -> Result<()> {
    for (what, source, target) in [
        ("model", &source.model, &target.model),
        ("revision", &source.revision, &target.revision),
        ("cache", &source.cache, &target.cache),
        ("rope", &source.rope, &target.rope),
    ] {
        if source != target {
            return Err(Error::invalid(format!(
                "the key's {what} differs: the source has {source:?}, the target {target:?}"
            )));
        }
    }
    Ok(())
}

fn compare_groups(name: &str, source: &Group, target: &Group) -> Result<()> {
    match (source.kind, target.kind) {
        (GroupKind::Window { tokens: source }, GroupKind::Window { tokens: target }) => {
            if source < target {
                return Err(unsupported(format!(
                    "the source keeps {source} tokens of layer {name}, and the target needs {target}"
                )));
            }
            Ok(())
        }
        (source, target) => equal(name, "group kind", source, target),
    }
}

fn equal<T: PartialEq + Debug>(layer: &str, what: &str, source: T, target: T) -> Result<()> {
    if source == target {
        return Ok(());
    }
    Err(unsupported(format!(
        "the {what} of layer {layer} differs: the source has {source:?}, the target {target:?}"
    )))
}

pub(super) fn unsupported(message: String) -> Error {
    Error::new(Status::Unsupported, message)
}
