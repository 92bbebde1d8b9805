//! Parses URLs: `static:` with a list, a file or nothing, or `etcd:` with servers and a prefix. `directory` opens
//! what is parsed here. A user or a password in a URL is refused, because URLs are printed.

use std::collections::BTreeMap;

use ferry::config::check_address;
use ferry::status::{Error, Result};
use ferry::Status;

use crate::entry::{check_name, check_path, Place};
use crate::limits::{ENTRIES_MAX, LIST_BYTES_MAX, SERVERS_MAX};

const PREFIX: &str = "ferry";
const PORT: u16 = 2379;

#[derive(Debug, PartialEq, Eq)]
pub enum Url {
    /// `static:`. Names are addresses.
    Addresses,
    /// `static:name=address,name=address`.
    List(BTreeMap<String, Place>),
    /// `static:/path`. The file has a list, an entry a line.
    File(String),
    Etcd(Etcd),
}

/// Where the entries lie in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// "http://host:port".
    pub servers: Vec<String>,
    pub has_tls: bool,
    /// The beginning of all keys: "/ferry/".
    pub prefix: String,
}

pub fn parse(url: &str) -> Result<Url> {
    if url.len() > LIST_BYTES_MAX {
        return Err(Error::new(Status::Limit, format!("url has more than {LIST_BYTES_MAX} bytes")));
    }
    match url.split_once(':') {
        Some(("static", "")) => Ok(Url::Addresses),
        Some(("static", file)) if file.starts_with('/') => Ok(Url::File(file.to_owned())),
        Some(("static", list)) => Ok(Url::List(entries(list.split(','), "url")?)),
        Some(("etcd", rest)) => etcd(rest).map(Url::Etcd),
        _ => Err(Error::invalid("url begins neither with static: nor with etcd:")),
    }
}

/// Reads the text of a file: an entry a line. A line that begins with `#` says nothing.
pub fn parse_file(text: &str) -> Result<BTreeMap<String, Place>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    entries(lines, "the file of url")
}

fn entries<'a>(list: impl Iterator<Item = &'a str>, what: &str) -> Result<BTreeMap<String, Place>> {
    let mut entries = BTreeMap::new();
    for (at, entry) in list.enumerate() {
        let what = format!("entry {at} of {what}");
        let pair = entry.split_once('=');
        let (name, address) = pair.ok_or_else(|| Error::invalid(format!("{what} is no name=address")))?;
        let (name, address) = (name.trim(), address.trim());
        check_name(name, &format!("the name in {what}"))?;
        check_address(address, &format!("the address in {what}"))?;
        let place = Place { address: address.to_owned(), identity: None };
        if entries.insert(name.to_owned(), place).is_some() {
            return Err(Error::invalid(format!("{what} has the name {name} again")));
        }
        if entries.len() > ENTRIES_MAX {
            return Err(Error::new(Status::Limit, format!("{what}: there are more than {ENTRIES_MAX}")));
        }
    }
    Ok(entries)
}

fn etcd(rest: &str) -> Result<Etcd> {
    let (scheme, rest) = rest.split_once("://").unwrap_or_default();
    let has_tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(Error::invalid("url: etcd: is followed neither by http:// nor by https://")),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    if hosts.contains('@') {
        // The text is not repeated: it may be a password.
        return Err(Error::invalid("url has something before an @; user and password are options"));
    }
    let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
    check_path(path, "the prefix in url")?;
    let prefix = if path.is_empty() { PREFIX } else { path };
    let servers: Result<Vec<String>> = hosts.split(',').map(|host| server(scheme, host)).collect();
    let servers = servers?;
    if servers.len() > SERVERS_MAX {
        let text = format!("url names {} servers, and at most {SERVERS_MAX} are allowed", servers.len());
        return Err(Error::new(Status::Limit, text));
    }
    Ok(Etcd { servers, has_tls, prefix: format!("/{prefix}/") })
}

