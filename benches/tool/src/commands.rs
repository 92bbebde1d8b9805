//! The tests between two machines: `ferry-bench TEST` is the server, `ferry-bench TEST HOST` the client, which
//! measures.

use std::io::Write;

use anyhow::Context;
use ferry::limits::{LANES_MAX, QPS_MAX};

use crate::measure;
use crate::options::{Settings, Test, TestArguments, Transport};
use crate::plot;
use crate::report::write_json;
use crate::subject::{serve, Client, Manner, Setup, Term};

/// Runs the server or the client, as the arguments say.
pub fn run_test(test: Test, arguments: TestArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let settings = arguments.settle(test).map_err(anyhow::Error::msg)?;
    match &settings.said.host {
        Some(host) => client(&settings, host, out),
        None => server(&settings, out),
    }
}

fn server(settings: &Settings, out: &mut dyn Write) -> anyhow::Result<()> {
    let address = format!("0.0.0.0:{}", settings.said.port);
    // The smaller number of lanes counts: without -q the client chooses.
    let setup = setup(settings).otherwise("lanes", LANES_MAX).otherwise("rdma_qps", QPS_MAX);
    // Clients know where they dial: a host of several networks needs no address of its own choice.
    let setup =
        setup.with("listen_address", address).with_unless_set("advertise_address", host_name() + ":0");
    let terms = settings.said.terms(settings.test, &setup.config()?);
    let title = settings.test.title();
    serve(&setup, &terms, out, |address, out| {
        writeln!(out, "ferry {title}: waiting for a client on {address}")?;
        out.flush()
    })?;
    writeln!(out, "ferry {title}: served")?;
    Ok(())
}

/// Returns the name of this host.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // A name with other characters is no host of an address.
    let is_host = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    if is_host {
        name
    } else {
        "localhost".to_owned()
    }
}

fn client(settings: &Settings, host: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    // Nobody dials the client: the server's transfers use the connections that the client opened.
    let setup = setup(settings).with("listen_address", "");
    let said = &settings.said;
    let manner = Manner {
        memory: said.memory,
        tx_depth: settings.tx_depth,
        bidirectional: said.bidirectional,
        pingpong: said.pingpong,
        validate: said.data_validation,
        acked_only: said.acked_only,
    };
    let terms = said.terms(settings.test, &setup.config()?).into_iter().map(Term::state).collect();
    let address = join(host, said.port);
    let mut client = Client::connect(&setup, &address, manner, terms, measure::memory_bytes(settings)?)
        .with_context(|| format!("the server at {address}"))?;
    if said.spoil {
        client.spoil_checks();
    }
    let report = measure::run(settings, &mut client, out)?;
    write_json(said.json.as_deref(), &report)?;
    plot::write(said.plot.as_deref(), || plot::of_report(&report, said.report_gbits))
}

fn setup(settings: &Settings) -> Setup {
    let said = &settings.said;
    let count = if said.transport == Transport::Rdma { "rdma_qps" } else { "lanes" };
    Setup::on(said.device)
        .given("secret_file", said.secret_file.as_ref().map(|path| path.display()))
        .given("transports", said.transport.forced())
        .given(count, said.lanes)
        .given("spin_us", said.spin_us)
        .with_all(said.rdma.settings())
}

/// Joins `host:port`, with the brackets that an IPv6 address needs.
fn join(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
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
