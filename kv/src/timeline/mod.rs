//! Plots of recorded timelines: `svg`. Above `handoff::record`, which has the entries; touches no cache.

mod svg;

pub use svg::plot;
