//! The hidden commands: what this program tells the processes that it starts of itself.

use std::path::PathBuf;

use clap::Args;

use super::{DeviceOptions, RdmaOptions, Transport};
use crate::raw::same_host::Kind;
use crate::raw::verbs::Port;

#[derive(Args, Debug)]
pub struct FerryTargetArguments {
    #[arg(long)]
    pub secret_file: Option<PathBuf>,
    #[arg(long)]
    pub spin_us: Option<u32>,
    #[arg(long)]
    pub congestion_control: Option<String>,
    #[arg(long)]
    pub workers: Option<usize>,
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    #[arg(long)]
    pub qps: Option<u32>,
    #[command(flatten)]
    pub rdma: RdmaOptions,
    #[command(flatten)]
    pub device: DeviceOptions,
}

#[derive(Args, Debug)]
pub struct FerryCrowdArguments {
    #[command(flatten)]
    pub engine: FerryTargetArguments,
    #[arg(long)]
    pub address: String,
    #[arg(long)]
    pub peers: usize,
}

#[derive(Args, Debug)]
pub struct RawTargetArguments {
    #[arg(long)]
    pub connections: usize,
    #[arg(long)]
    pub memory_bytes: usize,
    #[arg(long)]
    pub token: u64,
    #[arg(long)]
    pub buffer_bytes: Option<usize>,
    #[arg(long)]
    pub congestion_control: Option<String>,
}

#[derive(Args, Debug)]
pub struct SameHostTargetArguments {
    #[arg(long, value_enum)]
    pub kind: Kind,
    #[arg(long)]
    pub memory_bytes: usize,
}

#[derive(Args, Debug)]
pub struct VerbsTargetArguments {
    #[command(flatten)]
    pub port: Port,
    #[arg(long)]
    pub memory_bytes: usize,
}