fn server(scheme: &str, host: &str) -> Result<String> {
    // The colons of an IPv6 address are in brackets.
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let address = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
    check_address(&address, "a server in url")?;
    if address.contains('%') {
        return Err(Error::invalid("a server in url names an interface, which a URL cannot"));
    }
    Ok(format!("{scheme}://{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd_of(url: &str) -> Etcd {
        match parse(url).unwrap() {
            Url::Etcd(etcd) => etcd,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lists_and_files_have_entries() {
        assert_eq!(parse("static:").unwrap(), Url::Addresses);
        assert_eq!(parse("static:/etc/peers").unwrap(), Url::File("/etc/peers".into()));
        let place = |address: &str| Place { address: address.into(), identity: None };
        let both = BTreeMap::from([("a".to_owned(), place("h:1")), ("p/0".to_owned(), place("[::1]:7000"))]);
        assert_eq!(parse("static:p/0=[::1]:7000,a=h:1").unwrap(), Url::List(both.clone()));
        assert_eq!(parse_file("# peers\n\n a = h:1 \r\np/0=[::1]:7000").unwrap(), both);
        assert_eq!(parse_file("").unwrap(), BTreeMap::new());
    }

    #[test]
    fn what_is_no_list_names_the_entry() {
        let says = |url: &str, words: &str| {
            let error = parse(url).unwrap_err();
            assert!(error.message.contains(words), "{url}: {error}");
            error.status
        };
        for (url, words) in [
            ("", "url begins neither"),
            ("consul:a", "url begins neither"),
            ("static", "url begins neither"),
            ("static:a", "entry 0 of url is no name=address"),
            ("static:a=h:1,", "entry 1 of url is no name=address"),
            ("static:a=h", "the address in entry 0 of url: \"h\" has no port: write h:PORT"),
            ("static:a=h:1,b=h:0", "the address in entry 1 of url: \"h:0\" has port 0"),
            ("static:a=tcp://h:1", "is a URL: write h:1 without tcp://"),
            ("etcd:http://[::1%lo]:1", "names an interface"),
            ("static:=h:1", "the name in entry 0 of url is empty"),
            ("static:a b=h:1", "the name in entry 0 of url"),
            ("static:a=h:1,b=h:2,a=h:3", "entry 2 of url has the name a again"),
        ] {
            assert_eq!(says(url, words), Status::Invalid, "{url}");
        }
        let many = |count: usize| {
            let list: Vec<String> = (0..count).map(|at| format!("n{at}=h:1")).collect();
            parse(&format!("static:{}", list.join(",")))
        };
        assert!(many(ENTRIES_MAX).is_ok());
        assert_eq!(many(ENTRIES_MAX + 1).unwrap_err().status, Status::Limit);
    }

    #[test]
    fn servers_have_ports_and_keys_a_prefix() {
        let etcd = etcd_of("etcd:http://127.0.0.1:1,h,[::1],[::1]:5/a/b/");
        let servers = ["http://127.0.0.1:1", "http://h:2379", "http://[::1]:2379", "http://[::1]:5"];
        assert_eq!(
            (etcd.servers, etcd.has_tls, &*etcd.prefix),
            (servers.map(String::from).to_vec(), false, "/a/b/")
        );
        for url in ["etcd:https://h", "etcd:https://h:2379/", "etcd:https://h:2379/ferry"] {
            let etcd = etcd_of(url);
            assert_eq!((etcd.has_tls, &*etcd.prefix, &*etcd.servers[0]), (true, "/ferry/", "https://h:2379"));
        }
    }

    #[test]
    fn what_is_no_etcd_is_refused_and_secrets_are_not_repeated() {
        for url in [
            "etcd:",
            "etcd:h:1",
            "etcd:ftp://h",
            "etcd:http://",
            "etcd:http:///p",
            "etcd:http://h:0",
            "etcd:http://h,,i",
        ] {
            assert_eq!(parse(url).unwrap_err().status, Status::Invalid, "{url}");
        }
        for url in [
            "etcd:http://h/a?b",
            "etcd:http://h//",
            "etcd:http://h/a b",
            "etcd:http://h?x:1",
            "etcd:http://h%41:1",
        ] {
            assert_eq!(parse(url).unwrap_err().status, Status::Invalid, "{url}");
        }
        let error = parse("etcd:http://root:geheim@h:2379/p").unwrap_err();
        assert!(error.status == Status::Invalid && !error.message.contains("geheim"), "{error}");
        let servers = |count| parse(&format!("etcd:http://{}", vec!["h"; count].join(",")));
        assert!(servers(16).is_ok());
        assert_eq!(servers(17).unwrap_err().status, Status::Limit);
    }
}
