//! ferry-pool: a node that lends memory to the pool, and looks at one.
//!
//! ```text
//! serve    an engine and a node, until SIGTERM          metrics   the node's counts, by HTTP
//! status   the nodes that a node knows
//! ```

mod metrics;
mod options;
mod serve;
mod status;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    match options::Options::parse().command {
        options::Command::Serve(serve) => serve::run(&serve),
        options::Command::Status(status) => status::run(&status),
    }
}
