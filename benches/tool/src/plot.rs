//! Plots as SVG, without a library: `--plot` draws the figures of a test by size. The same figures give the same file.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::report::{Report, SizeResult};
use crate::workload::format_bytes;

const LEFT: f64 = 80.0;
const TOP: f64 = 60.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;

/// Colours of Okabe and Ito, which readers who are colour-blind tell apart.
pub const BLUE: &str = "#0072b2";
pub const VERMILION: &str = "#d55e00";
const ORANGE: &str = "#e69f00";

/// A line of a plot: a value for each size.
struct Series {
    name: &'static str,
    colour: &'static str,
    /// Lines differ in more than colour.
    dash: &'static str,
    values: Vec<f64>,
}

/// Writes the drawing into the file at `path`, if any, replacing it.
pub fn write(path: Option<&Path>, draw: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, draw()).with_context(|| format!("writing {}", path.display()))
}

/// Draws the figures of a test by size. Sizes are on a logarithmic axis, and so are figures that span decades.
pub fn of_report(report: &Report, gbits: bool) -> String {
    let is_latency = !report.test.is_bandwidth();
    let (unit, factor) = if gbits { ("Gb/s", 8.0) } else { ("GB/s", 1.0) };
    let (unit, styles): (_, &[_]) = if is_latency {
        ("µs", &[("p50", BLUE, ""), ("p99", ORANGE, "6 3"), ("p99.9", VERMILION, "2 3")])
    } else {
        (unit, &[("average", BLUE, ""), ("peak", ORANGE, "6 3")])
    };
    let figures = |size: &SizeResult| match size {
        SizeResult::Bandwidth(it) => {
            let (average, peak) = (it.average_gb_per_second, it.peak_gb_per_second);
            (it.request_bytes, vec![average * factor, peak * factor])
        }
        SizeResult::Latency(it) => (it.request_bytes, vec![it.p50_us, it.p99_us, it.p99_9_us]),
    };
    let (sizes, figures): (Vec<_>, Vec<_>) = report.sizes.iter().map(figures).unzip();
    let line = |(place, &(name, colour, dash)): (usize, &(&'static str, &'static str, &'static str))| {
        let values = figures.iter().map(|of_size| of_size[place]).collect();
        Series { name, colour, dash, values }
    };
    let series: Vec<_> = styles.iter().enumerate().map(line).collect();
    let title = format!("{}, {unit}", report.test.title());
    lines(&title, &report.machine.to_string(), &sizes, &series)
}

fn lines(title: &str, note: &str, sizes: &[usize], series: &[Series]) -> String {
    let mut svg = Svg::new(LEFT + WIDTH + 40.0, TOP + HEIGHT + 80.0, title);
    let axis = Axis::of(series.iter().flat_map(|line| line.values.iter().copied()));
    for tick in axis.ticks() {
        let y = axis.y(tick);
        svg.line([LEFT, y, LEFT + WIDTH, y], "#d0d7de", 0.5);
        svg.text(LEFT - 8.0, y + 4.0, "end", &figure(tick));
    }
    let log2 = |bytes: &usize| (*bytes as f64).log2();
    let ends = [sizes.first(), sizes.last()].map(|bytes| bytes.map_or(0.0, log2));
    // Half a step is free at both ends, and a single size is in the middle.
    let x = |bytes: &usize| LEFT + WIDTH * (log2(bytes) - ends[0] + 0.5) / (ends[1] - ends[0] + 1.0);
    // Labels of 23 sizes would touch: every second one.
    for bytes in sizes.iter().step_by(sizes.len().div_ceil(12).max(1)) {
        svg.line([x(bytes), TOP, x(bytes), TOP + HEIGHT], "#d0d7de", 0.5);
        svg.text(x(bytes), TOP + HEIGHT + 18.0, "middle", &format_bytes(*bytes));
    }
    for (place, line) in series.iter().enumerate() {
        let points: Vec<_> =
            sizes.iter().zip(&line.values).map(|(bytes, value)| (x(bytes), axis.y(*value))).collect();
        svg.path(&points, line.colour, line.dash);
        points.iter().for_each(|(x, y)| svg.circle(*x, *y, line.colour));
        let at = LEFT + 130.0 * place as f64;
        svg.path(&[(at, TOP - 14.0), (at + 30.0, TOP - 14.0)], line.colour, line.dash);
        svg.text(at + 36.0, TOP - 10.0, "start", line.name);
    }
    let scale = if axis.is_log { "log2 to the right, log10 upwards" } else { "log2 to the right" };
    svg.text(LEFT, TOP + HEIGHT + 40.0, "start", &format!("bytes of a request; {scale}"));
    svg.text(LEFT, TOP + HEIGHT + 60.0, "start", note);
    svg.end()
}

/// The vertical axis: from zero, or logarithmic if the values span more than a decade.
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) =
            values.fold((f64::INFINITY, 0.0_f64), |(low, high), it| (low.min(it), high.max(it)));
        if low > 0.0 && high > 10.0 * low {
            Axis { low: decade(low), high: decade(high) * 10.0, is_log: true }
        } else {
            Axis { low: 0.0, high: if high > 0.0 { high * 1.05 } else { 1.0 }, is_log: false }
        }
    }

    fn y(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        TOP + HEIGHT * (1.0 - share)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.high / self.low).log10().round() as i32;
            return (0..=decades).map(|power| self.low * 10f64.powi(power)).collect();
        }
        let rough = self.high / 5.0;
        let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * decade(rough));
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

