//! Lines of comments that rustfmt leaves as long as they are.

/// The longest comment line, in characters.
pub const COLUMNS_MAX: usize = 120;

/// The numbers of the lines, from 1, that are comments or end with one and are too long.
pub fn too_long(text: &str) -> Vec<usize> {
    let long = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
    long.filter(|(_, line)| is_comment(line)).map(|(at, _)| at + 1).collect()
}

/// Code before it has no quotes behind the slashes: those could be a string's.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//") || line.rsplit_once(" // ").is_some_and(|(_, end)| !end.contains('"'))
}
