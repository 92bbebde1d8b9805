//! A timeline as a picture: a lane for each layer, with compute above and transfers below, and a line across all lanes for
//! each end of a handoff. Plain SVG, without scripts, fonts or styles of others.
//!
//! ```text
//! layer 0  ▇▇▇▇
//!              ░░░░
//! layer 1      ▇▇▇▇
//!                  ░░░░
//!          0.0 ms     0.5 ms
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use crate::handoff::{Entry, Moved, What, MARK_COMPUTE};
use crate::layout::limits::LAYERS_MAX;

/// The picture's measures, in its own units.
const LEFT: u64 = 80;
const WIDTH: f64 = 1_000.0;
const TOP: u64 = 34;
const LANE: u64 = 20;
const BAR: u64 = 8;
/// Steps of the axis.
const STEPS: u64 = 5;
/// Bars and lines that are drawn; the picture says how many are left out.
const DRAWN_MAX: usize = 50_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Compute,
    Mark,
    Transfer,
    /// Not final when the entries end.
    Open,
    /// Failed or was cancelled.
    Failed,
}

impl Row {
    fn class(self) -> (&'static str, &'static str) {
        match self {
            Row::Compute => ("compute", "#4878a8"),
            Row::Mark => ("mark", "#909090"),
            Row::Transfer => ("transfer", "#e08030"),
            Row::Open => ("open", "#f0c090"),
            Row::Failed => ("failed", "#c03030"),
        }
    }

    /// From the top of its lane.
    fn offset(self) -> u64 {
        match self {
            Row::Compute | Row::Mark => 1,
            Row::Transfer | Row::Open | Row::Failed => 1 + BAR,
        }
    }
}

struct Bar {
    row: Row,
    layers: Range<u32>,
    ns: Range<u64>,
    title: String,
}

/// A line across all lanes.
struct Line {
    at: u64,
    title: String,
}

/// Draws entries of one cache, or of several caches of one host, in any order. Marks are drawn in the lanes of their
/// layers, transfers in those of the consumer's layers.
pub fn plot(entries: &[Entry]) -> String {
    let (bars, lines) = (bars(entries), lines(entries));
    let begin = entries.iter().map(|entry| entry.begin_ns).min().unwrap_or(0);
    let end = entries.iter().map(|entry| entry.end_ns).max().unwrap_or(0).max(begin);
    let lanes = bars.iter().map(|bar| bar.layers.end).max().unwrap_or(0);
    let mut page =
        Page { text: String::new(), begin, span: (end - begin).max(1), room: DRAWN_MAX, left_out: 0 };
    page.frame(lanes);
    for bar in &bars {
        page.bar(bar);
    }
    let bottom = TOP + u64::from(lanes) * LANE;
    for line in &lines {
        page.line(line, bottom);
    }
    page.close(bottom)
}

/// The bars of marks, and of transfers: final ones, those that have arrived, and those that are not final.
fn bars(entries: &[Entry]) -> Vec<Bar> {
    let mut all = Vec::new();
    // Transfers of one cache have numbers of their own, and peers differ between caches.
    let mut open: BTreeMap<(u64, u64, u32), &Entry> = BTreeMap::new();
    let last = entries.iter().map(|entry| entry.end_ns).max().unwrap_or(0);
    let mut add = |row, layers: &Range<u32>, entry: &Entry, end_ns: u64, title: String| {
        let layers = layers.start..layers.end.min(LAYERS_MAX as u32);
        if !layers.is_empty() {
            all.push(Bar { row, layers, ns: entry.begin_ns..end_ns.max(entry.begin_ns), title });
        }
    };
    let key = |entry: &Entry, moved: &Moved| (moved.transfer, moved.peer.raw(), entry.id);
    for entry in entries {
        match &entry.what {
            What::Mark { kind, layer } => {
                let layers = *layer..layer.saturating_add(1);
                let (row, name) = match *kind {
                    MARK_COMPUTE => (Row::Compute, "compute".into()),
                    kind => (Row::Mark, format!("mark {kind}")),
                };
                add(row, &layers, entry, entry.end_ns, format!("{:08x}: {name} of layer {layer}", entry.id));
            }
            What::Posted(moved) => {
                open.insert(key(entry, moved), entry);
            }
            What::Final(moved, status) => {
                open.remove(&key(entry, moved));
                let row = if *status == ferry::Status::Ok { Row::Transfer } else { Row::Failed };
                let title = format!("{}: {status}", title(entry, moved));
                add(row, &moved.layers, entry, entry.end_ns, title);
            }
            What::Arrived(moved) => {
                add(Row::Transfer, &moved.layers, entry, entry.end_ns, title(entry, moved) + ": arrived");
            }
            _ => {}
        }
    }
    for entry in open.into_values() {
        if let What::Posted(moved) = &entry.what {
            add(Row::Open, &moved.layers, entry, last, title(entry, moved) + ": not final");
        }
    }
    all
}