/// The power of ten that is not above the value.
pub fn decade(value: f64) -> f64 {
    10f64.powf(value.log10().floor())
}

pub fn figure(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An SVG under construction.
pub struct Svg(String);

impl Svg {
    pub fn new(width: f64, height: f64, title: &str) -> Svg {
        let title = escaped(title);
        let mut svg = Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
             aria-label=\"{title}\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{title}</title>\n"
        ));
        svg.rect([0.0, 0.0, width, height], "#ffffff");
        svg.push(format_args!("<text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"600\">{title}</text>"));
        svg
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{element}").expect("a String takes all");
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escaped(text);
        self.push(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], colour: &str, width: f64) {
        self.push(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>"
        ));
    }

    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], colour: &str) {
        self.push(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    pub fn circle(&mut self, x: f64, y: f64, colour: &str) {
        self.push(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
    }

    pub fn path(&mut self, points: &[(f64, f64)], colour: &str, dash: &str) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.push(format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/>"
        ));
    }

    pub fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::settings_of;
    use crate::stats::Latency;

    /// Returns x and y of a line's points.
    fn points(svg: &str, colour: &str) -> Vec<[f64; 2]> {
        let circles = svg.lines().filter(|line| line.starts_with("<circle") && line.contains(colour));
        let number =
            |line: &str, place| line.split('"').nth(place).and_then(|it| it.parse().ok()).expect("a number");
        circles.map(|line| [1, 3].map(|place| number(line, place))).collect()
    }

    fn latencies(microseconds: &[u64]) -> String {
        let size =
            |us: &u64| SizeResult::Latency(Latency::of(*us as usize, &[us * 1_000]).expect("a sample"));
        let settings = settings_of("write_lat -a host").expect("a client");
        let sizes = microseconds.iter().map(size).collect();
        of_report(&Report::new(&settings, String::new(), [None, None], sizes), false)
    }

    #[test]
    fn a_decade_is_a_decade_of_the_axis_and_a_doubling_of_the_size_a_step() {
        let svg = latencies(&[1, 10, 100]);
        // The axis has three decades, from 1 to 1,000.
        let heights: Vec<_> = points(&svg, BLUE).into_iter().map(|[_, y]| y).collect();
        assert_eq!(heights, [TOP + HEIGHT, TOP + 200.0, TOP + 100.0]);
        // Four doublings with half of one at both ends: fifths.
        let places: Vec<_> =
            points(&latencies(&[1, 2, 16]), BLUE).into_iter().map(|[x, _]| x - LEFT).collect();
        assert_eq!(places, [WIDTH * 0.1, WIDTH * 0.3, WIDTH * 0.9]);
        for part in ["<title>WRITE Latency Test, µs</title>", ">p50<", ">p99.9<", ">1 B<", ">1000<", "</svg>"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn an_axis_is_logarithmic_from_a_decade_on() {
        let axis = Axis::of([2.0, 4.0].into_iter());
        assert_eq!((axis.y(0.0), axis.y(4.2)), (TOP + HEIGHT, TOP));
        assert_eq!(axis.ticks(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(Axis::of(std::iter::empty()).ticks().len(), 6);
        assert!(!Axis::of([1.0, 10.0].into_iter()).is_log && Axis::of([1.0, 10.1].into_iter()).is_log);
    }

    #[test]
    fn names_cannot_break_the_drawing() {
        assert_eq!(escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
