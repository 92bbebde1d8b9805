//! `showLinks`: the segments, each with the paths to it and why they are or are not used.

use crate::call::negative;
use crate::engine::Engine;
use crate::pointers::{opened, put_text};
use ferry::status::Result;
use ferry::PathInfo;
use std::ffi::{c_char, c_int};
use std::fmt::Write;
use std::sync::Arc;

struct Link {
    number: i32,
    session: Arc<str>,
    paths: Vec<PathInfo>,
}

fn links(engine: &Engine) -> Vec<Link> {
    let segments = engine.segments.list().into_iter();
    segments
        .map(|(number, session, peer)| {
            // A peer that has been forgotten has no path.
            Link { number, session, paths: engine.ferry.peer_paths(peer).unwrap_or_default() }
        })
        .collect()
}

fn readable(links: &[Link]) -> String {
    let mut text = String::new();
    for Link { number, session, paths } in links {
        let _ = writeln!(text, "segment {number}: {session}");
        for path in paths {
            let used = if path.chosen { "used" } else { "not used" };
            let _ = writeln!(text, "  {} {used}: {}", path.transport.name(), path.why);
        }
    }
    text
}

fn json(links: &[Link]) -> String {
    let path = |path: &PathInfo| {
        let (name, chosen, why) = (path.transport.name(), path.chosen, quoted(&path.why));
        format!("{{\"transport\":\"{name}\",\"used\":{chosen},\"why\":{why}}}")
    };
    let link = |Link { number, session, paths }: &Link| {
        let paths = paths.iter().map(path).collect::<Vec<_>>().join(",");
        format!("{{\"segment\":{number},\"session\":{},\"paths\":[{paths}]}}", quoted(session))
    };
    format!("[{}]", links.iter().map(link).collect::<Vec<_>>().join(","))
}

/// Returns the text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[no_mangle]
pub unsafe extern "C" fn showLinks(
    engine: Option<&Engine>,
    buf_out: *mut c_char,
    buf_len: usize,
    json: c_int,
) -> c_int {
    negative("showLinks", || -> Result<()> {
        let links = links(opened(engine)?);
        let text = if json != 0 { self::json(&links) } else { readable(&links) };
        // SAFETY: the buffer is NULL or the caller's to write, for the length of the call.
        unsafe { put_text(buf_out, buf_len, &text) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry::types::Transport;

    #[test]
    fn both_forms_say_what_there_is() {
        let why = "it \"broke\"\n\\".to_owned();
        let paths = vec![PathInfo { transport: Transport::Tcp, chosen: true, why }];
        let links = [Link { number: 3, session: "h:1".into(), paths }];
        let expected = r#"[{"segment":3,"session":"h:1","paths":[{"transport":"tcp","used":true,"why":"it \"broke\"\u000a\\"}]}]"#;
        assert_eq!(json(&links), expected);
        assert_eq!(readable(&links), "segment 3: h:1\n  tcp used: it \"broke\"\n\\\n");
        assert_eq!((json(&[]), readable(&[])), ("[]".into(), String::new()));
    }
}
