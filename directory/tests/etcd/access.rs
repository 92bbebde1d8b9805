//! Users of etcd, and TLS.

use std::process::Command;
use std::time::Duration;

use ferry::Status;
use ferry_directory::{read_pem, Directory, DirectoryOptions};
use serde_json::json;

use super::server::{base64, is_missing, Server};
use super::{engine, options, until, PATIENCE};

fn with_user(user: &str, password: &str) -> DirectoryOptions {
    DirectoryOptions { user: Some((user.into(), password.into())), ..options(10) }
}

#[test]
fn etcd_may_ask_for_a_user_and_refuse_it() {
    let Some(server) = Server::started("etcd_may_ask_for_a_user_and_refuse_it") else { return };
    let grant = |token: &str, prefix: &str, kind: &str| {
        let (key, range_end) = (base64(format!("{prefix}/")), base64(format!("{prefix}0")));
        let permission = json!({ "permType": kind, "key": key, "range_end": range_end });
        server.ask_as(token, "auth/role/grant", json!({ "name": "peers", "perm": permission }));
    };
    for (user, password, role) in [("root", "r", "root"), ("ferry", "geheim", "peers")] {
        server.ask("auth/user/add", json!({ "name": user, "password": password }));
        server.ask("auth/role/add", json!({ "name": role }));
        server.ask("auth/user/grant", json!({ "user": user, "role": role }));
    }
    grant("", "/test", "READWRITE");
    grant("", "/other", "READ");
    server.ask("auth/enable", json!({}));
    let root = server.ask("auth/authenticate", json!({ "name": "root", "password": "r" }));
    let root = root["token"].as_str().unwrap();
    let engine = engine("127.0.0.1:0");
    for wrong in [with_user("ferry", "falsch"), with_user("nobody", "geheim"), options(10)] {
        let error = Directory::open(&engine, &server.url(), wrong).err().unwrap();
        assert_eq!(error.status, Status::Refused, "{error}");
        assert!(!error.message.contains("geheim") && !error.message.contains("falsch"), "{error}");
    }
    let directory = Directory::open(&engine, &server.url(), with_user("ferry", "geheim")).unwrap();
    directory.register("a", Some(PATIENCE)).unwrap();
    assert_eq!(directory.lookup("a").unwrap().address, engine.address());
    // A user without write permission cannot restore a deleted name. The name comes back with the permission.
    grant(root, "/test", "READ");
    server.ask_as(root, "kv/deleterange", json!({ "key": base64("/test/a") }));
    until("the loss is told", || directory.status().unwrap().why.contains("permission denied"));
    assert_eq!(directory.status().unwrap().names_published, 0);
    grant(root, "/test", "READWRITE");
    until("the name is back", || directory.status().unwrap().names_published == 1);
    directory.unregister("a", Some(PATIENCE)).unwrap();
    // A changed password ends the tokens of its user. The session goes on with another token.
    server.ask_as(root, "auth/user/changepw", json!({ "name": "ferry", "password": "geheim" }));
    directory.register("b", Some(PATIENCE)).unwrap();
    assert_eq!(directory.status().unwrap().sessions, 1);
    // One may read what one may not write.
    let url = format!("etcd:http://{}/other", server.host());
    let other = Directory::open(&engine, &url, with_user("ferry", "geheim")).unwrap();
    let error = other.register("a", Some(PATIENCE)).unwrap_err();
    assert_eq!(error.status, Status::Refused, "{error}");
    let revoked = json!({ "role": "peers", "key": base64("/test/"), "range_end": base64("/test0") });
    server.ask_as(root, "auth/role/revoke", revoked);
    let error = directory.register("a", Some(PATIENCE)).unwrap_err();
    assert_eq!(error.status, Status::Refused, "{error}");
}

/// Makes a certificate for 127.0.0.1 that signs itself. None without openssl.
fn certificate(folder: &std::path::Path, name: &str) -> Option<(String, String)> {
    let file = |kind: &str| folder.join(format!("{name}.{kind}")).to_str().unwrap().to_owned();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=ferry test", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &file("key"), "-out", &file("cert")])
        .output()
        .ok()?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some((file("cert"), file("key")))
}

#[test]
fn tls_takes_the_server_and_the_client_that_the_certificates_vouch_for() {
    use std::io::Write;
    const TEST: &str = "tls_takes_the_server_and_the_client_that_the_certificates_vouch_for";
    if is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (Some((cert, key)), Some((other, _))) =
        (certificate(folder.path(), "own"), certificate(folder.path(), "other"))
    else {
        let _ = writeln!(std::io::stderr(), "SKIPPED {TEST}: there is no openssl");
        return;
    };
    let server = Server::with_tls(&cert, &key, &[]);
    let url = format!("etcd:https://{}/test", server.host());
    let engine = engine("127.0.0.1:0");
    let trusts = |file: &str| DirectoryOptions { ca: Some(read_pem(file, "ca").unwrap()), ..options(10) };
    let directory = Directory::open(&engine, &url, trusts(&cert)).unwrap();
    directory.register("a", Some(PATIENCE)).unwrap();
    let brief = DirectoryOptions { open_timeout: Some(Duration::from_secs(1)), ..trusts(&other) };
    let error = Directory::open(&engine, &url, brief).err().unwrap();
    assert!(error.status == Status::Unreachable && error.message.contains("certificate"), "{error}");
    let brief = DirectoryOptions { open_timeout: Some(Duration::from_secs(1)), ..options(10) };
    let plain = url.replace("https", "http");
    assert_eq!(Directory::open(&engine, &plain, brief).err().unwrap().status, Status::Unreachable);

    // This server asks the client for a certificate too.
    let server = Server::with_tls(&cert, &key, &["--client-cert-auth", "--trusted-ca-file", &cert]);
    let url = format!("etcd:https://{}/test", server.host());
    let own = Some((read_pem(&cert, "cert").unwrap(), read_pem(&key, "key").unwrap()));
    let known = DirectoryOptions { identity: own, ..trusts(&cert) };
    Directory::open(&engine, &url, known).unwrap().register("a", Some(PATIENCE)).unwrap();
    let brief = DirectoryOptions { open_timeout: Some(Duration::from_secs(1)), ..trusts(&cert) };
    let error = Directory::open(&engine, &url, brief).err().unwrap();
    assert_eq!(error.status, Status::Unreachable, "{error}");
}
