//! The tests between two machines: `ferry-bench TEST` serves, `ferry-bench TEST HOST` measures.

use std::io::Write;

use anyhow::Context;
use ferry::limits::{LANES_MAX, QPS_MAX};

use crate::measure;
use crate::options::{Settings, Test, TestArguments, Transport};
use crate::report::write_json;
use crate::subject::{serve, Agreement, Claims, Client, Setup};

/// Either end, as the arguments say.
pub fn run_test(test: Test, arguments: TestArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let claims = arguments.claims(test);
    let settings = arguments.settle(test).map_err(anyhow::Error::msg)?;
    match settings.host.clone() {
        Some(host) => client(&settings, &host, out),
        None => server(&settings, &claims, out),
    }
}

fn server(settings: &Settings, claims: &Claims, out: &mut dyn Write) -> anyhow::Result<()> {
    let told = setup(settings);
    let setup = Setup {
        listen_address: Some(format!("0.0.0.0:{}", settings.port)),
        // The smaller side's number counts: without -q the client chooses.
        lanes: Some(told.lanes.unwrap_or(LANES_MAX)),
        qps: Some(told.qps.unwrap_or(QPS_MAX)),
        ..told
    };
    // A latency is of both ends: they spin alike, asked to or not.
    let spin_us = Some(setup.config()?.spin_us);
    let title = settings.test.title();
    serve(&setup, &Claims { spin_us, ..claims.clone() }, |address| {
        writeln!(out, "ferry {title}: waiting for a client on {address}")?;
        out.flush()
    })?;
    writeln!(out, "ferry {title}: served")?;
    Ok(())
}

fn client(settings: &Settings, host: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    // Nobody connects to the client: the server's transfers take the connections that it opened.
    let setup = Setup { listen_address: Some(String::new()), ..setup(settings) };
    let config = setup.config()?;
    let agreement = Agreement {
        test: Some(settings.test),
        sizes: settings.sizes.clone(),
        limit: settings.limit,
        tx_depth: settings.tx_depth,
        requests: settings.requests,
        bidirectional: settings.bidirectional,
        pingpong: settings.pingpong,
        data_validation: settings.data_validation,
        acked_only: settings.acked_only,
        layout: settings.layout,
        memory: settings.memory,
        transport: settings.transport,
        lanes: if settings.transport == Transport::Rdma { config.rdma_qps } else { config.lanes },
        spin_us: config.spin_us,
    };
    let address = join(host, settings.port);
    let mut client = Client::connect(&setup, &address, agreement, measure::memory_bytes(settings)?)
        .with_context(|| format!("the server at {address}"))?;
    if settings.spoil {
        client.spoil_checks();
    }
    let report = measure::run(settings, &mut client, out)?;
    settings.json.as_deref().map_or(Ok(()), |path| write_json(path, &report))
}

fn setup(settings: &Settings) -> Setup {
    let (lanes, qps) = match settings.transport {
        Transport::Rdma => (None, settings.lanes),
        _ => (settings.lanes, None),
    };
    Setup {
        secret_file: settings.secret_file.clone(),
        transport: settings.transport,
        lanes,
        qps,
        rdma: settings.rdma.clone(),
        device: settings.device,
        spin: settings.spin,
        ..Setup::default()
    }
}

/// `host:port`, with the brackets that an IPv6 address needs.
fn join(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_all_kinds_get_their_port() {
        let joined = ["host", "10.0.0.1", "fe80::1", "[::1]"].map(|host| join(host, 7));
        assert_eq!(joined, ["host:7", "10.0.0.1:7", "[fe80::1]:7", "[::1]:7"]);
    }
}
