//! Turns the benchmark's options into ferry's configuration: only given options differ from the defaults, and the
//! differences can be printed.

use std::collections::BTreeMap;

use anyhow::Context;
use ferry::{Config, Engine};
use serde::{Deserialize, Serialize};

use crate::device::{find, DeviceOptions};
use crate::workload::Described;

/// The settings of an end's engine that were chosen here, and the device whose memory the end uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Setup {
    settings: BTreeMap<String, String>,
    pub device: DeviceOptions,
}

impl Setup {
    /// Returns ferry's defaults, with memory of this device.
    pub fn on(device: DeviceOptions) -> Setup {
        Setup { device, settings: BTreeMap::new() }
    }

    /// Changes a setting of ferry's.
    pub fn with(self, key: &str, value: impl ToString) -> Setup {
        self.given(key, Some(value))
    }

    /// Changes a setting of ferry's, if it was given.
    pub fn given(mut self, key: &str, value: Option<impl ToString>) -> Setup {
        self.settings.extend(value.map(|value| (key.to_owned(), value.to_string())));
        self
    }

    /// Changes all these settings.
    pub fn with_all(self, settings: Vec<(&str, String)>) -> Setup {
        settings.into_iter().fold(self, |setup, (key, value)| setup.with(key, value))
    }

    /// Changes a setting that was not given.
    pub fn otherwise(mut self, key: &str, value: impl ToString) -> Setup {
        self.settings.entry(key.to_owned()).or_insert(value.to_string());
        self
    }

    /// Changes a setting that neither was given nor has a variable in the environment.
    pub fn with_unless_set(self, key: &str, value: impl ToString) -> Setup {
        match std::env::var_os(format!("FERRY_{}", key.to_uppercase())) {
            Some(_) => self,
            None => self.otherwise(key, value),
        }
    }

    pub fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::new()?;
        self.settings.iter().try_for_each(|(key, value)| config.set(key, value))?;
        Ok(config)
    }

    pub fn open(&self) -> anyhow::Result<Engine> {
        Engine::open(self.config()?).context("opening ferry's engine")
    }

    /// Returns the device of this end's memory, if the option names one. An error names the option.
    pub fn described(&self, config: &Config) -> anyhow::Result<Option<Described>> {
        let described = self.device.location().map(|at| find(at, config)).transpose();
        described.with_context(|| self.device.argument().unwrap_or_default())
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