fn title(entry: &Entry, moved: &Moved) -> String {
    let Moved { layers, tokens, bytes, .. } = moved;
    format!(
        "{:08x}: layers {} to {}, tokens {} to {}, {bytes} bytes",
        entry.id, layers.start, layers.end, tokens.start, tokens.end
    )
}

fn lines(entries: &[Entry]) -> Vec<Line> {
    let line = |entry: &Entry| {
        let what = match &entry.what {
            What::Offered => "offered".into(),
            What::Taken => "taken".into(),
            What::Sealed { tokens } => format!("sealed, {tokens} tokens"),
            What::Ended(end, status) => format!("{end:?}, {status}"),
            _ => return None,
        };
        Some(Line { at: entry.begin_ns, title: format!("{:08x}: {what}", entry.id) })
    };
    entries.iter().filter_map(line).collect()
}

/// The picture so far. Writing to a String cannot fail.
struct Page {
    text: String,
    begin: u64,
    span: u64,
    room: usize,
    left_out: usize,
}

impl Page {
    fn x(&self, ns: u64) -> f64 {
        LEFT as f64 + ns.saturating_sub(self.begin) as f64 * WIDTH / self.span as f64
    }

    fn frame(&mut self, lanes: u32) {
        let (width, bottom) = (LEFT + WIDTH as u64 + 20, TOP + u64::from(lanes) * LANE);
        let height = bottom + 40;
        let _ = write!(
            self.text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        for (at, row) in [Row::Compute, Row::Transfer, Row::Failed].into_iter().enumerate() {
            let ((name, colour), x) = (row.class(), LEFT + at as u64 * 100);
            let _ = writeln!(
                self.text,
                "<g class=\"legend\"><path d=\"M{x} 10h10v8h-10z\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"18\">{name}</text></g>",
                x + 14
            );
        }
        for lane in 0..lanes {
            let y = TOP + u64::from(lane) * LANE;
            let _ = writeln!(self.text, "<text x=\"8\" y=\"{}\">layer {lane}</text>", y + 13);
            let _ = writeln!(self.text, "<path d=\"M{LEFT} {y}h{WIDTH}\" stroke=\"#e0e0e0\"/>");
        }
        for step in 0..=STEPS {
            let ns = self.begin + (u128::from(self.span) * u128::from(step) / u128::from(STEPS)) as u64;
            let ms = (ns - self.begin) as f64 / 1e6;
            let x = self.x(ns);
            let _ = writeln!(
                self.text,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#f0f0f0\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{ms:.3} ms</text>",
                bottom + 16
            );
        }
    }

    /// Draws a bar in each of its lanes.
    fn bar(&mut self, bar: &Bar) {
        let (class, colour) = bar.row.class();
        let (from, to) = (self.x(bar.ns.start), self.x(bar.ns.end));
        // A bar of no duration is drawn, too.
        let width = (to - from).max(0.5);
        for layer in bar.layers.clone() {
            if !self.take_room() {
                continue;
            }
            let y = TOP + u64::from(layer) * LANE + bar.row.offset();
            let _ = writeln!(
                self.text,
                "<rect class=\"{class}\" data-layer=\"{layer}\" data-begin=\"{}\" data-end=\"{}\" x=\"{from:.2}\" \
                 y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"{colour}\" fill-opacity=\"0.8\">\
                 <title>{}</title></rect>",
                bar.ns.start, bar.ns.end, bar.title
            );
        }
    }

    fn line(&mut self, line: &Line, bottom: u64) {
        if self.take_room() {
            let x = self.x(line.at);
            let _ = writeln!(
                self.text,
                "<path class=\"event\" d=\"M{x:.2} {}V{bottom}\" stroke=\"#404040\" stroke-dasharray=\"2 3\">\
                 <title>{}</title></path>",
                TOP - 8,
                line.title
            );
        }
    }

    fn take_room(&mut self) -> bool {
        let has_room = self.room > 0;
        self.room = self.room.saturating_sub(1);
        self.left_out += usize::from(!has_room);
        has_room
    }

    fn close(mut self, bottom: u64) -> String {
        if self.left_out > 0 {
            let (y, count) = (bottom + 32, self.left_out);
            let _ = writeln!(self.text, "<text x=\"{LEFT}\" y=\"{y}\">{count} more are not drawn</text>");
        }
        self.text += "</svg>\n";
        self.text
    }
}
