//! The tests between two machines: `ferry-bench TEST` is the server, `ferry-bench TEST HOST` the client, which
//! measures.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::Context;
use ferry::limits::{LANES_MAX, QPS_MAX};
use ferry::Status;

use crate::measure;
use crate::options::{Settings, Test, TestArguments, Transport, PORT};
use crate::plot;
use crate::report::write_json;
use crate::subject::{serve, Client, Manner, Setup, Term};
use crate::workload::Named;

/// Runs the server or the client, as the arguments say.
pub fn run_test(test: Test, arguments: TestArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let settings = arguments.settle(test).map_err(anyhow::Error::msg)?;
    settings.said.rdma.refuse_missing_devices()?;
    match &settings.server {
        Some(address) => client(&settings, address, out),
        None => server(&settings, out),
    }
}

fn server(settings: &Settings, out: &mut dyn Write) -> anyhow::Result<()> {
    let port = settings.said.port.unwrap_or(PORT);
    let address = format!("{}:{port}", any_address());
    // The smaller number of lanes counts: without -q the client chooses.
    let setup = setup(settings).otherwise("lanes", LANES_MAX).otherwise("rdma_qps", QPS_MAX);
    // Clients know where they dial: a host of several networks needs no address of its own choice.
    let setup =
        setup.with("listen_address", &address).with_unless_set("advertise_address", host_name() + ":0");
    let terms = settings.said.terms(settings.test, &setup.config()?);
    let title = settings.test.title();
    let served = serve(&setup, &terms, out, |address, out| {
        writeln!(out, "ferry {title}: waiting for a client on {address}")?;
        out.flush()
    });
    served.map_err(|error| mended(error, settings, &address))?;
    writeln!(out, "ferry {title}: served")?;
    Ok(())
}

/// Returns the address that stands for all of this host's: of IPv6 if that includes IPv4.
fn any_address() -> &'static str {
    let probe = TcpListener::bind("[::]:0");
    let port = probe.as_ref().map_or(0, |probe| probe.local_addr().map_or(0, |address| address.port()));
    if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
        "[::]"
    } else {
        "0.0.0.0"
    }
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

fn client(settings: &Settings, address: &str, out: &mut dyn Write) -> anyhow::Result<()> {
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
    for path in [&said.json, &said.plot].into_iter().flatten() {
        // A file that cannot be written must not be known only after the measurement.
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("writing {}", path.display()))?;
    }
    let connected = Client::connect(&setup, address, manner, terms, measure::memory_bytes(settings)?);
    let mut client = connected.map_err(|error| mended(error, settings, address))?;
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

/// Adds to an error of this end's or of the way to the server what to do about it.
fn mended(error: anyhow::Error, settings: &Settings, address: &str) -> anyhow::Error {
    let (test, port) = (settings.test.name(), address.rsplit(':').next().unwrap_or_default());
    let of_ferry = error.downcast_ref::<ferry::Error>().map(|error| (error.status, error.os_error));
    let text = match of_ferry {
        Some((Status::Unreachable, libc::ECONNREFUSED)) => format!(
            "nothing listens at {address}: start `ferry-bench {test} -p {port}` there first (a server serves one \
             client and ends)"
        ),
        Some((Status::Unreachable, _)) => {
            format!("cannot reach {address}; check the name, and that firewalls let the port pass")
        }
        Some((Status::System, libc::EADDRINUSE)) => {
            format!("port {port} is taken; choose another -p at both ends")
        }
        Some((Status::Version | Status::NotFerry, _)) => {
            format!("the server at {address} must be a ferry-bench of the same version")
        }
        Some((Status::Refused, _)) => "give both ends the same --secret-file; without one both must run as the same \
                                       user on the same host"
            .to_owned(),
        Some((Status::NoMemory, _)) => "the memory does not suffice; make -s or -l smaller".to_owned(),
        _ if settings.server.is_some() => format!("the server at {address}"),
        _ => return error,
    };
    error.context(text)
}
