//! ferry-bench: measures ferry, and the raw-socket reference to which ferry's speed is compared.
//!
//! From the bottom up: memory and its contents (`memory`, `device`, `pattern`, `layout`, `walk`), the measurements and
//! the `Engine` trait (`workload`), the two engines (`raw`, the references, and `subject`, ferry), the evaluation of
//! figures (`stats`, `figures`, `cpu`, `turns`), and the user's view (`options`, `role`, `commands`, `measure`,
//! `table`, `progress`, `plot`, `palette`, `report`, `selftest`, `compare`, `peers`, `rdma`).

pub mod child;
pub mod commands;
pub mod compare;
pub mod cpu;
pub mod device;
pub mod dispense;
pub mod figures;
pub mod layout;
pub mod measure;
pub mod memory;
pub mod options;
pub mod palette;
pub mod pattern;
pub mod peers;
pub mod plot;
pub mod progress;
pub mod raw;
pub mod rdma;
pub mod report;
pub mod role;
pub mod selftest;
pub mod stats;
pub mod subject;
pub mod table;
pub mod turns;
pub mod walk;
pub mod workload;
