//! Tests of `config`: every limit from both sides, and what messages name and withhold.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

fn refused(key: &str, value: &str) -> String {
    let mut config = Config::default();
    let before = config.get(key);
    let error = config.set(key, value).expect_err(&format!("{key} = {value:?}"));
    assert_eq!(error.status, Status::Invalid);
    assert_eq!(config.get(key), before, "a refused value changes nothing");
    assert!(error.message.contains(key), "{}", error.message);
    error.message
}

fn accepted(key: &str, value: &str) -> Config {
    let mut config = Config::default();
    config.set(key, value).unwrap_or_else(|error| panic!("{key} = {value:?}: {error}"));
    config
}

/// A file of its own for each test, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8], mode: u32) -> Scratch {
        let path = std::env::temp_dir().join(format!("ferry-config-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_library_is_a_name_of_bounded_length() {
    for name in ["cuda_library", "ascend_library", "hixl_library"] {
        accepted(name, "");
        accepted(name, "./lib cuda.so");
        accepted(name, &"l".repeat(4096));
        refused(name, &"l".repeat(4097));
        refused(name, "lib\0cuda");
    }
}

#[test]
fn a_fabric_is_one_of_three_words() {
    for word in ["off", "hccs", "roce"] {
        accepted("ascend_fabric", word);
    }
    for word in ["", "HCCS", "rdma", "auto"] {
        refused("ascend_fabric", word);
    }
}

#[test]
fn defaults_are_valid_documented_and_settable() {
    let mut config = Config::default();
    config.validate().unwrap();
    for setting in Config::settings() {
        let default = setting.default_text();
        config.set(setting.name, &default).unwrap();
        assert_eq!(config.get(setting.name), Some(default));
        assert!(setting.doc.ends_with('.') && setting.doc.matches(". ").count() == 0, "{}", setting.name);
    }
    config.validate().unwrap();
}

#[test]
fn numbers_take_the_last_valid_and_refuse_the_first_invalid() {
    for setting in Config::settings() {
        let (min, max) = match setting.valid {
            Valid::Range(min, max) => (min, max),
            Valid::ZeroOr(min, max) => {
                accepted(setting.name, "0");
                refused(setting.name, &(min - 1).to_string());
                (min, max)
            }
            _ => continue,
        };
        for value in [min, max] {
            let text = value.to_string();
            assert_eq!(accepted(setting.name, &text).get(setting.name), Some(text));
        }
        let message = refused(setting.name, &(max + 1).to_string());
        assert!(message.contains(&format!("{min} to {max}")), "{message}");
        if min > 0 && matches!(setting.valid, Valid::Range(..)) {
            refused(setting.name, &(min - 1).to_string());
        }
        for text in ["", "-1", "+5", " 5", "5 ", "0x10", "1e3", "99999999999999999999999"] {
            refused(setting.name, text);
        }
    }
}

#[test]
fn words_and_flags() {
    assert!(accepted("allow_unauthenticated", "true").allow_unauthenticated);
    assert!(!accepted("same_user", "0").same_user);
    refused("same_user", "maybe");
    for (text, poller) in
        [("auto", TcpPoller::Auto), ("epoll", TcpPoller::Epoll), ("io_uring", TcpPoller::IoUring)]
    {
        let config = accepted("tcp_poller", text);
        assert_eq!((config.tcp_poller, config.get("tcp_poller").unwrap().as_str()), (poller, text));
    }
    assert!(refused("tcp_poller", "kqueue").contains("auto, epoll, io_uring"));
    let named = Congestion::Named("abcdefghijklmno".into());
    assert_eq!(accepted("tcp_congestion", "abcdefghijklmno").tcp_congestion, named);
    refused("tcp_congestion", "abcdefghijklmnop");
    refused("tcp_congestion", "");
    assert_eq!(accepted("tcp_congestion", "system").tcp_congestion, Congestion::System);
}

#[test]
fn transports_are_a_mask_by_name() {
    use crate::types::Transport;
    let auto = accepted("transports", "auto").transports;
    assert!(auto == Transports::AUTO && auto.allows(Transport::Ascend));
    let some = accepted("transports", "rdma, tcp");
    assert!(some.transports.allows(Transport::Tcp) && !some.transports.allows(Transport::Local));
    assert_eq!(some.get("transports").unwrap(), "tcp,rdma");
    for text in ["", "tcp,", "udp", "none", "TCP", "auto,tcp"] {
        refused("transports", text);
    }
    let unknown_bit = Config { transports: Transports(1 << 6), ..Config::default() };
    assert_eq!(unknown_bit.validate().unwrap_err().status, Status::Invalid);
}

#[test]
fn rdma_devices_mtu_and_gid() {
    assert_eq!(accepted("rdma_gid_index", "auto").rdma_gid_index, None);
    assert_eq!(accepted("rdma_gid_index", "255").rdma_gid_index, Some(255));
    assert_eq!(accepted("rdma_mtu", "4096").rdma_mtu, 4096);
    let named = accepted("rdma_devices", "mlx5_0, rxe0");
    assert!(named.rdma_devices.include("rxe0") && !named.rdma_devices.include("rxe1"));
    assert_eq!(named.get("rdma_devices").unwrap(), "mlx5_0,rxe0");
    assert!(accepted("rdma_devices", "").rdma_devices.include("any"));
    for (key, text) in [
        ("rdma_gid_index", "256"),
        ("rdma_gid_index", "-1"),
        ("rdma_mtu", "1500"),
        ("rdma_devices", "a,,b"),
        ("rdma_devices", "a b"),
        ("rdma_qps", "0"),
        ("rdma_qps", "17"),
    ] {
        refused(key, text);
    }
}

#[test]
fn addresses() {
    for text in ["", "127.0.0.1:0", "0.0.0.0:65535", "[::]:1", "[fe80::1%eth0]:2", "kv-7.example_a:80"] {
        assert_eq!(accepted("listen_address", text).listen_address, text);
    }
    for text in ["127.0.0.1", ":80", "a:65536", "a:", "a:+1", "::1:80", "[::1]", "[x]:1", "a b:1", "a:b:1"] {
        refused("listen_address", text);
    }
    accepted("advertise_address", "10.0.0.7:1");
    let nowhere =
        ["[::ffff:0.0.0.0]:80", "[fe80::1]:80", "224.0.0.1:80", "[ff02::1%eth0]:80", "255.255.255.255:80"];
    for text in ["0.0.0.0:80", "[::]:80", "0.0.0.0:0", "[::]:0", "[::1]", ":0"].into_iter().chain(nowhere) {
        refused("advertise_address", text);
    }
    let says =
        "listen_address: \"7000\" is refused: it has a port and no host: write HOST:7000, on this host \
                127.0.0.1:7000; valid: host:port, [ipv6]:port, or empty";
    assert_eq!(refused("listen_address", "7000"), says);
    let nowhere = refused("advertise_address", "0.0.0.0:80");
    assert!(nowhere.contains("it has a host that peers cannot connect to: write the address"), "{nowhere}");
    let config = Config { listen_address: "::1:80".into(), ..Config::default() };
    let assigned = config.validate().unwrap_err().message;
    assert!(
        assigned.contains("listen_address: \"::1:80\" is refused: it is an IPv6 address without"),
        "{assigned}"
    );
}

#[test]
fn an_advertised_port_of_0_is_the_one_that_is_bound() {
    for (text, host) in [
        ("10.0.0.7:0", Some("10.0.0.7")),
        ("node1:00", Some("node1")),
        ("[fe80::1%eth0]:0", Some("[fe80::1%eth0]")),
        ("node1:10", None),
        ("", None),
    ] {
        let mut config = accepted("advertise_address", text);
        assert_eq!(config.advertised_host(), host);
        config.validate().unwrap();
        config.set("listen_address", "").unwrap();
        assert_eq!(config.validate().is_err(), host.is_some(), "nothing is bound: {text}");
    }
}

#[test]
fn an_unknown_key_is_named_with_its_neighbour() {
    let mut config = Config::default();
    let near = config.set("leas_ms", "50").unwrap_err();
    assert_eq!(near.status, Status::Invalid);
    assert!(near.message.contains("leas_ms") && near.message.contains("\"lease_ms\""), "{near}");
    let far = config.set("colour", "red").unwrap_err();
    assert!(far.message.contains("colour") && !far.message.contains("did you mean"), "{far}");
    assert!(config.set(&"x".repeat(1 << 20), "").unwrap_err().message.len() < 200);
    assert_eq!(config.get("colour"), None);
}

#[test]
fn secrets_are_kept_and_never_shown() {
    let config = accepted("secret", HEX);
    assert_eq!(config.shared_secret().unwrap()[..3], [0x00, 0x11, 0x22]);
    assert_eq!(config.shared_secret().unwrap().len(), 32);
    let shown = format!("{config:?}{:?}", config.get("secret"));
    assert!(shown.contains("(hidden)") && !shown.contains("001122") && !shown.contains("17, 34"), "{shown}");
    for bad in [&HEX[..62], &HEX[..63], &format!("{HEX}0"), &HEX.replace('f', "g")] {
        assert!(!refused("secret", bad).contains("00112233"));
    }
    let mut config = config;
    config.set("secret", "").unwrap();
    assert_eq!(config.shared_secret(), None);
}

#[test]
fn a_secret_file_is_private_and_long_enough() {
    let cases: [(&str, &[u8], u32, Option<usize>); 9] = [
        ("text", b"0123456789abcdef0123456789abcdef\n", 0o600, Some(32)),
        ("crlf", b"0123456789abcdef0123456789abcdef\r\n", 0o400, Some(32)),
        ("binary", &[0x0a; 32], 0o600, Some(32)),
        ("short", &[7; 31], 0o600, None),
        ("short-text", b"0123456789abcdef0123456789abcde\n", 0o600, None),
        ("group", &[7; 32], 0o640, None),
        ("others", &[7; 32], 0o601, None),
        ("longest", &[7; 4096], 0o600, Some(4096)),
        ("too-long", &[7; 4097], 0o600, None),
    ];
    for (name, bytes, mode, length) in cases {
        let file = Scratch::new(name, bytes, mode);
        let mut config = Config::default();
        let result = config.set("secret_file", file.path());
        assert_eq!(config.shared_secret().map(<[u8]>::len), length, "{name}: {result:?}");
        match result {
            Ok(()) => assert_eq!(config.get("secret_file").unwrap(), file.path()),
            Err(error) => assert_eq!(error.status, Status::Invalid),
        }
    }
    let missing = Config::default().set("secret_file", "/nonexistent/ferry").unwrap_err();
    assert_eq!((missing.status, missing.os_error), (Status::Invalid, libc::ENOENT));
    refused("secret_file", "/");
    refused("secret_file", "/dev/zero");
}

#[test]
fn a_secret_that_is_given_as_a_file_is_not_repeated() {
    for wrong in [HEX, &HEX[..40], "/nonexistent/00112233", "hunter2, and 00112233"] {
        assert!(!refused("secret_file", wrong).contains("00112233"));
    }
    let error =
        Config::from_variables(|asked| (asked == "FERRY_SECRET_FILE").then(|| HEX.into())).unwrap_err();
    assert!(error.message.contains("FERRY_SECRET_FILE") && !error.message.contains("00112233"), "{error}");
    assert_eq!(error.os_error, libc::ENOENT);
}

#[test]
fn a_secret_file_of_another_user_is_refused() {
    if crate::sys::host::effective_user() != 0 {
        println!("SKIPPED a_secret_file_of_another_user_is_refused: only root can give a file away");
        return;
    }
    let file = Scratch::new("given-away", &[7; 32], 0o600);
    accepted("secret_file", file.path());
    std::os::unix::fs::chown(file.path(), Some(4321), None).unwrap();
    assert!(refused("secret_file", file.path()).contains("4321"));
}

#[test]
fn a_process_with_more_rights_than_its_caller_heeds_no_variable() {
    let all = |asked: &str| match asked {
        "FERRY_CUDA_LIBRARY" | "FERRY_ASCEND_LIBRARY" | "FERRY_HIXL_LIBRARY" => Some("/tmp/evil.so".into()),
        "FERRY_SECRET_FILE" => Some("/etc/shadow".into()),
        "ASCEND_TRANSFER_TIMEOUT" => Some("1".into()),
        _ => None,
    };
    let config = Config::from_environment(true, all).unwrap();
    for setting in Config::settings() {
        assert_eq!(config.get(setting.name), Some(setting.default_text()), "{}", setting.name);
    }
    let heeded = |asked: &str| all(asked).filter(|_| asked != "FERRY_SECRET_FILE");
    assert_eq!(Config::from_environment(false, heeded).unwrap().hixl_library, "/tmp/evil.so");
}

#[test]
fn the_later_secret_holds() {
    let file = Scratch::new("later", &[9; 40], 0o600);
    let mut config = accepted("secret", HEX);
    config.set("secret_file", file.path()).unwrap();
    assert_eq!((config.shared_secret().unwrap().len(), config.secret.is_set()), (40, false));
    config.set("secret", HEX).unwrap();
    assert_eq!((config.shared_secret().unwrap().len(), config.secret_file.is_set()), (32, false));
    config.validate().unwrap();
    config.secret_file = SecretFile::read(file.path()).unwrap();
    config.validate().expect_err("both given by way of the fields");
}

#[test]
fn the_environment_overrides_defaults_and_is_named_when_wrong() {
    let with = |name: &'static str, value: &'static str| {
        Config::from_variables(move |asked| (asked == name).then(|| value.into()))
    };
    assert_eq!(with("FERRY_LEASE_MS", "50").unwrap().lease_ms, 50);
    assert_eq!(with("FERRY_TCP_POLLER", "epoll").unwrap().tcp_poller, TcpPoller::Epoll);
    let error = with("FERRY_LEASE_MS", "49").unwrap_err();
    assert_eq!(error.status, Status::Invalid);
    assert!(error.message.contains("FERRY_LEASE_MS") && error.message.contains("\"49\""), "{error}");
    let secret = with("FERRY_SECRET", "d00f").unwrap_err();
    assert!(secret.message.contains("FERRY_SECRET") && !secret.message.contains("d00f"), "{secret}");

    use std::os::unix::ffi::OsStringExt;
    let bytes = |asked: &str| (asked == "FERRY_LANES").then(|| OsString::from_vec(vec![0xff]));
    assert!(Config::from_variables(bytes).unwrap_err().message.contains("FERRY_LANES"));

    let file = Scratch::new("environment", &[9; 40], 0o600);
    let both = Config::from_variables(|asked| match asked {
        "FERRY_SECRET" => Some(HEX.into()),
        "FERRY_SECRET_FILE" => Some(file.path().into()),
        _ => None,
    });
    assert_eq!(both.unwrap_err().status, Status::Invalid);
}

#[test]
fn rules_between_settings() {
    let mut config = Config::default();
    config.set("drain_ms", "2999").unwrap();
    config.validate().unwrap();
    config.set("drain_ms", "3000").unwrap();
    assert!(config.validate().unwrap_err().message.contains("lease_ms"));

    let mut closed = accepted("same_user", "false");
    assert_eq!(closed.validate().unwrap_err().status, Status::Invalid);
    closed.set("secret", HEX).unwrap();
    closed.validate().unwrap();

    let assigned = Config { lanes: 17, ..Config::default() };
    assert!(assigned.validate().unwrap_err().message.contains("lanes"));
}

/// An error names what the user has to change: the variable, or the key if the program has set the value itself.
#[test]
fn an_error_between_settings_names_the_variable_that_gave_the_value() {
    let given = |asked: &str| match asked {
        "FERRY_DRAIN_MS" => Some("400".into()),
        "FERRY_SAME_USER" => Some("false".into()),
        "FERRY_ADVERTISE_ADDRESS" => Some("10.0.0.1:0".into()),
        _ => None,
    };
    let says = |config: &Config| config.validate().unwrap_err().message;
    let mut config = Config::from_variables(given).unwrap();
    config.set("lease_ms", "300").unwrap();
    assert_eq!(says(&config), "FERRY_DRAIN_MS (400) must be less than lease_ms (300)");
    // Set to the same value by the program: the variable does not count any more.
    config.set("drain_ms", "400").unwrap();
    assert_eq!(says(&config), "drain_ms (400) must be less than lease_ms (300)");
    config.set("drain_ms", "20").unwrap();
    assert!(says(&config).starts_with("no peer could be accepted, because FERRY_SAME_USER is false: "));
    // Assigned by the program, in Rust.
    config.same_user = true;
    config.listen_address = String::new();
    let zero = "port 0 stands for the bound port, but listen_address is empty";
    assert_eq!(says(&config), format!("FERRY_ADVERTISE_ADDRESS: {zero}"));
    config.advertise_address = "10.0.0.2:0".into();
    assert_eq!(says(&config), format!("advertise_address: {zero}"));
}

#[test]
fn a_variable_that_is_no_setting_is_told_with_the_nearest() {
    let told = |names: &[&str]| environment::unknown(names.iter().map(|name| (*name).into()));
    let known = [
        "FERRY_LANES",
        "FERRY_SECRET_FILE",
        "FERRY_TEST_SEED",
        "FERRY_LIBRARY",
        "FERRY_SIM_STORY",
        "FERRYBOAT",
    ];
    assert!(told(&known).is_empty());
    assert_eq!(
        told(&["FERRY_XYZZY", "FERRY_LANE", "FERRY_LEASE", "FERRY_LIBRARY_", "PATH"]),
        [
            "FERRY_LANE is not a setting; did you mean FERRY_LANES?",
            "FERRY_LEASE is not a setting; did you mean FERRY_LEASE_MS?",
            "FERRY_LIBRARY_ is not a setting, and changes nothing",
            "FERRY_XYZZY is not a setting, and changes nothing",
        ]
    );
    let many: Vec<String> =
        (0..crate::limits::WARNINGS_MAX + 3).map(|nth| format!("FERRY_STRANGE_{nth:03}")).collect();
    let many = environment::unknown(many.iter().map(|name| name.into()));
    assert_eq!(many.len(), crate::limits::WARNINGS_MAX + 1);
    assert_eq!(many.last().unwrap(), "3 more variables that begin with FERRY_ are not settings");
    let odd = environment::unknown([format!("FERRY_\u{1b}{}", "x".repeat(9000)).into()].into_iter());
    assert!(odd[0].len() < 200 && !odd[0].contains('\u{1b}'), "{}", odd[0]);
}
