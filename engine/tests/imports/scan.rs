//! A scanner for Rust sources that is just good enough for `imports.rs`: tokens without comments and without code that
//! only tests compile, and the paths that start at a crate's root.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Word,
    /// The text is between the quotes.
    Literal,
    /// One character, or `::`.
    Mark,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    pub line: usize,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        self.kind != Kind::Literal && self.text == text
    }
}

/// A path that a file names, without the leading crate.
#[derive(Debug)]
pub struct Named {
    pub parts: Vec<String>,
    pub line: usize,
}

pub struct Scan {
    pub tokens: Vec<Token>,
}

impl Scan {
    pub fn new(text: &str) -> Scan {
        Scan { tokens: without_tests(tokens(text)).0 }
    }

    /// Returns paths from this crate's root in a file that is module `module`: `crate::…`, and `super::…` as far as it
    /// leads out of the file's own folder.
    pub fn paths(&self, module: &[String]) -> Vec<Named> {
        let mut paths = self.paths_of("crate");
        for at in 0..self.tokens.len() {
            if !self.tokens[at].is("super") || at > 0 && self.tokens[at - 1].is("::") {
                continue;
            }
            let mut ups = 1;
            while self.is(at + 2 * ups - 1, "::") && self.is(at + 2 * ups, "super") {
                ups += 1;
            }
            // An inline module may climb more levels than there are: the path is then still in this file.
            let base = &module[..module.len().saturating_sub(ups)];
            if self.is(at + 2 * ups - 1, "::") {
                self.tree(at + 2 * ups, base, &mut paths);
            }
        }
        // `super::*` in a top-level module's file names no particular module.
        paths.retain(|path| path.parts.first().is_some_and(|first| first != "*"));
        paths
    }

    /// Returns paths that start with the crate `name`, without that name.
    pub fn paths_of(&self, name: &str) -> Vec<Named> {
        let mut paths = Vec::new();
        for at in 0..self.tokens.len() {
            // `a::name::b` is not ours; `::name::b` is.
            let inner = at > 1 && self.tokens[at - 1].is("::") && self.tokens[at - 2].kind == Kind::Word;
            let inner = inner && !self.tokens[at - 2].is("use");
            if self.tokens[at].is(name) && !inner && self.is(at + 1, "::") {
                self.tree(at + 2, &[], &mut paths);
            } else if self.tokens[at].is(name) && at > 0 && self.tokens[at - 1].is("use") {
                // `use crate as x` would hide everything.
                paths.push(Named { parts: vec!["*".into()], line: self.tokens[at].line });
            }
        }
        paths
    }

    /// Returns the tokens of each call of these macros.
    pub fn calls_of(&self, macros: &[&str]) -> Vec<Range<usize>> {
        let is_call = |at: &usize| {
            self.is(at + 1, "!")
                && self.tokens.len() > at + 2
                && macros.iter().any(|name| self.tokens[*at].is(name))
        };
        let calls = (0..self.tokens.len()).filter(is_call);
        calls.map(|at| at..closed(&self.tokens, at + 2)).collect()
    }

    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(text))
    }

    /// Reads `a::b` or `a::{b, c::d}` from token `at` and appends all leaves; returns what follows it.
    fn tree(&self, mut at: usize, base: &[String], paths: &mut Vec<Named>) -> usize {
        let mut parts = base.to_vec();
        let line = self.tokens.get(at).map_or(0, |token| token.line);
        while let Some(token) = self.tokens.get(at) {
            if token.is("{") {
                at += 1;
                while at < self.tokens.len() && !self.is(at, "}") {
                    let next = self.tree(at, &parts, paths);
                    at = next.max(at + 1);
                    while at < self.tokens.len() && !self.is(at, ",") && !self.is(at, "}") {
                        at += 1;
                    }
                    at += self.is(at, ",") as usize;
                }
                return at + 1;
            }
            if !token.is("self") && (token.kind == Kind::Word || token.is("*")) {
                parts.push(token.text.clone());
            }
            at += 1;
            if !self.is(at, "::") {
                break;
            }
            at += 1;
        }
        paths.push(Named { parts, line });
        at
    }
}

/// Returns the files of modules that only tests compile, as paths like `path`, the declaring file.
pub fn test_files(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let own =
        if matches!(stem, "mod" | "lib" | "main") { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut files = Vec::new();
    for (module, at) in without_tests(tokens(text)).1 {
        match at {
            Some(at) => files.push(format!("{folder}/{at}")),
            None => files.extend([format!("{own}/{module}.rs"), format!("{own}/{module}/mod.rs")]),
        }
    }
    files
}

/// Returns tokens without items under `#[cfg(test)]`, and the (name, `#[path]`) of file modules among those items.
fn without_tests(tokens: Vec<Token>) -> (Vec<Token>, Vec<(String, Option<String>)>) {
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let Some(end) = attribute_end(&tokens, at).filter(|end| is_test_only(&tokens[at..*end])) else {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        };
        let (mut next, mut file) = (end, None);
        while let Some(end) = attribute_end(&tokens, next) {
            if tokens[next + 2].is("path") {
                file = tokens[next..end].iter().find(|token| token.kind == Kind::Literal);
            }
            next = end;
        }
        let end = item_end(&tokens, next);
        if let Some(module) = tokens[next..end].iter().position(|token| token.is("mod")) {
            if tokens[end - 1].is(";") {
                let name = tokens[next + module + 1].text.clone();
                modules.push((name, file.map(|file| file.text.clone())));
            }
        }
        at = end;
    }
    (kept, modules)
}

