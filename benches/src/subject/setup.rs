//! Turns the benchmark's options into ferry's configuration: only given options differ from the defaults, and the
//! differences can be printed.

use std::path::PathBuf;

use anyhow::Context;
use ferry::config::Transports;
use ferry::{Config, Engine};
use serde::{Deserialize, Serialize};

use crate::options::{DeviceOptions, Named, RdmaOptions, Transport};

/// The options of an end's engine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Setup {
    /// `None` keeps the default: a free port of the loopback address.
    pub listen_address: Option<String>,
    /// Without it, peers are this user on this host only.
    pub secret_file: Option<PathBuf>,
    pub transport: Transport,
    pub lanes: Option<u32>,
    /// Queue pairs to each device of a peer.
    pub qps: Option<u32>,
    pub rdma: RdmaOptions,
    /// The device whose memory this end uses.
    pub device: DeviceOptions,
    pub spin_us: Option<u32>,
    /// `None` leaves the choice to ferry.
    pub congestion_control: Option<String>,
    /// Lane threads; `None` keeps the default.
    pub workers: Option<usize>,
}

impl Setup {
    pub fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::new()?;
        let mut set = |key: &str, value: Option<String>| match value {
            Some(value) => config.set(key, &value),
            None => Ok(()),
        };
        set("listen_address", self.listen_address.clone())?;
        let path =
            self.secret_file.as_ref().map(|path| path.to_str().context("the secret's path is not UTF-8"));
        set("secret_file", path.transpose()?.map(str::to_owned))?;
        let transport = Some(self.transport).filter(|transport| *transport != Transport::Auto);
        set("transports", transport.map(|transport| transport.name()))?;
        set("lanes", self.lanes.map(|lanes| lanes.to_string()))?;
        set("rdma_qps", self.qps.map(|qps| qps.to_string()))?;
        self.rdma.settings().into_iter().try_for_each(|(key, value)| set(key, Some(value)))?;
        set("spin_us", self.spin_us.map(|us| us.to_string()))?;
        set("tcp_congestion", self.congestion_control.clone())?;
        set("workers", self.workers.map(|workers| workers.to_string()))?;
        Ok(config)
    }

    pub fn open(&self) -> anyhow::Result<Engine> {
        Engine::open(self.config()?).context("opening ferry's engine")
    }
}

/// Returns "defaults, secret set", or the differences from the defaults, including `FERRY_*` variables.
pub fn describe(config: &Config) -> String {
    let own = ["listen_address", "advertise_address", "secret", "secret_file"];
    let settings = Config::settings().iter().filter(|setting| !own.contains(&setting.name));
    let changed: Vec<String> = settings
        .filter_map(|setting| {
            let value = config.get(setting.name)?;
            (value != setting.default_text()).then(|| format!("{}={value}", setting.name))
        })
        .collect();
    let changed = if changed.is_empty() { "defaults".to_owned() } else { changed.join(" ") };
    let secret = if config.shared_secret().is_some() { "secret set" } else { "no secret: same user" };
    format!("{changed}, {secret}")
}

/// Returns whether every transport is allowed.
pub fn is_auto(config: &Config) -> bool {
    config.transports == Transports::AUTO
}
