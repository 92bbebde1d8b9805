//! ferry-bench: measures ferry, and the raw-socket reference that ferry's speed is stated against.
//!
//! From the bottom up: memory and what is written into it (`memory`, `device`, `pattern`, `layout`, `walk`), what
//! is measured and by whom (`workload`: the `Engine` trait), the two engines (`raw`, the references, and
//! `subject`, ferry), what is made of the figures (`stats`, `cpu`, `turns`), and what the user sees (`options`,
//! `role`, `commands`, `measure`, `table`, `report`, `selftest`, `compare`, `peers`, `rdma`).

pub mod child;
pub mod commands;
pub mod compare;
pub mod cpu;
pub mod device;
pub mod dispense;
pub mod layout;
pub mod measure;
pub mod memory;
pub mod options;
pub mod pattern;
pub mod peers;
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
