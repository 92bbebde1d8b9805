//! ferry-bench: measures ferry between two ends, with perftest's conventions.
//!
//! From the bottom up: memory and its contents (`layout`, `pattern`, `memory`, `walk`), the measurements and the
//! `Engine` trait (`workload`, `dispense`), the machine (`cpu`, `child`, `device`), ferry's two ends (`subject`),
//! figures (`stats`), and the user's view (`options`, `report`, `table`, `progress`, `plot`, `measure`, `selftest`,
//! `commands`). ferry-compare, which is not shipped, uses all but the user's view.

pub mod child;
pub mod commands;
pub mod cpu;
pub mod device;
pub mod dispense;
pub mod layout;
pub mod measure;
pub mod memory;
pub mod options;
pub mod pattern;
pub mod plot;
pub mod progress;
pub mod report;
pub mod selftest;
pub mod stats;
pub mod subject;
pub mod table;
pub mod walk;
pub mod workload;
