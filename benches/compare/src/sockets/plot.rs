//! `--plot`: the ratio of each row, as SVG.

use ferry_bench::plot::{Svg, BLUE, VERMILION};

use crate::contest::Results;
use crate::judge::Goal;

const GREY: &str = "#767676";
const TOP: f64 = 60.0;
const WIDTH: f64 = 640.0;
const BAR: f64 = 26.0;
const NAMES: f64 = 420.0;

/// Draws the ratio of each row to its reference, with the interval and the target.
pub fn drawing(results: &Results) -> String {
    let judged: Vec<_> = results.ratios.iter().filter_map(|line| Some((line, line.judged.ratio?))).collect();
    let height = TOP + BAR * judged.len() as f64 + 50.0;
    let title = "ferry beside its references: ratios";
    let mut svg = Svg::new(NAMES + WIDTH + 40.0, height, title);
    let largest = judged.iter().map(|(_, ratio)| ratio.high).fold(1.0, f64::max) * 1.05;
    let x = |ratio: f64| NAMES + WIDTH * ratio / largest;
    let bottom = TOP + BAR * judged.len() as f64;
    svg.line([x(1.0), TOP - 6.0, x(1.0), bottom], GREY, 1.0);
    for (place, (line, ratio)) in judged.iter().enumerate() {
        let y = TOP + BAR * place as f64;
        svg.text(NAMES - 8.0, y + 15.0, "end", &format!("{}, {}", line.row, line.unit));
        svg.rect([NAMES, y + 4.0, x(ratio.median) - NAMES, BAR - 10.0], BLUE);
        let middle = y + BAR / 2.0 - 1.0;
        svg.line([x(ratio.low), middle, x(ratio.high), middle], "#1f2328", 1.0);
        if let Some(Goal::AtLeast(goal) | Goal::AtMost(goal)) = line.judged.goal {
            svg.line([x(goal), y + 1.0, x(goal), y + BAR - 4.0], VERMILION, 2.0);
        }
    }
    let note = format!(
        "bars: medians; thin: 95 % intervals; red: targets; grey: the reference. {}",
        results.machine
    );
    svg.text(16.0, bottom + 26.0, "start", &note);
    svg.end()
}