/// Returns the position after the attribute `#[…]` at `at`, if there is an attribute.
fn attribute_end(tokens: &[Token], at: usize) -> Option<usize> {
    (tokens.get(at)?.is("#") && tokens.get(at + 1)?.is("[")).then(|| closed(tokens, at + 1))
}

/// True for `cfg(test)` or `cfg(all(test, …))`; not for `not(…)` or `any(…)` around the test.
fn is_test_only(attribute: &[Token]) -> bool {
    let plain = attribute.len() > 4 && attribute[2].is("cfg") && attribute[4].is("test");
    let all = attribute.len() > 6 && attribute[4].is("all") && attribute[6].is("test");
    plain || all && attribute[2].is("cfg")
}

/// Returns the position after the item at `at`: after its `;`, or its braces when those come first.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    let is_use = tokens.get(at).is_some_and(|token| token.is("use"));
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            _ if tokens[at].kind == Kind::Literal => at += 1,
            ";" => return at + 1,
            "{" if !is_use => return closed(tokens, at),
            "{" | "(" | "[" => at = closed(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// Returns the position after the bracket that closes the bracket at `at`.
fn closed(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        if tokens[at].kind == Kind::Mark {
            match tokens[at].text.as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => (),
            }
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    let mut tokens = Vec::new();
    while at < chars.len() {
        let (kind, end) = token_end(&chars, at);
        if let Some(kind) = kind {
            let text: String = chars[at..end].iter().collect();
            let quoted = || text.trim_start_matches(['b', 'c', 'r', '#', '"']).trim_end_matches(['#', '"']);
            let text = if kind == Kind::Literal { quoted().to_owned() } else { text.clone() };
            tokens.push(Token { kind, text, line });
        }
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    tokens
}

/// Returns the end of the token at `at`; space and comments have no kind.
fn token_end(chars: &[char], at: usize) -> (Option<Kind>, usize) {
    let starts = |text: &str| chars[at..].iter().take(text.len()).copied().eq(text.chars());
    let word = |c: &char| c.is_alphanumeric() || *c == '_';
    let until = |from: usize, stop: &dyn Fn(&char) -> bool| {
        chars[from..].iter().position(stop).map_or(chars.len(), |length| from + length)
    };
    if chars[at].is_whitespace() {
        return (None, at + 1);
    }
    if starts("//") {
        return (None, until(at, &|c| *c == '\n'));
    }
    if starts("/*") {
        return (None, comment_end(chars, at));
    }
    if let Some(end) = text_end(chars, at) {
        return (Some(Kind::Literal), end);
    }
    if chars[at] == '\'' {
        // 'a is a lifetime, 'a' is not.
        let escaped = chars.get(at + 1) == Some(&'\\');
        if escaped {
            return (Some(Kind::Literal), until(at + 3, &|c| *c == '\'') + 1);
        }
        let quoted = chars.get(at + 2) == Some(&'\'');
        return if quoted { (Some(Kind::Literal), at + 3) } else { (Some(Kind::Mark), at + 1) };
    }
    if word(&chars[at]) {
        return (Some(Kind::Word), until(at, &|c| !word(c)));
    }
    (Some(Kind::Mark), at + if starts("::") { 2 } else { 1 })
}

fn comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the end of the string at `at`, if there is a string: "", b"", c"", r"", r#""#, br#""#.
fn text_end(chars: &[char], at: usize) -> Option<usize> {
    let mut from = at;
    while matches!(chars.get(from), Some('b' | 'c')) && from == at {
        from += 1;
    }
    let raw = chars.get(from) == Some(&'r');
    from += raw as usize;
    let hashes = chars[from..].iter().take_while(|c| raw && **c == '#').count();
    from += hashes;
    if chars.get(from) != Some(&'"') {
        return None;
    }
    from += 1;
    while from < chars.len() {
        match chars[from] {
            '\\' if !raw => from += 2,
            '"' if chars[from + 1..].iter().take_while(|c| **c == '#').count() >= hashes => {
                return Some(from + 1 + hashes);
            }
            _ => from += 1,
        }
    }
    Some(chars.len())
}

/// Returns the functions with a body, those of tests too: name, first line, and how many lines it has.
pub fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let tokens = tokens(text);
    let count = |token: &Token, opens: &[&str], closes: &[&str]| {
        i32::from(opens.iter().any(|it| token.is(it))) - i32::from(closes.iter().any(|it| token.is(it)))
    };
    let function = |at: usize| {
        let (mut nested, mut open) = (0, 0);
        // A body is the first brace outside of parentheses and brackets; a semicolon there means none.
        let body = tokens[at..].iter().position(|token| {
            nested += count(token, &["(", "["], &[")", "]"]);
            nested == 0 && (token.is("{") || token.is(";"))
        })?;
        let mut body = tokens[at + body..].iter();
        let end = body.find(|token| {
            open += count(token, &["{"], &["}"]);
            open == 0
        })?;
        let line = tokens[at].line;
        (!end.is(";")).then(|| (tokens[at + 1].text.clone(), line, end.line + 1 - line))
    };
    (0..tokens.len()).filter(|at| tokens[*at].is("fn")).filter_map(function).collect()
}
