//! The connection to one server: its options, and errors of etcd and gRPC in ferry's words.

use std::error::Error as _;
use std::future::Future;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use ferry::status::{reason, Error, Result};
use ferry::Status;

use super::Plan;

/// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
pub const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNAUTHENTICATED: i32 = 16;

/// Bytes of an error's text: the server may have written it.
const TEXT_BYTES_MAX: usize = 200;

pub async fn connect(plan: &Plan, server: &str) -> Result<Client> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(plan.patience)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((user, password)) = &plan.options.user {
        options = options.with_user(user, password);
    }
    if plan.etcd.has_tls {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &plan.options.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = &plan.options.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        options = options.with_tls(tls);
    }
    within(plan, server, Client::connect([server], Some(options)))
        .await?
        .map_err(|error| named(server, &error))
}

/// Waits for etcd as long as it may take. UNREACHABLE after that.
pub async fn within<T>(plan: &Plan, server: &str, answer: impl Future<Output = T>) -> Result<T> {
    let answer = tokio::time::timeout(plan.patience, answer).await;
    answer.map_err(|_| {
        let text = format!("{server} has not answered for {} ms", plan.patience.as_millis());
        Error::new(Status::Unreachable, text)
    })
}

/// The code of an error that the server has answered with.
pub fn code(error: &etcd_client::Error) -> Option<i32> {
    match error {
        etcd_client::Error::GRpcStatus(status) => Some(status.code() as i32),
        _ => None,
    }
}

/// True if an answer was too large to be taken.
pub fn is_too_large(error: &etcd_client::Error) -> bool {
    matches!(code(error), Some(OUT_OF_RANGE | RESOURCE_EXHAUSTED))
}

/// REFUSED if the user or its password is wrong or may not do this, UNREACHABLE otherwise.
pub fn named(server: &str, error: &etcd_client::Error) -> Error {
    let mut text = match error {
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    };
    // The sources of a gRPC transport error say more.
    let mut cause = match error {
        etcd_client::Error::GRpcStatus(status) => status.source(),
        etcd_client::Error::TransportError(error) => error.source(),
        _ => None,
    };
    let mut os_error = 0;
    while let Some(inner) = cause {
        text = match inner.downcast_ref::<std::io::Error>() {
            Some(error) => {
                os_error = error.raw_os_error().unwrap_or(0);
                reason(error)
            }
            None => inner.to_string(),
        };
        cause = inner.source();
    }
    // Without a user, or with a wrong one, etcd answers that an argument is invalid.
    let of_user = text.contains("authentication") || text.contains("user name");
    let is_refusal = match code(error) {
        Some(PERMISSION_DENIED | UNAUTHENTICATED | FAILED_PRECONDITION) => true,
        code => code == Some(INVALID_ARGUMENT) && of_user,
    };
    let status = if is_refusal { Status::Refused } else { Status::Unreachable };
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text.truncate(end);
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    Error { os_error, ..Error::new(status, format!("{server}: {text}")) }
}
