//! Users of etcd, and TLS.

use std::process::Command;
use std::time::Duration;

use etcd_client::{Permission, RoleRevokePermissionOptions};
use ferry::Status;
use ferry_directory::{read_pem, Directory, DirectoryOptions};

use super::server::{is_missing, Server};
use super::{engine, options, until, PATIENCE};

fn with_user(user: &str, password: &str) -> DirectoryOptions {
    DirectoryOptions { user: Some((user.into(), password.into())), ..options(10) }
}

#[test]
fn etcd_may_ask_for_a_user_and_refuse_it() {
    let Some(server) = Server::started("etcd_may_ask_for_a_user_and_refuse_it") else { return };
    server.client(None, async |client| {
        client.user_add("root", "r", None).await.unwrap();
        client.role_add("root").await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        client.role_add("peers").await.unwrap();
        let may = |permission: Permission| permission.with_prefix();
        client.role_grant_permission("peers", may(Permission::read_write("/test/"))).await.unwrap();
        client.role_grant_permission("peers", may(Permission::read("/other/"))).await.unwrap();
        client.user_add("ferry", "geheim", None).await.unwrap();
        client.user_grant_role("ferry", "peers").await.unwrap();
        client.auth_enable().await.unwrap();
    });
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
    let may_write = |is_so: bool| {
        server.client(Some(("root", "r")), async |client| {
            let all = "/test/";
            let may = if is_so { Permission::read_write(all) } else { Permission::read(all) };
            client.role_grant_permission("peers", may.with_prefix()).await.unwrap();
            if !is_so {
                client.delete("/test/a", None).await.unwrap();
            }
        });
    };
    may_write(false);
    until("the loss is told", || directory.status().unwrap().why.contains("permission denied"));
    assert_eq!(directory.status().unwrap().names_published, 0);
    may_write(true);
    until("the name is back", || directory.status().unwrap().names_published == 1);
    directory.unregister("a", Some(PATIENCE)).unwrap();
    // One may read what one may not write.
    let url = format!("etcd:http://{}/other", server.host());
    let other = Directory::open(&engine, &url, with_user("ferry", "geheim")).unwrap();
    let error = other.register("a", Some(PATIENCE)).unwrap_err();
    assert_eq!(error.status, Status::Refused, "{error}");
    server.client(Some(("root", "r")), async |client| {
        let these = RoleRevokePermissionOptions::new().with_prefix();
        client.role_revoke_permission("peers", "/test/", Some(these)).await.unwrap();
    });
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
fn tls_takes_the_server_that_the_certificates_vouch_for() {
    use std::io::Write;
    const TEST: &str = "tls_takes_the_server_that_the_certificates_vouch_for";
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
    let server = Server::with_tls(&cert, &key);
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
}
