//! ferry-pool: a node that lends memory to the pool, and looks at one.
//!
//! ```text
//! serve    an engine and a node, until SIGTERM or drain  metrics   the node's counts, by HTTP
//! status   the nodes that a node knows                   client    a client that asks nodes
//! drain    takes a node out
//! ls, top  what nodes hold, and what they do
//! ```

mod client;
mod drain;
mod ls;
mod metrics;
mod options;
mod serve;
mod status;
mod top;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    match options::Options::parse().command {
        options::Command::Serve(serve) => serve::run(&serve),
        options::Command::Status(status) => status::run(&status),
        options::Command::Drain(drain) => drain::run(&drain),
        options::Command::Ls(ls) => ls::run(&ls),
        options::Command::Top(top) => top::run(&top),
    }
}
