//! The terms of a test. The client states all of them; the server refuses what contradicts its own
//! command line and takes the client's word for what it was not told.

use serde::{Deserialize, Serialize};

use super::registered::Origin;
use crate::layout::Layout;
use crate::options::{Test, Transport};
use crate::workload::Limit;

/// What the client is about to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// `None` for `compare`, which runs all kinds.
    pub test: Option<Test>,
    pub sizes: Vec<usize>,
    pub limit: Limit,
    pub tx_depth: usize,
    pub requests: usize,
    pub bidirectional: bool,
    /// Both ends' applications poll memory, and the server WRITEs back.
    pub pingpong: bool,
    pub data_validation: bool,
    /// Over RDMA, WRITEs are done before they are known to be visible at the target.
    pub acked_only: bool,
    pub layout: Layout,
    /// Both ends' memory.
    pub memory: Origin,
    pub transport: Transport,
    /// What `-q` says: queue pairs with `Transport::Rdma`.
    pub lanes: u32,
    pub spin_us: u64,
}

/// What the server was told on its command line; `None` where it was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims {
    pub test: Option<Test>,
    pub sizes: Option<Vec<usize>>,
    pub limit: Option<Limit>,
    pub tx_depth: Option<usize>,
    pub requests: Option<usize>,
    pub bidirectional: Option<bool>,
    pub pingpong: Option<bool>,
    pub data_validation: Option<bool>,
    pub acked_only: Option<bool>,
    pub layout: Option<Layout>,
    pub memory: Option<Origin>,
    pub transport: Option<Transport>,
    pub lanes: Option<u32>,
    /// What the server's engine does, told or not: a latency is of both ends.
    pub spin_us: Option<u64>,
}

impl Claims {
    /// One sentence that names every option on which the two ends differ.
    pub fn accept(&self, client: &Agreement) -> Result<(), String> {
        let mut differences = Vec::new();
        let mut compare = |option: &str, server: Option<String>, client: String| match server {
            Some(server) if server != client => {
                differences.push(format!("{option} is {server} at the server and {client} at the client"));
            }
            _ => {}
        };
        if let Some(test) = client.test {
            compare("the test", self.test.map(|test| test.title().to_owned()), test.title().to_owned());
        }
        compare("-s or -a", self.sizes.as_deref().map(sizes), sizes(&client.sizes));
        compare("-n or -D", self.limit.map(limit), limit(client.limit));
        compare("-t", self.tx_depth.map(|depth| depth.to_string()), client.tx_depth.to_string());
        compare("-l", self.requests.map(|count| count.to_string()), client.requests.to_string());
        compare("-b", self.bidirectional.map(on_off), on_off(client.bidirectional));
        compare("--pingpong", self.pingpong.map(on_off), on_off(client.pingpong));
        compare("--data_validation", self.data_validation.map(on_off), on_off(client.data_validation));
        compare("--acked-only", self.acked_only.map(on_off), on_off(client.acked_only));
        compare("--layout", self.layout.map(|layout| layout.name().into()), client.layout.name().into());
        compare("--memory", self.memory.map(|memory| memory.name().into()), client.memory.name().into());
        let transport = self.transport.map(|transport| transport.name().into());
        compare("--transport", transport, client.transport.name().into());
        compare("-q", self.lanes.map(|lanes| lanes.to_string()), client.lanes.to_string());
        compare("--spin-us", self.spin_us.map(|us| us.to_string()), client.spin_us.to_string());
        match differences.is_empty() {
            true => Ok(()),
            false => Err(format!("the two ends' options differ: {}", differences.join("; "))),
        }
    }
}

fn sizes(sizes: &[usize]) -> String {
    match sizes {
        [only] => only.to_string(),
        [first, .., last] => format!("{} sizes from {first} to {last}", sizes.len()),
        [] => "none".to_owned(),
    }
}

fn limit(limit: Limit) -> String {
    match limit {
        Limit::Seconds(seconds) => format!("{seconds} s"),
        Limit::Transfers(count) => format!("{count} transfers"),
    }
}

fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement() -> Agreement {
        Agreement {
            test: Some(Test::WriteBw),
            sizes: vec![4_096],
            limit: Limit::Transfers(1_000),
            tx_depth: 128,
            requests: 16,
            bidirectional: true,
            pingpong: false,
            data_validation: false,
            acked_only: false,
            layout: Layout::Scattered,
            memory: Origin::Alloc,
            transport: Transport::Auto,
            lanes: 2,
            spin_us: 50,
        }
    }

    #[test]
    fn what_the_server_was_not_told_is_the_clients_to_choose() {
        let claims = Claims { test: Some(Test::WriteBw), ..Claims::default() };
        assert_eq!(claims.accept(&agreement()), Ok(()));
        assert_eq!(Claims::default().accept(&Agreement { test: None, ..agreement() }), Ok(()));
    }

    #[test]
    fn every_difference_is_named_with_both_values() {
        let claims = Claims {
            test: Some(Test::ReadBw),
            sizes: Some(vec![2, 4]),
            limit: Some(Limit::Seconds(3.0)),
            tx_depth: Some(1),
            requests: Some(2),
            bidirectional: Some(false),
            pingpong: Some(true),
            data_validation: Some(true),
            acked_only: Some(true),
            layout: Some(Layout::Contiguous),
            memory: Some(Origin::Own),
            transport: Some(Transport::Tcp),
            lanes: Some(4),
            spin_us: Some(0),
        };
        let text = claims.accept(&agreement()).expect_err("all differ");
        for part in [
            "the test is READ BW Test at the server and WRITE BW Test at the client",
            "-s or -a is 2 sizes from 2 to 4 at the server and 4096 at the client",
            "-n or -D is 3 s at the server and 1000 transfers",
            "-t is 1 at the server and 128",
            "-l is 2 at the server and 16",
            "-b is off at the server and on",
            "--pingpong is on at the server and off",
            "--data_validation is on at the server and off",
            "--acked-only is on at the server and off",
            "--layout is contiguous at the server and scattered",
            "--memory is own at the server and alloc",
            "--transport is tcp at the server and auto",
            "-q is 4 at the server and 2",
            "--spin-us is 0 at the server and 50",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
