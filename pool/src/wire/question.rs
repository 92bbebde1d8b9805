//! A question to a node about itself (ASK), and its answer (TOLD). The first byte behind the number says which.
//!
//! | question | fields | is answered by |
//! |---|---|---|
//! | 1 DRAIN | copies u8 | COUNTS, when the drain is over |
//! | 2 COUNTS | | COUNTS |
//! | 3 LIST | in file u8, after (whether, fingerprint u64), most u32 | VALUES |
//!
//! | answer | fields |
//! |---|---|
//! | 1 REFUSED | text |
//! | 2 COUNTS | bytes: the counts as Prometheus reads them |
//! | 3 VALUES | values (fingerprint u64, tag, bytes u64, tiers u8), whether there are more, in file u8, after as in LIST |

use ferry::status::Result;
use ferry_kv::messages::{malformed, Reader, Writer};

use crate::key::TenantTag;
use crate::limits::{COUNTS_BYTES_MAX, KEYS_OF_REQUEST_MAX};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Take no puts any more, and move the values to other nodes; not `copies`: lose them.
    Drain {
        copies: bool,
    },
    Counts,
    List {
        from: Cursor,
        most: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Why not.
    Refused(String),
    Counts(String),
    Values {
        values: Vec<Listed>,
        next: Option<Cursor>,
    },
}

/// Where a list of a node's values goes on: in its memory or in its file, behind a value. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub in_file: bool,
    /// Its fingerprint.
    pub after: Option<u64>,
}

/// A value that a node holds: of its key those bytes that do not let anybody use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub fingerprint: u64,
    pub tenant: TenantTag,
    pub bytes: u64,
    pub in_memory: bool,
    pub in_file: bool,
}

impl Question {
    pub fn encode(&self, out: &mut Writer) {
        match self {
            Question::Drain { copies } => {
                out.byte(1).byte((*copies).into());
            }
            Question::Counts => {
                out.byte(2);
            }
            Question::List { from, most } => {
                out.byte(3);
                write_cursor(out, *from);
                out.u32(*most);
            }
        }
    }

    pub fn decode(input: &mut Reader) -> Result<Question> {
        Ok(match input.byte()? {
            1 => Question::Drain { copies: input.flag()? },
            2 => Question::Counts,
            3 => Question::List { from: cursor(input)?, most: input.u32()? },
            kind => return Err(malformed(&format!("question {kind} is unknown"))),
        })
    }
}

impl Told {
    pub fn encode(&self, out: &mut Writer) {
        match self {
            Told::Refused(why) => {
                out.byte(1).text(why);
            }
            Told::Counts(text) => {
                let lines = whole_lines(text.as_bytes());
                out.byte(2).u32(lines.len() as u32).0.extend(lines);
            }
            Told::Values { values, next } => {
                out.byte(3).u32(values.len() as u32);
                for value in values {
                    out.u64(value.fingerprint).0.extend(value.tenant.0);
                    out.u64(value.bytes).byte(u8::from(value.in_memory) | u8::from(value.in_file) << 1);
                }
                out.byte(next.is_some().into());
                next.iter().for_each(|next| write_cursor(out, *next));
            }
        }
    }

    pub fn decode(input: &mut Reader) -> Result<Told> {
        Ok(match input.byte()? {
            1 => Told::Refused(input.text()?),
            2 => {
                let count = input.count(COUNTS_BYTES_MAX, 1)?;
                let bytes: Vec<u8> = (0..count).map(|_| input.byte()).collect::<Result<_>>()?;
                Told::Counts(String::from_utf8(bytes).map_err(|_| malformed("the counts are no text"))?)
            }
            3 => {
                let count = input.count(KEYS_OF_REQUEST_MAX, 25)?;
                let values = (0..count).map(|_| listed(input)).collect::<Result<_>>()?;
                let has_more = input.flag()?;
                Told::Values { values, next: has_more.then(|| cursor(input)).transpose()? }
            }
            kind => return Err(malformed(&format!("answer {kind} is unknown"))),
        })
    }
}

/// As many lines of the counts as a message has.
fn whole_lines(text: &[u8]) -> &[u8] {
    let most = text.len().min(COUNTS_BYTES_MAX);
    let end = text[..most].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    &text[..end]
}

fn write_cursor(out: &mut Writer, cursor: Cursor) {
    out.byte(cursor.in_file.into()).byte(cursor.after.is_some().into());
    if let Some(after) = cursor.after {
        out.u64(after);
    }
}

fn cursor(input: &mut Reader) -> Result<Cursor> {
    let (in_file, has_after) = (input.flag()?, input.flag()?);
    Ok(Cursor { in_file, after: has_after.then(|| input.u64()).transpose()? })
}

fn listed(input: &mut Reader) -> Result<Listed> {
    let (fingerprint, tenant) = (input.u64()?, TenantTag(input.take()?));
    let (bytes, tiers) = (input.u64()?, input.byte()?);
    if tiers > 3 {
        return Err(malformed(&format!("tiers {tiers} are unknown")));
    }
    Ok(Listed { fingerprint, tenant, bytes, in_memory: tiers & 1 != 0, in_file: tiers & 2 != 0 })
}
