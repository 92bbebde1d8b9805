//! The node's metrics by HTTP, for Prometheus: one short answer at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ferry_pool::Pool;

/// A client that asks slower than this is not answered.
const PATIENCE: Duration = Duration::from_secs(2);
const REQUEST_BYTES_MAX: u64 = 8 << 10;

/// Serves until the process ends. Returns the address, whose port may have been 0.
pub fn serve(address: &str, pool: Arc<Pool>) -> Result<SocketAddr> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("--metrics: listening at {address}"))?;
    let at = listener.local_addr()?;
    let serve = move || listener.incoming().flatten().for_each(|client| drop(answer(client, &pool)));
    std::thread::Builder::new().name("ferry-metrics".into()).spawn(serve)?;
    Ok(at)
}

fn answer(mut client: TcpStream, pool: &Pool) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    let mut lines = BufReader::new(client.try_clone()?.take(REQUEST_BYTES_MAX));
    lines.read_line(&mut request)?;
    let mut header = String::new();
    while lines.read_line(&mut header)? > 2 {
        header.clear();
    }
    let (status, body) = match request.split_whitespace().nth(1) {
        Some("/metrics") => ("200 OK", pool.metrics()),
        _ => ("404 Not Found", "the metrics are at /metrics\n".into()),
    };
    let length = body.len();
    let kind = "text/plain; version=0.0.4";
    write!(client, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}
