//! The output of a part of the paper: text that is printed and kept, and plots beside it.

use std::io::Write;
use std::path::PathBuf;

use ferry_bench::plot::{decade, figure, Svg, BLUE, VERMILION};

use crate::Result;

const LEFT: f64 = 70.0;
const TOP: f64 = 80.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
/// Colours of Okabe and Ito. Lines differ in more than colour.
const STYLES: [(&str, &str); 6] = [
    (BLUE, ""),
    (VERMILION, "6 3"),
    ("#009e73", "2 3"),
    ("#cc79a7", "8 2 2 2"),
    ("#e69f00", "4 4"),
    ("#56b4e9", "1 2"),
];

pub struct Report {
    folder: PathBuf,
    text: String,
}

/// A line of a plot: its name and points.
pub type Series = (String, Vec<(f64, f64)>);

impl Report {
    pub fn new(folder: &str) -> Report {
        Report { folder: folder.into(), text: String::new() }
    }

    pub fn say(&mut self, line: impl AsRef<str>) {
        // A reader who has seen enough closes the pipe; the file gets all.
        let _ = writeln!(std::io::stdout(), "{}", line.as_ref());
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// A table in columns; the first column is a text, the others are figures.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let others = row.iter().zip(&widths).skip(1).map(|(cell, &width)| format!("  {cell:>width$}"));
            let first = format!("  {:1$}", row[0], widths[0]);
            self.say((first + &others.collect::<String>()).trim_end());
        }
    }

    /// Keeps the text as `NAME.txt`.
    pub fn keep(self, name: &str) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        Ok(std::fs::write(self.folder.join(name).with_extension("txt"), self.text)?)
    }

    /// Draws lines into `NAME.svg`. Both axes begin at 0, unless one is logarithmic.
    pub fn plot(&self, name: &str, title: &str, [x, y]: [Axis; 2], series: &[Series]) -> Result<()> {
        let mut svg = Svg::new(LEFT + WIDTH + 40.0, TOP + HEIGHT + 60.0, title);
        let all = || series.iter().flat_map(|(_, points)| points);
        let (x_of, x_ticks) = x.over(all().map(|point| point.0));
        let (y_of, y_ticks) = y.over(all().map(|point| point.1));
        let place = |(at, value): (f64, f64)| (LEFT + WIDTH * x_of(at), TOP + HEIGHT * (1.0 - y_of(value)));
        for tick in x_ticks {
            let at = LEFT + WIDTH * x_of(tick);
            svg.line([at, TOP, at, TOP + HEIGHT], "#d0d7de", 0.5);
            svg.text(at, TOP + HEIGHT + 18.0, "middle", &figure(tick));
        }
        for tick in y_ticks {
            let at = TOP + HEIGHT * (1.0 - y_of(tick));
            svg.line([LEFT, at, LEFT + WIDTH, at], "#d0d7de", 0.5);
            svg.text(LEFT - 8.0, at + 4.0, "end", &figure(tick));
        }
        for (at, ((name, points), (colour, dash))) in series.iter().zip(STYLES.iter().cycle()).enumerate() {
            let points: Vec<_> = points.iter().copied().map(place).collect();
            svg.path(&points, colour, dash);
            if points.len() < 20 {
                points.iter().for_each(|(x, y)| svg.circle(*x, *y, colour));
            }
            let (left, top) = (LEFT + 220.0 * (at % 3) as f64, TOP - 34.0 + 18.0 * (at / 3) as f64);
            svg.path(&[(left, top), (left + 30.0, top)], colour, dash);
            svg.text(left + 36.0, top + 4.0, "start", name);
        }
        svg.text(LEFT, TOP + HEIGHT + 40.0, "start", &format!("right: {}; up: {}", x.0, y.0));
        std::fs::create_dir_all(&self.folder)?;
        Ok(std::fs::write(self.folder.join(name).with_extension("svg"), svg.end())?)
    }
}

/// The quantity of an axis, and whether it is logarithmic.
pub struct Axis(pub &'static str, pub bool);

impl Axis {
    /// Returns the place of a value between 0 and 1, and the ticks.
    fn over(&self, values: impl Iterator<Item = f64>) -> (impl Fn(f64) -> f64, Vec<f64>) {
        let (low, high) =
            values.fold((f64::INFINITY, 0.0_f64), |(low, high), it| (low.min(it), high.max(it)));
        let is_log = self.1;
        let (low, high) =
            if is_log { (decade(low), decade(high * 0.999) * 10.0) } else { (0.0, high.max(1e-9) * 1.02) };
        let ticks = if is_log {
            let decades = (high / low).log10().round() as i32;
            (0..=decades).map(|power| low * 10f64.powi(power)).collect()
        } else {
            let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * decade(high / 6.0));
            let step = step.into_iter().find(|step| *step >= high / 6.0).unwrap_or(high);
            (0..).map(|nth| f64::from(nth) * step).take_while(|tick| *tick <= high).collect()
        };
        let place =
            move |value: f64| if is_log { (value / low).ln() / (high / low).ln() } else { value / high };
        (place, ticks)
    }
}
