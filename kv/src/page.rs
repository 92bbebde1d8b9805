//! Prometheus' text format, for the counts of caches and of pools.

use std::fmt::{Display, Write};

/// Metrics as text. Writing to a String cannot fail.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    fn head(&mut self, metric: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
    }

    pub fn one(&mut self, metric: &str, kind: &str, help: &str, value: impl Display) {
        self.head(metric, kind, help);
        let _ = writeln!(self.0, "{metric} {value}");
    }

    pub fn labelled<'a>(
        &mut self,
        metric: &str,
        kind: &str,
        label: &str,
        help: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.head(metric, kind, help);
        for (name, value) in values {
            let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(self.0, "{metric}{{{label}=\"{name}\"}} {value}");
        }
    }

    pub fn text(self) -> String {
        self.0
    }
}
