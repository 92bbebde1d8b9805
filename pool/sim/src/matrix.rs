//! When loading a prefix from another node beats computing it: the time of the bytes on a link beside the time of the
//! arithmetic. A model's needs are in its published configuration; the speed of devices is an assumption, and said.

use crate::report::{Axis, Report};
use crate::Result;

const LINKS_GBIT: [f64; 3] = [10.0, 100.0, 400.0];
const TOKENS: [u64; 6] = [128, 512, 2_048, 8_192, 32_768, 131_072];
/// The speed of a device in a prefill: about half of the peak of an A100 or a 910B, and of an H100.
const DEVICE_FLOPS: [f64; 2] = [150e12, 500e12];
/// The part of a link's rate that values get.
const SHARE_OF_LINK: f64 = 0.9;
/// A look-up, a message and its answer, and the copy to the device of what arrives last.
const FIXED_S: f64 = 0.5e-3;

struct Model {
    name: &'static str,
    /// Parameters that a token uses.
    parameters: f64,
    layers: f64,
    /// Query heads by the mean of the lengths of a key and a value.
    attention: f64,
    cache_bytes: f64,
    devices: f64,
}

const fn model(
    name: &'static str,
    devices: f64,
    parameters: f64,
    layers: f64,
    attention: f64,
    cache: f64,
) -> Model {
    Model { name, devices, parameters, layers, attention, cache_bytes: layers * cache }
}

/// The last figure: bytes of a token's cache in one layer, 2 an element.
const MODELS: [Model; 4] = [
    model("7B, all heads cached", 1.0, 6.7e9, 32.0, 32.0 * 128.0, 2.0 * 32.0 * 128.0 * 2.0),
    model("Qwen3-32B, TP 2", 2.0, 32.8e9, 64.0, 64.0 * 128.0, 2.0 * 8.0 * 128.0 * 2.0),
    model("Qwen2.5-72B, TP 4", 4.0, 72.7e9, 80.0, 64.0 * 128.0, 2.0 * 8.0 * 128.0 * 2.0),
    // MLA: keys of 192 and values of 128 in 128 heads; 512 + 64 elements are cached.
    model("DeepSeek-V3, TP 8", 8.0, 37e9, 61.0, 128.0 * 160.0, 576.0 * 2.0),
];

/// Seconds of the bytes alone on a link of this many 10^9 bits a second.
fn wire_s(bytes: f64, gbit: f64) -> f64 {
    bytes * 8.0 / (gbit * 1e9)
}

fn load_s(model: &Model, tokens: f64, gbit: f64) -> f64 {
    FIXED_S + wire_s(model.cache_bytes * tokens, gbit * SHARE_OF_LINK)
}

/// Two operations a parameter and token; a causal attention sees half of all pairs, two products with two operations.
fn compute_s(model: &Model, tokens: f64, device_flops: f64) -> f64 {
    let linear = 2.0 * model.parameters * tokens;
    let attention = 2.0 * tokens * tokens * model.attention * model.layers;
    (linear + attention) / (model.devices * device_flops)
}

pub fn write(folder: &str) -> Result<()> {
    let mut report = Report::new(folder);
    report.say("Is loading worth it? Milliseconds to compute a prefix, and to load it over one link of the instance,");
    report.say(format!(
        "at {SHARE_OF_LINK} of its rate and {} ms for each load. A cache of 2 bytes an element. In brackets: compute over load.",
        FIXED_S * 1e3
    ));
    let mut series = Vec::new();
    for device_flops in DEVICE_FLOPS {
        report.say(format!("\nDevices that do {} TFLOP/s of a prefill:", device_flops / 1e12));
        for model in &MODELS {
            let per_token = model.cache_bytes / 1024.0;
            report.say(format!("\n  {}: {per_token:.1} KiB a token", model.name));
            let heads = LINKS_GBIT.map(|gbit| format!("{gbit} Gbit/s"));
            let head = ["tokens", "MB", "compute ms"].map(String::from).into_iter();
            let mut rows = vec![head.chain(heads).chain(["equal at Gbit/s".into()]).collect::<Vec<_>>()];
            for tokens in TOKENS {
                let (count, bytes) = (tokens as f64, model.cache_bytes * tokens as f64);
                let compute = compute_s(model, count, device_flops);
                let mut row = vec![tokens.to_string(), format!("{:.1}", bytes / 1e6), ms(compute)];
                row.extend(LINKS_GBIT.map(|gbit| {
                    let load = load_s(model, count, gbit);
                    let verdict = if load < compute { "load" } else { "compute" };
                    format!("{verdict} {} ({:.1})", ms(load), compute / load)
                }));
                let equal = bytes * 8.0 / 1e9 / SHARE_OF_LINK / (compute - FIXED_S);
                row.push(if compute > FIXED_S { format!("{equal:.1}") } else { "never".into() });
                rows.push(row);
            }
            report.table(&rows);
            if device_flops == DEVICE_FLOPS[0] {
                let gain = |tokens: u64| {
                    compute_s(model, tokens as f64, device_flops) / load_s(model, tokens as f64, 100.0)
                };
                let points = TOKENS.map(|tokens| (tokens as f64, gain(tokens)));
                series.push((model.name.into(), points.into()));
            }
        }
    }
    let axes = [Axis("tokens of the prefix", true), Axis("time to compute over time to load", true)];
    report.plot(
        "matrix",
        "Compute over load at 100 Gbit/s, devices of 150 TFLOP/s (above 1: load)",
        axes,
        &series,
    )?;
    report.keep("matrix")
}

fn ms(seconds: f64) -> String {
    format!("{:.*}", if seconds < 0.1 { 1 } else { 0 }, seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 tokens of a 7B model are 8.39 MB, and 128 tokens take 5.4 ms at 100 Gbit/s and 54 at 10.
    #[test]
    fn bits_are_not_bytes_and_a_block_is_not_a_chunk() {
        let bytes = MODELS[0].cache_bytes;
        assert_eq!(bytes * 16.0, 8_388_608.0);
        assert!((wire_s(bytes * 128.0, 100.0) - 5.37e-3).abs() < 1e-5);
        assert!((wire_s(bytes * 128.0, 10.0) - 53.7e-3).abs() < 1e-4);
    }
}
